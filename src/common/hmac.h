/*-------------------------------------------------------------------------
 *
 * hmac.h
 *	  HMAC-SHA256, and the keys of donors.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_HMAC_H
#define RBP_HMAC_H

#include "common/limits.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define RBP_MAC_LEN			32

/* HMAC-SHA256.  Returns false if libcrypto fails. */
extern bool rbp_hmac(const uint8_t key[RBP_SECRET_LEN], const void *input,
					 size_t len, uint8_t mac[RBP_MAC_LEN]);

/*
 * The key by which a donor and the clients of a lease prove themselves to each
 * other.  It is derived from the lease's secret, which a donor is not told: so
 * it is good for this donor alone.  Returns false if libcrypto fails.
 */
extern bool rbp_donor_key(const uint8_t secret[RBP_SECRET_LEN], const char *donor,
						  uint8_t key[RBP_SECRET_LEN]);

#endif							/* RBP_HMAC_H */
