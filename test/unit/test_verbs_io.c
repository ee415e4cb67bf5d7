/*-------------------------------------------------------------------------
 *
 * test_verbs_io.c
 *	  The verbs transport: reads, writes, lookups of keys, and pings; at random in
 *	  the end, against a model of the donor's memory.
 *
 *-------------------------------------------------------------------------
 */
#include "common/clock.h"
#include "common/status.h"
#include "transport/peer.h"
#include "transport/transport.h"
#include "wire/wire.h"
#include "verbs_donor.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/*
 * ---- reads and writes ---------------------------------------------------------------
 */
static void
test_sizes(void)
{
	static const uint32_t sizes[] = {
		1, 2, 100, 4096, 8191, 8192, 8193, 10000, 65536, REGION_BYTES - 1, REGION_BYTES
	};
	RbpConn    *conn;
	uint8_t    *buf = malloc(REGION_BYTES);
	uint8_t    *known = malloc(2 * REGION_BYTES);
	RbpMr	   *mr = NULL;
	uint32_t	registered;

	begin_test();
	conn = connected();
	ok(ops->register_memory(conn, known, 2 * REGION_BYTES, &mr) == RBP_OK && mr != NULL,
	   "memory is registered");
	registered = mock_registrations(NULL);
	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
	{
		uint32_t	len = sizes[i];
		uint64_t	offset = len == REGION_BYTES ? 0 : (REGION_BYTES - len) / 2;
		bool		good = true;

		for (int live = 0; live < LIVE; live++)
		{
			RbpIo		io = make_io(RBP_IO_WRITE, live, offset, len, buf);

			pattern(buf, len, len + (uint32_t) live);
			good &= run(conn, &io, 1, 2000) == RBP_OK &&
				has_pattern(donor.live[live].mem + offset, len, len + (uint32_t) live);
			memset(buf, 0, len);
			io = make_io(RBP_IO_READ, live, offset, len, buf);
			good &= run(conn, &io, 1, 2000) == RBP_OK &&
				has_pattern(buf, len, len + (uint32_t) live);

			/* from and to registered memory */
			pattern(known + 77, len, len * 3);
			io = make_io(RBP_IO_WRITE, live, offset, len, known + 77);
			io.mr = mr;
			good &= run(conn, &io, 1, 2000) == RBP_OK &&
				has_pattern(donor.live[live].mem + offset, len, len * 3);
			memset(known, 0, 2 * REGION_BYTES);
			io = make_io(RBP_IO_READ, live, offset, len, known + 5);
			io.mr = mr;
			good &= run(conn, &io, 1, 2000) == RBP_OK &&
				has_pattern(known + 5, len, len * 3);

			/* beside it, though the caller says otherwise */
			io = make_io(RBP_IO_READ, live, offset, len, buf);
			io.mr = mr;
			good &= run(conn, &io, 1, 2000) == RBP_OK && has_pattern(buf, len, len * 3);
		}
		ok(good, "%u bytes go there and come back", len);
	}
	is_u64(mock_registrations(NULL), registered, "nothing is registered for one request");

	/* where it ends in the registered memory's middle, or begins before */
	{
		RbpMr	   *part = NULL;
		RbpIo		io = make_io(RBP_IO_READ, 1, 0, 20000, known);

		ok(ops->register_memory(conn, known + 4096, 8192, &part) == RBP_OK, "a part is registered");
		io.mr = part;
		ok(run(conn, &io, 1, 2000) == RBP_OK &&
		   memcmp(known, donor.live[1].mem, 20000) == 0, "a buffer that is larger than its registration");
		io = make_io(RBP_IO_READ, 1, 0, 100, known + 4096 + 8192 - 50);
		io.mr = part;
		ok(run(conn, &io, 1, 2000) == RBP_OK &&
		   memcmp(known + 4096 + 8192 - 50, donor.live[1].mem, 100) == 0,
		   "one that ends behind it");
		ops->deregister_memory(conn, part);
	}
	ops->deregister_memory(conn, mr);
	ops->close(conn);
	finish_ok("sizes");
	free(buf);
	free(known);
}

/* More than one piece of work may be: in place, and through the slots. */
static void
test_pieces(void)
{
	const uint32_t len = 5 * 1024 * KB / 2 + 77;
	RbpConn    *conn;
	uint8_t    *buf = malloc(len);
	RbpMr	   *mr = NULL;
	uint32_t	works;

	begin_test_sized(3 * 1024 * KB);
	conn = connected();
	if (ops->register_memory(conn, buf, len, &mr) != RBP_OK)
		abort();
	for (int how = 0; how < 2; how++)
	{
		RbpIo		io = make_io(RBP_IO_WRITE, 1, 1000, len, buf);

		io.mr = how == 0 ? mr : NULL;
		pattern(buf, len, 77 + (uint32_t) how);
		works = donor.works;
		ok(run(conn, &io, 1, 5000) == RBP_OK &&
		   has_pattern(donor.live[1].mem + 1000, len, 77 + (uint32_t) how),
		   "%u bytes are written in %u pieces", len, donor.works - works);
		io.kind = RBP_IO_READ;
		memset(buf, 0, len);
		ok(run(conn, &io, 1, 5000) == RBP_OK && has_pattern(buf, len, 77 + (uint32_t) how),
		   "and read");
	}
	works = donor.works;
	{
		RbpIo		io = make_io(RBP_IO_READ, 0, 0, len, buf);

		/* given up in the middle */
		donor.fail_nth = 0;
		donor.hold = true;
		ok(run(conn, &io, 1, 5) == RBP_TIMEOUT, "a request of many pieces times out");
		memset(buf, 0x66, len);
		donor.hold = false;
		ok(alive(conn), "which does not hurt");
		ok(donor.works - works < 40, "what was not posted is not: %u pieces", donor.works - works);
		works = 0;
		for (uint32_t i = 0; i < len; i++)
			works += buf[i] != 0x66;
		is_u64(works, 0, "nothing of it is written to the buffer afterwards");
	}
	ops->deregister_memory(conn, mr);
	ops->close(conn);
	finish_ok("pieces");
	free(buf);
}

