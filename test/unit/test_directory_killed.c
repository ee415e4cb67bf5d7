/*-------------------------------------------------------------------------
 *
 * test_directory_killed.c
 *	  Processes that work on a directory are killed at any instruction; what they
 *	  leave, opened again, claims nothing that is not so.
 *
 * The directory, the "disk" and donors' memory are in shared memory.  A page's
 * content is one number, which is also its hash, and changes only as the rules of
 * coherence allow.  After each kill a copy of the directory is opened again and
 * checked; the directory itself is opened again for the next processes, who build
 * it where they come first, and may be killed at that.
 *
 * A process also works in memory that it may not write to, so that it is interrupted
 * at each store.  What it would leave is checked after each that has changed
 * anything, which is as good as after each instruction.
 *
 *	 test_directory_killed [KILLS [INTERRUPTED OPERATIONS [SEED]]]
 *
 *-------------------------------------------------------------------------
 */
#include "base/geometry.h"
#include "base/injection_point.h"
#include "buffer/directory.h"
#include "buffer/directory_internal.h"
#include "buffer/page.h"

#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#include "directory_check.h"
#include "random.h"
#include "tap.h"

#define FORKS		16
#define BLOCKS		64
#define NPAGES		(FORKS * BLOCKS)
#define EXTENTS		4
#define SLOTS		(EXTENTS * RBP_EXTENT_PAGES)
#define PROCESSES	3
#define STAGED_EACH 6
#define STAGING		(PROCESSES * STAGED_EACH)
#define SHADOWS		128			/* versions that a process remembers */

typedef struct Shared
{
	uint64_t	disk[NPAGES];
	uint64_t	remote[SLOTS];	/* donors' memory */
	uint64_t	next_content;
	uint8_t		locked[NPAGES]; /* as by the buffer manager */
	struct
	{
		uint64_t	operations; /* begun */
		bool		busy;		/* with one */
		uint64_t	served;		/* reads from the directory that verified */
		uint64_t	wrong;		/* lookups that differed from the disk */
	}			of[PROCESSES];
} Shared;

typedef struct Shadow
{
	uint32_t	n;				/* page */
	RbpVersion	version;
} Shadow;

/* One process's own memory. */
typedef struct Process
{
	uint32_t	number;
	uint64_t	rng;
	Shadow		shadows[SHADOWS];
	uint32_t	nshadows;
	struct
	{
		bool		used;
		uint64_t	content;
	}			staged[STAGED_EACH];
	uint32_t	late_slot;		/* of a write that was given up, but comes */
	uint64_t	late_content;
} Process;

static Shared *shared;
static RbpDirectory *dir;
static void *copy;				/* of the directory, to be checked */

static RbpPageId
page_id(uint32_t n)
{
	uint32_t	f = n / BLOCKS;

	return (RbpPageId)
	{
		.rel = 5000 + f / 2,.fork = (uint8_t) (f % 2),.space = f < FORKS / 2 ? 1 : 2,.block = n % BLOCKS
	};
}

/* An even number; see write_late(). */
static uint64_t
new_content(void)
{
	return rbp_mix64(__atomic_add_fetch(&shared->next_content, 1, __ATOMIC_RELAXED)) & ~UINT64_C(1);
}

static uint32_t
rnd(Process *me, uint32_t n)
{
	return (uint32_t) ((next_random(&me->rng) >> 20) % n);
}

static bool
lock_page(uint32_t n)
{
	return __atomic_exchange_n(&shared->locked[n], 1, __ATOMIC_ACQUIRE) == 0;
}

static void
unlock_page(uint32_t n)
{
	__atomic_store_n(&shared->locked[n], 0, __ATOMIC_RELEASE);
}

static uint64_t
get(const uint64_t *word)
{
	return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}

static void
set(uint64_t *word, uint64_t value)
{
	__atomic_store_n(word, value, __ATOMIC_RELEASE);
}

/*
 * ---- backends ----------------------------------------------------------------
 */

static void
remember(Process *me, uint32_t n, const RbpVersion *version)
{
	me->shadows[me->nshadows++ % SHADOWS] = (Shadow)
	{
		n, *version
	};
}

