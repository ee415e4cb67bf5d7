/*-------------------------------------------------------------------------
 *
 * test_directory_model.c
 *	  Random operations on the directory and on a plain model of it.
 *
 * The model keeps for each page of a small world what the directory must
 * know of it, and for each slot who has it.  It does not foresee which page
 * replacement gives up; it looks at the slot that came out and then knows.
 * After each operation what was touched is compared, every so often all of
 * it.
 *
 *	 test_directory_model [SEED [OPERATIONS]]
 *
 *-------------------------------------------------------------------------
 */
#include "base/geometry.h"
#include "base/injection_point.h"
#include "base/relfile.h"
#include "buffer/directory.h"
#include "buffer/directory_internal.h"
#include "buffer/page.h"

#include <stdlib.h>
#include <string.h>

#include "directory_check.h"
#include "tap.h"

#define RELS		5
#define FORKS		2
#define SPACES		2
#define BLOCKS		60
#define NFORKS		(RELS * SPACES * FORKS)
#define NPAGES		(NFORKS * BLOCKS)
#define EXTENTS		3
#define SLOTS		(EXTENTS * RBP_EXTENT_PAGES)
#define STAGING		24
#define NOBODY		(-1)
#define LIMITED		1			/* the space that it is for */

typedef struct ModelPage
{
	RbpPageId	id;
	RbpWhere	where;
	uint32_t	slot;
	uint64_t	hash;
	uint64_t	born;			/* the fork's deaths at the time */
	uint64_t	writes;
	int			freq;			/* accesses since insertion; -1: unknown */

	/* what somebody saw some time ago */
	bool		seen;
	RbpVersion	version;
	uint64_t	seen_writes;
	uint64_t	seen_deaths;
} ModelPage;

typedef struct ModelStaging
{
	bool		held;			/* by the "pusher" or a "backend" */
	bool		inserted;
	int			page;			/* of its last insertion */
	uint32_t	reserved;		/* slot to push into */
	uint32_t	reserved_epoch; /* the extent's losses when it was taken */
} ModelStaging;

static ModelPage pages[NPAGES];
static ModelStaging staging[STAGING];
static uint64_t deaths[NFORKS]; /* bumps of each fork, and of all */
static int	slot_owner[SLOTS];
static bool online[EXTENTS];
static uint32_t losses[EXTENTS];
static uint64_t evictions;
static uint64_t moves;
static RbpPolicy policies[RELS][SPACES];
static bool unapplied;			/* pages may be kept, or not, by a policy of
								 * before */
static bool limited;
static uint32_t limit_max;
static uint64_t next_hash = 1;
static RbpDirectory *dir;

static uint64_t rng_state;
static uint64_t operation;
static const char *doing = "nothing";
static char failure[256];

static uint32_t
rnd(uint32_t n)
{
	rng_state ^= rng_state << 13;
	rng_state ^= rng_state >> 7;
	rng_state ^= rng_state << 17;
	return (uint32_t) ((rng_state >> 20) % n);
}

/* Note the first difference. */
static void
expect(bool cond, const char *what)
{
	if (!cond && failure[0] == '\0')
		snprintf(failure, sizeof(failure), "operation %" PRIu64 " (%s): %s",
				 operation, doing, what);
}

static bool
live(const ModelPage *page)
{
	return page->where != RBP_ABSENT &&
		page->born == deaths[(page - pages) / BLOCKS] &&
		(page->where == RBP_STAGED || online[page->slot / RBP_EXTENT_PAGES]);
}

static RbpPolicy
policy_of(const ModelPage *page)
{
	return policies[page->id.rel - 1000][page->id.space];
}

static void
forget(ModelPage *page)
{
	if (page->where == RBP_REMOTE)
		slot_owner[page->slot] = NOBODY;
	page->where = RBP_ABSENT;
}

static void
compare_page(ModelPage *page, bool touch)
{
	RbpLookup	at = rbp_directory_lookup(dir, REF(&page->id), touch);

	if (!live(page))
		expect(at.where == RBP_ABSENT, "a dead or absent page was found");
	else
	{
		expect(at.where == page->where, "a live page is not where it should be");
		expect(at.slot == page->slot, "a live page has another slot");
		expect(at.hash == page->hash, "a live page has another hash");
		if (touch && page->freq >= 0 && page->freq < RBP_MAX_FREQ)
			page->freq++;
	}
}

