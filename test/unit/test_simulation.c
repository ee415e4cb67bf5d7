/*-------------------------------------------------------------------------
 *
 * test_simulation.c
 *	  The advice: miniature simulations of a sample, against a whole S3-FIFO of
 *	  each size that sees every page.
 *
 * The whole one is made in another way: its queues are arrays of pages with the
 * turn at which each was put there, and what was taken out of the middle stays
 * as an entry of an older turn.
 *
 *-------------------------------------------------------------------------
 */
#include "../../src/advice/simulation.c"

#include <math.h>
#include <stdlib.h>

#include "buffer/page.h"
#include "random.h"
#include "tap.h"

#define PAGES			131072	/* maximum */
#define FRAMES			8192
#define TIER			49152	/* pages of the largest size */
#define EXACT_PAGES		8192	/* with so few, each page is in the sample */
#define READS			600000
#define RING			(1 << 18)	/* a power of two */

/* The numbers of the current test */
static uint32_t npages;
static uint32_t nframes;
static uint32_t tier;

static uint64_t rng_state = 88172645463325252;

static uint64_t
rng(void)
{
	return next_random(&rng_state);
}

/*
 * ---- the whole S3-FIFO ----------------------------------------------------------
 */

typedef struct Ring
{
	uint32_t	page[RING];
	uint32_t	turn[RING];
	uint64_t	first;
	uint64_t	end;
	uint32_t	live;
} Ring;

typedef struct Whole
{
	uint32_t	slots;
	uint32_t	turn;
	uint32_t	ghosts;
	uint64_t	hits;
	Ring		rings[2];		/* small, main */
	uint32_t	in[PAGES];		/* turn at which the page was put into a
								 * queue; 0: in none */
	uint8_t		which[PAGES];
	uint8_t		freq[PAGES];
	uint32_t	ghost[PAGES];
} Whole;

static void
whole_put(Whole *w, int which, uint32_t page, uint8_t freq)
{
	Ring	   *ring = &w->rings[which];
	uint64_t	at = ring->end++ % RING;

	if (ring->end - ring->first > RING)
		abort();
	ring->page[at] = page;
	ring->turn[at] = ++w->turn;
	w->in[page] = w->turn;
	w->which[page] = (uint8_t) which;
	w->freq[page] = freq;
	ring->live++;
}

static uint32_t
whole_take(Whole *w, int which)
{
	Ring	   *ring = &w->rings[which];

	for (;;)
	{
		uint64_t	at = ring->first++ % RING;

		if (w->in[ring->page[at]] != ring->turn[at])
			continue;
		w->in[ring->page[at]] = 0;
		ring->live--;
		return ring->page[at];
	}
}

static void
whole_evict(Whole *w)
{
	for (int moves = 0;; moves++)
	{
		int			which = w->rings[0].live > (w->slots < 10 ? 1 : w->slots / 10) ? 0 : 1;
		uint32_t	page;

		if (moves >= 64)
			which = 1;
		if (w->rings[which].live == 0)
			which = 1 - which;
		page = whole_take(w, which);
		if (moves >= 64)
			return;
		if (w->freq[page] > 0)
			whole_put(w, 1, page, which == 0 ? 0 : w->freq[page] - 1);
		else
		{
			if (which == 0)
				w->ghost[page] = ++w->ghosts;
			return;
		}
	}
}

static void
whole_enter(Whole *w, uint32_t page)
{
	uint32_t	room = w->slots - (w->slots < 10 ? 1 : w->slots / 10);
	int			which = 0;

	if (w->in[page] != 0)
		return;
	if (w->rings[0].live + w->rings[1].live == w->slots)
		whole_evict(w);
	if (w->ghost[page] != 0 && w->ghosts - w->ghost[page] < room)
		which = 1;
	w->ghost[page] = 0;
	whole_put(w, which, page, 0);
}

static void
whole_read(Whole *w, uint32_t page)
{
	if (w->in[page] == 0)
		return;
	w->hits++;
	if (w->freq[page] < 3)
		w->freq[page]++;
}

