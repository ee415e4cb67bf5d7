/*-------------------------------------------------------------------------
 *
 * simulation.c
 *	  Miniature simulations of the tier, at several sizes at once.
 *
 * C. Waldspurger, T. Saemundson, I. Ahmad, N. Park: Cache Modeling and
 * Optimization using Miniature Simulations, USENIX ATC 2017.  A cache that is
 * scaled down by the same factor as the set of pages has nearly the same hit
 * ratio, for any replacement policy.  The sample is by hash of the page, so
 * that all accesses to a page are in it, or none (SHARDS, FAST 2015).
 *
 * There is one table of pages for all caches.  An entry has a place for each
 * cache: the queue in which the page is there, its links and its access
 * count, and when its ghost was created.  So an event looks up one page, and
 * then treats each cache.
 *
 * The table is of fixed size.  An entry that is in no cache is on the list
 * "idle".  When the table is full, the entry at the end of that list is
 * reused: with it, at most a ghost, and the time of the last read, are
 * forgotten.
 *
 * What follows the directory (buffer/directory*.c, buffer/s3fifo.c):
 * - a page that was evicted from shared buffers is put into small, or into
 *	 main if there is a ghost; first another page is evicted, if the cache is
 *	 full;
 * - a hit increments a counter, and moves nothing;
 * - a write drops the page, and leaves a ghost if the page was in main or on
 *	 its way there;
 * - a truncation bumps the generation of the fork, and pages of an older
 *	 generation are dead.  They keep their slots until they are found.
 * There are no partitions here, and ghosts are remembered exactly.
 *
 *-------------------------------------------------------------------------
 */
#include "advice/simulation.h"

#include <math.h>
#include <string.h>

#include "buffer/s3fifo_rules.h"

#define NONE			RBP_SIM_NONE
#define BUCKETS			RBP_SIM_PAGES
#define GENERATIONS		16384

/* So many reads of each part of the sample tell something. */
#define MIN_PART_READS	10

typedef enum Queue
{
	QUEUE_NONE,
	QUEUE_SMALL,
	QUEUE_MAIN
} Queue;

/* Of the links of a page: that in the list of idle entries */
#define IDLE			RBP_SIM_SIZES

/* Neighbours of a page in a list */
typedef struct Link
{
	uint16_t	newer;
	uint16_t	older;
} Link;

/* What a cache knows about a page */
typedef struct Place
{
	uint32_t	ghost;			/* ghosts created before that of the page,
								 * plus 1; 0: none */
	uint8_t		queue;
	uint8_t		freq;
} Place;

typedef struct Page
{
	uint64_t	key;
	uint64_t	lsn;
	uint32_t	frame;
	uint32_t	generation;
	uint16_t	stripe;			/* of the generation */
	uint16_t	chain;			/* next in the bucket */
	uint8_t		caches;			/* number of caches that have the page */
	bool		worth;			/* to be captured when it is evicted */
	bool		captured;		/* a cache without limit would have it */
	Place		places[RBP_SIM_SIZES];
	Link		links[IDLE + 1];	/* in the queue of each cache, and in the
									 * list of idle entries */
} Page;

typedef struct List
{
	uint16_t	newest;
	uint16_t	oldest;
	uint32_t	count;
} List;

typedef struct Cache
{
	uint32_t	slots;
	uint32_t	ghosts;			/* created so far */
	List		small;
	List		main;
} Cache;

struct RbpSim
{
	RbpSimCounts counts;
	uint32_t	npages;			/* entries that were ever used */
	uint32_t	rare;			/* pages that were rarely worth capturing */
	int64_t		forgotten;		/* last read of the pages that were forgotten */
	List		idle;
	Cache		caches[RBP_SIM_SIZES];
	uint32_t	generations[GENERATIONS];	/* atomic */
	uint16_t	buckets[BUCKETS];
	int64_t		read_at[RBP_SIM_PAGES];
	Page		pages[RBP_SIM_PAGES];
};

/* Sizes below the half of the largest are denser: curves are steep there */
const uint8_t rbp_sim_units[RBP_SIM_SIZES] = {1, 2, 3, 4, 6, 8, 10, 12, 14, 16};

size_t
rbp_sim_bytes(void)
{
	return sizeof(RbpSim);
}