/*
 * ---- operations ------------------------------------------------------------
 */

static void
op_lookup(ModelPage *page)
{
	doing = "lookup";
	compare_page(page, rnd(2) == 0);
}

/* What a backend does when it reads a page from disk. */
static void
op_see(ModelPage *page)
{
	doing = "see";
	page->seen = true;
	page->version.stamp = directory_stamp(dir, REF(&page->id));
	page->version.generation = rbp_generation_now(dir, page->id.rel,
												  page->id.space, page->id.fork);
	page->version.hash = next_hash++;
	page->seen_writes = page->writes;
	page->seen_deaths = deaths[(page - pages) / BLOCKS];
}

static void
op_write(ModelPage *page)
{
	RbpWhere	expected = live(page) ? page->where : RBP_ABSENT;

	doing = "write";
	expect(rbp_directory_invalidate(dir, &page->id, true) == expected, "what was dropped");
	page->writes++;
	forget(page);
	compare_page(page, false);
}

/* A block of a file that is truncated: as a write, by another function. */
static void
op_remove(ModelPage *page)
{
	RbpWhere	expected = live(page) ? page->where : RBP_ABSENT;

	doing = "remove";
	expect(rbp_directory_invalidate(dir, &page->id, false) == expected, "what was dropped");
	page->writes++;
	forget(page);
	compare_page(page, false);
}

static void
op_stage(ModelPage *page, uint32_t slot)
{
	RbpInsert	expected;
	RbpInsert	got;
	bool		unmoved;

	doing = "stage";
	if (!page->seen || staging[slot].held)
		return;
	unmoved = page->version.stamp == directory_stamp(dir, REF(&page->id)) &&
		page->version.generation == rbp_generation_now(dir, page->id.rel,
													   page->id.space, page->id.fork);
	if (page->seen_writes != page->writes ||
		page->seen_deaths != deaths[(page - pages) / BLOCKS])
		expect(!unmoved, "stamp or generation did not move");
	if (!unmoved)
		expected = RBP_INSERT_STALE;
	else
		expected = live(page) ? RBP_INSERT_PRESENT : RBP_INSERTED;
	got = rbp_directory_insert_staged(dir, REF(&page->id), &page->version, slot);
	expect(got == expected, "outcome");
	if (got == RBP_INSERTED)
	{
		forget(page);
		page->where = RBP_STAGED;
		page->slot = slot;
		page->hash = page->version.hash;
		page->born = deaths[(page - pages) / BLOCKS];
		page->freq = 0;
		staging[slot].held = true;
		staging[slot].inserted = true;
		staging[slot].page = (int) (page - pages);
		staging[slot].reserved = RBP_INVALID_SLOT;
	}
	compare_page(page, false);
}

static bool
staged_here(uint32_t slot)
{
	ModelPage  *page = &pages[staging[slot].page];

	return page->where == RBP_STAGED && page->slot == slot && live(page);
}

static void
op_info(uint32_t slot)
{
	RbpPageId	id;
	uint64_t	hash;
	bool		got;

	doing = "staged info";
	if (!staging[slot].held)
		return;
	got = rbp_directory_staged_info(dir, slot, &id, &hash);
	expect(got == staged_here(slot), "whether it is staged");
	if (got)
		expect(rbp_page_equal(&id, &pages[staging[slot].page].id) &&
			   hash == pages[staging[slot].page].hash, "page and hash");
	else
	{
		ModelPage  *page = &pages[staging[slot].page];

		/* what is not live is out of the directory then */
		if (page->where == RBP_STAGED && page->slot == slot)
			forget(page);

		/* and the pusher may give it back, for something else to be staged */
		if (staging[slot].reserved == RBP_INVALID_SLOT)
			staging[slot].held = false;
	}
}

