/*
 * Print how many thousand times a second this processor's time stamp counter
 * counts: it is measured against the clock for a fifth of a second.
 */
#include <stdio.h>
#include <time.h>
#include <x86intrin.h>

typedef struct
{
	double		ticks;
	double		ms;
} Moment;

/* Of many looks at both, the one that took least: nothing came between. */
static Moment
look(void)
{
	Moment		best = {0};
	unsigned long long least = ~0ULL;

	for (int i = 0; i < 1000; i++)
	{
		struct timespec now;
		unsigned long long before = __rdtsc();
		unsigned long long took;

		clock_gettime(CLOCK_MONOTONIC, &now);
		took = __rdtsc() - before;
		if (took < least)
		{
			least = took;
			best.ticks = (double) before + (double) took / 2;
			best.ms = (double) now.tv_sec * 1e3 + (double) now.tv_nsec / 1e6;
		}
	}
	return best;
}

int
main(void)
{
	const struct timespec pause = {.tv_nsec = 200000000};
	Moment		begin = look();
	Moment		end;

	nanosleep(&pause, NULL);
	end = look();
	return printf("%.0f\n", (end.ticks - begin.ticks) / (end.ms - begin.ms)) < 0;
}