static void
stage(Process *me, uint32_t n, const RbpVersion *version)
{
	RbpPageId	id = page_id(n);

	for (uint32_t i = 0; i < STAGED_EACH; i++)
		if (!me->staged[i].used)
		{
			me->staged[i].content = version->hash;
			me->staged[i].used = rbp_directory_insert_staged(dir, REF(&id), version,
															 me->number * STAGED_EACH + i) == RBP_INSERTED;
			return;
		}
}

static void
read_page(Process *me, uint32_t n)
{
	RbpPageId	id = page_id(n);
	RbpVersion	version;
	RbpLookup	at;

	if (!lock_page(n))
		return;
	at = rbp_directory_begin_read(dir, REF(&id), &version);
	version.hash = get(&shared->disk[n]);
	if (at.where != RBP_ABSENT && at.hash != version.hash)
		shared->of[me->number].wrong++;
	if (at.where == RBP_REMOTE && get(&shared->remote[at.slot]) != at.hash)
		(void) rbp_directory_drop_if_same(dir, &id, &at);
	else
		shared->of[me->number].served += at.where != RBP_ABSENT;
	remember(me, n, &version);
	unlock_page(n);
}

static void
write_page(Process *me, uint32_t n)
{
	RbpPageId	id = page_id(n);
	RbpVersion	version;

	if (!lock_page(n))
		return;
	rbp_directory_invalidate(dir, &id, true);
	rbp_directory_note_version(dir, REF(&id), &version);
	version.hash = new_content();
	set(&shared->disk[n], version.hash);
	if (rnd(me, 2) == 0)
		stage(me, n, &version);
	else
		remember(me, n, &version);
	unlock_page(n);
}

/* All of a fork, or some of its blocks. */
static void
truncate_fork(Process *me, uint32_t n)
{
	bool		all = rnd(me, 4) == 0;
	uint32_t	first = all ? n / BLOCKS * BLOCKS : n;
	uint32_t	end = all ? first + BLOCKS : n + 1 + rnd(me, BLOCKS - n % BLOCKS) % 4;
	uint32_t	locked = first;
	RbpPageId	id = page_id(first);

	while (locked < end && lock_page(locked))
		locked++;
	for (int round = 0; round < 2 && locked == end; round++)
	{
		if (all)
			rbp_directory_bump_generation(dir, id.rel, id.space, id.fork);
		for (uint32_t i = first; i < end; i++)
		{
			id.block = i % BLOCKS;
			if (!all)
				rbp_directory_invalidate(dir, &id, false);
		}
		for (uint32_t i = first; i < end && round == 0; i++)
			set(&shared->disk[i], new_content());
	}
	while (locked > first)
		unlock_page(--locked);
}

/*
 * ---- pushing and moving ---------------------------------------------------------
 */

/*
 * A write that was given up, but arrives: the slot may be another page's by now.  What
 * is written is odd, so that nobody wonders that it does not verify.
 */
static void
write_late(Process *me)
{
	if (me->late_content != 0)
		set(&shared->remote[me->late_slot], me->late_content | 1);
	me->late_content = 0;
}

static bool
write_slot(Process *me, uint32_t slot, uint64_t content)
{
	set(&shared->remote[slot], content);
	if (rnd(me, 16) != 0)
		return true;
	me->late_slot = slot;
	me->late_content = content;
	return false;
}

static void
push(Process *me, uint32_t i)
{
	uint32_t	staging_slot = me->number * STAGED_EACH + i;
	RbpPageId	page;
	RbpEvicted	evicted;
	uint64_t	hash;
	uint32_t	slot;

	if (!me->staged[i].used)
		return;
	me->staged[i].used = false;
	if (!rbp_directory_staged_info(dir, staging_slot, &page, &hash))
		return;
	shared->of[me->number].wrong += hash != me->staged[i].content;
	slot = rbp_directory_reserve(dir, &page, &evicted);
	(void) rbp_directory_publish(dir, &page, staging_slot, slot,
								 slot != RBP_INVALID_SLOT && write_slot(me, slot, hash));
}

