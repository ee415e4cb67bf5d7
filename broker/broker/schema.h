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

#include <stdint.h>

#define BROKER_MAX_DONORS		RBP_BROKER_MAX_DONORS
#define BROKER_MAX_LEASES		16384	/* that their holders have shown */

/* What a body may have, too */
#define BROKER_MAX_NAME			127 /* instances, socket names */
#define BROKER_MAX_SIZE			(INT64_C(1) << 50)
#define BROKER_MIN_TTL_MS		1000
#define BROKER_MAX_TTL_MS		86400000

/*
 * Clients renew each second at the latest, and try again within five: who was not
 * heard of for this long is dead, asks another broker, or will find its lease taken over.
 */
#define BROKER_ALIVE_MS			10000

/* ended.how of a lease that was not renewed here, and may go on with another broker */
#define BROKER_HAS_EXPIRED		"has expired"

extern const char *const broker_schema;

#endif							/* RBP_BROKER_SCHEMA_H */