static void
whole_write(Whole *w, uint32_t page)
{
	if (w->in[page] == 0)
		return;
	w->in[page] = 0;
	w->rings[w->which[page]].live--;
	if (w->which[page] == 1 || w->freq[page] > 0)
		w->ghost[page] = ++w->ghosts;
}

/*
 * ---- the loads ------------------------------------------------------------------
 */

static double zipf_sums[PAGES];
static uint32_t shuffled[PAGES];

/* The sums for n pages of popularity 1 / rank^theta, over the pages in random order */
static void
make_zipf(uint32_t n, double theta)
{
	double		sum = 0;

	for (uint32_t i = 0; i < n; i++)
	{
		sum += 1 / pow(i + 1, theta);
		zipf_sums[i] = sum;
		shuffled[i] = i;
	}
	for (uint32_t i = n - 1; i > 0; i--)
	{
		uint32_t	j = (uint32_t) (rng() % (i + 1));
		uint32_t	page = shuffled[i];

		shuffled[i] = shuffled[j];
		shuffled[j] = page;
	}
}

static uint32_t
zipf(uint32_t n)
{
	double		x = zipf_sums[n - 1] * ((double) (rng() >> 11) / (double) (UINT64_C(1) << 53));
	uint32_t	low = 0;
	uint32_t	high = n - 1;

	while (low < high)
	{
		uint32_t	middle = (low + high) / 2;

		if (zipf_sums[middle] < x)
			low = middle + 1;
		else
			high = middle;
	}
	return shuffled[low];
}

typedef enum Load
{
	LOAD_UNIFORM,
	LOAD_ZIPF,
	LOAD_SCAN,					/* zipfian, and scans of other pages */
	LOAD_WRITE					/* zipfian, every fourth access a write */
} Load;

static uint32_t
next_page(Load load, uint32_t n)
{
	static uint32_t scan = 0;

	if (load == LOAD_UNIFORM)
		return (uint32_t) (rng() % (npages / 4 * 3));
	if (load == LOAD_SCAN)
	{
		if (n % 20000 >= 12000)
			return npages / 4 + scan++ % (npages / 4 * 3);
		return zipf(npages / 4);
	}
	return zipf(npages);
}

/*
 * ---- shared buffers, and both tiers below ------------------------------------------
 */

typedef struct Frame
{
	uint32_t	page;
	uint16_t	number;			/* of the sampled page */
	bool		used;
	bool		dirty;
	uint8_t		usage;
} Frame;

static Frame frames[FRAMES];
static uint32_t frame_of[PAGES];	/* plus 1; 0: none */
static uint32_t hand;
static Whole *wholes[RBP_SIM_SIZES];
static RbpSim *sim;
static uint64_t threshold;		/* a page is in the sample if the upper half
								 * of its key is below */
static int64_t now;

static RbpSimEvent
event_of(uint32_t page, uint32_t frame)
{
	return (RbpSimEvent)
	{
		.key = rbp_mix64(page + 1),.fork = 1,.frame = frame,.now = now,
			.capture = RBP_SIM_ALWAYS
	};
}

static bool
is_sampled(uint32_t page)
{
	return rbp_mix64(page + 1) >> 32 < threshold;
}

static void
replace(uint32_t f)
{
	Frame	   *frame = &frames[f];

	if (!frame->used)
		return;
	for (int k = 0; k < RBP_SIM_SIZES; k++)
	{
		if (frame->dirty)
			whole_write(wholes[k], frame->page);
		whole_enter(wholes[k], frame->page);
	}
	if (frame->dirty && is_sampled(frame->page))
	{
		RbpSimEvent event = event_of(frame->page, f);

		event.evicted = true;
		frame->number = rbp_sim_write(sim, &event);
	}
	if (frame->number != RBP_SIM_NONE)
		rbp_sim_evict(sim, frame->number, f, 0);
	frame_of[frame->page] = 0;
}