static void
move_pages(Process *me)
{
	RbpMovable	pages[4];
	uint32_t	next = rnd(me, RBP_EXTENT_PAGES);
	int			n = rbp_directory_movable(dir, rnd(me, EXTENTS), &next, pages, 4);

	for (int i = 0; i < n; i++)
	{
		uint64_t	content = get(&shared->remote[pages[i].at.slot]);
		RbpEvicted	evicted;
		uint32_t	slot;

		if (content != pages[i].at.hash)
			continue;
		slot = rbp_directory_reserve(dir, &pages[i].page, &evicted);
		if (slot == RBP_INVALID_SLOT)
			continue;
		if (write_slot(me, slot, content))
			(void) rbp_directory_move(dir, &pages[i], slot);
		else
			rbp_directory_unreserve(dir, slot);
	}
}

/*
 * ---- the lease worker and the policy worker: the first process ----------------------
 */

static void
change_extent(Process *me, uint32_t extent)
{
	switch (rnd(me, 5))
	{
		case 0:
			directory_extent_drain(dir, extent);
			break;
		case 1:
			directory_extent_undrain(dir, extent);
			break;
		case 2:
			/* seldom, so that much is left */
			if (rnd(me, 8) == 0)
				directory_extent_close(dir, extent);
			break;
		case 3:
			(void) directory_collect(dir, 2);
			break;
		default:
			if (!directory_extent_absent(dir, extent))
				break;
			/* the memory is another one */
			for (uint32_t slot = RBP_EXTENT_SLOT(extent); slot < RBP_EXTENT_SLOT(extent + 1); slot++)
				set(&shared->remote[slot], new_content());
			directory_extent_online(dir, extent, rnd(me, 3));
	}
}

static void
change_policy(Process *me)
{
	const RbpPolicy all[] = {RBP_POLICY_KEEP, RBP_POLICY_KEEP, RBP_POLICY_DEFAULT, RBP_POLICY_NONE};
	RbpPageId	page = page_id(rnd(me, NPAGES));

	switch (rnd(me, 6))
	{
		case 0:
			rbp_directory_set_keep_max(dir, rnd(me, SLOTS));
			break;
		case 1:
			rbp_directory_set_policy(dir, page.rel, page.space, all[rnd(me, 4)]);
			for (int i = 0; i < RBP_PARTITIONS; i++)
				(void) rbp_directory_apply_policies(dir, i);
			rbp_directory_policies_applied(dir);
			break;
		case 2:
			rbp_directory_set_limit(dir, 1, rnd(me, 3) == 0 ? 3 * RBP_PARTITIONS : -1);
			break;
		default:
			(void) rbp_directory_trim(dir, (int) rnd(me, RBP_PARTITIONS), 1);
	}
}

/*
 * ---- a process -----------------------------------------------------------------
 */

static void
operate(Process *me)
{
	uint32_t	n = rnd(me, NPAGES);
	RbpPageId	page = page_id(n);
	uint32_t	what = rnd(me, 1000);

	if (what < 300)
		read_page(me, n);
	else if (what < 380)
		write_page(me, n);
	else if (what < 620)
	{
		const Shadow *s = &me->shadows[rnd(me, SHADOWS)];

		if (s->version.hash != 0)
			stage(me, s->n, &s->version);
	}
	else if (what < 860)
		push(me, rnd(me, STAGED_EACH));
	else if (what < 900)
		move_pages(me);
	else if (what < 920)
		write_late(me);
	else if (what < 925)
		truncate_fork(me, n);
	else if (what < 935)
		(void) directory_sweep(dir, (int) rnd(me, RBP_PARTITIONS));
	else if (what < 950)
		(void) rbp_directory_keep(dir, &page);
	else if (what < 955)
		(void) rbp_directory_room(dir, &page);
	else if (what < 960)
		directory_build(dir, (int) rnd(me, RBP_PARTITIONS));
	else if (what == 960 && rnd(me, 20) == 0)
		rbp_directory_bump_all(dir);
	else if (me->number == 0 && what < 980)
		change_extent(me, rnd(me, EXTENTS));
	else if (me->number == 0 && what < 983)
		change_policy(me);
}

/* Until it is killed, or so many operations have been done. */
static void
work(uint32_t number, uint64_t seed, uint64_t operations)
{
	Process		me = {.number = number,.rng = seed};

	if (number == 0)
		rbp_directory_set_keep_max(dir, SLOTS / 2);
	for (uint64_t i = 0; i < operations; i++)
	{
		shared->of[number].operations++;
		__atomic_store_n(&shared->of[number].busy, true, __ATOMIC_RELEASE);
		operate(&me);
		__atomic_store_n(&shared->of[number].busy, false, __ATOMIC_RELEASE);
	}
}

