/*-------------------------------------------------------------------------
 *
 * peer.h
 *	  What both ends of a connection, the transports and the donor, do alike:
 *	  the proof of a lease; and for verbs, which device to use, and options.
 *
 * Functions return errors and log nothing, as everywhere in src/transport.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_PEER_H
#define RBP_PEER_H

#include "transport/transport.h"
#include "wire/wire.h"

#include <rdma/rdma_cma.h>
#include <sys/socket.h>

#define RBP_VERBS_PINGS		4	/* on the way at once, on a connection; as
								 * many receives have both sides posted */

/* The configuration that is in use. */
extern const RbpVerbsConfig *rbp_verbs_config(void);

/*
 * Has this host an RDMA device (the configured one, if one is named)?  Looks
 * into sysfs, at most once a second; opens nothing.
 */
extern bool rbp_verbs_present(void);

#ifdef RBP_UNIT_TEST
/* Where that is; only tests change it. */
extern const char *rbp_verbs_sysfs;
#endif

/*
 * The local address that leads through the configured device, port and GID,
 * in the family of peer (AF_UNSPEC: any).  RBP_OK with *len = 0: none of them
 * is configured, any will do.  RBP_INVALID: there is no such device, port, GID,
 * or it has no address of that family.
 */
extern RbpStatus rbp_verbs_source_address(int family,
										  struct sockaddr_storage *addr,
										  socklen_t *len);

/* Traffic class and ack timeout, on an id that is not connected yet. */
extern RbpStatus rbp_verbs_set_options(struct rdma_cm_id *id);

/*
 * Did the id end up on the configured device and port?  Never on iWARP, where
 * who reads has to let the peer write to its memory.
 */
extern bool rbp_verbs_is_wanted(struct rdma_cm_id *id);

/* What a REQ's private data names a lease by. */
extern bool rbp_verbs_lease_digest(const char *lease,
								   uint8_t digest[RBP_VERBS_DIGEST_LEN]);

/*
 * The proof: an HMAC-SHA256 with the lease's secret, cut to RBP_VERBS_MAC_LEN
 * bytes, over nonce, lease, and the client's address and queue pair number, so
 * that what was overheard is of no use to another queue pair.  False if
 * libcrypto fails.
 */
extern bool rbp_verbs_mac(const uint8_t secret[RBP_SECRET_LEN],
						  const uint8_t nonce[RBP_VERBS_NONCE_LEN],
						  const uint8_t digest[RBP_VERBS_DIGEST_LEN],
						  const struct sockaddr *client, uint32_t qpn,
						  uint8_t mac[RBP_VERBS_MAC_LEN]);

/* HMAC-SHA256 with a lease's secret.  False if libcrypto fails. */
extern bool rbp_secret_mac(const uint8_t secret[RBP_SECRET_LEN],
						   const uint8_t *input, size_t len,
						   uint8_t mac[RBP_MAC_LEN]);

/* The same of a handshake over a socket. */
extern bool rbp_handshake_mac(const uint8_t secret[RBP_SECRET_LEN],
							  const uint8_t nonce[RBP_NONCE_LEN],
							  const char *lease, uint8_t mac[RBP_MAC_LEN]);

#endif							/* RBP_PEER_H */