void
rbp_sim_init(RbpSim *sim, uint32_t slots)
{
	const List	empty = {.newest = NONE,.oldest = NONE};

	memset(sim, 0, offsetof(RbpSim, generations));
	memset(sim->buckets, 0xff, sizeof(sim->buckets));
	sim->idle = empty;
	sim->forgotten = INT64_MIN;
	for (int k = 0; k < RBP_SIM_SIZES; k++)
	{
		Cache	   *cache = &sim->caches[k];

		cache->slots = slots * rbp_sim_units[k] / RBP_SIM_UNITS;
		if (cache->slots == 0)
			cache->slots = 1;
		cache->small = cache->main = empty;
	}
}

RbpSimCounts *
rbp_sim_counts(RbpSim *sim)
{
	return &sim->counts;
}

bool
rbp_sim_outgrown(const RbpSim *sim)
{
	return sim->npages > sim->caches[RBP_SIM_SIZES - 1].slots;
}

/*
 * Reads of one page are alike, so the error is not that of so many independent
 * reads.  It is estimated from how the parts of the sample differ (the method of
 * random groups).
 */
bool
rbp_sim_hit_ratio(const RbpSimCounts *counts, int k, double *ratio, double *error)
{
	const RbpSimReads *all = &counts->all;
	double		reads = (double) (all->reads[0] + all->reads[1]);
	double		squares = 0;

	*ratio = (double) (all->hits[k][0] + all->hits[k][1]) / (reads > 0 ? reads : 1);
	for (int i = 0; i < RBP_SIM_PARTS; i++)
	{
		const RbpSimReads *part = &counts->parts[i];
		uint64_t	n = part->reads[0] + part->reads[1];
		double		more = (double) (part->hits[k][0] + part->hits[k][1]) - *ratio * (double) n;

		if (n < MIN_PART_READS)
			return false;
		squares += more * more;
	}
	*error = sqrt(squares * RBP_SIM_PARTS / (RBP_SIM_PARTS - 1)) / reads;
	return true;
}

/*
 * ---- the queues of a cache, and the idle entries --------------------------------
 */

static inline List *
queue_of(Cache *cache, Queue queue)
{
	return queue == QUEUE_SMALL ? &cache->small : &cache->main;
}

static void
list_push(RbpSim *sim, List *list, int k, uint16_t p)
{
	Link	   *link = &sim->pages[p].links[k];

	link->newer = NONE;
	link->older = list->newest;
	if (list->newest != NONE)
		sim->pages[list->newest].links[k].newer = p;
	else
		list->oldest = p;
	list->newest = p;
	list->count++;
}

static void
list_remove(RbpSim *sim, List *list, int k, uint16_t p)
{
	const Link *link = &sim->pages[p].links[k];

	if (link->newer != NONE)
		sim->pages[link->newer].links[k].older = link->older;
	else
		list->newest = link->older;
	if (link->older != NONE)
		sim->pages[link->older].links[k].newer = link->newer;
	else
		list->oldest = link->newer;
	list->count--;
}

static void
queue_push(RbpSim *sim, int k, Queue queue, uint16_t p, uint8_t freq)
{
	Place	   *place = &sim->pages[p].places[k];

	place->queue = queue;
	place->freq = freq;
	list_push(sim, queue_of(&sim->caches[k], queue), k, p);
}

static void
queue_remove(RbpSim *sim, int k, uint16_t p)
{
	Place	   *place = &sim->pages[p].places[k];

	list_remove(sim, queue_of(&sim->caches[k], place->queue), k, p);
	place->queue = QUEUE_NONE;
}

/*
 * ---- the table of pages -------------------------------------------------------
 */

static inline uint16_t *
bucket_of(RbpSim *sim, uint64_t key)
{
	return &sim->buckets[key % BUCKETS];
}

static inline uint16_t
stripe_of(uint64_t fork)
{
	return (uint16_t) (fork % GENERATIONS);
}

static inline uint32_t
generation_of(const RbpSim *sim, uint16_t stripe)
{
	return __atomic_load_n(&sim->generations[stripe], __ATOMIC_RELAXED);
}

static inline bool
is_dead(const RbpSim *sim, const Page *page)
{
	return page->generation != generation_of(sim, page->stripe);
}

/* The page leaves the cache, whose queue it has left already. */
static void
left_cache(RbpSim *sim, uint16_t p)
{
	if (--sim->pages[p].caches == 0)
		list_push(sim, &sim->idle, IDLE, p);
}

static uint16_t
find(RbpSim *sim, uint64_t key)
{
	uint16_t	p = *bucket_of(sim, key);

	while (p != NONE && sim->pages[p].key != key)
		p = sim->pages[p].chain;
	return p;
}