/* Pages of the space under the limit that had to make room, two at most. */
static uint32_t
find_given_up(uint32_t part, uint32_t but)
{
	uint32_t	n = 0;

	for (uint32_t s = part; s < SLOTS; s += RBP_PARTITIONS)
	{
		ModelPage  *owner = slot_owner[s] == NOBODY ? NULL : &pages[slot_owner[s]];

		if (s == but || owner == NULL || !live(owner) ||
			rbp_directory_lookup(dir, REF(&owner->id), false).where != RBP_ABSENT)
			continue;
		expect(limited && owner->id.space == LIMITED, "a page was given up that need not be");
		forget(owner);
		n++;
	}
	if (limited)
		expect(rbp_directory_database_pages(dir, LIMITED) <= limit_max + RBP_PARTITIONS, "a limit is passed");
	expect(n <= 2, "more pages than two made room for one");
	return n;
}

/* A slot for the page; if it has one already, for another place of it. */
static uint32_t
reserve(const ModelPage *page)
{
	bool		adds = page->where != RBP_REMOTE || !live(page);
	uint32_t	part = (uint32_t) (rbp_page_hash(&page->id) % RBP_PARTITIONS);
	uint32_t	got;
	RbpEvicted	evicted;
	bool		is_reserved[SLOTS] = {false};
	bool		any = false;
	bool		any_free = false;
	bool		all_kept = true;
	bool		limit_kept = false;
	uint32_t	given_up;

	for (int i = 0; i < STAGING; i++)
		if (staging[i].held && staging[i].reserved != RBP_INVALID_SLOT)
			is_reserved[staging[i].reserved] = true;
	for (uint32_t s = part; s < SLOTS; s += RBP_PARTITIONS)
		if (online[s / RBP_EXTENT_PAGES] && !is_reserved[s])
		{
			any = true;
			any_free |= slot_owner[s] == NOBODY;
			all_kept &= slot_owner[s] != NOBODY &&
				policy_of(&pages[slot_owner[s]]) == RBP_POLICY_KEEP;
			limit_kept |= limited && page->id.space == LIMITED && slot_owner[s] != NOBODY &&
				pages[slot_owner[s]].id.space == LIMITED &&
				policy_of(&pages[slot_owner[s]]) == RBP_POLICY_KEEP;
		}

	got = rbp_directory_reserve(dir, &page->id, &evicted);
	expect((got != RBP_INVALID_SLOT) == any ||
		   (got == RBP_INVALID_SLOT && (all_kept || limit_kept || unapplied)),
		   "whether there is a slot");
	given_up = find_given_up(part, got);
	expect(adds || given_up == 0, "a page made room for one that was there");
	evictions += given_up;
	if (got == RBP_INVALID_SLOT)
	{
		expect(evicted.n == (int) given_up, "evicted without a slot");
		return got;
	}
	expect(got < SLOTS && got % RBP_PARTITIONS == part, "a slot of another partition");
	expect(online[got / RBP_EXTENT_PAGES], "a slot of an extent that is offline");
	expect(!is_reserved[got], "a slot that is in other hands");
	if (failure[0] != '\0')
		return RBP_INVALID_SLOT;
	if (slot_owner[got] != NOBODY)
	{
		ModelPage  *owner = &pages[slot_owner[got]];
		bool		is_named = false;

		expect(!any_free || (limited && owner->id.space == LIMITED),
			   "a page was given up while a slot was free");
		expect(evicted.n == (int) given_up + live(owner), "whether a live page was given up");
		for (int i = 0; i < evicted.n; i++)
			is_named |= rbp_page_equal(&evicted.pages[i], &owner->id);
		expect(!live(owner) || is_named, "which page was evicted");
		evictions += live(owner);
		forget(owner);
		compare_page(owner, false);
	}
	else
		expect(evicted.n == (int) given_up, "evicted, but the slot had no page");
	return got;
}

static void
op_reserve(uint32_t slot)
{
	ModelStaging *st = &staging[slot];

	doing = "reserve";
	if (!st->held || st->reserved != RBP_INVALID_SLOT)
		return;
	st->reserved = reserve(&pages[st->page]);
	if (st->reserved != RBP_INVALID_SLOT)
		st->reserved_epoch = losses[st->reserved / RBP_EXTENT_PAGES];
}