/*
 * ---- what they leave --------------------------------------------------------------
 */

typedef struct Found
{
	uint64_t	checks;
	uint64_t	pages;			/* claims that were true */
	uint64_t	torn;			/* of which slots late writes have changed */
	uint64_t	wrong;
	char		what[200];		/* the first of these */
} Found;

static void
fault(Found *found, const char *what, uint32_t page)
{
	if (found->wrong++ == 0)
		snprintf(found->what, sizeof(found->what), "%s (page %u, check %" PRIu64 ")", what, page, found->checks);
}

/* Entries that a crash may leave, as far as their own extent and generation tell. */
static uint32_t
count_entries(const RbpDirectory *of)
{
	uint32_t	n = 0;

	for (uint32_t index = 0; index < of->max_slots; index++)
		n += rbp_entry_queued(rbp_entry(of, index)) && rbp_entry_live(of, index / of->nlocal, index);
	return n;
}

static void
check_left(Found *found)
{
	RbpDirectory *left = directory_reopen_copy(dir, copy, 0);
	uint32_t	expected = count_entries(left);
	uint32_t	pages = 0;
	const char *problem;
	RbpTierPages counts;

	found->checks++;
	for (uint32_t n = 0; n < NPAGES; n++)
	{
		RbpPageId	id = page_id(n);
		RbpLookup	at = rbp_directory_lookup(left, REF(&id), false);

		if (at.where == RBP_ABSENT)
			continue;
		pages++;
		if (at.where == RBP_STAGED)
			fault(found, "a staged page is left", n);
		else if (at.hash != shared->disk[n])
			fault(found, "an entry is not true", n);
		else if (shared->remote[at.slot] % 2 != 0)
			found->torn++;
		else if (shared->remote[at.slot] != at.hash)
			fault(found, "a slot was written that a page has", n);
	}
	found->pages += pages;
	problem = directory_check(left);
	if (problem == NULL)
		problem = directory_check_sums(left);
	if (problem != NULL)
		fault(found, problem, 0);
	rbp_directory_counts(left, &counts);
	if (pages != expected || counts.remote != pages || counts.free != counts.online - pages ||
		counts.kept != 0 || counts.staged != 0)
		fault(found, "pages were lost, or counts are wrong", 0);
}

/*
 * Names of entries are overwritten, as by a crash that comes of a wild pointer: what
 * such a page's slot has is not taken for the page.
 */
static void
check_overwritten(Found *found, uint64_t *rng)
{
	RbpDirectory *left = copy;
	const char *problem;

	for (int i = 0; i < 50; i++)
	{
		RbpEntry   *e = rbp_entry(left, (uint32_t) (next_random(rng) % SLOTS));
		RbpPageId	id = page_id((uint32_t) (next_random(rng) % NPAGES));

		if (!rbp_entry_queued(e))
			continue;
		e->rel = id.rel;
		e->space = id.space;
		e->fork = id.fork;
		e->block = id.block;
	}
	directory_reopen(left, 0);
	directory_build_all(left);
	problem = directory_check_sums(left);
	if (problem != NULL)
		fault(found, problem, 0);
	for (uint32_t n = 0; n < NPAGES; n++)
	{
		RbpPageId	id = page_id(n);
		RbpLookup	at = rbp_directory_lookup(left, REF(&id), false);

		if (at.where != RBP_REMOTE)
			continue;
		if (at.slot >= SLOTS)
			fault(found, "an entry is in another's partition", n);
		else if (at.hash == shared->remote[at.slot] && at.hash != shared->disk[n])
			fault(found, "an overwritten entry verifies", n);
	}
}

/* What the server does after a crash. */
static void
reopen(void)
{
	memset(shared->locked, 0, sizeof(shared->locked));
	directory_reopen(dir, 0);
}