/* Forget an idle page.  Its entry is on no list afterwards. */
static void
forget(RbpSim *sim, uint16_t p)
{
	uint16_t   *link = bucket_of(sim, sim->pages[p].key);

	while (*link != p)
		link = &sim->pages[*link].chain;
	*link = sim->pages[p].chain;
	list_remove(sim, &sim->idle, IDLE, p);
	if (sim->read_at[p] > sim->forgotten)
		sim->forgotten = sim->read_at[p];
}

/* Take an entry for a new page, which is idle.  Returns NONE if all are in caches. */
static uint16_t
allocate(RbpSim *sim, const RbpSimEvent *event)
{
	uint16_t   *bucket = bucket_of(sim, event->key);
	uint16_t	p = sim->idle.oldest;
	Page	   *page;

	if (sim->npages < RBP_SIM_PAGES)
		p = (uint16_t) sim->npages++;
	else if (p != NONE)
		forget(sim, p);
	else
	{
		sim->counts.overflows++;
		return NONE;
	}
	page = &sim->pages[p];
	memset(page, 0, sizeof(*page));
	page->key = event->key;
	page->frame = RBP_SIM_NO_FRAME;
	page->stripe = stripe_of(event->fork);
	page->generation = generation_of(sim, page->stripe);
	page->chain = *bucket;
	*bucket = p;
	sim->read_at[p] = INT64_MIN;
	list_push(sim, &sim->idle, IDLE, p);
	return p;
}

/* Take the page out of all caches.  If it was written, ghosts remember it. */
static void
drop(RbpSim *sim, uint16_t p, bool written)
{
	Page	   *page = &sim->pages[p];

	page->captured = false;
	for (int k = 0; k < RBP_SIM_SIZES; k++)
	{
		Place	   *place = &page->places[k];
		bool		hot = place->queue == QUEUE_MAIN || place->freq > 0;

		if (!written)
			place->ghost = 0;
		if (place->queue == QUEUE_NONE)
			continue;
		queue_remove(sim, k, p);
		left_cache(sim, p);
		if (written && hot)
			place->ghost = ++sim->caches[k].ghosts;
	}
}

/* The page is another one now, which is in no cache and no frame. */
static void
renew(RbpSim *sim, uint16_t p)
{
	Page	   *page = &sim->pages[p];

	drop(sim, p, false);
	page->generation = generation_of(sim, page->stripe);
	page->frame = RBP_SIM_NO_FRAME;
	page->worth = false;
}

/* The page of the event; NONE if it is not known. */
static uint16_t
find_live(RbpSim *sim, const RbpSimEvent *event)
{
	uint16_t	p = find(sim, event->key);

	if (p != NONE && is_dead(sim, &sim->pages[p]))
		renew(sim, p);
	return p;
}

/*
 * ---- S3-FIFO, see buffer/s3fifo.c ---------------------------------------------
 */

/* Evict a page from the cache, whose queues are not both empty. */
static void
evict(RbpSim *sim, int k)
{
	Cache	   *cache = &sim->caches[k];

	for (int step = 0;; step++)
	{
		bool		force = step >= RBP_EVICT_STEPS;
		bool		from_small = cache->main.count == 0 ||
		(!force && cache->small.count > rbp_s3fifo_small_room(cache->slots));
		uint16_t	p = from_small ? cache->small.oldest : cache->main.oldest;
		Page	   *page = &sim->pages[p];
		Place	   *place = &page->places[k];

		queue_remove(sim, k, p);
		if (!force && place->freq > 0 && !is_dead(sim, page))
		{
			queue_push(sim, k, QUEUE_MAIN, p, from_small ? 0 : place->freq - 1);
			continue;
		}
		if (from_small && !force && !is_dead(sim, page))
			place->ghost = ++cache->ghosts;
		left_cache(sim, p);
		return;
	}
}

/* A page that was evicted from shared buffers enters those caches that lack it. */
static void
enter(RbpSim *sim, uint16_t p)
{
	Page	   *page = &sim->pages[p];

	page->captured = true;
	for (int k = 0; k < RBP_SIM_SIZES; k++)
	{
		Cache	   *cache = &sim->caches[k];
		Place	   *place = &page->places[k];
		bool		remembered;

		if (place->queue != QUEUE_NONE)
			continue;
		if (cache->small.count + cache->main.count >= cache->slots)
			evict(sim, k);
		remembered = place->ghost != 0 &&
			cache->ghosts - place->ghost < rbp_s3fifo_main_room(cache->slots);
		place->ghost = 0;
		if (page->caches++ == 0)
			list_remove(sim, &sim->idle, IDLE, p);
		queue_push(sim, k, remembered ? QUEUE_MAIN : QUEUE_SMALL, p, 0);
	}
}