/* More requests than are taken at once. */
static void
test_queue(void)
{
	const int	n = QUEUE_MAX + 1000;
	RbpConn    *conn;
	uint8_t    *buf = malloc((size_t) n * 64);
	RbpIo	   *ios = calloc((size_t) n, sizeof(RbpIo));
	int			taken = 0;
	int			refused = 0;

	begin_test();
	conn = connected();
	if (!alive(conn))
		abort();
	mock_lazy = true;
	for (int i = 0; i < n; i++)
		ios[i] = make_io(RBP_IO_READ, 0, (uint64_t) (i % 1000) * 64, 64, buf + (size_t) i * 64);
	(void) run(conn, ios, n, 5000);
	for (int i = 0; i < n; i++)
		if (ios[i].status == RBP_OK &&
			memcmp(ios[i].buf, donor.live[0].mem + ios[i].offset, 64) == 0)
			taken++;
		else if (ios[i].status == RBP_NOMEM)
			refused++;
	ok(taken >= QUEUE_MAX && taken + refused == n,
	   "thousands of requests are taken, or refused: %d, %d", taken, refused);
	ok(alive(conn), "which hurts nobody");
	for (int i = 0; i < n; i++)
		ios[i] = make_ping();
	(void) run(conn, ios, n, 5000);
	taken = 0;
	for (int i = 0; i < n; i++)
		taken += ios[i].status == RBP_OK;
	ok(taken >= QUEUE_MAX, "pings as well: %d", taken);
	ops->close(conn);
	finish_ok("queue");
	free(ios);
	free(buf);
}

static void
test_invalid(void)
{
	RbpConn    *conn;
	uint8_t		buf[128];
	RbpIo		ios[7];
	RbpStatus	status;

	begin_test();
	conn = connected();
	for (int i = 0; i < 7; i++)
		ios[i] = make_io(RBP_IO_READ, 0, 0, sizeof(buf), buf);
	ios[1].len = 0;
	ios[2].offset = REGION_BYTES - sizeof(buf) + 1;
	ios[3].offset = UINT64_MAX - 10;
	ios[4].buf = NULL;
	ios[5].kind = (RbpIoKind) 77;
	status = run(conn, ios, 7, 2000);
	ok(status == RBP_INVALID && ios[0].status == RBP_OK && ios[6].status == RBP_OK,
	   "requests that make no sense do not hurt those beside them");
	ok(ios[1].status == RBP_INVALID && ios[2].status == RBP_INVALID &&
	   ios[3].status == RBP_INVALID && ios[4].status == RBP_INVALID &&
	   ios[5].status == RBP_INVALID, "but are refused");
	ios[0] = make_io(RBP_IO_READ, 0, 0, sizeof(buf), buf);
	ios[0].region = REGIONS;
	ios[1] = ios[0];
	ios[1].region = UINT32_MAX;
	ios[2] = ios[0];
	ios[2].region = 7;			/* in the table, but not ours */
	status = run(conn, ios, 3, 2000);
	ok(ios[0].status == RBP_DENIED && ios[1].status == RBP_DENIED &&
	   ios[2].status == RBP_DENIED, "regions that are not there are denied");
	ok(alive(conn), "the connection is not hurt");
	ops->close(conn);
	finish_ok("requests that make no sense");
}

static void
test_doorbells(void)
{
	RbpConn    *conn;
	uint8_t    *buf = malloc(16 * 8 * KB);
	RbpIo		ios[16];
	RbpMr	   *mr = NULL;

	begin_test();
	conn = connected();
	ok(alive(conn), "the key is known");
	if (ops->register_memory(conn, buf, 16 * 8 * KB, &mr) != RBP_OK)
		abort();
	for (int how = 0; how < 4; how++)
	{
		uint64_t	posts = mock_calls[MOCK_POST_SEND];
		uint32_t	works = donor.works;
		uint32_t	signalled = donor.signalled;
		const char *what = how == 0 ? "16 reads" : how == 1 ? "16 writes"
		: how == 2 ? "16 reads, zero copy" : "16 writes, zero copy";

		for (int i = 0; i < 16; i++)
		{
			ios[i] = make_io(how % 2 == 0 ? RBP_IO_READ : RBP_IO_WRITE, 0,
							 (uint64_t) i * 8 * KB, 8 * KB, buf + i * 8 * KB);
			ios[i].mr = how < 2 ? NULL : mr;
		}
		ok(run(conn, ios, 16, 2000) == RBP_OK, "%s", what);
		is_u64(mock_calls[MOCK_POST_SEND] - posts, 1, "%s: one doorbell", what);
		is_u64(donor.works - works, 16, "%s: as many pieces of work", what);
		ok(donor.signalled - signalled <= 16 / SIGNAL_EACH + 1, "%s: %u completions", what,
		   donor.signalled - signalled);
	}
	is_u64(donor.table_reads, 1, "the table is read once");
	ops->deregister_memory(conn, mr);
	ops->close(conn);
	finish_ok("doorbells");
	free(buf);
}

