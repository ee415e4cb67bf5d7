/*-------------------------------------------------------------------------
 *
 * test_stream.c
 *	  Which reads are recognized as runs, and what is read ahead of them.
 *
 *-------------------------------------------------------------------------
 */
#include "buffer/stream.h"

#include <string.h>

#include "tap.h"

#define MAX				64
#define FILE_BLOCKS		131072

static RbpStreams streams;

/* The last window, and how many blocks of the reads so far were in one */
static uint32_t from;
static uint32_t planned;
static uint32_t planned_total;
static int	covered;

static void
reset(void)
{
	memset(&streams, 0, sizeof(streams));
	covered = 0;
}

/* Read n blocks; returns the window that is due. */
static uint32_t
read_of(uint32_t rel, uint32_t block, uint32_t n)
{
	RbpPageId	id = {.rel = rel,.block = block,.space = 1,.fork = 0};
	RbpStream  *s = rbp_stream_note(&streams, &id, n);
	uint32_t	at;
	uint32_t	due;

	due = rbp_stream_plan(s, block, MAX, FILE_BLOCKS, &at);
	if (due > 0)
	{
		/* windows follow each other, without overlaps */
		if (at < planned && at + due > from && rel == 1)
			covered = -1000000;
		from = at;
		planned = at + due;
		planned_total += due;
	}
	if (block < s->planned && s->window > 0)
		covered++;
	return due;
}

static void
test_run(void)
{
	uint32_t	size = 0;
	uint32_t	due;
	bool		early = true;

	reset();
	is_u64(read_of(1, 100, 1), 0, "a first read is no run");
	is_u64(read_of(1, 101, 1), 0, "nor are two");
	is_u64(read_of(1, 102, 1), 0, "nor are three");
	is_u64(read_of(1, 103, 1), 4, "the fourth in a row has a window, as long as the run so far");
	is_u64(from, 103, "which begins with the block that is read");
	for (uint32_t block = 104; block < 2000; block++)
	{
		uint32_t	end = planned;
		uint32_t	before = size;

		due = read_of(1, block, 1);
		if (due == 0)
			continue;
		size = due;
		if (due < before || due > MAX || from != end)
			early = false;
		/* while at most half of the window before is left */
		if (block >= end || end - block > MAX / 2 + 1)
			early = false;
	}
	ok(early, "windows grow, follow each other, and are due before they are needed");
	is_u64(size, MAX, "up to the greatest");
	ok(covered >= 1890, "all blocks of the run are in windows (%d)", covered);
	ok(planned <= 2000 + 2 * MAX, "and not much behind it (%u)", planned);
}

static void
test_no_run(void)
{
	uint32_t	due = 0;
	uint32_t	block = 7;

	reset();
	for (int i = 0; i < 10000; i++)
	{
		block = block * 1103515245 + 12345;
		due += read_of(1, block % 100000, 1);
	}
	is_u64(due, 0, "reads at random are no run");

	reset();
	due = 0;
	for (uint32_t i = 0; i < 1000; i++)
		due += read_of(1, i * 2, 1);
	is_u64(due, 0, "nor are reads of every second block");

	reset();
	due = 0;
	for (uint32_t i = 1000; i > 0; i--)
		due += read_of(1, i, 1);
	is_u64(due, 0, "nor are reads backward");

	reset();
	due = 0;
	for (uint32_t i = 0; i < 100; i++)
		due += read_of(1, 5, 1);
	is_u64(due, 0, "nor is one block read again and again");

	reset();
	is_u64(read_of(1, 0, 16), 0, "one read of many blocks is no run");
	ok(read_of(1, 16, 16) > 0, "two of them are");
	ok(planned > 32, "and the window goes on behind the second");
}

static void
test_gaps(void)
{
	reset();
	for (uint32_t i = 0; i < 1000; i++)
		if (i % 10 != 3)		/* in shared buffers */
			(void) read_of(1, i, 1);
	ok(covered >= 880, "blocks left out now and then do not end a run (%d)", covered);
}

static void
test_several(void)
{
	uint32_t	due[3] = {0};
	uint32_t	random = 3;

	reset();
	for (uint32_t i = 0; i < 200; i++)
	{
		due[0] += read_of(2, i, 1);
		due[1] += read_of(3, i + 5000, 1);
		for (int j = 0; j < 5; j++)
		{
			random = random * 1103515245 + 12345;
			due[2] += read_of(4, random % 100000, 1);
		}
	}
	ok(due[0] >= 190, "a run goes on beside another one, and reads at random (%u)", due[0]);
	ok(due[1] >= 190, "and so does the other one (%u)", due[1]);
	is_u64(due[2], 0, "and these are still no run");

	reset();
	for (uint32_t i = 0; i < 300; i++)
	{
		due[0] = read_of(2, i, 1);
		due[1] = read_of(2, i + 50000, 1);
	}
	{
		int			runs = 0;

		for (int i = 0; i < RBP_STREAMS; i++)
			runs += streams.streams[i].last_use > 0 && streams.streams[i].window == MAX;
		is_u64((uint64_t) runs, 2, "two runs in one fork are two streams");
	}
}

/* Reads at random a little ahead of a run, as by an index of the same table */
static void
test_ahead_of_run(void)
{
	uint32_t	random = 3;
	int			in_window = 0;

	reset();
	for (uint32_t i = 0; i < 1000; i++)
	{
		int			before = covered;

		(void) read_of(2, i, 1);
		in_window += covered - before;
		random = random * 1103515245 + 12345;
		(void) read_of(2, i + 1000 + random / 65536 % 3000, 1);
	}
	ok(in_window >= 990, "a run goes on although blocks ahead of it are read at random (%d)", in_window);
}

/* One of two processes of a parallel scan: every second chunk */
static void
test_chunks(void)
{
	bool		within = true;
	uint32_t	first = 0;

	reset();
	for (uint32_t chunk = 0; chunk < 40; chunk++)
		for (uint32_t i = 0; i < 32; i++)
		{
			uint32_t	due = read_of(1, chunk * 64 + i, 1);

			if (chunk < 1)
				continue;
			if (i == 0)
				first += due == 32;
			if (due > 0 && from + due > chunk * 64 + 32)
				within = false;
		}
	is_u64(first, 39, "a chunk is read ahead at its beginning");
	ok(within, "and nothing behind it");

	/* the last one is longer */
	for (uint32_t i = 32; i < 64; i++)
		(void) read_of(1, 39 * 64 + i, 1);
	ok(planned > 39 * 64 + 60, "a run that goes on is read ahead again");
}

static void
test_ends(void)
{
	bool		within = true;

	reset();
	for (uint32_t i = FILE_BLOCKS - 100; i < FILE_BLOCKS + 100; i++)
	{
		uint32_t	due = read_of(1, i, 1);

		if (due > 0 && (from / FILE_BLOCKS != i / FILE_BLOCKS ||
						(from + due - 1) / FILE_BLOCKS != i / FILE_BLOCKS))
			within = false;
	}
	ok(within, "a window is in the file that is being read");
	ok(planned > FILE_BLOCKS + 80, "and the next file is read ahead, too");

	reset();
	for (uint32_t i = UINT32_MAX - 50; i < UINT32_MAX - 1; i++)
		(void) read_of(1, i, 1);
	ok(planned >= from, "the last block numbers are no trouble");
}

int
main(void)
{
	test_run();
	test_no_run();
	test_gaps();
	test_several();
	test_ahead_of_run();
	test_chunks();
	test_ends();
	return done_testing();
}
