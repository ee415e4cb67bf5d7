/*-------------------------------------------------------------------------
 *
 * staging.c
 *	  The staging region: pinned pages between the backends, which copy
 *	  victims in, and the pusher, which writes them to donors.
 *
 * The two lists of slot numbers are linked through one array.  They are
 * stacks.  Rings, as for a bounded queue, would not do: a process that has
 * reserved a cell, and is stopped before it has filled or emptied it, blocks
 * the others when they come around to that cell; and then a slot cannot be
 * given back although the ring has room for all of them.  On a stack, an
 * operation is one compare-and-exchange, and a process that is stopped
 * anywhere blocks nobody.
 *
 * - free: a stack (R.  K.  Treiber) whose head carries a tag beside the slot
 *	 number, incremented at each pop.  So a pop fails if, after it read the
 *	 head, others popped and pushed the same slot again.  It could succeed
 *	 wrongly only if exactly 2^32 pops, or a multiple, happened meanwhile.
 *	 Last in, first out also suits the CPU caches.
 *
 * - ready: backends push; only the pusher takes, and it takes the whole stack
 *	 by one exchange, so no tag is needed.  It reverses the chain into a list
 *	 of its own, and so takes the slots in the order in which they came.
 *
 * Every change of a head is a read-modify-write, so a process that acquires a
 * head sees everything that was done to any slot of the chain before that
 * slot was put there.  That includes the content of the pages.
 *
 *-------------------------------------------------------------------------
 */
#include "base/layout.h"
#include "buffer/staging.h"

#include <string.h>

#define STAGED_PAGE		8192
#define PAGES_ALIGN		4096	/* a device registers whole memory pages */

struct RbpStaging
{
	uint32_t	nslots;
	size_t		pages;			/* offset from this struct */

	/* tag << 32 | slot */
	uint64_t	free_head __attribute__((aligned(RBP_CACHE_LINE)));

	uint32_t	ready_head __attribute__((aligned(RBP_CACHE_LINE)));
	int32_t		ready_count;	/* pending ones included; about, may even be
								 * negative: see rbp_staging_ready() */

	/* owned by the pusher: slots that take() will return next, oldest first */
	uint32_t	pending __attribute__((aligned(RBP_CACHE_LINE)));
	uint32_t	taken;			/* number of slots that the last take()
								 * returned */

	/* for each slot, the next one on its list */
	uint32_t	next[] __attribute__((aligned(RBP_CACHE_LINE)));
};

static size_t
pages_offset(uint32_t n)
{
	size_t		lists = sizeof(RbpStaging) + (size_t) n * sizeof(uint32_t);

	return (lists + PAGES_ALIGN - 1) & ~(size_t) (PAGES_ALIGN - 1);
}

size_t
rbp_staging_size(uint32_t n)
{
	return pages_offset(n) + (size_t) n * STAGED_PAGE;
}

RbpStaging *
rbp_staging_init(void *mem, uint32_t n)
{
	RbpStaging *st = mem;

	memset(st, 0, sizeof(RbpStaging));
	st->nslots = n;
	st->pages = pages_offset(n);
	for (uint32_t i = 0; i < n; i++)
		st->next[i] = i + 1 < n ? i + 1 : RBP_NO_STAGING_SLOT;
	st->free_head = n > 0 ? 0 : RBP_NO_STAGING_SLOT;
	st->ready_head = RBP_NO_STAGING_SLOT;
	st->pending = RBP_NO_STAGING_SLOT;
	return st;
}

