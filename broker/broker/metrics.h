/*-------------------------------------------------------------------------
 *
 * metrics.h
 *	  What the broker counts, for Prometheus.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_BROKER_METRICS_H
#define RBP_BROKER_METRICS_H

#include <stdint.h>

/*
 * Prometheus text; malloc'ed, NULL if memory is short.  Under broker.lock.
 * requests: answered so far, by class of status: [2] for 2xx, ...
 */
extern char *broker_metrics(const int64_t requests[6]);

#endif							/* RBP_BROKER_METRICS_H */
