/*-------------------------------------------------------------------------
 *
 * buffer_internal.h
 *	  What the files of the tier share.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_BUFFER_INTERNAL_H
#define RBP_BUFFER_INTERNAL_H

#include "postgres.h"

#include <sys/uio.h>

#include "storage/block.h"

#include "base/relfile.h"
#include "buffer/directory.h"
#include "buffer/page.h"
#include "buffer/staging.h"

/*
 * Alignment of page buffers: suits direct I/O, and is the size of a memory
 * page.
 */
#define RBP_IO_ALIGN		4096

/* NULL while shared memory is not attached. */
extern RbpDirectory *rbp_dir;
extern RbpStaging *rbp_staging;

/*
 * Is the tier's shared memory there?  A child may have detached all of it
 * (the syslogger does).
 */
extern bool rbp_tier_has_shmem(void);

/* Has the tier ever had memory, so that writes must be recorded? */
extern bool rbp_tier_records_writes(void);

/* The tier has got memory.  From now on, writes must be recorded. */
extern void rbp_tier_came_online(void);

/* May pages be served and captured now? */
extern bool rbp_tier_usable(int64 now);

/* A page of the space is about to get a slot: count it for the space's database. */
extern void rbp_residency_name_database(uint16 space);

/*
 * Cut a vector of whole pages into batches of page pointers.  Stores up to
 * RBP_MAX_BATCH pointers, beginning at byte *pos of the vector, advances
 * *pos, and returns their number.
 */
extern int	rbp_next_batch(const struct iovec *iov, int iovcnt, Size *pos,
						   char **bufs);

/*
 * Set *page to the name of the page.  Returns false if all space numbers are
 * taken, so that the page cannot be in the tier.
 */
extern bool rbp_tier_name_page(const RbpRelFile *file, BlockNumber block,
							   RbpPageRef *page);

/* Policy of the page's relation or, failing that, of its tablespace */
extern RbpPolicy rbp_page_policy(const RbpPageId *page);

#endif							/* RBP_BUFFER_INTERNAL_H */
