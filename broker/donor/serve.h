/*-------------------------------------------------------------------------
 *
 * serve.h
 *	  Service over TCP and UNIX sockets: handshake, reads, writes.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_DONOR_SERVE_H
#define RBP_DONOR_SERVE_H

#include <stdatomic.h>
#include <stdint.h>
#include <sys/types.h>

#include "common/limits.h"

/* Who may use the UNIX socket; to be set before donor_serve_init(). */
#define DONOR_MAX_SHM_USERS	32
extern uid_t donor_shm_users[DONOR_MAX_SHM_USERS];
extern int	donor_shm_nusers;

/*
 * Connections that there may be over sockets: descriptors are limited.  Regions must
 * be there.
 */
extern int	donor_serve_places(void);

/*
 * Open the listening sockets for the transports (RBP_TRANSPORT_*), and start
 * the serving threads.  *port is set to the TCP port, shm_name to the abstract
 * name, or, without shm, to one that nobody listens on.
 */
extern void donor_serve_init(const char *host, uint16_t *port,
							 uint32_t transports,
							 char shm_name[RBP_SHM_NAME_LEN], int threads,
							 int spin_us);

/* Totals since the start. */
typedef enum RbpDonorServeStat
{
	DONOR_READS,
	DONOR_WRITES,
	DONOR_MAPS,
	DONOR_DENIED,
	DONOR_BYTES_READ,
	DONOR_BYTES_WRITTEN,
	DONOR_NSTATS
} RbpDonorServeStat;

extern uint64_t donor_serve_stat(RbpDonorServeStat stat);

/* Number of open connections. */
extern atomic_int donor_serve_connections;

#endif							/* RBP_DONOR_SERVE_H */
