/*-------------------------------------------------------------------------
 *
 * fault.h
 *	  Faults on demand, around any transport; in test builds only.  See fault.c.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_FAULT_H
#define RBP_FAULT_H

#include "transport/transport.h"

/*
 * The same transport with faults around it if the environment has
 * RBP_FAULT_FILE, else ops itself.
 */
extern const RbpTransportOps *rbp_fault_wrap(const RbpTransportOps *ops);

#endif							/* RBP_FAULT_H */
