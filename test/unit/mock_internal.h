/*-------------------------------------------------------------------------
 *
 * mock_internal.h
 *	  What the two parts of the simulated card know of each other: see
 *	  mock_verbs.h.
 *
 * mock_verbs	mock_devices, memory, queues (libibverbs)
 * mock_rdmacm	event channels, ids, connections (librdmacm)
 *
 * Everything is under one lock, between mock_enter() and mock_leave(), which
 * can be nested.
 *
 *-------------------------------------------------------------------------
 */
#ifndef MOCK_INTERNAL_H
#define MOCK_INTERNAL_H

#include "mock_verbs.h"

#define MAX_SGE			4

typedef struct Device
{
	struct ibv_context context;
	struct ibv_device device;
	int			opened;
	bool		inactive;		/* its port */
	struct ibv_async_event async[16];	/* to be fetched */
	int			nasync;
	int			unacked;
} Device;

typedef struct Work
{
	MockWork	seen;
	struct ibv_sge sge[MAX_SGE];
	int			nsge;
	uint8_t    *data;			/* of inline work */
} Work;

typedef struct Receive
{
	uint64_t	wr_id;
	struct ibv_sge sge;
} Receive;

typedef struct Qp
{
	struct ibv_qp qp;
	struct ibv_qp_cap cap;
	bool		sig_all;
	Work	   *works;			/* ring of cap.max_send_wr */
	uint64_t	posted;
	uint64_t	done;
	uint64_t	freed;
	Receive    *receives;		/* ring of cap.max_recv_wr */
	uint64_t	rposted;
	uint64_t	rdone;
	uint64_t	rfreed;
	struct Qp  *peer;			/* NULL: scripted, or gone */
	bool		peer_gone;
	bool		moving;			/* in error, but bytes still move */
	int			flush_polls;
	int64_t		rnr_since;
	struct Qp  *next;
} Qp;

extern Device mock_devices[MOCK_DEVICES];
extern uint32_t mock_next_number;	/* of a queue pair, a key, a port */

extern void mock_enter(void);
extern void mock_leave(void);

/* A rule was broken. */
extern void mock_violation(const char *fmt,...)
			__attribute__((format(printf, 1, 2)));

/* Zeroed memory; the mock itself cannot go on without. */
extern void *mock_get(size_t n, size_t size);

/* CLOCK_MONOTONIC */
extern int64_t mock_now_ns(void);

/* Count a call; true, with errno set, if it is to fail. */
extern bool mock_fails(MockCall call);

/*
 * Move a queue pair to the error state; what is posted is flushed by so many
 * polls.
 */
extern void mock_to_error(Qp *qp, int polls);

/* The part of mock_leaks() and mock_reset() that is mock_rdmacm's. */
extern uint32_t mock_cm_leaks(bool tell);
extern void mock_cm_reset(void);
extern void mock_tell_leak(bool tell, uint32_t count, const char *name,
						   uint32_t *sum);

/* Take an object from its list; false if it is not in it. */
#define UNLINK(list, object) __extension__ ({ \
		bool		found_ = false; \
		\
		for (__typeof__(list) *at_ = &(list); *at_ != NULL; at_ = &(*at_)->next) \
			if (*at_ == (object)) \
			{ \
				*at_ = (*at_)->next; \
				found_ = true; \
				break; \
			} \
		found_; })

#define LINK(list, object) \
	do { (object)->next = (list); (list) = (object); } while (0)

#define COUNT(list, n) \
	for (__typeof__(list) at_ = (list); at_ != NULL; at_ = at_->next) \
		(n)++

#define FREE_ALL(list, how) \
	do { \
		while ((list) != NULL) \
		{ \
			__typeof__(list) first_ = (list); \
			\
			(list) = first_->next; \
			how(first_); \
		} \
	} while (0)

#endif							/* MOCK_INTERNAL_H */
