/*-------------------------------------------------------------------------
 *
 * spill.h
 *	  Temporary files: blocks on donors instead of in the real file.
 *
 * These functions stand in for file calls.  They return what the call would
 * return, and set errno like it.  They never raise an error and never allocate
 * from palloc.  EIO means that a block that was on a donor can no longer be
 * read; the server log has the reason.  EINTR means that the query was
 * canceled while waiting for a donor.  Before such a result is returned to
 * the server, rbp_spill_call_failed() is called, which raises the error.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_SPILL_H
#define RBP_SPILL_H

#include "postgres.h"

#include <sys/uio.h>

#include "access/xact.h"

#include "remote/remote.h"

/* A descriptor of a temporary file, in this process. */
typedef struct RbpSpillOpen RbpSpillOpen;

extern Size rbp_spill_shmem_size(void);
extern void rbp_spill_shmem_init(void *mem);
extern void rbp_spill_stand_down(void);

/*
 * A transaction of this process has ended, or it exits: blocks on their way are
 * waited for.
 */
extern void rbp_spill_transaction_ends(XactEvent event);

/*
 * The largest number of extents that the temp quota can have, by the settings.
 */
extern uint32 rbp_spill_max_extents(void);

/*
 * The recent cost of writing and reading a block at a donor, or in a file; 0:
 * not known.
 */
extern double rbp_spill_cost_us(bool donor);

/* The temp quota's callbacks for remote. */
extern const RbpRemotePoolOps rbp_spill_pool_ops;

/*
 * ---- for the file API --------------------------------------------------
 *
 * name: the file's path relative to the data directory.
 */

/*
 * A file of that name is about to be created: remove the entry of an old one.
 */
extern void rbp_spill_forget(const char *name);

/*
 * The file was opened with these flags.  NULL, with errno, if there is no
 * memory; the caller then closes it and fails.  To be freed, by free(), before the
 * descriptor is closed: staged blocks are sent whether the file is open or not.
 */
extern RbpSpillOpen *rbp_spill_opened(const char *name, int flags);

extern ssize_t rbp_spill_preadv(RbpSpillOpen *o, int fd, const struct iovec *iov,
								int iovcnt, off_t offset);
extern ssize_t rbp_spill_pwritev(RbpSpillOpen *o, int fd,
								 const struct iovec *iov, int iovcnt,
								 off_t offset);
extern int	rbp_spill_ftruncate(RbpSpillOpen *o, int fd, off_t length);
extern int	rbp_spill_posix_fallocate(RbpSpillOpen *o, int fd, off_t offset,
									  off_t len);
extern int	rbp_spill_truncate(const char *name, const char *path, off_t length);
extern int	rbp_spill_unlink(const char *name, const char *path);

/*
 * Called when one of these functions has failed with this errno, before the
 * caller returns to the server.  If the query was canceled or has met a lost
 * block, and if an error can be raised here, raises it.  Else returns with
 * errno unchanged.
 */
extern void rbp_spill_call_failed(void);

/*
 * The size of the file: the greater of the entry's size and real, which is the
 * real file's.
 */
extern off_t rbp_spill_size(RbpSpillOpen *o, off_t real);
extern off_t rbp_spill_size_by_name(const char *name, off_t real);

/* Does the file have blocks elsewhere than in the real file? */
extern bool rbp_spill_has_blocks(const char *name);

/*
 * ---- for the pusher ----------------------------------------------------
 */

/*
 * Remove files whose owner is gone, end quarantines of slots, and report costs,
 * if that is due.  Returns the time in ns until it has to be called again.
 */
extern int64 rbp_spill_sweep(void);

/*
 * ---- for the lease worker ----------------------------------------------
 */

/*
 * Move the content of an extent elsewhere: to other slots, or to the real
 * files.  Stops at deadline_ns.  The extent is draining.  Returns how many
 * blocks are left in it.
 */
extern uint32 rbp_spill_evacuate(uint32 extent, int64 deadline_ns);

/*
 * ---- for the views -----------------------------------------------------
 */

/* Slots of the temp quota, and files that use some. */
typedef struct RbpSpillUsage
{
	uint64		used;			/* allocated, dead ones included */
	uint64		free;			/* can be allocated */
	uint64		online;			/* of online and draining extents */
	uint64		quarantined;	/* a late write may still arrive */
	uint64		dead;			/* in lost regions, but still in use */
	uint32		files;
} RbpSpillUsage;

extern void rbp_spill_get_usage(RbpSpillUsage *usage);

#endif							/* RBP_SPILL_H */
