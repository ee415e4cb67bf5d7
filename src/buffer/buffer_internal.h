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
#include "buffer/read_cost.h"
#include "buffer/staging.h"

/* What direct I/O would want, and a page of memory. */
#define RBP_IO_ALIGN		4096

/* NULL before shared memory is attached, and after. */
extern RbpDirectory *rbp_dir;
extern RbpStaging *rbp_staging;

/* What reads have cost this process. */
extern RbpReadCost rbp_read_cost;

/* It reads pages to bring them into the tier, whatever that costs. */
extern bool rbp_tier_prewarming;

/*
 * Is the tier's shared memory there?  A child may have detached all of it
 * (the syslogger does).
 */
extern bool rbp_tier_has_shmem(void);

/* ... and has the tier had memory, so that what is written must be told to it? */
extern bool rbp_tier_keeps_books(void);

/* The tier is getting its first memory: the books are kept from now on. */
extern void rbp_tier_first_use(void);

/* May pages be served and captured now? */
extern bool rbp_tier_usable(int64 now);

/*
 * Cut a vector of whole pages into batches of page pointers: the next of
 * them, at most RBP_MAX_BATCH, from *pos bytes on.
 */
extern int	rbp_next_batch(const struct iovec *iov, int iovcnt, Size *pos,
						   char **bufs);

/* The page's name; false if it can have none. */
extern bool rbp_tier_name_page(const RbpRelFile *file, BlockNumber block,
							   RbpPageId *id);

#endif							/* RBP_BUFFER_INTERNAL_H */