/* More at once than the queue or the bounce slots take. */
static void
test_large_batches(void)
{
	static const int counts[] = {17, 33, 63, 64, 65, 128, 300};
	RbpConn    *conn;
	uint8_t    *buf = malloc(300 * 8 * KB);
	RbpIo	   *ios = calloc(300, sizeof(RbpIo));
	RbpMr	   *mr = NULL;

	begin_test();
	conn = connected();
	if (ops->register_memory(conn, buf, 300 * 8 * KB, &mr) != RBP_OK)
		abort();
	for (int how = 0; how < 8; how++)
	{
		bool		good = true;

		mock_lazy = how % 2 == 1;
		mock_poll_max = how == 4 || how == 5 ? 1 : 0;
		for (size_t c = 0; c < sizeof(counts) / sizeof(counts[0]); c++)
		{
			int			n = counts[c];

			/* write and read in turn, in different places */
			memset(buf, 0, (size_t) n * 8 * KB);
			for (int i = 0; i < n; i++)
			{
				uint8_t    *at = buf + (size_t) i * 8 * KB;
				uint64_t	place = (uint64_t) (i / LIVE) % 32 * 8 * KB;

				ios[i] = make_io(i % 3 == 0 ? RBP_IO_WRITE : RBP_IO_READ, i % LIVE,
								 place, (uint32_t) (i % 5 == 0 ? 12 * KB : 8 * KB), at);
				if (ios[i].len + place > REGION_BYTES || i + 1 == 300)
					ios[i].len = 8 * KB;
				if (i % 5 == 0)
					ios[i].len = 5000;
				if ((how & 2) != 0 && (i % 2 == 0 || how >= 6))
					ios[i].mr = mr;
				if (ios[i].kind == RBP_IO_WRITE)
					memcpy(at, donor.live[i % LIVE].mem + place, ios[i].len);
			}
			good &= run(conn, ios, n, 5000) == RBP_OK;
			for (int i = 0; i < n; i++)
				good &= ios[i].status == RBP_OK &&
					memcmp(ios[i].buf, donor.live[i % LIVE].mem + ios[i].offset,
						   ios[i].len) == 0;
		}
		ok(good, "batches of up to 300, in way %d", how);
	}
	mock_lazy = false;
	mock_poll_max = 0;

	/* all registered for their time */
	for (int i = 0; i < 40; i++)
		ios[i] = make_io(RBP_IO_READ, i % LIVE, (uint64_t) i * 1000, 9000 + (uint32_t) i,
						 buf + i * 16 * KB);
	ok(run(conn, ios, 40, 5000) == RBP_OK, "40 at once that are registered for their time");
	ops->deregister_memory(conn, mr);
	ops->close(conn);
	finish_ok("large batches");
	free(ios);
	free(buf);
}

/* Several batches under way, waited for in another order. */
static void
test_overlapping_batches(void)
{
	RbpConn    *conn;
	uint8_t    *buf = calloc(60, 8 * KB);
	RbpIo		ios[60];
	bool		good = true;

	begin_test();
	conn = connected();
	mock_lazy = true;
	for (int i = 0; i < 60; i++)
		ios[i] = make_io(RBP_IO_READ, i % LIVE, (uint64_t) (i / LIVE) * 8 * KB,
						 8 * KB, buf + i * 8 * KB);
	for (int i = 0; i < 60; i += 10)
		good &= ops->submit(conn, &ios[i], 10) == RBP_OK;
	ok(good, "six batches are posted");
	ok(ops->wait(conn, &ios[50], 10, in_ms(2000)) == RBP_OK, "the last can be waited for first");
	ok(ops->wait(conn, &ios[25], 3, in_ms(2000)) == RBP_OK, "or a part of one");
	ok(ops->wait(conn, ios, 60, in_ms(2000)) == RBP_OK, "then all");
	for (int i = 0; i < 60; i++)
		good &= memcmp(ios[i].buf, donor.live[i % LIVE].mem + ios[i].offset, 8 * KB) == 0;
	ok(good, "everything is where it belongs");
	ok(ops->wait(conn, ios, 0, 0) == RBP_OK, "to wait for nothing is easy");
	ops->close(conn);
	finish_ok("overlapping batches");
	free(buf);
}

/*
 * A window of pages that are read ahead, in batches of as many as there are
 * bounce buffers: a batch is sent when the one before it has come, and not at
 * all if it was given up before.
 */
