/*-------------------------------------------------------------------------
 *
 * routes.h
 *	  What the broker answers.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_BROKER_ROUTES_H
#define RBP_BROKER_ROUTES_H

#include "broker/broker/http.h"

extern const BrokerRoute broker_routes[];

#endif							/* RBP_BROKER_ROUTES_H */