static void
op_publish(uint32_t slot)
{
	ModelStaging *st = &staging[slot];
	ModelPage  *page = &pages[st->page];
	RbpInsert	got;
	uint32_t	to = st->reserved;

	doing = "publish";
	if (!st->held || to == RBP_INVALID_SLOT)
		return;
	got = rbp_directory_publish(dir, &page->id, slot, to, true);
	if (!(page->where == RBP_STAGED && page->slot == slot))
		expect(got == RBP_INSERT_GONE, "a page that is not staged there was published");
	else if (!live(page))
	{
		expect(got == RBP_INSERT_STALE, "a dead page was published");
		forget(page);
	}
	else if (policy_of(page) == RBP_POLICY_NONE)
	{
		expect(got == RBP_INSERT_STALE, "a page that is not wanted was published");
		forget(page);
	}
	else if (!online[to / RBP_EXTENT_PAGES] ||
			 losses[to / RBP_EXTENT_PAGES] != st->reserved_epoch)
	{
		expect(got == RBP_INSERT_OFFLINE, "published into lost memory");
		forget(page);
	}
	else
	{
		expect(got == RBP_INSERTED, "not published");
		page->where = RBP_REMOTE;
		page->slot = to;
		slot_owner[to] = (int) (page - pages);
	}
	st->held = false;
	compare_page(page, false);
}

static void
op_abandon(uint32_t slot)
{
	ModelStaging *st = &staging[slot];
	ModelPage  *page = &pages[st->page];

	doing = "abandon";
	if (!st->held)
		return;
	directory_abandon(dir, &page->id, slot, st->reserved);
	if (page->where == RBP_STAGED && page->slot == slot)
		forget(page);
	st->held = false;
	compare_page(page, false);
}

static void
op_drop_if_same(ModelPage *page)
{
	RbpLookup	seen = {page->where, page->slot, page->hash};
	uint32_t	lie = rnd(4);
	bool		got;

	doing = "drop_if_same";
	if (lie == 1)
		seen.hash++;
	else if (lie == 2)
		seen.slot++;
	else if (lie == 3)
		seen.where = page->where == RBP_REMOTE ? RBP_STAGED : RBP_REMOTE;
	got = rbp_directory_drop_if_same(dir, &page->id, &seen);
	expect(got == (lie == 0 && live(page)), "outcome");
	if (got)
		forget(page);
	compare_page(page, false);
}

static void
op_bump(int fork)
{
	ModelPage  *first = &pages[fork * BLOCKS];

	doing = "bump_generation";
	rbp_directory_bump_generation(dir, first->id.rel, first->id.space, first->id.fork);
	deaths[fork]++;
	compare_page(&first[rnd(BLOCKS)], false);
}

static void
op_online(uint32_t extent)
{
	doing = "extent online";
	directory_extent_online(dir, extent, 0);
	online[extent] = true;
}

static void
op_offline(uint32_t extent)
{
	uint32_t	dropped = 0;

	doing = "extent offline";
	for (int i = 0; i < NPAGES; i++)
		if (pages[i].where == RBP_REMOTE && pages[i].slot / RBP_EXTENT_PAGES == extent)
		{
			dropped += live(&pages[i]);
			forget(&pages[i]);
		}
	expect(directory_extent_offline(dir, extent) == dropped, "live pages dropped");
	if (online[extent])
		losses[extent]++;
	online[extent] = false;
}

static void
op_sweep(int part)
{
	doing = "sweep";
	directory_sweep(dir, part);
	for (int i = 0; i < NPAGES; i++)
		if (pages[i].where != RBP_ABSENT && !live(&pages[i]) &&
			rbp_page_hash(&pages[i].id) % RBP_PARTITIONS == (uint32_t) part)
			forget(&pages[i]);
}

static void
op_drop_relation(int fork)
{
	RbpPageId	id = pages[fork * BLOCKS].id;
	uint64_t	dropped = 0;

	doing = "drop relation";
	for (int i = 0; i < NPAGES; i++)
		if (pages[i].id.rel == id.rel && pages[i].id.space == id.space && live(&pages[i]))
		{
			dropped++;
			forget(&pages[i]);
		}
	expect(directory_drop_relation(dir, id.rel, id.space) == dropped, "pages dropped");
}

