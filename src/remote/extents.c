/*-------------------------------------------------------------------------
 *
 * extents.c
 *	  The state of a pool's extents, as the lease worker changes it.
 *
 *-------------------------------------------------------------------------
 */
#include <string.h>

#include "remote/extents.h"

size_t
rbp_extents_size(uint32_t n)
{
	return (size_t) n * (sizeof(uint16_t) + sizeof(uint8_t));
}

void
rbp_extents_init(RbpExtents *x, void *mem, uint32_t first, uint32_t n)
{
	memset(x, 0, sizeof(*x));
	memset(mem, 0, rbp_extents_size(n));
	x->first = first;
	x->n = n;
	rbp_extents_reopen(x, mem);
}

void
rbp_extents_reopen(RbpExtents *x, void *mem)
{
	x->regions = mem;
	x->states = (uint8_t *) (x->regions + x->n);
	x->top = x->open = x->draining = x->closed = x->drop_at = 0;
	for (uint32_t i = 0; i < x->n; i++)
	{
		uint8_t    *state = &x->states[i];

		if (*state == RBP_EXTENT_ABSENT)
			continue;
		x->top = i + 1;
		/* what was overwritten must not lead out of the owner's counts */
		if (x->regions[i] >= RBP_MAX_REGIONS)
		{
			x->regions[i] = 0;
			*state = RBP_EXTENT_CLOSED;
		}
		if (*state == RBP_EXTENT_DRAINING)
			x->draining++;
		else if (rbp_state_open(*state))
		{
			x->open++;
			if (*state != RBP_EXTENT_FRESH)
				*state = RBP_EXTENT_TOUCHED;
		}
		else
		{
			/* also if it is none of the states */
			*state = RBP_EXTENT_CLOSED;
			x->closed++;
		}
	}
}

static void
add(uint32_t *counter, int change)
{
	__atomic_fetch_add(counter, (uint32_t) change, __ATOMIC_SEQ_CST);
}

/* Set the state, if the extent is online or draining.  Returns the old one. */
static uint8_t
change(RbpExtents *x, uint32_t extent, uint8_t to)
{
	uint8_t    *state = &x->states[extent - x->first];
	uint8_t		was = rbp_extent_state(x, extent);

	do
	{
		if (was == RBP_EXTENT_ABSENT || was == RBP_EXTENT_CLOSED || was == to)
			return was;
	} while (!__atomic_compare_exchange_n(state, &was, to, false,
										  __ATOMIC_SEQ_CST, __ATOMIC_ACQUIRE));
	return was;
}

void
rbp_extent_bring_online(RbpExtents *x, uint32_t extent, uint32_t region, uint8_t state)
{
	if (rbp_extent_state(x, extent) != RBP_EXTENT_ABSENT)
		return;
	/* the extent has no page, so nobody reads its region now */
	__atomic_store_n(&x->regions[extent - x->first], (uint16_t) region, __ATOMIC_RELAXED);
	add(&x->open, 1);
	__atomic_store_n(&x->states[extent - x->first], state, __ATOMIC_SEQ_CST);
	if (extent - x->first >= x->top)
		__atomic_store_n(&x->top, extent - x->first + 1, __ATOMIC_SEQ_CST);
	/* make those scan again who have scanned past the extent */
	add(&x->onlinings, 1);
}

void
rbp_extent_drain(RbpExtents *x, uint32_t extent)
{
	if (!rbp_state_open(change(x, extent, RBP_EXTENT_DRAINING)))
		return;
	add(&x->draining, 1);
	add(&x->open, -1);
}

/*
 * The number of fresh slots is not known any more.  Assuming that all may be
 * fresh costs only a few needless checks.
 */
void
rbp_extent_undrain(RbpExtents *x, uint32_t extent)
{
	if (rbp_extent_state(x, extent) != RBP_EXTENT_DRAINING)
		return;
	(void) change(x, extent, RBP_EXTENT_TOUCHED);
	add(&x->open, 1);
	add(&x->draining, -1);
	add(&x->onlinings, 1);
}

void
rbp_extent_close(RbpExtents *x, uint32_t extent)
{
	uint8_t		was = change(x, extent, RBP_EXTENT_CLOSED);

	if (was == RBP_EXTENT_ABSENT || was == RBP_EXTENT_CLOSED)
		return;
	add(was == RBP_EXTENT_DRAINING ? &x->draining : &x->open, -1);
	add(&x->closed, 1);
	if (was == RBP_EXTENT_FRESH)
		rbp_extents_dropped(x, &extent, 1);
}

uint32_t
rbp_extents_next_closed(RbpExtents *x, uint32_t *extents, uint32_t max)
{
	uint32_t	closed = rbp_extents_closed(x);
	uint32_t	n = 0;

	max = max < closed ? max : closed;
	for (int round = 0; round < 2 && n < max; round++)
	{
		while (n < max && x->drop_at < x->n)
		{
			const uint8_t *from = &x->states[x->drop_at];
			const uint8_t *found = memchr(from, RBP_EXTENT_CLOSED, x->n - x->drop_at);

			if (found == NULL)
				break;
			x->drop_at += (uint32_t) (found - from);
			extents[n++] = x->first + x->drop_at++;
		}
		if (n < max)
			x->drop_at = 0;
	}
	return n;
}

void
rbp_extents_dropped(RbpExtents *x, const uint32_t *extents, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		__atomic_store_n(&x->states[extents[i] - x->first], RBP_EXTENT_ABSENT,
						 __ATOMIC_SEQ_CST);
	add(&x->closed, -(int) n);
}