static void
test_window(void)
{
	RbpConn    *conn;
	uint8_t    *buf = calloc(64, 8 * KB);
	RbpIo		ios[64];
	uint32_t	works;
	bool		good = true;

	begin_test_sized(64 * 8 * KB);
	conn = connected();
	if (!alive(conn))
		abort();
	works = donor.works;
	donor.hold = true;
	for (int i = 0; i < 64; i++)
		ios[i] = make_io(RBP_IO_READ, 0, (uint64_t) i * 8 * KB, 8 * KB, buf + i * 8 * KB);
	for (int i = 0; i < 64; i += 16)
		good &= ops->submit(conn, &ios[i], 16) == RBP_OK;
	ok(good, "four batches of 16 pages are taken");
	ok(ops->wait(conn, &ios[48], 16, rbp_now_ns()) == RBP_TIMEOUT, "the last is given up at once");
	donor.hold = false;
	ok(ops->wait(conn, ios, 16, in_ms(2000)) == RBP_OK, "the first comes");
	ok(donor.works - works <= 32, "with at most one more on its way: %u pages", donor.works - works);
	ok(ops->wait(conn, &ios[16], 32, in_ms(2000)) == RBP_OK, "the others come when they are waited for");
	is_u64(donor.works - works, 48, "what was given up is not sent");
	for (int i = 0; i < 48; i++)
		good &= memcmp(ios[i].buf, donor.live[0].mem + ios[i].offset, 8 * KB) == 0;
	ok(good && alive(conn), "everything is where it belongs");
	ops->close(conn);
	finish_ok("window");
	free(buf);
}

/*
 * ---- the table ------------------------------------------------------------------------
 */
static int	until_mended;

static void
mend_later(void)
{
	if (--until_mended == 0)
		set_entry(donor.live[1].number, RBP_VERBS_ENTRY_READY,
				  donor.live[1].iova, donor.live[1].key);
}

static void
grant_later(void)
{
	if (--until_mended == 0)
		grant(1);
}

static void
test_table(void)
{
	RbpConn    *conn;
	uint8_t		buf[4096];
	uint32_t	reads;
	int64_t		began;
	uint32_t	asked = 0;
	RbpIo		io;

	begin_test();
	conn = connected();
	ok(alive(conn) && donor.table_reads == 1, "a key is looked up once");
	ok(donor.max_table_read <= 8192, "by a read of 8 kB at most");
	ok(alive(conn) && donor.table_reads == 1, "then it is known");
	ok(read_some(conn, 3, 0, 100, buf) == RBP_OK && donor.table_reads == 2,
	   "that of the last region is elsewhere");

	/* pending */
	set_entry(donor.live[1].number, RBP_VERBS_ENTRY_PENDING, 0, 0);
	(void) ops->close(conn);
	conn = connected();
	began = rbp_now_ns();
	reads = donor.table_reads;
	while (rbp_now_ns() - began < 55 * MS ||
		   (donor.table_reads - reads < 2 && rbp_now_ns() - began < 10 * SECOND))
	{
		if (read_some(conn, 1, 0, 100, buf) != RBP_CANCELED)
			break;
		asked++;
	}
	ok(asked > 5, "a region without a key yet is a miss");
	ok(donor.table_reads - reads <= 2 + (uint32_t) ((rbp_now_ns() - began) / (10 * MS)),
	   "the table is not read more often than each 10 ms: %u times for %u requests",
	   donor.table_reads - reads, asked);
	ok(donor.table_reads - reads >= 2, "but again");
	ok(alive(conn), "the connection is not hurt");
	set_entry(donor.live[1].number, RBP_VERBS_ENTRY_READY, donor.live[1].iova,
			  donor.live[1].key);
	usleep(15000);
	ok(read_some(conn, 1, 0, 100, buf) == RBP_OK &&
	   memcmp(buf, donor.live[1].mem, 100) == 0, "the key comes");

	/* granted anew: the old key would be an error */
	grant(1);
	memset(donor.live[1].mem, 0x77, REGION_BYTES);
	io = make_io(RBP_IO_READ, 1, 0, 100, buf);
	io.grant = 1;
	ok(run(conn, &io, 1, 2000) == RBP_OK && buf[99] == 0x77,
	   "a region that was granted anew is looked up anew");
	ok(run(conn, &io, 1, 2000) == RBP_OK, "and known again");

	/* ours no more */
	take_back(1);
	io.grant = 2;
	ok(run(conn, &io, 1, 2000) == RBP_DENIED, "a region that was lost is denied");
	ok(alive(conn), "the connection is not hurt");
	grant(1);
	usleep(15000);
	io.grant = 3;
	ok(run(conn, &io, 1, 2000) == RBP_OK, "until it is granted again");

	/* and with the same grant, when the donor was late with its table */
	take_back(1);
	io.grant = 4;
	ok(run(conn, &io, 1, 2000) == RBP_DENIED, "denied");
	grant(1);
	began = rbp_now_ns();
	while (run(conn, &io, 1, 2000) != RBP_OK && rbp_now_ns() - began < SECOND)
		usleep(1000);
	ok(rbp_now_ns() - began < SECOND, "what is denied is asked for again sometime");

	/* torn: read again at once */
	make_torn(donor.live[1].number);
	until_mended = 2;
	donor.on_table_read = mend_later;
	io.grant = 5;
	ok(run(conn, &io, 1, 2000) == RBP_OK, "a torn entry is read again");
	make_torn(donor.live[1].number);
	until_mended = INT32_MAX;
	io.grant = 6;
	reads = donor.table_reads;
	{
		RbpStatus	status = run(conn, &io, 1, 2000);

		ok(status == RBP_CANCELED || status == RBP_DENIED || status == RBP_PROTOCOL,
		   "one that stays torn is given up: %s", rbp_status_text(status));
		ok(donor.table_reads - reads < 50, "after a few reads: %u", donor.table_reads - reads);
	}
	donor.on_table_read = NULL;
	ops->close(conn);
	finish_ok("table");
}