static void
make(void)
{
	size_t		size = rbp_directory_size(SLOTS, STAGING, 0);
	void	   *mem = mmap(NULL, size + sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	if (mem == MAP_FAILED)
		abort();
	shared = (Shared *) ((char *) mem + size);
	dir = directory_init(mem, SLOTS, STAGING, 0);
	copy = aligned_alloc(64, (directory_copy_size(dir) + 63) & ~(size_t) 63);
	rbp_directory_set_database(dir, 2, 1);
	for (uint32_t n = 0; n < NPAGES; n++)
		shared->disk[n] = new_content();
	for (uint32_t i = 0; i < EXTENTS; i++)
		directory_extent_online(dir, i, 0);
}

static void
unmake(void)
{
	free(copy);
	munmap((void *) (uintptr_t) dir->extents, sizeof(RbpExtents) + rbp_extents_size(EXTENTS));
	munmap(dir, dir->bytes + sizeof(Shared));
}

/*
 * ---- killed at random -----------------------------------------------------------
 */

/* Let processes work, and kill them.  Returns how many were killed within an operation. */
static int
kill_some(uint64_t *rng, Found *found)
{
	pid_t		pids[PROCESSES];
	struct timespec moment = {0};
	int			busy = 0;
	uint32_t	first = (uint32_t) (next_random(rng) % PROCESSES);

	for (uint32_t i = 0; i < PROCESSES; i++)
	{
		uint64_t	seed = next_random(rng);

		shared->of[i].busy = false;
		shared->of[i].operations = 0;
		pids[i] = fork();
		if (pids[i] < 0)
			abort();
		if (pids[i] == 0)
		{
			work(i, seed, UINT64_MAX);
			_exit(1);
		}
	}
	for (uint32_t i = 0; i < PROCESSES; i++)
		while (get(&shared->of[i].operations) == 0 && waitpid(pids[i], NULL, WNOHANG) == 0)
			sched_yield();
	moment.tv_nsec = (long) (next_random(rng) % 600000);
	nanosleep(&moment, NULL);
	for (uint32_t i = 0; i < PROCESSES; i++)
		kill(pids[(first + i) % PROCESSES], SIGKILL);
	for (uint32_t i = 0; i < PROCESSES; i++)
	{
		int			status = 0;

		if (waitpid(pids[i], &status, 0) != pids[i] || !WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL)
			fault(found, "a process has ended by itself", i);
		busy += shared->of[i].busy;
		if (shared->of[i].wrong > 0)
			fault(found, "a process saw what is not so", i);
		shared->of[i].wrong = 0;
	}
	return busy;
}

static void
test_killed(uint32_t kills, uint64_t *rng, Found *found)
{
	uint64_t	operations = 0;
	uint64_t	served = 0;
	uint64_t	busy = 0;

	make();
	for (uint32_t i = 0; i < kills; i++)
	{
		busy += (uint64_t) kill_some(rng, found);
		for (int j = 0; j < PROCESSES; j++)
			operations += shared->of[j].operations;
		check_left(found);
		if (i % 8 == 0)
			check_overwritten(found, rng);
		reopen();
		/* a write may be on its way still */
		if (i % 4 == 0)
			set(&shared->remote[next_random(rng) % SLOTS], new_content() | 1);
	}
	for (int j = 0; j < PROCESSES; j++)
		served += shared->of[j].served;
	diag("%u kills of %d processes, %" PRIu64 " within an operation; %" PRIu64 " operations, %" PRIu64
		 " pages served; %" PRIu64 " pages left, %" PRIu64 " overwritten by late writes",
		 kills, PROCESSES, busy, operations, served, found->pages, found->torn);
	if (rbp_injection_point[0] == '\0')
	{
		ok(found->wrong == 0, "killed %u times: all that is left is true: %" PRIu64 " faults %s",
		   kills, found->wrong, found->what);
		ok(found->pages / kills > SLOTS / 20, "and much is left: %" PRIu64 " pages", found->pages / kills);
		ok(busy > kills, "processes were killed within operations: %" PRIu64, busy);
		ok(served > kills, "and used what others had left: %" PRIu64, served);
		ok(found->torn > 0, "with late writes: %" PRIu64, found->torn);
	}
	unmake();
}

/*
 * ---- interrupted at each store ------------------------------------------------------
 */

#if defined(__x86_64__)

#define TRAP_FLAG	0x100		/* be interrupted after the next instruction */

static char *seen;				/* what has_changed() compares with */
static uint64_t stores;
static Found *found_after_stores;

/*
 * Have entries, extents, the disk or donors' memory changed since the last call, or
 * has a generation?
 */
static bool
has_changed(void)
{
	const struct
	{
		const void *from;
		size_t		bytes;
	}			parts[] = {
		{rbp_entry(dir, 0), SLOTS * sizeof(RbpEntry)},
		{dir->extents->regions, rbp_extents_size(EXTENTS)},
		{rbp_array(dir, dir->generations), dir->ngenerations * sizeof(uint32_t)},
		{shared, offsetof(Shared, next_content)},
	};
	char	   *old = seen;
	bool		changed = false;

	for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++)
	{
		if (memcmp(old, parts[i].from, parts[i].bytes) != 0)
		{
			memcpy(old, parts[i].from, parts[i].bytes);
			changed = true;
		}
		old += parts[i].bytes;
	}
	return changed;
}

