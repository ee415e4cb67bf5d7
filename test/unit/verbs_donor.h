/*-------------------------------------------------------------------------
 *
 * verbs_donor.h
 *	  A scripted donor on the simulated card, and the client's most common
 *	  steps: what the tests of the verbs transport share.
 *
 * A test begins with begin_test() and ends with finish_ok(), which sees that
 * nothing is left.  In between, it sets in `donor` how that answers and what
 * its device does, and finds there what came.  Time is real: what is to be
 * waited for comes at once, what is not to come takes some milliseconds to
 * time out.
 *
 *-------------------------------------------------------------------------
 */
#ifndef VERBS_DONOR_H
#define VERBS_DONOR_H

#include "mock_verbs.h"

#include "transport/transport.h"
#include "wire/wire.h"

#include "tap.h"

#define REGIONS			1200
#define REGION_BYTES	(256 * 1024)
#define LIVE			4		/* regions that are ours */
#define KB				1024
#define MS				INT64_C(1000000)
#define SECOND			INT64_C(1000000000)

/* As in src/transport/verbs/verbs.c */
#define SLOT_BYTES		8192
#define SIGNAL_EACH		8
#define QUEUE_MAX		4096

typedef enum PingMode
{
	PING_ANSWER,
	PING_DROP,
	PING_KEEP,					/* to be answered by answer_pings() */
	PING_NONSENSE,				/* and in four ways that make no sense */
	PING_SHORT,
	PING_LONG,
	PING_OTHER
} PingMode;

typedef struct Live
{
	uint32_t	number;
	uint8_t    *mem;
	uint32_t	key;
	uint64_t	iova;
} Live;

typedef struct Donor
{
	uint8_t    *table;
	uint32_t	table_key;
	uint64_t	table_iova;
	Live		live[LIVE];

	/* what it answers to a request to connect */
	bool		silent;
	enum rdma_cm_event_type answer;
	int			answer_status;
	uint8_t		answer_data[RBP_VERBS_WELCOME_SIZE];
	uint8_t		answer_len;
	int64_t		answer_delay;
	void		(*tamper) (RbpWireVerbsWelcome *welcome);	/* after its MAC was
															 * computed */

	/* what it got */
	uint32_t	requests;
	bool		hello_ok;		/* of the last one */
	struct rdma_conn_param param;
	uint32_t	receives_at_connect;

	PingMode	ping;
	uint32_t	pings;
	uint8_t		kept[8][RBP_REQUEST_SIZE];
	uint32_t	nkept;

	/* what the device does */
	bool		hold;			/* reads and writes of regions */
	bool		hold_table;
	bool		hold_sends;
	uint32_t	fail_nth;		/* of the region's, from now */
	int			fail_status;
	uint32_t	works;			/* of regions, done */
	uint32_t	signalled;		/* of all that was done */
	uint32_t	table_reads;
	uint32_t	max_table_read;
	void		(*on_table_read) (void);	/* before it is done */
	size_t		region_bytes;	/* of each */
} Donor;

extern Donor donor;
extern const RbpTransportOps *const ops;
extern const RbpCredentials cred;
extern const RbpEndpoint ep;

/* Bytes that look random; the same for the same seed. */
extern void pattern(void *buf, size_t len, uint32_t seed);
extern bool has_pattern(const void *buf, size_t len, uint32_t seed);

/*
 * A donor with LIVE regions, each with pattern(its index + 1), and nothing
 * that is wrong.
 */
extern void begin_test(void);
extern void begin_test_sized(size_t region_bytes);

/* Nothing is left, and no rule was broken.  Told only if it is not so. */
extern bool finish(const char *what);

#define finish_ok(...) \
	do { \
		char		what_[200]; \
		\
		snprintf(what_, sizeof(what_), __VA_ARGS__); \
		ok(finish(what_), "%s: nothing is left, no rule is broken", what_); \
	} while (0)

/* What the donor answers to a request to connect. */
extern void put_welcome(uint16_t status);
extern void answer_connect(struct rdma_cm_id *id);

/* The pings that were kept. */
extern void answer_pings(struct ibv_qp *qp);

/* How work fares; for hooks that do something else before. */
extern int	on_work(const MockWork *work);

/*
 * The table's entry of any region; a new key for a live one, by which the old
 * one is dead; none for it any more.
 */
extern void set_entry(uint32_t number, RbpVerbsEntryState state, uint64_t iova,
					  uint32_t key);
extern void make_torn(uint32_t number);
extern void grant(int live);
extern void take_back(int live);

/*
 * The client.
 */
extern int64_t in_ms(int64_t ms);
extern RbpConn *connected(void);
extern RbpIo make_io(RbpIoKind kind, int live, uint64_t offset, uint32_t len,
					 void *buf);
extern RbpIo make_ping(void);
extern RbpStatus run(RbpConn *conn, RbpIo *ios, int n, int64_t ms);
extern RbpStatus run_one(RbpConn *conn, RbpIo io, int64_t ms);
extern RbpStatus read_some(RbpConn *conn, int live, uint64_t offset,
						   uint32_t len, void *buf);
extern RbpStatus ping(RbpConn *conn, int64_t ms);

/* A read works; or it is told that the connection is lost. */
extern bool alive(RbpConn *conn);
extern bool lost(RbpConn *conn);

#endif							/* VERBS_DONOR_H */