/* Requests for several regions, some without a key, in one batch. */
static void
test_mixed_lookups(void)
{
	RbpConn    *conn;
	uint8_t    *buf = calloc(40, 8 * KB);
	RbpIo		ios[40];
	bool		good = true;

	begin_test();
	conn = connected();
	set_entry(donor.live[2].number, RBP_VERBS_ENTRY_PENDING, 0, 0);
	for (int i = 0; i < 40; i++)
	{
		ios[i] = make_io(RBP_IO_READ, i % LIVE, (uint64_t) i * KB, 8 * KB, buf + i * 8 * KB);
		if (i % 10 == 7)
			ios[i].region = 8;	/* not ours */
	}
	ok(ops->submit(conn, ios, 40) == RBP_OK, "a batch for many regions is posted");
	ok(ops->wait(conn, ios, 40, in_ms(2000)) != RBP_OK, "some of it fails");
	for (int i = 0; i < 40; i++)
	{
		RbpStatus	expected = i % 10 == 7 ? RBP_DENIED
		: i % LIVE == 2 ? RBP_CANCELED : RBP_OK;

		if (ios[i].status != expected)
		{
			diag("request %d: %s", i, rbp_status_text(ios[i].status));
			good = false;
		}
		else if (expected == RBP_OK &&
				 memcmp(ios[i].buf, donor.live[i % LIVE].mem + ios[i].offset, 8 * KB) != 0)
			good = false;
	}
	ok(good, "each as it deserves");

	/* two grants of the same region in one batch: the newer is right */
	grant(0);
	ios[0] = make_io(RBP_IO_READ, 0, 0, 100, buf);
	ios[0].grant = 1;
	ios[1] = make_io(RBP_IO_READ, 0, 100, 100, buf + 100);
	ios[1].grant = 1;
	ok(run(conn, ios, 2, 2000) == RBP_OK && memcmp(buf, donor.live[0].mem, 200) == 0,
	   "a new grant for two");

	/* what a lookup brings is for the grant that it was made for */
	{
		RbpStatus	status;

		take_back(1);
		until_mended = 2;
		donor.on_table_read = grant_later;
		donor.hold_table = true;
		ios[0] = make_io(RBP_IO_READ, 1, 0, 100, buf);
		ios[0].grant = 7;
		ios[1] = make_io(RBP_IO_READ, 1, 0, 100, buf + 100);
		ios[1].grant = 8;
		(void) ops->submit(conn, ios, 1);
		(void) ops->submit(conn, ios + 1, 1);
		donor.hold_table = false;
		status = ops->wait(conn, ios, 2, in_ms(2000));
		ok(status == RBP_DENIED && ios[0].status == RBP_DENIED,
		   "a region that was lost is denied to who means the old grant");
		ok(ios[1].status == RBP_OK && memcmp(buf + 100, donor.live[1].mem, 100) == 0,
		   "not to who means the new one: %s", rbp_status_text(ios[1].status));
		donor.on_table_read = NULL;
	}
	ops->close(conn);
	finish_ok("mixed lookups");

	/* timeouts and the end, while the table is being read */
	begin_test();
	conn = connected();
	donor.hold_table = true;
	memset(buf, 0x11, 40 * 8 * KB);
	for (int i = 0; i < 40; i++)
		ios[i] = make_io(i % 2 == 0 ? RBP_IO_READ : RBP_IO_WRITE, i % LIVE,
						 (uint64_t) i * KB, 8 * KB, buf + i * 8 * KB);
	ok(run(conn, ios, 40, 5) == RBP_TIMEOUT, "the table does not come");
	donor.hold_table = false;
	ok(alive(conn), "a late table does not hurt");
	good = true;
	for (int i = 0; i < 40 * 8 * KB; i++)
		good &= buf[i] == 0x11;
	ok(good, "what was given up is not read");
	for (int i = 0; i < LIVE; i++)
		good &= has_pattern(donor.live[i].mem, REGION_BYTES, (uint32_t) i + 1);
	ok(good, "nor written");
	ops->close(conn);
	finish_ok("late table");

	begin_test();
	conn = connected();
	donor.hold_table = true;
	for (int i = 0; i < 40; i++)
		ios[i] = make_io(RBP_IO_READ, i % LIVE, 0, 8 * KB, buf + i * 8 * KB);
	(void) ops->submit(conn, ios, 40);
	ops->close(conn);
	finish_ok("close while the table is read");
	free(buf);
}

