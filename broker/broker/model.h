/*-------------------------------------------------------------------------
 *
 * model.h
 *	  Donors, their regions, leases: what the broker knows, as types.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_BROKER_MODEL_H
#define RBP_BROKER_MODEL_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "broker/common/secret.h"
#include "common/limits.h"

#define BROKER_DONOR_ID_LEN		RBP_DONOR_ID_LEN
#define BROKER_HOST_LEN			RBP_HOST_LEN
#define BROKER_NAME_LEN			128 /* clients, instances, socket names */
#define BROKER_SECRET_LEN		RBP_SECRET_LEN
#define BROKER_MAX_REGIONS		RBP_DONOR_MAX_REGIONS
#define BROKER_MAX_DONORS		1024
#define BROKER_MAX_LEASES		16384	/* live ones */
#define BROKER_MAX_ENDED		2048	/* kept to answer 410 rather than 404 */
#define BROKER_REGION_UNIT		(INT64_C(1) << 20)	/* region sizes are multiples */
#define BROKER_MIN_TTL_MS		1000
#define BROKER_MAX_TTL_MS		86400000
#define BROKER_DEFAULT_GRACE_MS	10000
#define BROKER_MAX_GRACE_MS		3600000

typedef enum BrokerRegionState
{
	REGION_CLEAN,				/* can be granted; has no row on disk */
	REGION_LEASED,
	REGION_DIRTY				/* was leased; its donor has not cleaned it yet */
} BrokerRegionState;

typedef enum BrokerPurpose
{
	PURPOSE_BUFFER,
	PURPOSE_TEMP
} BrokerPurpose;

/* Kept on disk by number. */
typedef enum BrokerLeaseEnd
{
	LEASE_LIVE = 0,
	LEASE_EXPIRED = 1,
	LEASE_REVOKED = 2,
	LEASE_RELEASED = 3,
	LEASE_TAKEN_OVER = 4
} BrokerLeaseEnd;

typedef struct BrokerLease BrokerLease;
typedef struct BrokerDonor BrokerDonor;

typedef struct BrokerRegion
{
	BrokerRegionState state;
	BrokerLease *lease;			/* if leased */
	int64_t		rev;			/* the donor's revision that brought this state */
} BrokerRegion;

/* A lease's share of one donor. */
typedef struct BrokerHolding
{
	struct BrokerHolding *next;		/* of the same lease */
	BrokerDonor *donor;
	int			regions;
	int64_t		granted_rev;	/* the donor's revision of the last grant */
	int			asked;			/* regions asked back, for whichever reason */
	int			shared;			/* regions to be asked back for other leases */
	int			kept;			/* regions that the donor leaves there; used
								 * while shares are made, as Donor.sharing */
	int64_t		taken_at;		/* ms: when asked ones are taken; 0: the holder
								 * has not been told yet */
} BrokerHolding;

struct BrokerLease
{
	BrokerLease *next;
	char		id[RBP_UUID_LEN];
	unsigned char secret[BROKER_SECRET_LEN];	/* zeroes once ended */
	char		client[BROKER_NAME_LEN];
	char		instance[BROKER_NAME_LEN];
	BrokerPurpose purpose;
	int64_t		wanted;			/* bytes */
	int64_t		ttl_ms;
	int64_t		created;		/* seconds since 1970 */
	BrokerLeaseEnd ended;

	/* not on disk */
	int64_t		deadline;		/* rbp_mono_ms() */
	int64_t		bytes;			/* granted: sum over its regions */
	int64_t		waiting_since;	/* rbp_mono_ms(): has less than wanted; 0: not */
	int64_t		share;			/* bytes; see share.c, as the next four */
	int64_t		turn;			/* bytes beside its share that it may have first */
	int64_t		claim;			/* bytes */
	int64_t		present;		/* bytes */
	bool		told;			/* the log knows that it has too much */
	json_t	   *scratch;		/* used while an answer is built */
	BrokerHolding *holdings;
};

struct BrokerDonor
{
	BrokerDonor *next;
	char		id[BROKER_DONOR_ID_LEN];
	char		host[BROKER_HOST_LEN];
	int			port;			/* tcp; 0: none */
	char		shm_name[BROKER_NAME_LEN];
	char		boot_id[BROKER_NAME_LEN];
	json_t	   *transports;		/* array of strings */
	char		rdma_host[BROKER_HOST_LEN]; /* verbs; "": none */
	int			rdma_port;		/* verbs; 0: none */
	int64_t		region_size;
	int			nregions;
	char		instance[BROKER_NAME_LEN];
	int64_t		revision;
	bool		draining;
	int64_t		grace_ms;
	BrokerRegion *regions;

	/* not on disk */
	int			nleased;
	int			ndirty;
	int			clean_hint;		/* no region below it is clean */
	bool		touched;		/* revision was raised in this transaction */
	bool		heard;			/* since the broker started */
	int64_t		last_heard;		/* rbp_mono_ms(); when the broker started, if
								 * not heard */
	int64_t		applied;		/* revision that it says it has applied */
	int			want_back;
	bool		sharing;
	json_t	   *stats;			/* object of numbers, or NULL */
};

#endif							/* RBP_BROKER_MODEL_H */