/* Returns whether the page was not in shared buffers. */
static bool
access_page(uint32_t page, bool write)
{
	bool		miss = frame_of[page] == 0;
	uint32_t	f;

	now++;
	if (miss)
	{
		while (frames[hand].usage > 0)
		{
			frames[hand].usage--;
			hand = (hand + 1) % nframes;
		}
		f = hand;
		hand = (hand + 1) % nframes;
		replace(f);
		frames[f] = (Frame)
		{
			.page = page,.number = RBP_SIM_NONE,.used = true
		};
		frame_of[page] = f + 1;
		for (int k = 0; k < RBP_SIM_SIZES; k++)
			whole_read(wholes[k], page);
		if (is_sampled(page))
		{
			RbpSimEvent event = event_of(page, f);

			frames[f].number = rbp_sim_read(sim, &event);
		}
	}
	f = frame_of[page] - 1;
	if (frames[f].usage < 5)
		frames[f].usage++;
	frames[f].dirty |= write;
	return miss;
}

/* All is empty; the sample is what the largest size needs. */
static void
start(uint32_t pages)
{
	uint32_t	slots;

	npages = pages;
	nframes = (uint32_t) ((uint64_t) FRAMES * pages / PAGES);
	tier = (uint32_t) ((uint64_t) TIER * pages / PAGES);
	slots = tier < RBP_SIM_SLOTS ? tier : RBP_SIM_SLOTS;
	memset(frames, 0, sizeof(frames));
	memset(frame_of, 0, sizeof(frame_of));
	hand = 0;
	now = 0;
	for (int k = 0; k < RBP_SIM_SIZES; k++)
	{
		free(wholes[k]);
		wholes[k] = calloc(1, sizeof(Whole));
		wholes[k]->slots = tier / RBP_SIM_UNITS * rbp_sim_units[k];
	}
	threshold = (UINT64_C(1) << 32) * slots / tier;
	rbp_sim_init(sim, slots);
}

/* The structure's own rules */
static const char *
check(void)
{
	uint32_t	caches[RBP_SIM_PAGES] = {0};
	uint32_t	idle = 0;

	for (int k = 0; k < RBP_SIM_SIZES; k++)
	{
		const Cache *cache = &sim->caches[k];

		if (cache->small.count + cache->main.count > cache->slots)
			return "a cache has more pages than slots";
		for (int q = QUEUE_SMALL; q <= QUEUE_MAIN; q++)
		{
			const List *list = q == QUEUE_SMALL ? &cache->small : &cache->main;
			uint32_t	n = 0;

			for (uint16_t p = list->newest; p != NONE; p = sim->pages[p].links[k].older)
			{
				if (sim->pages[p].places[k].queue != q || ++n > RBP_SIM_PAGES)
					return "a queue has a page that is elsewhere";
				caches[p]++;
			}
			if (n != list->count)
				return "a queue is not as long as it says";
		}
	}
	for (uint16_t p = sim->idle.newest; p != NONE; p = sim->pages[p].links[IDLE].older)
	{
		if (sim->pages[p].caches != 0 || ++idle > RBP_SIM_PAGES)
			return "an idle page is in a cache";
	}
	for (uint32_t p = 0; p < sim->npages; p++)
	{
		if (sim->pages[p].caches != caches[p])
			return "a page is in more or fewer caches than it says";
		idle += caches[p] > 0;
		if (find(sim, sim->pages[p].key) != p)
			return "a page is not found";
	}
	return idle == sim->npages ? NULL : "a page is neither idle nor in a cache";
}

/*
 * ---- the tests ----------------------------------------------------------------
 */

