/*-------------------------------------------------------------------------
 *
 * test_ahead.c
 *	  Pages on their way: which copies are used, and which batches give way.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <stdlib.h>

#include "mock_server.h"
#include "base/guc.h"
#include "base/hash.h"
#include "base/process.h"
#include "common/status.h"
#include "remote/remote.h"

#include "tap.h"

#define SLOTS			4096
#define PAGES			RBP_AHEAD_PAGES

/*
 * ---- a donor: the page of a slot is one value, over and over -------------------
 */

static uint8 content[SLOTS];
static int	in_flight = 0;
static int	begun = 0;
static RbpStatus outcome = RBP_OK;	/* of what is waited for */
static bool readable = true;
static bool refused = false;	/* nothing is sent */
static int64 waited_until;

struct RbpRemoteBatch
{
	RbpRemoteIo *ios;
	int			n;
};

RbpRemoteBatch *
rbp_remote_begin(RbpRemoteIo *ios, int n, bool write, int flags,
				 int64 start_ns, int64 deadline_ns)
{
	RbpRemoteBatch *batch;

	if (refused)
		return NULL;
	batch = malloc(sizeof(*batch));
	batch->ios = ios;
	batch->n = n;
	in_flight++;
	begun++;
	return batch;
}

void
rbp_remote_end(RbpRemoteBatch *batch, int64 deadline_ns)
{
	waited_until = deadline_ns;
	for (int i = 0; i < batch->n; i++)
	{
		batch->ios[i].status = outcome;
		memset(batch->ios[i].buf, content[batch->ios[i].slot], BLCKSZ);
	}
	in_flight--;
	free(batch);
}

bool
rbp_remote_slot_readable(uint32 slot)
{
	return readable;
}

/*
 * ---- requests -------------------------------------------------------------------
 */

static uint64
hash_now(uint32 slot)
{
	char		page[BLCKSZ];

	memset(page, content[slot], BLCKSZ);
	return rbp_hash_page(page);
}

/* Request n slots from that one on; the number of the batch. */
static int
request(RbpPool pool, uint32 slot, int n, const void *owner, uint32 last)
{
	RbpAheadRequest r = {.pool = pool,.n = n,.owner = owner,.last = last};

	for (int i = 0; i < n; i++)
	{
		r.slots[i] = slot + (uint32) i;
		r.hashes[i] = hash_now(r.slots[i]);
	}
	return rbp_ahead_request(&r, 0, mock_now);
}

static char page[BLCKSZ];

static RbpTaken
take(RbpPool pool, uint32 slot)
{
	int64		deadline = 0;

	memset(page, 0x77, BLCKSZ);
	return rbp_ahead_take(pool, slot, hash_now(slot), page, &deadline);
}

/* How many of the n slots from that one on come, with what they should have. */
static int
taken(RbpPool pool, uint32 slot, int n)
{
	int			right = 0;

	for (int i = 0; i < n; i++)
		right += take(pool, slot + (uint32) i) == RBP_TAKEN_PAGE &&
			page[0] == (char) content[slot + (uint32) i] && page[BLCKSZ - 1] == page[0];
	return right;
}

static void
end(const char *name)
{
	rbp_ahead_transaction_ends(XACT_EVENT_COMMIT);
	is_u64((uint64) in_flight, 0, "%s: nothing is left on its way", name);
	ok(!rbp_ahead_waits(RBP_POOL_BUFFER) && !rbp_ahead_waits(RBP_POOL_TEMP), "%s: nor kept", name);
}