uint32_t
rbp_staging_get(RbpStaging *st)
{
	uint64_t	head = __atomic_load_n(&st->free_head, __ATOMIC_ACQUIRE);

	for (;;)
	{
		uint32_t	slot = (uint32_t) head;
		uint64_t	newhead;

		if (slot == RBP_NO_STAGING_SLOT)
			return RBP_NO_STAGING_SLOT;

		/*
		 * next[slot] is wrong if the slot was popped meanwhile; but then the
		 * tag has changed, and the exchange fails.
		 */
		newhead = ((head >> 32) + 1) << 32 |
			__atomic_load_n(&st->next[slot], __ATOMIC_RELAXED);
		if (__atomic_compare_exchange_n(&st->free_head, &head, newhead, true,
										__ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
			return slot;
	}
}

void
rbp_staging_put(RbpStaging *st, uint32_t slot)
{
	uint64_t	head = __atomic_load_n(&st->free_head, __ATOMIC_RELAXED);
	uint64_t	newhead;

	do
	{
		__atomic_store_n(&st->next[slot], (uint32_t) head, __ATOMIC_RELAXED);
		newhead = (head & ~(uint64_t) UINT32_MAX) | slot;
	} while (!__atomic_compare_exchange_n(&st->free_head, &head, newhead, true,
										  __ATOMIC_ACQ_REL, __ATOMIC_RELAXED));
}

/*
 * A slot is counted after it was put on the list.  So the pusher may subtract
 * slots that are not counted yet, and the count may be too low, or negative.
 * The result is not less than one, for the caller's own slot.
 */
uint32_t
rbp_staging_ready(RbpStaging *st, uint32_t slot)
{
	uint32_t	head = __atomic_load_n(&st->ready_head, __ATOMIC_RELAXED);
	int32_t		count;

	do
	{
		__atomic_store_n(&st->next[slot], head, __ATOMIC_RELAXED);
	} while (!__atomic_compare_exchange_n(&st->ready_head, &head, slot, true,
										  __ATOMIC_SEQ_CST, __ATOMIC_RELAXED));
	count = __atomic_add_fetch(&st->ready_count, 1, __ATOMIC_SEQ_CST);
	return count < 1 ? 1 : (uint32_t) count;
}

int
rbp_staging_take(RbpStaging *st, uint32_t *slots, int max)
{
	uint32_t	pending = __atomic_load_n(&st->pending, __ATOMIC_RELAXED);
	int			n = 0;

	while (n < max)
	{
		if (pending == RBP_NO_STAGING_SLOT)
		{
			uint32_t	newest;

			/* read before writing, because the idle pusher polls here */
			if (__atomic_load_n(&st->ready_head,
								__ATOMIC_RELAXED) == RBP_NO_STAGING_SLOT)
				break;
			newest = __atomic_exchange_n(&st->ready_head, RBP_NO_STAGING_SLOT,
										 __ATOMIC_SEQ_CST);
			while (newest != RBP_NO_STAGING_SLOT)
			{
				uint32_t	older = __atomic_load_n(&st->next[newest],
													__ATOMIC_RELAXED);

				__atomic_store_n(&st->next[newest], pending, __ATOMIC_RELAXED);
				pending = newest;
				newest = older;
			}
			if (pending == RBP_NO_STAGING_SLOT)
				break;
		}
		slots[n++] = pending;
		pending = __atomic_load_n(&st->next[pending], __ATOMIC_RELAXED);
	}
	__atomic_store_n(&st->pending, pending, __ATOMIC_RELAXED);
	/* store this before ready_count is lowered: see rbp_staging_busy() */
	__atomic_store_n(&st->taken, (uint32_t) n, __ATOMIC_RELEASE);
	if (n > 0)
		__atomic_sub_fetch(&st->ready_count, n, __ATOMIC_SEQ_CST);
	return n;
}

void *
rbp_staging_page(RbpStaging *st, uint32_t slot)
{
	return (char *) st + st->pages + (size_t) slot * STAGED_PAGE;
}

uint32_t
rbp_staging_slots(const RbpStaging *st)
{
	return st->nslots;
}

/*
 * The depth is never 0 while a slot can be taken, even if the backend has not
 * counted it yet.  So a pusher that sees 0 may go to sleep.
 */
uint32_t
rbp_staging_depth(RbpStaging *st)
{
	int32_t		count = __atomic_load_n(&st->ready_count, __ATOMIC_SEQ_CST);

	if (count > 0)
		return (uint32_t) count;
	/* a slot that is not counted yet? */
	return (__atomic_load_n(&st->ready_head,
							__ATOMIC_SEQ_CST) != RBP_NO_STAGING_SLOT ||
			__atomic_load_n(&st->pending,
							__ATOMIC_RELAXED) != RBP_NO_STAGING_SLOT) ? 1 : 0;
}

/*
 * Read the depth first: a slot that is taken in between counts twice rather
 * than not at all.
 */
uint32_t
rbp_staging_busy(RbpStaging *st)
{
	uint32_t	depth = rbp_staging_depth(st);

	return depth + __atomic_load_n(&st->taken, __ATOMIC_ACQUIRE);
}
