/*-------------------------------------------------------------------------
 *
 * mock_server.h
 *	  What remote needs of the server and of transports, simulated: for
 *	  unit tests in one process, with a clock of their own.
 *
 * Donors have memory for each lease and region.  There are two transports to
 * them: "local" does everything in submit(), "net" nothing before wait(), and
 * a third one like "net" whose connections are costly.  A
 * request that is in flight when its connection is closed, a wait with a lock
 * held, and a lock that is taken twice are violations: told and counted.
 *
 *-------------------------------------------------------------------------
 */
#ifndef MOCK_SERVER_H
#define MOCK_SERVER_H

#include "postgres.h"

#include "base/stats.h"
#include "base/workers.h"
#include "transport/transport.h"

#define MOCK_DONORS			3
#define MOCK_LEASES			4
#define MOCK_REGIONS		8
#define MOCK_REGION_BYTES	(2 * 1024 * 1024)

#define MS					INT64CONST(1000000)

typedef struct MockDonor
{
	char		id[RBP_DONOR_ID_LEN];
	bool		local;			/* connections are */
	bool		same_host;		/* connections over a network are to this host */
	bool		scribbles;		/* changes what it has right after a read of
								 * it */
	bool		costly;			/* costly connections lead to it, too, if its
								 * endpoint says so */
	RbpStatus	costly_fails;	/* they do, in this way; RBP_INPROGRESS: they
								 * never come about; RBP_TIMEOUT: and the
								 * transport gives them up; RBP_OK: they do
								 * not */
	bool		refuses;		/* connections */
	bool		no_way;			/* no transport leads there */
	bool		hangs;			/* takes, and never answers */
	bool		mute;			/* connections never come about */
	bool		full;			/* it accepts no more connections */
	int64		answers_at;		/* not before */
	RbpStatus	breaks;			/* submit() fails, and what it was given
								 * arrives all the same; RBP_OK: it does not */
	uint32		life;			/* another one breaks the connections */
	bool		denied[MOCK_LEASES];	/* the lease is not known */
	bool		lost[MOCK_LEASES][MOCK_REGIONS];	/* the region is not the
													 * lease's */
	int			open;			/* connections */
	int			connects;		/* so far */
	int			requests;		/* likewise */
	uint64		bytes;			/* of these */
	uint8	   *memory;
} MockDonor;

extern MockDonor mock_donors[MOCK_DONORS];
extern int64 mock_now;
extern int	mock_violations;
extern int	mock_messages;		/* of any level, that were begun */
extern bool mock_lock_taken;	/* by another process */
extern uint64 mock_counters[RBP_NUM_COUNTERS];
extern int	mock_wakes[RBP_WORKERS];
extern int	mock_external_fds;	/* descriptors that the server was told of */
extern int64 mock_cancel_at;	/* when the query is cancelled */

/* The settings */
extern int64 mock_io_timeout_ns;
extern int64 mock_temp_io_timeout_ns;
extern int64 mock_idle_timeout_ns;

extern void mock_init(void);

/* Lease n's credentials, and a donor's endpoint. */
extern RbpCredentials mock_credentials(int lease);
extern RbpEndpoint mock_endpoint(int donor);

extern uint8 *mock_memory(int donor, int lease, uint32 region, uint64 offset);

/* Is a lock held?  Callbacks that may wait ask. */
extern bool mock_lock_held(void);

extern void mock_exit(void);

#endif							/* MOCK_SERVER_H */