static void
test_copies(RbpPool pool, const char *name)
{
	is_u64(take(pool, 10), RBP_TAKEN_NOTHING, "%s: nothing was requested", name);
	ok(request(pool, 10, 8, NULL, 0) >= 0 && rbp_ahead_waits(pool), "%s: pages are on their way", name);
	ok(rbp_ahead_find(pool, 12, hash_now(12)) >= 0 && rbp_ahead_find(pool, 18, hash_now(18)) < 0 &&
	   rbp_ahead_find(1 - pool, 12, hash_now(12)) < 0, "%s: they are found in their pool", name);
	is_u64((uint64) taken(pool, 10, 7), 7, "%s: they are taken", name);
	if (pool == RBP_POOL_TEMP)
		is_u64(take(pool, 12), RBP_TAKEN_AGAIN, "%s: one is taken again", name);
	else
		ok(rbp_ahead_find(pool, 12, hash_now(12)) < 0 && take(pool, 12) == RBP_TAKEN_NOTHING,
		   "%s: each once, so that a run that is read again is requested again", name);
	ok(rbp_ahead_waits(pool), "%s: one is left", name);

	/* the slot has another page by the look-up: the copy is not used */
	content[17]++;
	is_u64(take(pool, 17), RBP_TAKEN_NOTHING, "%s: another hash is another page", name);
	content[17]--;
	is_u64(take(pool, 17), RBP_TAKEN_PAGE, "%s: which may come back", name);
	ok(!rbp_ahead_waits(pool), "%s: all are taken", name);

	/* or it had another one when it was read */
	(void) request(pool, 30, 2, NULL, 0);
	content[30]++;
	(void) take(pool, 31);
	content[30]--;
	is_u64(take(pool, 30), RBP_TAKEN_MISMATCH, "%s: a copy of what was there before", name);
	is_u64(take(pool, 30), RBP_TAKEN_NOTHING, "%s: is not used twice", name);
	end(name);
	is_u64(take(pool, 12), RBP_TAKEN_NOTHING, "%s: a transaction's copies go with it", name);
}

static void
test_failures(void)
{
	int64		deadline = 0;

	(void) request(RBP_POOL_BUFFER, 0, 4, NULL, 0);
	outcome = RBP_TIMEOUT;
	is_u64(take(RBP_POOL_BUFFER, 0), RBP_TAKEN_LATE, "a donor that is late");
	ok(waited_until >= mock_now + mock_io_timeout_ns, "it had its time");
	outcome = RBP_CONNLOST;
	(void) request(RBP_POOL_BUFFER, 8, 4, NULL, 0);
	is_u64(take(RBP_POOL_BUFFER, 8), RBP_TAKEN_FAILURE, "a connection is lost");
	outcome = RBP_CANCELED;
	(void) request(RBP_POOL_BUFFER, 16, 4, NULL, 0);
	is_u64(take(RBP_POOL_BUFFER, 16), RBP_TAKEN_NOTHING, "what was not sent was not requested");
	outcome = RBP_OK;
	readable = false;
	(void) request(RBP_POOL_BUFFER, 24, 4, NULL, 0);
	(void) take(RBP_POOL_BUFFER, 24);
	is_u64((uint64) waited_until, (uint64) mock_now, "a donor that is known to hang is not waited for");
	(void) request(RBP_POOL_TEMP, 24, 4, NULL, 0);
	deadline = mock_now + 5 * MS;
	(void) rbp_ahead_take(RBP_POOL_TEMP, 24, hash_now(24), page, &deadline);
	is_u64((uint64) waited_until, (uint64) deadline, "unless there is no other copy");
	readable = true;
	refused = true;
	ok(request(RBP_POOL_BUFFER, 32, 4, NULL, 0) < 0 &&
	   rbp_ahead_find(RBP_POOL_BUFFER, 32, hash_now(32)) < 0, "nothing is kept of what could not be sent");
	refused = false;
	end("failures");
}

/* More than there is room for. */
static void
test_room(void)
{
	int			n = 0;

	while (n < 200 && request(RBP_POOL_BUFFER, (uint32) n * PAGES, PAGES, NULL, 0) >= 0)
		n++;
	is_u64((uint64) n * PAGES, 512, "so many pages of the buffer tier are on their way");
	is_u64((uint64) taken(RBP_POOL_BUFFER, 0, 512), 512, "the first ones are not given up for others");
	ok(request(RBP_POOL_BUFFER, 1000, PAGES, NULL, 0) >= 0, "there is room again");

	/* what nobody takes does not block others for ever */
	for (n = 0; n < 31; n++)
		(void) request(RBP_POOL_BUFFER, 2000, PAGES, NULL, 0);
	ok(request(RBP_POOL_BUFFER, 1000, PAGES, NULL, 0) < 0, "until that is used up");
	for (n = 0; n < 1000 && request(RBP_POOL_BUFFER, 3000, PAGES, NULL, 0) < 0; n++)
		;
	ok(n > 100 && n < 1000, "what is old gives way");

	/* of what has no other copy, the least recently used */
	for (n = 0; n < RBP_AHEAD_BATCHES; n++)
		(void) request(RBP_POOL_TEMP, (uint32) n * PAGES, PAGES, NULL, 0);
	(void) rbp_ahead_find(RBP_POOL_TEMP, 0, hash_now(0));
	is_u64((uint64) taken(RBP_POOL_TEMP, 5 * PAGES, PAGES), PAGES, "temporary data: one batch is taken to its end");
	(void) request(RBP_POOL_TEMP, 2000, PAGES, NULL, 0);
	ok(rbp_ahead_find(RBP_POOL_TEMP, 5 * PAGES, hash_now(5 * PAGES)) < 0, "it gives way first");
	(void) request(RBP_POOL_TEMP, 2100, PAGES, NULL, 0);
	ok(rbp_ahead_find(RBP_POOL_TEMP, 1 * PAGES, hash_now(1 * PAGES)) < 0 &&
	   rbp_ahead_find(RBP_POOL_TEMP, 0, hash_now(0)) >= 0, "then the one that was not used for longest");
	end("room");
}

