/*-------------------------------------------------------------------------
 *
 * limits.h
 *	  Lengths of names and secrets, and how many regions there are: the same
 *	  for the extension, the broker and the donors.
 *
 * Lengths of text include the terminating zero.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_LIMITS_H
#define RBP_LIMITS_H

#define RBP_DONOR_ID_LEN	64
#define RBP_LEASE_ID_LEN	40
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

#endif							/* RBP_LIMITS_H */