/*
 * ---- pings ---------------------------------------------------------------------------------
 */
static void
test_pings(void)
{
	RbpConn    *conn;
	RbpIo	   *ios = calloc(12, sizeof(RbpIo));
	bool		good = true;
	uint8_t		buf[100];

	begin_test();
	conn = connected();
	for (int i = 0; i < 50; i++)
		good &= ping(conn, 2000) == RBP_OK;
	ok(good && donor.pings == 50, "fifty pings, one after the other");
	for (int i = 0; i < 12; i++)
		ios[i] = make_ping();
	ok(run(conn, ios, 12, 2000) == RBP_OK && donor.pings == 62, "twelve at once");
	for (int i = 0; i < 12; i++)
		ios[i] = i % 3 == 0 ? make_ping()
			: make_io(RBP_IO_READ, i % LIVE, 0, sizeof(buf), buf);
	ok(run(conn, ios, 12, 2000) == RBP_OK, "among reads");

	/* never more than the donor has receives for */
	donor.ping = PING_KEEP;
	for (int i = 0; i < 12; i++)
		ios[i] = make_ping();
	(void) ops->submit(conn, ios, 12);
	ok(ops->wait(conn, ios, 12, in_ms(5)) == RBP_TIMEOUT, "twelve without an answer time out");
	ok(donor.nkept <= RBP_VERBS_PINGS, "no more are sent than the donor has receives for: %u",
	   donor.nkept);
	ok(ping(conn, 5) == RBP_TIMEOUT && donor.nkept <= RBP_VERBS_PINGS, "nor later");
	ok(alive(conn), "reads go on");
	free(ios);
	ios = calloc(12, sizeof(RbpIo));
	donor.pings = 0;
	answer_pings(mock_qp());
	donor.ping = PING_ANSWER;
	ok(ping(conn, 2000) == RBP_OK, "late answers are swallowed");
	is_u64(donor.pings, 1, "what was given up is not sent any more");
	good = true;
	for (int i = 0; i < 20; i++)
		good &= ping(conn, 2000) == RBP_OK;
	ok(good, "as if nothing had been");

	/* a late answer is not the next ping's */
	donor.ping = PING_KEEP;
	ok(ping(conn, 5) == RBP_TIMEOUT, "a ping without an answer");
	ios[0] = make_ping();
	(void) ops->submit(conn, ios, 1);
	is_u64(donor.nkept, 2, "and another one");
	donor.nkept = 1;			/* only the first is answered */
	answer_pings(mock_qp());
	ok(ops->wait(conn, ios, 1, in_ms(20)) == RBP_TIMEOUT, "a late answer is not taken for the next one's");
	ops->close(conn);
	finish_ok("pings");

	/* answers that never come */
	begin_test();
	conn = connected();
	donor.ping = PING_DROP;
	good = true;
	for (int i = 0; i < 20; i++)
		good &= ping(conn, 1) == RBP_TIMEOUT;
	ok(good, "pings without an answer time out, however many");
	ok(donor.pings <= RBP_VERBS_PINGS, "no more than four are sent: %u", donor.pings);
	ok(alive(conn), "reads go on");
	ops->close(conn);
	finish_ok("lost answers");

	/* sends that are not even acknowledged */
	begin_test();
	conn = connected();
	if (!alive(conn))
		abort();
	donor.hold_sends = true;
	ok(ping(conn, 5) == RBP_TIMEOUT, "a ping that is not taken times out");
	ok(run_one(conn, make_io(RBP_IO_READ, 0, 0, 100, buf), 5) == RBP_TIMEOUT, "and what is behind it");
	donor.hold_sends = false;
	ok(alive(conn) && ping(conn, 2000) == RBP_OK, "until it is");
	ops->close(conn);
	finish_ok("late pings");

	for (int how = PING_NONSENSE; how <= PING_OTHER; how++)
	{
		RbpStatus	status;

		begin_test();
		conn = connected();
		donor.ping = (PingMode) how;
		status = ping(conn, 2000);
		ok(status == (how == PING_LONG ? RBP_CONNLOST : RBP_PROTOCOL),
		   "nonsense of kind %d is no answer: %s", how, rbp_status_text(status));
		ios[0] = make_ping();
		ok(ops->submit(conn, ios, 1) == status, "from a donor whom one cannot speak to");
		ops->close(conn);
		finish_ok("nonsense of kind %d", how);
	}

	begin_test();
	conn = connected();
	donor.ping = PING_KEEP;
	ios[0] = make_ping();
	(void) ops->submit(conn, ios, 1);
	ops->close(conn);
	finish_ok("close with a ping under way");
	free(ios);
}

/*
 * ---- at random ------------------------------------------------------------------------------
 */
static unsigned int seed;

static uint32_t
pick(uint32_t n)
{
	return (uint32_t) rand_r(&seed) % n;
}

#define BLOCK		(16 * KB)	/* one request at a time for each */
#define BLOCKS		(REGION_BYTES / BLOCK)
#define BATCHES		6
#define PER_BATCH	24