/* A policy, which is applied at once or later. */
static void
op_policy(uint32_t rel, uint16_t space, RbpPolicy policy)
{
	doing = "policy";
	expect(rbp_directory_set_policy(dir, 1000 + rel, space, policy), "no room for a policy");
	unapplied |= policies[rel][space] != policy;
	policies[rel][space] = policy;
	expect(rbp_directory_policy(dir, 1000 + rel, space) == policy, "another policy");
}

static void
op_apply(void)
{
	doing = "apply policies";
	for (int part = 0; part < RBP_PARTITIONS; part++)
		rbp_directory_apply_policies(dir, part);
	rbp_directory_policies_applied(dir);
	unapplied = false;
	for (int i = 0; i < NPAGES; i++)
		if (policy_of(&pages[i]) == RBP_POLICY_NONE)
			forget(&pages[i]);
}

static void
op_keep(ModelPage *page)
{
	doing = "keep";
	expect(rbp_directory_keep(dir, &page->id) == live(page), "whether it is there");
	compare_page(page, false);
}

static void
op_limit(uint32_t max)
{
	doing = "limit";
	limited = max > 0;
	limit_max = max;
	rbp_directory_set_limit(dir, LIMITED, limited ? (int64_t) max : -1);
	/* what is kept stays, so that the limit may be passed from the start */
	if (limited && rbp_directory_database_pages(dir, LIMITED) > max)
		limit_max = (uint32_t) rbp_directory_database_pages(dir, LIMITED);
}

/* The lists of kept pages, and what is counted of them. */
static void
compare_kept(void)
{
	uint64_t	kept = 0;
	uint32_t	held[RELS][SPACES] = {{0}};
	uint64_t	of_space[SPACES] = {0};

	for (int part = 0; part < RBP_PARTITIONS; part++)
		for (uint32_t index = dir->partitions[part].lists[RBP_SLOT_KEPT].head;
			 index != RBP_NIL; index = rbp_entry(dir, index)->next)
		{
			const RbpEntry *e = rbp_entry(dir, index);

			expect(e->fork == 0, "a page of another fork is kept");
			held[e->rel - 1000][e->space]++;
			kept++;
		}
	expect(dir->kept == kept, "count of kept pages");
	for (uint32_t rel = 0; rel < RELS; rel++)
		for (uint16_t space = 0; space < SPACES; space++)
			if (policies[rel][space] == RBP_POLICY_KEEP)
				expect(rbp_directory_file_policy(dir, 1000 + rel, space).kept == held[rel][space],
					   "count of a relation's kept pages");
	for (int part = 0; part < RBP_PARTITIONS; part++)
		for (int state = RBP_SLOT_SMALL; state <= RBP_SLOT_KEPT; state++)
			for (uint32_t index = dir->partitions[part].lists[state].head;
				 index != RBP_NIL; index = rbp_entry(dir, index)->next)
				of_space[rbp_entry(dir, index)->space]++;
	for (uint16_t space = 0; space < SPACES; space++)
		expect(rbp_directory_database_pages(dir, space) == of_space[space], "count of a space's pages");
}

static bool
visit_page(const RbpPageId *id, const RbpLookup *at, void *arg)
{
	uint64_t   *count = arg;

	for (int i = 0; i < NPAGES; i++)
		if (rbp_page_equal(&pages[i].id, id))
		{
			expect(live(&pages[i]) && pages[i].where == at->where && pages[i].slot == at->slot,
				   "a visit shows something else");
			(*count)++;
			return false;
		}
	expect(false, "a visit shows a page that never was");
	return false;
}

