/*-------------------------------------------------------------------------
 *
 * test_run_cost.c
 *	  Where windows of runs are read from, and the stretches of the file.
 *
 *-------------------------------------------------------------------------
 */
#include <string.h>

#include "buffer/run_cost.h"

#include "tap.h"

#define US			INT64_C(1000)
#define MS			INT64_C(1000000)
#define PROCESSES	3

static RbpSharedRunCost shared[RBP_WINDOW_KINDS];
static RbpRunCost processes[PROCESSES];
static int64_t now = 1000 * 1000 * MS;
static int64_t stretch;			/* of the last window */

/* A server starts, with processes that have read nothing. */
static void
start(RbpWindowKind kind)
{
	memset(shared, 0, sizeof(shared));
	for (int i = 0; i < PROCESSES; i++)
		rbp_run_cost_init(&processes[i], kind, &shared[kind]);
	now += 1000 * 1000 * MS;
}

/* A new process takes another's place. */
static void
replace(int process)
{
	RbpWindowKind kind = processes[process].kind;

	rbp_run_cost_init(&processes[process], kind, &shared[kind]);
}

static RbpWindowFacts
facts(void)
{
	return (RbpWindowFacts)
	{
		.n = 16,.length = 2 * RBP_MEASURE_AFTER,.transport = 0,.bypass = true
	};
}

/*
 * The process reads a window, which takes so long for each page from donors or
 * from the file; was it read from the file?
 */
static bool
read_window(int process, RbpWindowFacts f, int64_t donor, int64_t file)
{
	RbpRunCost *cost = &processes[process];
	bool		from_file;

	rbp_run_cost_settle(cost, now);
	from_file = rbp_run_cost_prefer_file(cost, &f, now, &stretch);
	now += f.n * (from_file ? file : donor);
	if (!from_file)
		rbp_read_cost_donor(&cost->reads, f.transport, f.n, f.n * donor);
	else if (stretch != 0)
		rbp_run_cost_file(cost, stretch, f.n, f.n * file);
	return from_file;
}

/* Read for so long; the share of pages from the file, in percent. */
static int
read_for(int process, int64_t ns, int64_t donor, int64_t file)
{
	int64_t		until = now + ns;
	int			n = 0;
	int			from_file = 0;

	for (; now < until; n++)
		from_file += read_window(process, facts(), donor, file);
	return n == 0 ? 0 : from_file * 100 / n;
}

/* The process knows what donors cost, and nothing of the file. */
static void
know_donors(int process, int64_t cost)
{
	rbp_read_cost_init(&processes[process].reads);
	for (int i = 0; i < 100; i++)
		rbp_read_cost_donor(&processes[process].reads, 0, 1, cost);
}

static void
test_first_stretch(void)
{
	RbpWindowFacts f = facts();
	int64_t		began;

	start(RBP_WINDOW_FULL);
	know_donors(0, 4 * US);
	f.length = RBP_MEASURE_AFTER - 1;
	ok(!read_window(0, f, 4 * US, 8 * US), "a short run is read from donors");
	began = now;
	ok(read_window(0, facts(), 4 * US, 8 * US), "a long one measures the file");
	is_u64((uint64_t) stretch, (uint64_t) (began + RBP_STRETCH_NS), "for a stretch");
	while (now < stretch)
		if (!read_window(0, facts(), 4 * US, 8 * US))
			break;
	ok(now >= stretch, "all of it is read from the file");
	ok(!read_window(0, facts(), 4 * US, 8 * US), "donors are faster: it ends");
	is_u64(stretch, 0, "a window from donors is part of none");
	is_u64(processes[0].reads.disk, 8 * US, "the file's cost is known");
	is_u64(shared[RBP_WINDOW_FULL].file_cost, 8 * US, "to all");

	/* what is reported later than its stretch was read in another one's time */
	now += 1000 * 1000 * MS;
	(void) read_for(0, RBP_STRETCH_NS / 2, 4 * US, 8 * US);
	ok(processes[0].until != 0 && processes[0].until != began + RBP_STRETCH_NS, "another stretch");
	rbp_run_cost_file(&processes[0], began + RBP_STRETCH_NS, 1000, 1000 * MS);
	(void) read_for(0, RBP_STRETCH_NS, 4 * US, 8 * US);
	is_u64(processes[0].reads.disk, 8 * US, "a late report of the one before does not count");
}

static void
test_all_take_part(void)
{
	int64_t		end;

	start(RBP_WINDOW_FULL);
	for (int i = 0; i < PROCESSES; i++)
		know_donors(i, 4 * US);
	ok(read_window(0, facts(), 4 * US, 8 * US), "a stretch that measures");
	end = stretch;
	ok(read_window(1, facts(), 4 * US, 8 * US) && stretch == end, "another process takes part");
	(void) read_for(1, end - now - RBP_STRETCH_NS / 4, 4 * US, 8 * US);
	ok(read_window(2, facts(), 4 * US, 100 * US) && stretch == end, "a third one late");
	now = end;
	rbp_run_cost_settle(&processes[2], now);
	ok(!processes[2].reads.disk_seen, "which proves nothing to that one");
	ok(!read_window(1, facts(), 4 * US, 8 * US), "it binds nobody when it is over");
	ok(processes[1].reads.disk_seen, "who took part has measured it");

	/* one that begins does not measure what is known */
	replace(2);
	know_donors(2, 4 * US);
	ok(!read_window(2, facts(), 4 * US, 8 * US), "a new process knows the file's cost");
	is_u64(processes[2].reads.disk, 8 * US, "from the others");
}

