/*-------------------------------------------------------------------------
 *
 * advice_internal.h
 *	  What the files of the advice share.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_ADVICE_INTERNAL_H
#define RBP_ADVICE_INTERNAL_H

#include "postgres.h"

#include "datatype/timestamp.h"

#include "advice/simulation.h"

/* What was found since the last reset */
typedef struct RbpAdviceReport
{
	TimestampTz since;
	uint32		size;			/* the largest, MB; 0: nothing is observed */
	double		rate;			/* share of the pages that are in the sample */
	uint64		reads;			/* of all pages */
	uint64		events;			/* in the sample */
	uint64		lost;
	uint64		timed;			/* reads that the disk served, and their time */
	uint64		timed_ns;
	RbpSimCounts counts;		/* of the sample */
} RbpAdviceReport;

extern void rbp_advice_report(RbpAdviceReport *report);
extern void rbp_advice_reset(void);

/*
 * Number of pages in the sample that were read within the last ns; -1 if not
 * known.
 */
extern int64 rbp_advice_read_within(int64 ns);

#endif							/* RBP_ADVICE_INTERNAL_H */