static void
compare_all(void)
{
	DirectoryCounts counts;
	DirectoryCounts model = {0};
	uint64_t	visited = 0;
	uint32_t	used[EXTENTS] = {0};
	uint64_t	heat[EXTENTS] = {0};
	const char *problem = directory_check(dir);

	doing = "comparison of all";
	expect(problem == NULL, problem != NULL ? problem : "");
	for (int i = 0; i < NPAGES; i++)
	{
		compare_page(&pages[i], false);
		if (!live(&pages[i]))
			continue;
		if (pages[i].where == RBP_STAGED)
			model.staged++;
		else
		{
			model.remote++;
			used[pages[i].slot / RBP_EXTENT_PAGES]++;
			heat[pages[i].slot / RBP_EXTENT_PAGES] += 1;
		}
	}
	for (int i = 0; i < STAGING; i++)
		model.reserved += staging[i].held && staging[i].reserved != RBP_INVALID_SLOT;
	for (uint32_t i = 0; i < EXTENTS; i++)
	{
		uint64_t	h = directory_extent_heat(dir, i);

		model.online += online[i] ? RBP_EXTENT_PAGES : 0;
		expect(directory_extent_is_online(dir, i) == online[i], "whether an extent is online");
		expect(rbp_directory_extent_used(dir, i) == used[i], "pages in an extent");
		expect(h >= heat[i] && h <= heat[i] * (1 + RBP_MAX_FREQ), "heat of an extent");
	}
	directory_counts(dir, &counts);
	expect(counts.remote == model.remote, "count of remote pages");
	expect(counts.staged == model.staged, "count of staged pages");
	expect(counts.reserved == model.reserved, "count of reserved slots");
	expect(counts.online == model.online, "count of online slots");
	expect(counts.evictions == evictions, "count of evictions");
	for (int part = 0; part < RBP_PARTITIONS; part++)
		rbp_directory_visit(dir, part, false, visit_page, &visited);
	expect(visited == model.remote + model.staged, "pages visited");
	compare_kept();
}

/*
 * ---- the world -------------------------------------------------------------
 */

static void
begin(uint64_t seed)
{
	void	   *mem = aligned_alloc(64, rbp_directory_size(SLOTS, STAGING, 0));

	memset(pages, 0, sizeof(pages));
	memset(staging, 0, sizeof(staging));
	memset(deaths, 0, sizeof(deaths));
	memset(online, 0, sizeof(online));
	memset(losses, 0, sizeof(losses));
	for (int i = 0; i < SLOTS; i++)
		slot_owner[i] = NOBODY;
	for (int i = 0; i < NPAGES; i++)
	{
		int			fork = i / BLOCKS;

		pages[i].id = (RbpPageId)
		{
			.rel = (uint32_t) (1000 + fork / (FORKS * SPACES)),
				.space = (uint16_t) (fork / FORKS % SPACES),
				.fork = (uint8_t) (fork % FORKS),
				.block = (uint32_t) (i % BLOCKS),
		};
	}
	memset(policies, 0, sizeof(policies));
	limited = unapplied = false;
	evictions = 0;
	operation = 0;
	failure[0] = '\0';
	rng_state = seed * 0x9e3779b97f4a7c15 + 1;
	memset(mem, 0, rbp_directory_size(SLOTS, STAGING, 0));
	dir = directory_init(mem, SLOTS, STAGING, 0);
	rbp_directory_set_keep_max(dir, seed % 2 == 0 ? RBP_KEEP_HALF : SLOTS / 4);
}

/* The page gets another slot; things may happen while it is copied. */
static void
op_move(ModelPage *page)
{
	RbpMovable	from = {page->id, {page->where, page->slot, page->hash}};
	uint32_t	old = page->slot;
	uint32_t	to;
	uint32_t	epoch;
	RbpInsert	got;

	doing = "move";
	if (page->where != RBP_REMOTE || !live(page))
		return;
	to = reserve(page);
	if (to == RBP_INVALID_SLOT)
		return;
	epoch = losses[to / RBP_EXTENT_PAGES];
	switch (rnd(32))
	{
		case 0:
			op_write(page);
			break;
		case 1:
			op_bump((int) ((page - pages) / BLOCKS));
			break;
		case 2:
			op_offline(to / RBP_EXTENT_PAGES);
			if (rnd(2) == 0)
				op_online(to / RBP_EXTENT_PAGES);
			break;
		case 3:
			op_offline(old / RBP_EXTENT_PAGES);
			break;
		case 4:
			op_policy(page->id.rel - 1000, page->id.space, (RbpPolicy) rnd(RBP_POLICY_NONE + 1));
			break;
	}
	doing = "move";
	if (rnd(8) == 0)
	{
		rbp_directory_unreserve(dir, to);
		compare_page(page, false);
		return;
	}
	got = rbp_directory_move(dir, &from, to);
	if (page->where != RBP_REMOTE || page->slot != old || !live(page) ||
		policy_of(page) == RBP_POLICY_NONE)
		expect(got == RBP_INSERT_GONE, "a page that is not there was moved");
	else if (!online[to / RBP_EXTENT_PAGES] || losses[to / RBP_EXTENT_PAGES] != epoch)
		expect(got == RBP_INSERT_OFFLINE, "moved into lost memory");
	else
	{
		expect(got == RBP_INSERTED, "not moved");
		slot_owner[old] = NOBODY;
		slot_owner[to] = (int) (page - pages);
		page->slot = to;
		moves++;
	}
	compare_page(page, false);
}

