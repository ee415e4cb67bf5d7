/*-------------------------------------------------------------------------
 *
 * bench_common.h
 *	  What the programs of "make bench" that speak to a donor share: a lease,
 *	  its pages, and times.
 *
 * A program has one lease, on one donor.  Whatever fails ends the program
 * with a message.
 *
 *-------------------------------------------------------------------------
 */
#ifndef BENCH_COMMON_H
#define BENCH_COMMON_H

#include <sys/types.h>

#include "base/hash.h"
#include "transport/transport.h"

#define PAGE			RBP_HASH_BYTES
#define FRAMES			16384	/* 128 MB of shared buffers */
#define BATCH			32		/* RBP_MAX_BATCH */
#define SETUP_NS		INT64_C(10000000000)
#define MARK			UINT64_C(0x6265636e685f6974)

/* What a page begins with; the rest is random. */
typedef struct Head
{
	uint64_t	mark;
	uint64_t	page;			/* number within the lease */
} Head;

extern RbpEndpoint endpoint;
extern RbpCredentials credentials;
extern uint32_t *region_numbers;
extern uint32_t nregions;
extern uint64_t region_size;	/* bytes */
extern uint32_t region_pages;
extern uint32_t npages;			/* of the lease */

extern uint8_t *frames;			/* FRAMES pages, shared memory */
extern uint64_t *hashes;		/* of the lease's pages, once written */

extern void die(const char *fmt,...) __attribute__((noreturn, format(printf, 1, 2)));
extern uint64_t next_random(void);

/* The broker's answer to POST /v1/leases; fills all of the above. */
extern void load_lease(const char *file);

/* A new content for a page, into buf. */
extern void make_page(uint8_t *buf, uint32_t page);

extern RbpIo page_io(RbpIoKind kind, uint32_t page, void *buf);

/* Submit and wait, at most SETUP_NS. */
extern RbpStatus do_ios(RbpConn *conn, RbpIo *ios, int n);

extern RbpConn *connect_to_donor(const RbpTransportOps *ops);

/* Write all of the lease's pages. */
extern void fill_lease(RbpConn *conn);

/* Memory of the kind that a donor has, every page touched. */
extern uint8_t *donor_like_memory(size_t size);

/* Ends with its parent, in a child right after fork(). */
extern void end_with_parent(pid_t parent);

/* Sorts times. */
extern int64_t quantile(int64_t *times, uint32_t n, double q);

/* Median of what two readings of the clock in a row differ by, in ns. */
extern int64_t clock_cost(void);

#endif							/* BENCH_COMMON_H */