/* Are the estimates for all sizes within five percentage points? */
static void
test_load(Load load, const char *name)
{
	RbpSimCounts counts;
	uint64_t	misses = 0;
	double		worst = 0;
	bool		grows = true;
	bool		known = true;

	start(PAGES);
	for (uint32_t n = 0; n < READS; n++)
	{
		if (n == READS / 2)
		{
			memset(rbp_sim_counts(sim), 0, sizeof(RbpSimCounts));
			misses = 0;
			for (int k = 0; k < RBP_SIM_SIZES; k++)
				wholes[k]->hits = 0;
		}
		misses += access_page(next_page(load, n), load == LOAD_WRITE && rng() % 4 == 0);
	}
	counts = *rbp_sim_counts(sim);
	for (int k = 0; k < RBP_SIM_SIZES; k++)
	{
		double		estimate = 100.0 * (double) counts.all.hits[k][0] / (double) counts.all.reads[0];
		double		truth = 100.0 * (double) wholes[k]->hits / (double) misses;
		double		ratio;
		double		error;

		known = rbp_sim_hit_ratio(&counts, k, &ratio, &error) && known;
		diag("%s, %5u pages: estimate %5.2f, error %4.2f, truth %5.2f", name, wholes[k]->slots, estimate, 100 * error, truth);
		worst = fmax(worst, fabs(estimate - truth));
		if (k > 0 && counts.all.hits[k][0] + counts.all.reads[0] / 100 < counts.all.hits[k - 1][0])
			grows = false;
	}
	ok(known, "%s: enough was read to estimate", name);
	ok(worst < 5, "%s: estimates at all sizes are within five percentage points", name);
	ok(worst > 0, "%s: they are estimates", name);
	ok(grows, "%s: a larger tier is not worse", name);
	ok(check() == NULL, "%s: the structure is in order: %s", name, check());
}

/* If each page is in the sample, the estimates are exact. */
static void
test_exact(Load load, const char *name)
{
	RbpSimCounts counts;
	uint64_t	misses = 0;
	bool		same = true;

	start(EXACT_PAGES);
	for (uint32_t n = 0; n < READS / 4; n++)
		misses += access_page(next_page(load, n), load == LOAD_WRITE && rng() % 4 == 0);
	counts = *rbp_sim_counts(sim);
	for (int k = 0; k < RBP_SIM_SIZES; k++)
		same = same && counts.all.hits[k][0] == wholes[k]->hits;
	is_u64(counts.all.reads[0], misses, "%s, each page sampled: each read is seen", name);
	ok(same, "%s, each page sampled: each hit is a hit", name);
	is_u64(counts.overflows, 0, "%s, each page sampled: no event is lost", name);
	ok(check() == NULL, "%s, each page sampled: the structure is in order", name);
}

/* Is the page in the cache of that number? */
static bool
in_cache(uint32_t page, int k)
{
	uint16_t	p = find(sim, rbp_mix64(page + 1));

	return p != NONE && sim->pages[p].places[k].queue != QUEUE_NONE;
}

/*
 * Read the page, whose LSN is 7, into a frame, and evict it from there, where
 * the LSN is this one then.
 */
static void
pass(uint32_t page, RbpSimCapture capture, uint64_t lsn)
{
	RbpSimEvent event;
	uint16_t	p;

	now++;
	event = event_of(page, page);
	event.capture = capture;
	event.lsn = 7;
	p = rbp_sim_read(sim, &event);
	if (p != NONE)
		rbp_sim_evict(sim, p, page, lsn);
}

static void
test_capture(void)
{
	RbpSimEvent event = event_of(1, 1);
	int			n = 0;
	uint16_t	p;

	start(EXACT_PAGES);
	pass(1, RBP_SIM_ALWAYS, 7);
	ok(in_cache(1, 0) && in_cache(1, RBP_SIM_SIZES - 1), "a page that is evicted is in each cache");
	pass(2, RBP_SIM_ALWAYS, 8);
	ok(!in_cache(2, 0), "what another page has replaced in the frame is not captured");
	pass(3, RBP_SIM_NEVER, 7);
	ok(!in_cache(3, 0), "what a policy excludes is not captured");
	for (uint32_t i = 100; i < 100 + 100 * RBP_SIM_RARE; i++)
	{
		pass(i, RBP_SIM_RARELY, 7);
		n += in_cache(i, RBP_SIM_SIZES - 1);
	}
	is_u64(n, 100, "what the page cache has is rarely captured");

	(void) rbp_sim_write(sim, &event);
	ok(!in_cache(1, 0), "a page that is written is not in a cache any more");
	event.evicted = true;
	(void) rbp_sim_write(sim, &event);
	ok(in_cache(1, 0), "it is if the write evicts it");
	event.capture = RBP_SIM_NEVER;
	event.scarce = true;
	(void) rbp_sim_write(sim, &event);
	ok(!in_cache(1, 0), "unless a policy excludes it");

	event.capture = RBP_SIM_ALWAYS;
	(void) rbp_sim_write(sim, &event);
	event.capture = RBP_SIM_RARELY;
	(void) rbp_sim_write(sim, &event);
	ok(in_cache(1, 0), "while memory is scarce, what was worth capturing still is");
	event.scarce = false;
	sim->rare = 0;
	(void) rbp_sim_write(sim, &event);
	ok(!in_cache(1, 0), "else it is not, since the page cache has it");

	/* its frame is another's by now */
	p = rbp_sim_read(sim, &event);
	event.frame = 2;
	(void) rbp_sim_read(sim, &event);
	rbp_sim_evict(sim, p, 1, 0);
	ok(!in_cache(1, 0), "a page that was read elsewhere meanwhile is not evicted");
	rbp_sim_evict(sim, p, 2, 1);
	rbp_sim_evict(sim, p, 2, 0);
	ok(!in_cache(1, 0), "nor is a page twice");
	ok(check() == NULL, "the structure is in order");
}