typedef struct Request
{
	int			live;
	int			block;			/* -1: none */
	uint8_t    *buf;			/* malloc'ed, but if zero copy */
	bool		wrote;
} Request;

typedef struct Batch
{
	int			n;				/* 0: none */
	RbpIo		ios[PER_BATCH];
	Request		req[PER_BATCH];
} Batch;

static struct
{
	uint8_t		bytes[LIVE][REGION_BYTES];
	bool		unsure[LIVE][BLOCKS];	/* a write that failed or came late */
	bool		busy[LIVE][BLOCKS];
	uint32_t	grants[LIVE];
	Batch		batches[BATCHES];
	uint8_t    *known;			/* registered; a place for each request */
	RbpMr	   *mr;
	bool		faults;			/* something was done that breaks requests */
	bool		holding;
}			model;

static uint32_t hold_chance;

static int
hold_at_random(const MockWork *work)
{
	if (hold_chance > 0 && pick(100) < hold_chance)
		return MOCK_HOLD;
	return on_work(work);
}

static void
submit_at_random(RbpConn *conn, Batch *batch)
{
	int			n = 1 + (int) pick(PER_BATCH);
	int			slot = (int) (batch - model.batches);

	for (int i = 0; i < n; i++)
	{
		RbpIo	   *io = &batch->ios[i];
		Request    *req = &batch->req[i];

		memset(io, 0, sizeof(*io));
		memset(req, 0, sizeof(*req));
		req->live = (int) pick(LIVE);
		req->block = (int) pick(BLOCKS);
		if (pick(12) == 0 || model.busy[req->live][req->block])
		{
			req->block = -1;
			io->kind = RBP_IO_PING;
			continue;
		}
		model.busy[req->live][req->block] = true;
		io->kind = pick(2) == 0 ? RBP_IO_READ : RBP_IO_WRITE;
		io->region = donor.live[req->live].number;
		io->grant = model.grants[req->live];
		io->len = pick(3) == 0 ? 8 * KB : 1 + pick(pick(4) == 0 ? BLOCK : 8 * KB);
		io->offset = (uint64_t) req->block * BLOCK + pick(BLOCK - io->len + 1);
		if (model.mr != NULL && pick(3) == 0)
		{
			io->buf = model.known + (size_t) (slot * PER_BATCH + i) * BLOCK;
			io->mr = model.mr;
		}
		else
			io->buf = req->buf = malloc(io->len);
		pattern(io->buf, io->len, pick(1u << 30));
		if (io->kind == RBP_IO_WRITE)
		{
			req->wrote = true;
			memcpy(model.bytes[req->live] + io->offset, io->buf, io->len);
		}
	}
	batch->n = n;
	(void) ops->submit(conn, batch->ios, n);
}

/* All of it is final.  Returns what is wrong with it, or NULL. */
static const char *
check_batch(Batch *batch, bool may_time_out)
{
	const char *wrong = NULL;

	for (int i = 0; i < batch->n; i++)
	{
		RbpIo	   *io = &batch->ios[i];
		Request    *req = &batch->req[i];

		if (io->status == RBP_INPROGRESS)
			wrong = "a request is not final";
		else if (io->status != RBP_OK && !model.faults &&
				 !(io->status == RBP_TIMEOUT && (may_time_out || model.holding)))
			wrong = rbp_status_text(io->status);
		if (req->block >= 0)
		{
			bool	   *unsure = &model.unsure[req->live][req->block];

			if (req->wrote)
				*unsure = io->status != RBP_OK || *unsure;
			else if (io->status == RBP_OK && !*unsure &&
					 memcmp(io->buf, model.bytes[req->live] + io->offset, io->len) != 0)
				wrong = "a read brought other bytes";
			model.busy[req->live][req->block] = false;
			if (io->buf != req->buf)
				pattern(io->buf, io->len, pick(1u << 30));
			free(req->buf);
		}
	}
	memset(batch, 0x5c, sizeof(*batch));
	batch->n = 0;
	return wrong;
}

/* What was unsure is what it is, once nothing can change it any more. */
static void
settle_unsure(void)
{
	for (int l = 0; l < LIVE; l++)
		for (int b = 0; b < BLOCKS; b++)
			if (model.unsure[l][b])
			{
				memcpy(model.bytes[l] + b * BLOCK, donor.live[l].mem + b * BLOCK, BLOCK);
				model.unsure[l][b] = false;
			}
}

static const char *
compare_memory(void)
{
	for (int l = 0; l < LIVE; l++)
		for (int b = 0; b < BLOCKS; b++)
			if (!model.unsure[l][b] &&
				memcmp(model.bytes[l] + b * BLOCK, donor.live[l].mem + b * BLOCK, BLOCK) != 0)
				return "the donor's memory has other bytes";
	return NULL;
}