static void
test_owners(void)
{
	int			a;
	int			b;

	(void) request(RBP_POOL_BUFFER, 0, 4, &a, 10);
	(void) request(RBP_POOL_BUFFER, 4, 4, &a, 20);
	(void) request(RBP_POOL_BUFFER, 8, 4, &b, 10);
	rbp_ahead_drop(&a, 15);
	ok(rbp_ahead_find(RBP_POOL_BUFFER, 0, hash_now(0)) < 0 &&
	   rbp_ahead_find(RBP_POOL_BUFFER, 4, hash_now(4)) >= 0 &&
	   rbp_ahead_find(RBP_POOL_BUFFER, 8, hash_now(8)) >= 0, "what its owner has passed is dropped");
	end("owners");
}

static void
test_announced(void)
{
	int			before = begun;

	for (uint32 slot = 0; slot < 5; slot++)
		rbp_ahead_announce(slot, hash_now(slot));
	rbp_ahead_announce(3, hash_now(3));
	ok(begun == before && rbp_ahead_waits(RBP_POOL_BUFFER), "pages that are announced are gathered");
	is_u64(take(RBP_POOL_BUFFER, 2), RBP_TAKEN_PAGE, "one is taken");
	ok(begun == before + 1, "which requests them all");
	is_u64((uint64) taken(RBP_POOL_BUFFER, 3, 2), 2, "each of them once");
	for (uint32 slot = 0; slot < 16; slot++)
		rbp_ahead_announce(100 + slot, hash_now(100 + slot));
	is_u64((uint64) (begun - before), 3, "so are many");
	rbp_ahead_announce(200, hash_now(200));
	end("announced");
	is_u64((uint64) (begun - before), 3, "what was only announced ends with the transaction");
}

/* What was announced, and has changed its place since, is not waited for for ever. */
static void
test_forgotten(void)
{
	int			n = 0;

	for (uint32 slot = 200; slot < 208; slot++)
		rbp_ahead_announce(slot, hash_now(slot));
	is_u64(request(RBP_POOL_BUFFER, 300, 8, &content, 400), 1, "pages are on their way, announced and others");
	while (n < 20000 && rbp_ahead_find(RBP_POOL_BUFFER, 200, hash_now(200)) >= 0)
		n += take(RBP_POOL_BUFFER, 1000) == RBP_TAKEN_NOTHING;
	ok(n > 1000 && n < 20000, "announced pages are given up after many reads of others");
	is_u64((uint64) taken(RBP_POOL_BUFFER, 300, 8), 8, "those of a run are not");
	ok(!rbp_ahead_waits(RBP_POOL_BUFFER), "nothing is waited for any more");
	end("forgotten");
}

static void
process_exits(void)
{
	rbp_ahead_transaction_ends(XACT_EVENT_ABORT);
}

int
main(void)
{
	mock_init();
	rbp_hash_init();
	rbp_process_set_exit(process_exits);
	for (int i = 0; i < SLOTS; i++)
		content[i] = (uint8) (i * 7 + i / 100);
	test_copies(RBP_POOL_BUFFER, "buffer");
	test_copies(RBP_POOL_TEMP, "temp");
	test_failures();
	test_room();
	test_owners();
	test_announced();
	test_forgotten();
	(void) request(RBP_POOL_TEMP, 0, 4, NULL, 0);
	mock_exit();
	is_u64((uint64) in_flight, 0, "the process ends: nothing is left on its way");
	return done_testing();
}