static void
test_forget(void)
{
	RbpSimCounts counts;
	RbpSimEvent event = event_of(1, 1);

	start(EXACT_PAGES);
	pass(1, RBP_SIM_ALWAYS, 7);
	rbp_sim_forget_fork(sim, 2);
	memset(rbp_sim_counts(sim), 0, sizeof(RbpSimCounts));
	pass(1, RBP_SIM_ALWAYS, 7);
	counts = *rbp_sim_counts(sim);
	is_u64(counts.all.hits[0][0], 1, "another fork was truncated: a hit");
	is_u64(counts.all.first[0], 0, "which is not the first read");
	is_u64((uint64_t) rbp_sim_read_since(sim, 0), 1, "and the page was read");
	rbp_sim_forget_fork(sim, 1);
	is_u64((uint64_t) rbp_sim_read_since(sim, 0), 0, "its fork was truncated: no page was read");
	memset(rbp_sim_counts(sim), 0, sizeof(RbpSimCounts));
	pass(1, RBP_SIM_ALWAYS, 7);
	counts = *rbp_sim_counts(sim);
	is_u64(counts.all.hits[0][0], 0, "nor is it a hit");
	is_u64(counts.all.first[0], 1, "it is the first read of what is there now");
	memset(rbp_sim_counts(sim), 0, sizeof(RbpSimCounts));
	(void) rbp_sim_write(sim, &event);
	pass(1, RBP_SIM_NEVER, 7);
	event.cached = true;
	(void) rbp_sim_read(sim, &event);
	counts = *rbp_sim_counts(sim);
	is_u64(counts.all.first[0], 1, "so is a read of what was written, and not captured since");
	is_u64(counts.all.first[1], 0, "unless the page cache has it");
	pass(1, RBP_SIM_ALWAYS, 7);
	ok(in_cache(1, 0), "but the new page is in the cache");

	/* one page of the fork is truncated */
	pass(2, RBP_SIM_ALWAYS, 7);
	rbp_sim_forget(sim, rbp_mix64(1 + 1));
	ok(!in_cache(1, 0) && in_cache(2, 0), "a page was truncated: it is in no cache, and the others are");
	is_u64((uint64_t) rbp_sim_read_since(sim, 0), 1, "nor was it read");
	rbp_sim_forget(sim, rbp_mix64(3 + 1));
	ok(check() == NULL, "the structure is in order without it");

	/* dead pages give their slots to others */
	start(EXACT_PAGES);
	for (uint32_t i = 0; i < EXACT_PAGES; i++)
		pass(i, RBP_SIM_ALWAYS, 7);
	rbp_sim_forget_fork(sim, 1);
	for (uint32_t i = 0; i < EXACT_PAGES; i++)
		pass(i, RBP_SIM_ALWAYS, 7);
	ok(check() == NULL, "the structure is in order with dead pages");
}

