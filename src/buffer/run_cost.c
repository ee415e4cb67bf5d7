/*-------------------------------------------------------------------------
 *
 * run_cost.c
 *	  Recent costs of this process's reads in runs, and the source of a window.
 *
 *-------------------------------------------------------------------------
 */
#include "buffer/run_cost.h"

/* A fast disk may read more in a stretch, but one is not sampled more often */
#define STRETCH_PAGES		1024

void
rbp_run_cost_init(RbpRunCost *cost, RbpWindowKind kind, RbpSharedRunCost *shared)
{
	*cost = (RbpRunCost)
	{
		.kind = kind,.shared = shared
	};
	rbp_read_cost_init(&cost->reads);
}

/*
 * From now on until then, this process reads windows of the kind from the file,
 * which is its sample of the file, whoever has begun the stretch.
 */
static void
join_stretch(RbpRunCost *cost, int64_t now, int64_t until)
{
	cost->until = until;
	cost->took_part = until - now;
	cost->pages = 0;
	cost->ns = 0;
	cost->reads.disk_sampled = now;
}

/* Read the window from the file, in a stretch that it begins or continues? */
static bool
in_stretch(RbpRunCost *cost, const RbpWindowFacts *facts, int64_t now)
{
	RbpReadCost *reads = &cost->reads;
	int64_t		for_all = __atomic_load_n(&cost->shared->file_until, __ATOMIC_RELAXED);
	int64_t		sampled = reads->disk_sampled;
	bool		slower = rbp_read_cost_slower(reads, facts->transport); /* donors are */
	int			n = facts->n;

	if (cost->until == 0 && now < for_all)
		join_stretch(cost, now, for_all);
	if (cost->until != 0)
		return true;

	/* as a sample costs all of a stretch, it is as rare */
	if (!slower)
	{
		int64_t		pages = RBP_STRETCH_NS / reads->disk;

		pages = pages < STRETCH_PAGES ? pages : STRETCH_PAGES;
		n = n > pages ? n : (int) pages;
	}
	if ((reads->disk_seen || facts->length < RBP_MEASURE_AFTER) &&
		!rbp_read_cost_prefer_file(reads, facts->transport, false, facts->keeps, n, now))
		return false;
	if (reads->filling)
		return true;
	if (!slower && now - for_all < RBP_STRETCH_PAUSE_NS)
	{
		reads->disk_sampled = sampled;
		return false;
	}
	join_stretch(cost, now, now + RBP_STRETCH_NS);
	if (!slower)
		__atomic_store_n(&cost->shared->file_until, cost->until, __ATOMIC_RELAXED);
	return true;
}

bool
rbp_run_cost_prefer_file(RbpRunCost *cost, const RbpWindowFacts *facts, int64_t now,
						 int64_t *stretch)
{
	RbpReadCost *reads = &cost->reads;
	uint32_t	known = __atomic_load_n(&cost->shared->file_cost, __ATOMIC_RELAXED);
	bool		mostly = facts->mostly_cached;
	bool		file;

	*stretch = 0;
	reads->filling = false;
	if (mostly && facts->cache_first)
		return true;
	if (!reads->disk_seen && known > 0)
		rbp_read_cost_file(reads, 1, false, known);

	/*
	 * What the page cache has of a window that donors have in part is mostly
	 * what the kernel has read ahead, and it gets no more of that if the file
	 * is not read.  So that does not count, once the cost of both together is
	 * known.
	 */
	if (facts->bypass && cost->kind == RBP_WINDOW_MIXED && reads->disk_seen)
		mostly = false;

	/* of a window that the page cache has, nothing is learnt about the disk */
	if (facts->bypass && cost->until != 0)
		file = true;
	else if (mostly)
		return rbp_read_cost_prefer_file(reads, facts->transport, true, facts->keeps, facts->n, now);
	else
		file = facts->bypass && in_stretch(cost, facts, now);
	*stretch = file && !reads->filling ? cost->until : 0;
	return file;
}

void
rbp_run_cost_file(RbpRunCost *cost, int64_t stretch, int pages, int64_t ns)
{
	/* one that is reported later than its stretch tells nothing */
	if (stretch != cost->until)
		return;
	cost->pages += pages;
	cost->ns += ns;
}

void
rbp_run_cost_settle(RbpRunCost *cost, int64_t now)
{
	int64_t		ns;

	if (cost->until == 0 || now < cost->until)
		return;
	cost->until = 0;
	/* who came late has read what others had waited for */
	if (cost->pages == 0 || cost->took_part < RBP_STRETCH_NS / 2)
		return;
	ns = cost->ns / cost->pages;
	rbp_read_cost_file(&cost->reads, 1, false, ns > 0 ? ns : 1);
	__atomic_store_n(&cost->shared->file_cost, cost->reads.disk, __ATOMIC_RELAXED);
}
