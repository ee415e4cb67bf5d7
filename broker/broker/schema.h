/*-------------------------------------------------------------------------
 *
 * schema.h
 *	  The tables: what the broker knows, and what always holds of it.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_BROKER_SCHEMA_H
#define RBP_BROKER_SCHEMA_H

#include "common/limits.h"

#define BROKER_SCHEMA_VERSION	3
#define BROKER_MAX_DONORS		RBP_BROKER_MAX_DONORS
#define BROKER_MAX_LEASES		16384	/* live ones */

/* Of a new file */
extern const char *const broker_schema;

/*
 * If the lease table has no keep_ms.  A broker that knows nothing of it goes on with
 * such a file, too.
 */
extern const char *const broker_schema_keep;

/* A row for what a broker cannot have written, as text; for a file of which SQLite thinks well. */
extern const char *const broker_schema_damage;

/* Tables that last as long as the process, and the views; at each start. */
extern const char *const broker_schema_volatile;

#endif							/* RBP_BROKER_SCHEMA_H */