static void
test_at_random(void)
{
	const char *wrong = NULL;
	uint32_t	rounds = 0;
	uint32_t	connections = 0;
	uint32_t	requests = 0;
	unsigned int first_seed = 4711;
	int64_t		until = in_ms(3000);

	model.known = malloc((size_t) BATCHES * PER_BATCH * BLOCK);
	while (wrong == NULL && (connections < 100 || rbp_now_ns() < until) &&
		   rbp_now_ns() < until + 20 * SECOND)
	{
		RbpConn    *conn;
		uint32_t	steps;
		bool		over = false;

		seed = first_seed + connections++;
		begin_test();
		memset(model.unsure, 0, sizeof(model.unsure));
		memset(model.busy, 0, sizeof(model.busy));
		memset(model.grants, 0, sizeof(model.grants));
		model.faults = model.holding = false;
		for (int l = 0; l < LIVE; l++)
			memcpy(model.bytes[l], donor.live[l].mem, REGION_BYTES);
		mock_lazy = pick(2) == 0;
		mock_poll_max = pick(2) == 0 ? 0 : 1 + (int) pick(4);
		mock_flush_polls = pick(2) == 0 ? 0 : (int) pick(20);
		mock_receives_first = pick(2) == 0;
		hold_chance = pick(2) == 0 ? 0 : pick(95);
		conn = connected();
		mock_hooks.on_work = hold_at_random;
		model.mr = NULL;
		if (pick(2) == 0 &&
			ops->register_memory(conn, model.known, (size_t) BATCHES * PER_BATCH * BLOCK,
								 &model.mr) != RBP_OK)
			abort();

		steps = 10 + pick(60);
		while (wrong == NULL && steps-- > 0 && !over)
		{
			Batch	   *batch = &model.batches[pick(BATCHES)];

			rounds++;
			if (batch->n == 0)
			{
				submit_at_random(conn, batch);
				requests += (uint32_t) batch->n;
				continue;
			}
			switch (pick(24))
			{
				case 0:			/* a wait that is too short */
					(void) ops->wait(conn, batch->ios, batch->n, pick(2) == 0 ? 0 : in_ms(1));
					/* zero copy: the connection may be over */
					model.faults = true;
					wrong = check_batch(batch, true);
					break;
				case 1:			/* the donor grants a region anew */
					{
						int			live = (int) pick(LIVE);
						bool		used = false;

						for (int b = 0; b < BLOCKS; b++)
							used |= model.busy[live][b] || model.unsure[live][b];
						if (used)
							break;
						grant(live);
						model.grants[live]++;
						break;
					}
				case 2:			/* holds all for a time */
					donor.hold = !donor.hold;
					model.holding = true;
					break;
				case 3:			/* only part of it is waited for */
					if (!donor.hold)
						(void) ops->wait(conn, batch->ios, 1 + (int) pick((uint32_t) batch->n),
										 in_ms(5000));
					break;
				case 4:			/* the end, in one of several ways */
					if (pick(4) != 0)
						break;
					model.faults = true;
					if (pick(2) == 0)
					{
						donor.fail_nth = 1 + pick(30);
						donor.fail_status = pick(2) == 0 ? IBV_WC_REM_ACCESS_ERR : IBV_WC_RETRY_EXC_ERR;
					}
					else
						mock_event(mock_id(), pick(2) == 0 ? RDMA_CM_EVENT_DISCONNECTED
								   : RDMA_CM_EVENT_DEVICE_REMOVAL, 0, NULL, 0, 0);
					break;
				default:
					if (donor.hold)
					{
						donor.hold = false;
						break;
					}
					(void) ops->wait(conn, batch->ios, batch->n, in_ms(5000));
					wrong = check_batch(batch, false);
					break;
			}
		}

		/* the rest: waited for, or left */
		donor.hold = false;
		if (pick(3) != 0)
			for (int i = 0; i < BATCHES && wrong == NULL; i++)
				if (model.batches[i].n > 0)
				{
					(void) ops->wait(conn, model.batches[i].ios, model.batches[i].n, in_ms(5000));
					wrong = check_batch(&model.batches[i], false);
				}
		for (int i = 0; i < BATCHES; i++)
		{
			Batch	   *batch = &model.batches[i];

			/* zero copy with nobody to wait for it: give it up first */
			if (batch->n > 0 && model.mr != NULL)
				(void) ops->wait(conn, batch->ios, batch->n, 0);
		}
		if (model.mr != NULL)
			ops->deregister_memory(conn, model.mr);
		ops->close(conn);
		for (int i = 0; i < BATCHES; i++)
		{
			Batch	   *batch = &model.batches[i];

			for (int j = 0; j < batch->n; j++)
			{
				if (batch->req[j].wrote)
					model.unsure[batch->req[j].live][batch->req[j].block] = true;
				free(batch->req[j].buf);
			}
			memset(batch, 0x5c, sizeof(*batch));
			batch->n = 0;
		}
		if (wrong == NULL)
			wrong = compare_memory();
		settle_unsure();
		if (!finish("requests at random") && wrong == NULL)
			wrong = "something is left or a rule is broken";
	}
	if (wrong != NULL)
		diag("seed %u: %s", first_seed + connections - 1, wrong);
	ok(wrong == NULL, "requests at random");
	diag("%u connections, %u steps, %u requests", connections, rounds, requests);
	free(model.known);
}

int
main(void)
{
	test_sizes();
	test_pieces();
	test_invalid();
	test_doorbells();
	test_large_batches();
	test_queue();
	test_overlapping_batches();
	test_window();
	test_table();
	test_mixed_lookups();
	test_pings();
	test_at_random();
	return done_testing();
}
