/*-------------------------------------------------------------------------
 *
 * peer.h
 *	  Common parts of both ends of a connection, the transports and the donor:
 *	  the proofs of both; and for verbs, the choice of a device, and the
 *	  options of a queue pair.
 *
 * Functions return errors and log nothing, as everywhere in src/transport.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_PEER_H
#define RBP_PEER_H

#include "common/status.h"
#include "transport/transport.h"
#include "wire/wire.h"

#include <sys/socket.h>

struct rdma_cm_id;				/* of librdmacm */

#define RBP_VERBS_PINGS		4	/* pings in flight on a connection; both sides
								 * have this many receives posted */

/* The current configuration. */
extern const RbpDeviceConfig *rbp_verbs_config(void);

/*
 * Is a port of an RDMA device (the configured one, if one is named) active?
 * Reads sysfs, as rbp_verbs_present() does.
 */
extern bool rbp_verbs_active(void);

/* Read the first line of a file.  On failure, errno tells the reason. */
extern bool rbp_read_line(const char *path, char *line, size_t size);

/* Directory of RDMA devices in sysfs; only tests change it. */
extern const char *rbp_verbs_sysfs;

/*
 * Find the local address for the configured device, port and GID, in the
 * family of peer (AF_UNSPEC: any).  RBP_OK with *len = 0: none of these is
 * configured, so any address is suitable.  RBP_INVALID: there is no such
 * device, port or GID, or it has no address of that family.
 */
extern RbpStatus rbp_verbs_source_address(int family,
										  struct sockaddr_storage *addr,
										  socklen_t *len);

/* Set traffic class and ack timeout of an id that is not connected yet. */
extern RbpStatus rbp_verbs_set_options(struct rdma_cm_id *id);

/*
 * May the device and port that the id is bound to be used?  RBP_BAD_DEVICE if
 * the device is neither InfiniBand nor RoCE: with iWARP a process that reads
 * must let the peer write to its memory, and EFA and usNIC have no reliable
 * connections.  RBP_OTHER_DEVICE if another device or port is configured, or
 * the id has none.
 */
extern RbpStatus rbp_verbs_check_device(struct rdma_cm_id *id);

static inline bool
rbp_verbs_is_configured(struct rdma_cm_id *id)
{
	return rbp_verbs_check_device(id) == RBP_OK;
}

/*
 * Digest that identifies a lease in a REQ's private data.  Returns false if
 * libcrypto fails.
 */
extern bool rbp_verbs_lease_digest(const char *lease,
								   uint8_t digest[RBP_VERBS_DIGEST_LEN]);

/*
 * The bytes of an IP address.  One of IPv4 is mapped to IPv6, since the other end may
 * see it as such.  Returns false if it is of another family.
 */
extern bool rbp_address_bytes(const struct sockaddr *address, uint8_t bytes[16]);

/*
 * Proofs, MACs with the donor's key, of the handshake over a socket.  Without a
 * WELCOME, the client's; with one, the donor's, which covers what that says.  The
 * caller has set nonces and lease in *transcript.  Returns false if libcrypto
 * fails.
 */
extern bool rbp_handshake_mac(const uint8_t key[RBP_SECRET_LEN],
							  RbpWireTranscript *transcript,
							  const RbpWireWelcome *welcome,
							  uint8_t mac[RBP_MAC_LEN]);

/*
 * Likewise over verbs, of nonce and lease in *hello.  They cover the client's
 * address and queue pair number, so that an eavesdropper cannot use them for
 * another queue pair.  A client sends the first RBP_VERBS_MAC_LEN bytes.
 */
extern bool rbp_verbs_mac(const uint8_t key[RBP_SECRET_LEN],
						  const RbpWireVerbsHello *hello,
						  const struct sockaddr *client, uint32_t qpn,
						  const RbpWireVerbsWelcome *welcome,
						  uint8_t mac[RBP_MAC_LEN]);

#endif							/* RBP_PEER_H */