static void
test_full_table(void)
{
	RbpSimCounts counts;

	start(EXACT_PAGES);
	for (uint32_t i = 0; i < RBP_SIM_PAGES; i++)
		pass(i, RBP_SIM_NEVER, 7);
	is_u64((uint64_t) rbp_sim_read_since(sim, 1), RBP_SIM_PAGES, "as many pages were read as the table has room for");
	is_u64((uint64_t) rbp_sim_read_since(sim, now - 9), 10, "ten of them in the last ten turns");
	pass(RBP_SIM_PAGES, RBP_SIM_NEVER, 7);
	is_u64((uint64_t) rbp_sim_read_since(sim, 2), RBP_SIM_PAGES, "one more: those since the second are known");
	ok(rbp_sim_read_since(sim, 1) == -1, "but not those since the first");

	/* whatever passes, the pages in caches are not forgotten */
	start(EXACT_PAGES);
	for (uint32_t i = 0; i < 100; i++)
		pass(i, RBP_SIM_ALWAYS, 7);
	for (uint32_t i = 100; i < 5 * RBP_SIM_PAGES; i++)
		pass(i, RBP_SIM_NEVER, 7);
	memset(rbp_sim_counts(sim), 0, sizeof(RbpSimCounts));
	for (uint32_t i = 0; i < 100; i++)
		pass(i, RBP_SIM_ALWAYS, 7);
	counts = *rbp_sim_counts(sim);
	is_u64(counts.all.hits[RBP_SIM_SIZES - 1][0], 100, "a scan of what is not captured leaves the caches alone");
	is_u64(counts.overflows, 0, "no event was lost");
	ok(check() == NULL, "the structure is in order when the table is full");
}

static void
test_error(void)
{
	RbpSimCounts counts = {0};
	double		ratio;
	double		error;

	for (int i = 0; i < RBP_SIM_PARTS; i++)
	{
		counts.parts[i].reads[i % 2] = 100;
		counts.parts[i].hits[0][i % 2] = i % 2 == 0 ? 40 : 60;
		counts.parts[i].hits[1][i % 2] = 50;
		counts.all.reads[i % 2] += 100;
		counts.all.hits[0][i % 2] += i % 2 == 0 ? 40 : 60;
		counts.all.hits[1][i % 2] += 50;
	}
	ok(rbp_sim_hit_ratio(&counts, 0, &ratio, &error), "enough was read to know the hit ratio");
	ok(fabs(ratio - 0.5) < 1e-9, "the hit ratio is that of all parts");
	ok(fabs(error - 0.1 / sqrt(15)) < 1e-9, "its error is that of a mean of so different parts");
	ok(rbp_sim_hit_ratio(&counts, 1, &ratio, &error) && error < 1e-9, "parts that agree have none");
	counts.parts[3].reads[1] = 9;
	ok(!rbp_sim_hit_ratio(&counts, 0, &ratio, &error), "a part of which little was read tells nothing");

	start(EXACT_PAGES);
	for (uint32_t i = 0; i < tier; i++)
		pass(i, RBP_SIM_ALWAYS, 7);
	ok(!rbp_sim_outgrown(sim), "the largest cache has room for what was read");
	pass(tier, RBP_SIM_ALWAYS, 7);
	ok(rbp_sim_outgrown(sim), "but not for one page more");
}

int
main(void)
{
	sim = calloc(1, rbp_sim_bytes());
	test_capture();
	test_forget();
	test_full_table();
	test_error();
	make_zipf(EXACT_PAGES, 0.9);
	test_exact(LOAD_UNIFORM, "uniform");
	test_exact(LOAD_ZIPF, "zipfian");
	test_exact(LOAD_WRITE, "with writes");
	make_zipf(EXACT_PAGES / 4, 0.9);
	test_exact(LOAD_SCAN, "with scans");
	make_zipf(PAGES, 0.9);
	test_load(LOAD_UNIFORM, "uniform");
	test_load(LOAD_ZIPF, "zipfian");
	test_load(LOAD_WRITE, "with writes");
	make_zipf(PAGES / 4, 0.9);
	test_load(LOAD_SCAN, "with scans");
	return done_testing();
}
