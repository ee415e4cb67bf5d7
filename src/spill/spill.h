/*-------------------------------------------------------------------------
 *
 * spill.h
 *	  Temporary files: blocks on donors instead of in the real file.
 *
 * These functions stand in for file calls.  They answer as the call would,
 * with its return value and errno; they never raise and never allocate from
 * palloc.  A block that was put on a donor and cannot be had any more is EIO,
 * and the server log says why.  EINTR: a donor was waited for, and the query is
 * to end.  Whoever answers the server calls rbp_spill_call_failed() then, which
 * raises.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_SPILL_H
#define RBP_SPILL_H

#include "postgres.h"

#include <sys/stat.h>
#include <sys/uio.h>

#include "remote/remote.h"

/* One descriptor of a temporary file, in this process. */
typedef struct RbpSpillOpen RbpSpillOpen;

/* first_extent: where the temp quota's extents begin, in remote's count. */
extern Size rbp_spill_shmem_size(void);
extern void rbp_spill_shmem_init(void *mem, uint32 first_extent);
extern void rbp_spill_stand_down(void);

/* Extents that the temp quota can have at most; from the settings. */
extern uint32 rbp_spill_max_extents(void);

typedef enum RbpSpillTarget
{
	RBP_SPILL_FILE,
	RBP_SPILL_DONOR,
	RBP_SPILL_TARGETS
} RbpSpillTarget;

/* What writing a block there and reading it costs lately; 0: not known. */
extern double rbp_spill_cost_us(RbpSpillTarget target);

/* How remote deals with the temp quota's extents. */
extern const RbpRemotePoolOps rbp_spill_pool_ops;

/*
 * ---- for the file API --------------------------------------------------------
 *
 * name: the file's path relative to the data directory.
 */

/* The name is about to be created anew: forget what there was. */
extern void rbp_spill_forget(const char *name);

/*
 * The file was opened as fd with these flags.  NULL, with errno, if there is
 * no memory: the caller closes it and fails.
 */
extern RbpSpillOpen *rbp_spill_opened(const char *name, bool relation,
									  int flags);

/* Before the descriptor is closed.  Frees o. */
extern void rbp_spill_close(RbpSpillOpen *o);

extern ssize_t rbp_spill_pread(RbpSpillOpen *o, int fd, void *buf, size_t len,
							   off_t offset);
extern ssize_t rbp_spill_preadv(RbpSpillOpen *o, int fd, const struct iovec *iov,
								int iovcnt, off_t offset);
extern ssize_t rbp_spill_pwrite(RbpSpillOpen *o, int fd, const void *buf,
								size_t len, off_t offset);
extern ssize_t rbp_spill_pwritev(RbpSpillOpen *o, int fd,
								 const struct iovec *iov, int iovcnt,
								 off_t offset);
extern int	rbp_spill_ftruncate(RbpSpillOpen *o, int fd, off_t length);
extern int	rbp_spill_posix_fallocate(RbpSpillOpen *o, int fd, off_t offset,
									  off_t len);
extern int	rbp_spill_truncate(const char *name, const char *path, off_t length);
extern int	rbp_spill_unlink(const char *name, const char *path);

/*
 * One of these has failed, with this errno, and its caller is about to return
 * to the server: raises what the query is to end with, if it was interrupted or
 * has come upon a lost block, and if that can be raised here; or else just
 * returns, errno unchanged.
 */
extern void rbp_spill_call_failed(void);

/* Is read-ahead of the kernel of use for this range (it is in the real file)? */
extern bool rbp_spill_advice_is_wasted(RbpSpillOpen *o, off_t offset, off_t len);

/*
 * The size of the file, if it is another than the real file's: the greater of
 * the two.  real: that of the real file.
 */
extern off_t rbp_spill_open_size(RbpSpillOpen *o, off_t real);
extern off_t rbp_spill_name_size(const char *name, off_t real);

/* Does the file have blocks elsewhere than in the real file? */
extern bool rbp_spill_has_blocks(const char *name);

/*
 * ---- for the pusher -------------------------------------------------------------
 */

/*
 * Forget files whose owner is gone; now and then.  Returns ns until it is to
 * be called again.
 */
extern int64 rbp_spill_sweep(void);

/*
 * ---- for the lease worker --------------------------------------------------------
 */

/*
 * Move what lives in an extent elsewhere: to other slots, or into the real
 * files; stops at deadline_ns.  The extent is draining.  Returns how many
 * blocks are left in it.
 */
extern uint32 rbp_spill_evacuate(uint32 extent, int64 deadline_ns);

/*
 * ---- for the views -----------------------------------------------------------------
 */

/* Slots of the temp quota, and files that have some. */
typedef struct RbpSpillUse
{
	uint64		used;
	uint64		free;
	uint64		online;
	uint64		quarantined;	/* a late write may still come */
	uint64		dead;			/* of regions that were lost, still in use */
	uint32		files;
} RbpSpillUse;

extern void rbp_spill_use(RbpSpillUse *use);

#endif							/* RBP_SPILL_H */
