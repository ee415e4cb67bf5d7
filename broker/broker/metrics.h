/*-------------------------------------------------------------------------
 *
 * metrics.h
 *	  What the broker counts, for Prometheus.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_BROKER_METRICS_H
#define RBP_BROKER_METRICS_H

#include "broker/broker/http.h"

extern BrokerReply broker_metrics(const char *id, const json_t *body);

#endif							/* RBP_BROKER_METRICS_H */
