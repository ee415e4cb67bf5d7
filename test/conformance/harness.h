/*-------------------------------------------------------------------------
 *
 * harness.h
 *	  For the conformance suite: a real broker and donor, leases, patterns.
 *
 * Everything here ends the program with "Bail out!" when the environment does
 * not work; what is under test is only reported by the tests' ok().
 *
 *-------------------------------------------------------------------------
 */
#ifndef HARNESS_H
#define HARNESS_H

#include "transport/transport.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define MB				(UINT64_C(1) << 20)
#define REGION_SIZE		(2 * MB)
#define NREGIONS		16
#define SECOND			INT64_C(1000000000)

typedef struct Lease
{
	RbpCredentials cred;
	RbpEndpoint ep;
	uint32_t	regions[NREGIONS];
	int			nregions;
} Lease;

extern pid_t broker_pid;
extern pid_t donor_pid;

__attribute__((noreturn, format(printf, 1, 2)))
extern void bail_out(const char *fmt,...);

/*
 * So many seconds in nanoseconds, times RBP_TEST_SLOW (1): for limits that only
 * something that went wrong is to reach.
 */
extern int64_t patience(int seconds);

/* --transports of the donors to be started; NULL: as they like. */
extern const char *donor_transports;

/*
 * The programs RBP_BROKER and RBP_DONOR, or those in build/; they listen on the
 * numeric address RBP_CONFORMANCE_ADDRESS (IPv6: in brackets), or 127.0.0.1.
 */
extern void start_broker(void);

/* With more options, if not NULL: their names and values, and NULL at the end. */
extern void start_donor(const char *const *options);

/* Bytes of shared memory that the donor has mapped in now. */
extern uint64_t donor_shared_memory(void);

/* signo, then wait; returns the exit status as waitpid() gives it. */
extern int	stop_process(pid_t *pid, int signo);

/* Kills what runs; safe to call at any time. */
extern void stop_all(void);

/*
 * A lease of n regions; waits up to 10 s until it has them and the donor
 * knows.
 */
extern void lease_get(Lease *lease, const char *client, int n, int ttl_ms);

/* As lease_get(), without patience: the number of regions that are there. */
extern int	lease_try(const char *client, int n);
extern void lease_delete(Lease *lease);

/* False if the broker does not know it any more. */
extern bool lease_renew(Lease *lease);
extern void lease_revoke(Lease *lease);
extern void lease_change_secret(Lease *lease);

/* Give one region (by its place in lease->regions) back to the broker. */
extern void lease_release(Lease *lease, int which);

/* Ask for more, until there are n regions; 10 s at most. */
extern void lease_grow(Lease *lease, int n);

/*
 * Connected within 10 s, and all regions of the lease can be used or are known
 * not to be its own; or the failure.
 */
extern RbpStatus connect_to(const RbpTransportOps *ops, const Lease *lease,
							RbpConn **conn);

/* The same, bailing out on failure. */
extern RbpConn *must_connect(const RbpTransportOps *ops, const Lease *lease);

/* One request, waited for until timeout. */
extern RbpStatus do_io(RbpConn *conn, RbpIoKind kind, uint32_t region,
					   uint64_t offset, void *buf, uint32_t len,
					   int64_t timeout_ns);

/* Bytes that tell who wrote them where. */
extern void fill(void *buf, uint32_t len, uint64_t seed);
extern bool filled(const void *buf, uint32_t len, uint64_t seed);
extern bool all_bytes(const void *buf, uint32_t len, uint8_t value);

/* malloc() that cannot fail */
extern void *must_alloc(size_t size);

extern void sleep_ms(int ms);

/*
 * ---- workers -------------------------------------------------------------
 *
 * Processes that use a transport by themselves.  They are forked by a process
 * that has never used one: who forks while it has a device open leaves a child
 * that cannot use it.
 */
typedef void (*WorkerMain) (const void *arg);

#define WORKER_ARG_MAX	1024

/* Before anything else in main(). */
extern void workers_init(void);

/* One that runs main on a copy of arg, then exits with 0. */
extern pid_t worker_start(WorkerMain main, const void *arg, size_t len);

/* Its exit status as waitpid() gives it. */
extern int	worker_wait(pid_t pid);

/* Two numbers that all of them share with us. */
extern int *worker_flags;

#endif							/* HARNESS_H */
