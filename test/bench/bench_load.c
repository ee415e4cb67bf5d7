/*-------------------------------------------------------------------------
 *
 * bench_load.c
 *	  A load of a donor's host of its own, in one thread: how much does it do?
 *
 *	  bench_load memory MB
 *	  bench_load compute
 *
 * "memory" reads words of an array of so many MB at random, four at a time, as
 * a program does that waits for memory most of the time.  "compute" multiplies
 * and rotates a few registers, and needs no memory.
 *
 * Input: a line with a number of seconds.  Output: a line with how many
 * millions of steps it has made in this time, for each second of it.  It ends
 * with its input.
 *
 *-------------------------------------------------------------------------
 */
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"

#define STREAMS		4			/* independent of each other */
#define STEPS		4096		/* between looks at the clock */

static uint64_t *words;
static uint64_t mask;			/* of their numbers */

static uint64_t state[STREAMS] = {
	UINT64_C(0x9e3779b97f4a7c15), UINT64_C(0xbf58476d1ce4e5b9),
	UINT64_C(0x94d049bb133111eb), UINT64_C(0xd6e8feb86659fd93)
};

static inline uint64_t
next(uint64_t x)
{
	x ^= x << 13;
	x ^= x >> 7;
	return x ^ (x << 17);
}

static void
read_memory(void)
{
	/* the next place depends on what was read: the reads are waited for */
	for (int i = 0; i < STEPS / STREAMS; i++)
		for (int s = 0; s < STREAMS; s++)
			state[s] = next(state[s] + words[state[s] & mask]);
}

static void
compute(void)
{
	for (int i = 0; i < STEPS / STREAMS; i++)
		for (int s = 0; s < STREAMS; s++)
			state[s] = next(state[s]) * UINT64_C(0x2545f4914f6cdd1d) + 1;
}

/* As many words as fit into so many MB, and are a power of two */
static void
allocate(uint64_t mb)
{
	uint64_t	n = 1;

	while (n * 2 * sizeof(*words) <= mb * 1024 * 1024)
		n *= 2;
	words = malloc(n * sizeof(*words));
	if (words == NULL)
	{
		fprintf(stderr, "bench_load: out of memory\n");
		exit(1);
	}
	for (uint64_t i = 0; i < n; i++)
		words[i] = i * UINT64_C(0x9e3779b97f4a7c15);
	mask = n - 1;
}

int
main(int argc, char **argv)
{
	bool		memory = argc == 3 && strcmp(argv[1], "memory") == 0;
	double		seconds;

	if (!memory && !(argc == 2 && strcmp(argv[1], "compute") == 0))
	{
		fprintf(stderr, "usage: bench_load memory MB | bench_load compute\n");
		return 2;
	}
	if (memory)
		allocate(strtoull(argv[2], NULL, 10));
	while (scanf("%lf", &seconds) == 1)
	{
		int64_t		start = rbp_now_ns();
		int64_t		until = start + (int64_t) (seconds * 1e9);
		uint64_t	steps = 0;
		int64_t		now;

		do
		{
			if (memory)
				read_memory();
			else
				compute();
			steps += STEPS;
			now = rbp_now_ns();
		} while (now < until);
		printf("%.3f\n", (double) steps * 1e3 / (double) (now - start));
		fflush(stdout);
	}
	/* so that the compiler does not leave the steps out */
	return (state[0] ^ state[1] ^ state[2] ^ state[3]) == 0;
}
