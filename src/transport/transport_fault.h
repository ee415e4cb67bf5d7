/*-------------------------------------------------------------------------
 *
 * transport_fault.h
 *	  Faults on demand, around any transport; in test builds only
 *	  (-DRBP_FAULT).  See transport_fault.c.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_TRANSPORT_FAULT_H
#define RBP_TRANSPORT_FAULT_H

#include "rbp_transport.h"

/*
 * The same transport with faults around it if the environment has
 * RBP_FAULT_FILE, else ops itself.
 */
extern const RbpTransportOps *rbp_fault_wrap(const RbpTransportOps *ops);

#endif							/* RBP_TRANSPORT_FAULT_H */
