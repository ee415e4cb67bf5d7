/*-------------------------------------------------------------------------
 *
 * raw_verbs.h
 *	  A client of a donor's RDMA service that does not keep to the rules: one
 *	  step at a time, with whatever private data, keys and addresses the test
 *	  likes.
 *
 * Waits are bounded by patience(); what does not work although it should bails
 * out.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RAW_VERBS_H
#define RAW_VERBS_H

#include "harness.h"

#include "wire/wire.h"

#include <rdma/rdma_cma.h>

#define RAW_BUFFER	65536

typedef struct Raw
{
	struct rdma_event_channel *channel;
	struct rdma_cm_id *id;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_mr *mr;
	uint8_t    *buffer;			/* what is read and written; RAW_BUFFER bytes */
	RbpWireVerbsWelcome welcome;	/* of a REP, or of a REJ that has one */
	bool		welcomed;		/* ... and there was one */
} Raw;

typedef struct RawEntry
{
	RbpVerbsEntryState state;
	uint64_t	address;
	uint32_t	key;
} RawEntry;

/* A queue pair that is ready to connect. */
extern Raw *raw_prepare(const Lease *lease);

/* The private data that proves the right to the lease from this queue pair. */
extern void raw_hello(const Raw *raw, const Lease *lease,
					  uint8_t message[RBP_VERBS_HELLO_SIZE]);

/* Connect with such private data; the event that it led to. */
extern enum rdma_cm_event_type raw_request(Raw *raw, const void *message,
										   uint8_t len);

/* All of these, with success. */
extern Raw *raw_connect(const Lease *lease);

/* One work request; what became of it. */
extern enum ibv_wc_status raw_read(Raw *raw, uint64_t address, uint32_t key,
								   uint32_t len);
extern enum ibv_wc_status raw_write(Raw *raw, uint64_t address, uint32_t key,
									uint32_t len);

/* A region's entry in the lease's table; one without key is waited for. */
extern RawEntry raw_entry(Raw *raw, uint32_t region);

extern void raw_close(Raw *raw);

#endif							/* RAW_VERBS_H */
