/*-------------------------------------------------------------------------
 *
 * serve.h
 *	  Sockets: handshake, reads, writes, over TCP and UNIX sockets.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_DONOR_SERVE_H
#define RBP_DONOR_SERVE_H

#include <stdbool.h>
#include <stdint.h>

#include "transport/transport.h"

/*
 * Open the listening sockets and start the serving threads.  Those of
 * transports (RBP_TRANSPORT_*) are opened.  *port gets the TCP port, shm_name the abstract name.
 */
extern void donor_serve_init(const char *host, uint16_t *port,
							 uint32_t transports,
							 char shm_name[RBP_SHM_NAME_LEN], int threads,
							 int spin_us);

/* Totals since the start. */
typedef struct DonorServeStats
{
	uint64_t	connections;	/* open now */
	uint64_t	reads;
	uint64_t	writes;
	uint64_t	maps;
	uint64_t	denied;
	uint64_t	bytes_read;
	uint64_t	bytes_written;
} DonorServeStats;

extern void donor_serve_stats(DonorServeStats *stats);

#endif							/* RBP_DONOR_SERVE_H */