/*
 * ---- events ---------------------------------------------------------------------
 */

static bool
is_worth(RbpSim *sim, RbpSimCapture capture)
{
	return capture == RBP_SIM_ALWAYS ||
		(capture == RBP_SIM_RARELY && ++sim->rare % RBP_SIM_RARE == 0);
}

/* Would a cache of no size have the page that is read?  See RbpSimReads. */
static bool
is_first(const RbpSim *sim, const RbpSimEvent *event, uint16_t p)
{
	if (p == NONE || is_dead(sim, &sim->pages[p]))
		return true;
	return !event->cached && !sim->pages[p].captured;
}

/* Count a read of the page, which may be NONE. */
static void
count_read(RbpSimReads *counts, const RbpSim *sim, uint16_t p, bool first, bool cached)
{
	counts->reads[cached]++;
	counts->first[cached] += first;
	for (int k = 0; k < RBP_SIM_SIZES && p != NONE; k++)
		counts->hits[k][cached] += sim->pages[p].places[k].queue != QUEUE_NONE;
}

uint16_t
rbp_sim_read(RbpSim *sim, const RbpSimEvent *event)
{
	uint16_t	p = find(sim, event->key);
	bool		first = is_first(sim, event, p);
	Page	   *page;

	p = find_live(sim, event);
	count_read(&sim->counts.all, sim, p, first, event->cached);
	count_read(&sim->counts.parts[event->key % RBP_SIM_PARTS], sim, p, first, event->cached);
	if (p == NONE)
		p = allocate(sim, event);
	else if (sim->pages[p].caches == 0)
	{
		list_remove(sim, &sim->idle, IDLE, p);
		list_push(sim, &sim->idle, IDLE, p);
	}
	if (p == NONE)
		return NONE;
	page = &sim->pages[p];
	for (int k = 0; k < RBP_SIM_SIZES; k++)
	{
		Place	   *place = &page->places[k];

		if (place->queue != QUEUE_NONE && place->freq < RBP_MAX_FREQ)
			place->freq++;
	}
	page->frame = event->frame;
	page->lsn = event->lsn;
	page->worth = is_worth(sim, event->capture);
	sim->read_at[p] = event->now;
	return p;
}

uint16_t
rbp_sim_write(RbpSim *sim, const RbpSimEvent *event)
{
	uint16_t	p = find_live(sim, event);
	bool		was_worth = p != NONE && sim->pages[p].worth;
	bool		worth;
	Page	   *page;

	if (p != NONE)
		drop(sim, p, true);
	worth = (was_worth && event->scarce && event->capture != RBP_SIM_NEVER) ||
		is_worth(sim, event->capture);
	/* a page that is not known, and would not be captured, need not be */
	if (p == NONE && worth)
		p = allocate(sim, event);
	if (p == NONE)
		return NONE;
	page = &sim->pages[p];
	page->worth = worth;
	page->lsn = event->lsn;
	if (event->frame != RBP_SIM_NO_FRAME)
		page->frame = event->frame;
	if (worth && event->evicted)
		enter(sim, p);
	return p;
}

void
rbp_sim_evict(RbpSim *sim, uint16_t p, uint32_t frame, uint64_t lsn)
{
	Page	   *page = &sim->pages[p];

	if (p >= sim->npages || page->frame != frame)
		return;
	page->frame = RBP_SIM_NO_FRAME;
	/* if there is another LSN, a relation was extended by way of this frame */
	if (page->lsn == lsn && page->worth && !is_dead(sim, page))
		enter(sim, p);
}

void
rbp_sim_forget(RbpSim *sim, uint64_t key)
{
	uint16_t	p = find(sim, key);

	if (p == NONE)
		return;
	renew(sim, p);
	sim->read_at[p] = INT64_MIN;
}

void
rbp_sim_forget_fork(RbpSim *sim, uint64_t fork)
{
	(void) __atomic_add_fetch(&sim->generations[stripe_of(fork)], 1, __ATOMIC_RELAXED);
}

int64_t
rbp_sim_read_since(const RbpSim *sim, int64_t time)
{
	int64_t		n = 0;

	if (sim->forgotten >= time)
		return -1;
	for (uint32_t p = 0; p < sim->npages; p++)
		n += sim->read_at[p] >= time && !is_dead(sim, &sim->pages[p]);
	return n;
}