static void
permit_stores(bool permit)
{
	int			protection = PROT_READ | (permit ? PROT_WRITE : 0);

	if (mprotect(dir, dir->bytes + sizeof(Shared), protection) != 0 ||
		mprotect((void *) (uintptr_t) dir->extents, sizeof(RbpExtents) + rbp_extents_size(EXTENTS), protection) != 0)
		abort();
}

static void
before_store(int signal_number, siginfo_t *info, void *context)
{
	const char *at = info->si_addr;
	const char *extents = (const char *) dir->extents;

	if ((at < (char *) dir || at >= (char *) (shared + 1)) &&
		(at < extents || at >= extents + sizeof(RbpExtents) + rbp_extents_size(EXTENTS)))
		signal(signal_number, SIG_DFL); /* it happens again, and is the end */
	else
	{
		permit_stores(true);
		((ucontext_t *) context)->uc_mcontext.gregs[REG_EFL] |= TRAP_FLAG;
	}
}

static void
after_store(int signal_number, siginfo_t *info, void *context)
{
	((ucontext_t *) context)->uc_mcontext.gregs[REG_EFL] &= ~TRAP_FLAG;
	stores++;
	if (has_changed())
		check_left(found_after_stores);
	permit_stores(false);
}

static void
test_interrupted(uint64_t operations, uint64_t *rng, Found *found)
{
	const struct sigaction before = {.sa_sigaction = before_store,.sa_flags = SA_SIGINFO};
	const struct sigaction after = {.sa_sigaction = after_store,.sa_flags = SA_SIGINFO};
	struct sigaction old;

	make();
	seen = calloc(1, dir->bytes + sizeof(Shared));
	found_after_stores = found;
	/* fill it */
	work(1, next_random(rng), 20000);
	reopen();

	sigaction(SIGSEGV, &before, &old);
	sigaction(SIGTRAP, &after, NULL);
	permit_stores(false);
	work(0, next_random(rng), operations);
	permit_stores(true);
	sigaction(SIGSEGV, &old, NULL);
	signal(SIGTRAP, SIG_DFL);

	is_u64(shared->of[0].operations, operations, "interrupted at %" PRIu64 " stores", stores);
	is_u64(shared->of[0].wrong + shared->of[1].wrong, 0, "the process saw nothing that is not so");
	ok(found->wrong == 0, "after each store all is true: %" PRIu64 " faults of %" PRIu64 " checks %s",
	   found->wrong, found->checks, found->what);
	ok(found->checks > operations / 2 && found->pages / found->checks > SLOTS / 20,
	   "and much is left: %" PRIu64 " pages", found->pages / found->checks);
	free(seen);
	unmake();
}

#endif

int
main(int argc, char **argv)
{
	uint32_t	kills = argc > 1 ? (uint32_t) strtoul(argv[1], NULL, 10) : 1000;
	uint64_t	operations = argc > 2 ? strtoull(argv[2], NULL, 10) : 1000;
	uint64_t	rng = argc > 3 ? strtoull(argv[3], NULL, 10) : (uint64_t) time(NULL);
	Found		killed = {0};
	Found		interrupted = {0};
	Found		broken = {0};

	diag("seed %" PRIu64, rng);
	test_killed(kills, &rng, &killed);
#if defined(__x86_64__)
	test_interrupted(operations, &rng, &interrupted);
#endif

	/* is anything noticed at all? */
	rbp_injection_point = "no-invalidate";
	test_killed(20, &rng, &broken);
	rbp_injection_point = "";
	ok(broken.wrong > 0, "without invalidation: %s", broken.what);
	return done_testing();
}