/* Samples are rare, even if many processes come that want one. */
static void
test_samples(void)
{
	int64_t		end;
	int64_t		first = 0;
	int			of_file = 0;
	int			n = 0;

	start(RBP_WINDOW_FULL);
	know_donors(0, 4 * US);
	(void) read_window(0, facts(), 4 * US, 8 * US);
	end = stretch;
	/* each of them wants to know, since none has told the others yet */
	for (now = end; now < end + 2 * RBP_STRETCH_PAUSE_NS; n++)
	{
		shared[RBP_WINDOW_FULL].file_cost = 0;
		replace(1);
		know_donors(1, 4 * US);
		if (!read_window(1, facts(), 4 * US, 8 * US))
			continue;
		of_file++;
		if (first == 0)
			first = now;
	}
	ok(first >= end + RBP_STRETCH_PAUSE_NS, "a second passes until the next one begins to measure");
	ok(of_file * 16 * 8 * US < 2 * RBP_STRETCH_NS, "which takes no longer (%d windows of %d)", of_file, n);

	/* a sample that is due in the pause is made as soon as that is over */
	start(RBP_WINDOW_FULL);
	know_donors(0, 4 * US);
	(void) read_for(0, 2 * RBP_STRETCH_NS, 4 * US, 8 * US);
	end = shared[RBP_WINDOW_FULL].file_until;
	processes[0].reads.disk_sampled = now - 1000 * 1000 * MS;
	ok(!read_window(0, facts(), 4 * US, 8 * US), "no sample in the pause");
	now = end + RBP_STRETCH_PAUSE_NS;
	ok(read_window(0, facts(), 4 * US, 8 * US), "but at its end");

	/* one process: samples take a small part of its time */
	start(RBP_WINDOW_FULL);
	know_donors(0, 4 * US);
	(void) read_for(0, RBP_STRETCH_NS, 4 * US, 8 * US);
	n = 0;
	for (end = now + 60 * 1000 * MS; now < end;)
	{
		int64_t		before = processes[0].until;

		(void) read_window(0, facts(), 4 * US, 8 * US);
		n += processes[0].until != 0 && processes[0].until != before;
	}
	ok(n <= 40, "the slower file has %d stretches in a minute", n);
	ok(processes[0].reads.disk_sampled > now - 20 * 1000 * MS, "but is measured again");
	n = read_for(0, 60 * 1000 * MS, 4 * US, 2 * US);
	ok(n >= 50, "a file that has become faster is found (%d percent)", n);
}

/* Where the file is faster, one stretch follows the other, and binds no others. */
static void
test_faster_file(void)
{
	int64_t		measured;
	int			n;

	start(RBP_WINDOW_MIXED);
	know_donors(0, 20 * US);
	know_donors(1, 4 * US);
	(void) read_for(0, RBP_STRETCH_NS, 20 * US, 8 * US);
	measured = shared[RBP_WINDOW_MIXED].file_until;
	now += 100 * MS;
	n = read_for(0, 1000 * MS, 20 * US, 8 * US);
	ok(n >= 95, "a faster file is read (%d percent)", n);
	is_u64((uint64_t) shared[RBP_WINDOW_MIXED].file_until, (uint64_t) measured, "which is that process's own affair");
	ok(!read_window(1, facts(), 4 * US, 8 * US), "another one has better donors");
	n = read_for(0, 60 * 1000 * MS, 2 * US, 8 * US);
	ok(n <= 10, "donors that have become faster are found (%d percent)", n);
}

static void
test_page_cache(void)
{
	RbpWindowFacts cached = facts();

	cached.mostly_cached = true;
	for (int kind = 0; kind < RBP_WINDOW_KINDS; kind++)
	{
		bool		full = kind == RBP_WINDOW_FULL;

		start((RbpWindowKind) kind);
		know_donors(0, 20 * US);
		ok(read_window(0, cached, 20 * US, 8 * US) && stretch == 0, "kind %d: the page cache is faster", kind);
		ok(!processes[0].reads.disk_seen, "kind %d: that says nothing about the disk", kind);
		know_donors(0, 1 * US);
		ok(!read_window(0, cached, 1 * US, 8 * US), "kind %d: or slower", kind);
		cached.cache_first = true;
		ok(read_window(0, cached, 1 * US, 8 * US), "kind %d: it is always preferred if asked for", kind);
		cached.cache_first = false;

		/* the kernel has read it ahead: see prefer_file() */
		know_donors(0, 5 * US);
		(void) read_for(0, 2 * RBP_STRETCH_NS, 5 * US, 50 * US);
		ok(processes[0].reads.disk_seen, "kind %d: the file is slower", kind);
		ok(read_window(0, cached, 5 * US, 50 * US) == full,
		   "kind %d: what the page cache has %s", kind, full ? "counts" : "does not count");
	}
}

static void
test_no_bypass(void)
{
	RbpWindowFacts f = facts();
	int			of_file = 0;

	start(RBP_WINDOW_MIXED);
	know_donors(0, 100 * US);
	f.bypass = false;
	for (int i = 0; i < 100000; i++)
		of_file += read_window(0, f, 100 * US, 1 * US);
	is_u64((uint64_t) of_file, 0, "without bypass, the disk is never read instead");
	is_u64((uint64_t) shared[RBP_WINDOW_MIXED].file_until, 0, "nor measured");
	know_donors(1, 4 * US);
	(void) read_window(1, facts(), 4 * US, 8 * US);
	ok(stretch != 0 && !read_window(0, f, 100 * US, 1 * US), "nor does it take part in others' stretches");
	ok(!read_window(1, f, 4 * US, 8 * US), "and a stretch ends when bypass is switched off");
}

int
main(void)
{
	test_first_stretch();
	test_all_take_part();
	test_samples();
	test_faster_file();
	test_page_cache();
	test_no_bypass();
	return done_testing();
}
