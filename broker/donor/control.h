/*-------------------------------------------------------------------------
 *
 * control.h
 *	  Communication with the broker: registration, heartbeats, memory
 *	  pressure.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_DONOR_CONTROL_H
#define RBP_DONOR_CONTROL_H

#include <stdint.h>

#include "broker/common/options.h"
#include "transport/transport.h"

typedef struct RbpDonorOptions
{
	const char *broker;
	char	   *(*reread_broker) (void);	/* malloc'ed; NULL: as it was */
	RbpHostPort listen;
	RbpHostPort advertise;
	const char *id;
	const char *token_file;
	const char *broker_ca;
	const char *transports;
	RbpHostPort rdma_listen;
	RbpHostPort rdma_advertise;
	const char *rdma_device;
	int			rdma_port;
	int			rdma_gid_index;
	uint64_t	memory;
	uint64_t	region_size;
	uint64_t	min_free;
	int			lease_connections;
	int			threads;
	int			spin_us;
	int			reclaim_grace;	/* seconds */
	int			drain_timeout;	/* seconds */
} RbpDonorOptions;

/*
 * Register with the addresses and transports in ep (its donor, the id, is
 * ignored) and send heartbeats until stopped and drained.  Returns the exit
 * code.
 */
extern int	donor_control_run(const RbpDonorOptions *opt, const RbpEndpoint *ep);

/*
 * Called from a signal handler: drain (first call), or stop at once (second);
 * read again what may change while the donor runs.
 */
extern void donor_control_stop(void);
extern void donor_control_reload(void);

#endif							/* RBP_DONOR_CONTROL_H */
