/*-------------------------------------------------------------------------
 *
 * limits.h
 *	  Lengths of names and secrets, how many regions there are, and the mark
 *	  of a broker: the same for the extension, the broker and the donors.
 *
 * Lengths of text include the terminating zero.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_LIMITS_H
#define RBP_LIMITS_H

#define RBP_DONOR_ID_LEN	64
#define RBP_LEASE_ID_LEN	40
#define RBP_CLIENT_LEN		128
#define RBP_HOST_LEN		128
#define RBP_SHM_NAME_LEN	96
#define RBP_BOOT_ID_LEN		40
#define RBP_SECRET_LEN		32	/* bytes, not text */

/* Donors of a broker */
#define RBP_BROKER_MAX_DONORS	1024

/* A donor's; a region's number is below it. */
#define RBP_DONOR_MAX_REGIONS	65536
#define RBP_MAX_REGION_SIZE		(UINT64_C(1) << 46) /* sums of offsets stay
													 * far from overflow */

/*
 * A header in each of a broker's answers.  What lacks it was said by something
 * else, such as a proxy, and says nothing about a lease or a donor.
 */
#define RBP_BROKER_HEADER		"Remote-BP-Broker"

#endif							/* RBP_LIMITS_H */