static void
run(uint64_t seed, uint64_t operations)
{
	uint32_t	calm = seed % 2 == 0 ? 1 : 50;	/* disasters: often, or seldom */

	begin(seed);
	for (operation = 1; operation <= operations && failure[0] == '\0'; operation++)
	{
		/* half of the time pages of a small set, so that things meet */
		ModelPage  *page = &pages[rnd(2) == 0 ? rnd(NPAGES) : rnd(100) * 12];
		uint32_t	slot = rnd(STAGING);
		uint32_t	what = rnd(1000);

		if (what < 250)
			op_lookup(page);
		else if (what < 400)
			op_see(page);
		else if (what < 425)
			op_write(page);
		else if (what < 430)
			op_remove(page);
		else if (what < 600)
			op_stage(page, slot);
		else if (what < 650)
			op_info(slot);
		else if (what < 800)
			op_reserve(slot);
		else if (what < 940)
			op_publish(slot);
		else if (what < 950)
			op_abandon(slot);
		else if (what < 953)
			op_keep(page);
		else if (what < 954)
			op_policy(rnd(RELS), (uint16_t) rnd(SPACES), (RbpPolicy) rnd(RBP_POLICY_NONE + 1));
		else if (what < 955 && rnd(3) == 0)
			op_apply();
		else if (what < 955)
			op_limit(rnd(3) * SLOTS / 4);
		else if (what < 970)
			op_drop_if_same(page);
		else if (what < 980)
		{
			for (int i = 0; i < 50 && (page->where != RBP_REMOTE || !live(page)); i++)
				page = &pages[rnd(NPAGES)];
			op_move(page);
		}
		else if (what >= 991 || rnd(calm) > 0)
			op_sweep((int) rnd(RBP_PARTITIONS));
		else if (what < 984)
			op_bump((int) rnd(NFORKS));
		else if (what < 986)
			op_drop_relation((int) rnd(NFORKS));
		else if (what < 988)
			op_offline(rnd(EXTENTS));
		else
			op_online(rnd(EXTENTS));
		if (operation % 1000 == 0)
			compare_all();
	}
	if (failure[0] == '\0')
		compare_all();
	free(dir);
}

int
main(int argc, char **argv)
{
	uint64_t	seed = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
	uint64_t	operations = argc > 2 ? strtoull(argv[2], NULL, 10) : 200000;
	uint64_t	all_evictions = 0;
	const struct
	{
		const char *mutation;
		const char *name;
	}			mutations[] = {
		{"no-invalidate", "no invalidation"},
		{"no-removal", "no removal"},
		{"no-generation", "no generations"},
		{"no-capture-stamp", "no stamp at capture"},
		{"no-publish-check", "no check at publication"},
	};

	for (uint64_t i = 0; i < 5; i++)
	{
		run(seed + i, operations);
		ok(failure[0] == '\0', "seed %" PRIu64 ": %" PRIu64 " operations as the model has them",
		   seed + i, operations);
		if (failure[0] != '\0')
			diag("%s", failure);
		all_evictions += evictions;
	}
	ok(moves > 100, "%" PRIu64 " moves", moves);
	ok(all_evictions > 1000, "in all %" PRIu64 " evictions", all_evictions);

	/* the model notices each rule that is switched off */
	for (size_t i = 0; i < sizeof(mutations) / sizeof(mutations[0]); i++)
	{
		rbp_injection_point = mutations[i].mutation;
		run(seed, operations);
		rbp_injection_point = "";
		ok(failure[0] != '\0', "with %s the model differs", mutations[i].name);
		diag("%s", failure);
	}
	return done_testing();
}
