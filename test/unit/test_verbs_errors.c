/*-------------------------------------------------------------------------
 *
 * test_verbs_errors.c
 *	  The verbs transport when something goes wrong: errors, late answers, ends at
 *	  any moment, calls that fail.
 *
 *-------------------------------------------------------------------------
 */
#include "common/clock.h"
#include "common/status.h"
#include "transport/transport.h"
#include "verbs_donor.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/*
 * ---- errors ------------------------------------------------------------------------------
 */
static void
test_errors(void)
{
	static const struct
	{
		int			status;
		RbpStatus	expected;
		RbpStatus	others;
	}			cases[] = {
		{IBV_WC_REM_ACCESS_ERR, RBP_DENIED, RBP_CANCELED},
		{IBV_WC_REM_OP_ERR, RBP_DENIED, RBP_CANCELED},
		{IBV_WC_REM_INV_REQ_ERR, RBP_DENIED, RBP_CANCELED},
		{IBV_WC_RETRY_EXC_ERR, RBP_CONNLOST, RBP_CONNLOST},
		{IBV_WC_RNR_RETRY_EXC_ERR, RBP_CONNLOST, RBP_CONNLOST},
		{IBV_WC_LOC_PROT_ERR, RBP_CONNLOST, RBP_CONNLOST},
		{IBV_WC_GENERAL_ERR, RBP_CONNLOST, RBP_CONNLOST},
	};
	uint8_t    *buf = malloc(100 * 16 * KB);
	RbpIo		ios[100];

	for (size_t c = 0; c < sizeof(cases) / sizeof(cases[0]); c++)
		for (int nth = 1; nth <= 41; nth += 8)
		{
			RbpConn    *conn;
			bool		good = true;
			RbpMr	   *mr = NULL;
			int			n = 80;
			int			works = 0;
			int			hit = -1;	/* the request that fails */

			begin_test();
			mock_lazy = nth % 16 == 1;
			mock_receives_first = (c + (size_t) nth / 8) % 2 == 0;
			mock_poll_max = (int) c % 3;
			conn = connected();
			if (!alive(conn) ||
				ops->register_memory(conn, buf + 50 * 16 * KB, 50 * 16 * KB, &mr) != RBP_OK)
				abort();
			for (int i = 0; i < n; i++)
			{
				ios[i] = make_io(i % 2 == 0 ? RBP_IO_READ : RBP_IO_WRITE, 0,
								 (uint64_t) i * KB, i % 7 == 0 ? 10000 : 900,
								 buf + i * 16 * KB);
				ios[i].mr = i > 50 ? mr : NULL;
				works += ios[i].mr == NULL && ios[i].len > SLOT_BYTES ? 2 : 1;
				if (works >= nth && hit < 0)
					hit = i;
			}
			donor.fail_nth = (uint32_t) nth;
			donor.fail_status = cases[c].status;
			ok(run(conn, ios, n, 2000) != RBP_OK, "error %d of work %d is seen", cases[c].status, nth);
			for (int i = 0; i < n; i++)
			{
				RbpStatus	expected = i < hit ? RBP_OK
				: i == hit ? cases[c].expected : cases[c].others;

				/* those just before it were done, but nobody has said so */
				if (i < hit && i >= hit - SIGNAL_EACH && ios[i].status == cases[c].others)
					continue;
				if (ios[i].status != expected)
				{
					if (good)
						diag("request %d: %s, expected: %s", i, rbp_status_text(ios[i].status),
							 rbp_status_text(expected));
					good = false;
				}
			}
			ok(good, "error %d of work %d: those before it are done, it and those behind it are not",
			   cases[c].status, nth);
			ok(lost(conn), "error %d of work %d: the connection is over", cases[c].status, nth);
			ops->deregister_memory(conn, mr);
			ops->close(conn);
			finish_ok("error %d of work %d", cases[c].status, nth);
		}

	/* a key that died while it was in use */
	{
		RbpConn    *conn;

		begin_test();
		conn = connected();
		ok(alive(conn), "a region is in use");
		take_back(0);
		ok(read_some(conn, 0, 0, 100, buf) == RBP_DENIED, "and denied when its key is dead");
		ok(lost(conn), "the connection is over then");
		ops->close(conn);
		finish_ok("dead key");
	}

	/* the table's own */
	{
		RbpConn    *conn;

		begin_test();
		conn = connected();
		mock_remote_dereg(donor.table_key);
		ok(read_some(conn, 0, 0, 100, buf) == RBP_DENIED, "no table for a lease that has ended");
		ok(lost(conn), "the connection is over then");
		ops->close(conn);
		finish_ok("dead table");
	}
	free(buf);
}

/* The connection manager's news, while requests are under way. */
static enum rdma_cm_event_type news;

static void
tell_news(struct ibv_cq *cq)
{
	static int	polls;

	(void) cq;
	if (++polls % 50 == 0 && news != RDMA_CM_EVENT_MULTICAST_JOIN)
	{
		mock_event(mock_id(), news, 0, NULL, 0, 0);
		news = RDMA_CM_EVENT_MULTICAST_JOIN;
	}
}

static void
test_news(void)
{
	static const struct
	{
		enum rdma_cm_event_type event;
		bool		over;
	}			cases[] = {
		{RDMA_CM_EVENT_DISCONNECTED, true},
		{RDMA_CM_EVENT_DEVICE_REMOVAL, true},
		{RDMA_CM_EVENT_TIMEWAIT_EXIT, false},
		{RDMA_CM_EVENT_ADDR_CHANGE, false},
	};
	uint8_t    *buf = malloc(40 * 16 * KB);
	RbpIo		ios[40];

	for (size_t c = 0; c < 2 * sizeof(cases) / sizeof(cases[0]); c++)
	{
		bool		over = cases[c / 2].over;
		RbpConn    *conn;
		RbpStatus	status;
		int64_t		began;
		bool		good = true;

		begin_test();
		mock_flush_polls = c % 2 == 0 ? 0 : 20;
		conn = connected();
		if (!alive(conn))
			abort();
		donor.hold = true;
		for (int i = 0; i < 40; i++)
			ios[i] = make_io(RBP_IO_READ, 0, 0, i % 3 == 0 ? 9000 : 100, buf + i * 16 * KB);
		news = cases[c / 2].event;
		mock_hooks.on_poll = tell_news;
		(void) ops->submit(conn, ios, 40);
		began = rbp_now_ns();
		status = ops->wait(conn, ios, 40, in_ms(over ? 3000 : 30));
		ok(status == (over ? RBP_CONNLOST : RBP_TIMEOUT), "%s while requests are under way: %s",
		   rdma_event_str(cases[c / 2].event), rbp_status_text(status));
		if (over)
			ok(rbp_now_ns() - began < SECOND, "%s is noticed soon", rdma_event_str(cases[c / 2].event));
		for (int i = 0; i < 40; i++)
			good &= ios[i].status == status;
		ok(good, "it is so for all of them");
		memset(buf, 0x33, 40 * 16 * KB);
		donor.hold = false;
		mock_progress();
		for (int i = 0; i < 40 * 16 * KB; i++)
			good &= buf[i] == 0x33;
		ok(good, "none of their buffers is touched afterwards");
		if (over)
			ok(lost(conn), "the connection is over");
		ops->close(conn);
		finish_ok("%s", rdma_event_str(cases[c / 2].event));
	}

	/* with nothing under way; noticed by the next who waits, if not before */
	{
		RbpConn    *conn;
		RbpStatus	status;

		begin_test();
		conn = connected();
		if (!alive(conn))
			abort();
		donor.hold = true;
		mock_event(mock_id(), RDMA_CM_EVENT_DISCONNECTED, 0, NULL, 0, 0);
		status = read_some(conn, 0, 0, 100, buf);
		ok(status == RBP_CONNLOST, "a donor that left before: %s", rbp_status_text(status));
		ops->close(conn);
		finish_ok("a donor that left before");
	}
	free(buf);
}

/*
 * ---- giving up ------------------------------------------------------------------------------
 */
static void
test_timeouts(void)
{
	RbpConn    *conn;
	uint8_t    *buf = malloc(100 * 16 * KB);
	RbpIo		ios[100];
	RbpMr	   *mr = NULL;
	bool		good;
	int64_t		began;

	/* copied ones: the connection lives on */
	for (int how = 0; how < 4; how++)
	{
		int			n = how < 2 ? 10 : 70;	/* more than there are slots */

		begin_test();
		mock_lazy = how % 2 == 1;
		conn = connected();
		if (!alive(conn))
			abort();
		donor.hold = true;
		for (int i = 0; i < n; i++)
		{
			ios[i] = make_io(i % 2 == 0 ? RBP_IO_READ : RBP_IO_WRITE, 0,
							 (uint64_t) i * KB, KB, buf + i * 16 * KB);
			memset(ios[i].buf, i % 2 == 0 ? 0x44 : 0x55, KB);
		}
		began = rbp_now_ns();
		ok(run(conn, ios, n, 10) == RBP_TIMEOUT, "%d requests time out", n);
		ok(rbp_now_ns() - began >= 10 * MS && rbp_now_ns() - began < SECOND, "when their time is over");
		good = true;
		for (int i = 0; i < n; i++)
			good &= ios[i].status == RBP_TIMEOUT;
		ok(good, "all of them");
		memset(buf, 0x66, 100 * 16 * KB);
		memset(ios, 0x77, sizeof(ios));
		{
			RbpIo		io = make_io(RBP_IO_READ, 1, 0, 100, buf + 90 * 16 * KB);

			ok(ops->submit(conn, &io, 1) == RBP_OK, "another is taken meanwhile");
			ok(ops->wait(conn, &io, 1, in_ms(5)) == RBP_TIMEOUT, "but no faster");
		}
		donor.hold = false;
		ok(alive(conn), "late answers do not hurt");
		good = true;
		for (int i = 0; i < 100 * 16 * KB; i++)
			good &= buf[i] == 0x66;
		ok(good, "nobody's buffer is touched");
		for (int i = 0; i < n; i++)
		{
			const uint8_t *at = donor.live[0].mem + i * KB;

			/* a write was done, with what the buffer held then, or not at all */
			if (i % 2 != 0 && at[0] == 0x55)
				for (int j = 0; j < KB; j++)
					good &= at[j] == 0x55;
			else
				good &= at[0] != 0x66;
		}
		ok(good, "late writes write what was to be written");
		for (int i = 0; i < 50; i++)
			ios[i] = make_io(RBP_IO_READ, i % LIVE, 0, KB, buf + i * KB);
		ok(run(conn, ios, 50, 2000) == RBP_OK, "all slots are there again");
		ops->close(conn);
		finish_ok("timeout %d", how);
	}

	/* those that the device has the caller's memory of: it must let go of it */
	for (int how = 0; how < 12; how++)
	{
		bool		zero_copy = how % 2 == 0;
		bool		reading = how % 4 < 2;

		begin_test();
		mock_flush_polls = how < 4 ? 0 : how < 8 ? 3 : 1000000;
		conn = connected();
		if (!alive(conn) || ops->register_memory(conn, buf, 100 * 16 * KB, &mr) != RBP_OK)
			abort();
		donor.hold = true;
		memset(buf, 0x44, 100 * 16 * KB);
		memset(donor.live[0].mem, 0x11, REGION_BYTES);
		for (int i = 0; i < 4; i++)
		{
			ios[i] = make_io(reading ? RBP_IO_READ : RBP_IO_WRITE, 0, (uint64_t) i * 16 * KB,
							 zero_copy ? 8 * KB : 16 * KB, buf + i * 16 * KB);
			ios[i].mr = zero_copy ? mr : NULL;
		}
		/* another batch beside it */
		ios[4] = make_io(RBP_IO_READ, 0, 0, 100, buf + 90 * 16 * KB);
		(void) ops->submit(conn, &ios[4], 1);
		ok(run(conn, ios, 4, 10) == RBP_TIMEOUT, "%s requests time out, way %d",
		   zero_copy ? "zero copy" : "large", how);
		memset(buf, 0x66, 100 * 16 * KB);
		donor.hold = false;
		mock_progress();
		good = true;
		for (int i = 0; i < 100 * 16 * KB; i++)
			good &= buf[i] == 0x66;
		ok(good, "their buffers are not touched afterwards");
		for (int i = 0; i < REGION_BYTES; i++)
			good &= donor.live[0].mem[i] != 0x66;
		ok(good, "nor read");
		ok(ios[4].status != RBP_INPROGRESS ||
		   ops->wait(conn, &ios[4], 1, in_ms(1000)) != RBP_TIMEOUT, "another batch ends too: %s",
		   rbp_status_text(ios[4].status));
		ok(zero_copy ? lost(conn) : alive(conn), "the connection is %s",
		   zero_copy ? "over" : "alive");
		ops->deregister_memory(conn, mr);
		ops->close(conn);
		finish_ok("%s timeout, way %d", zero_copy ? "zero copy" : "large", how);
	}

	/* large ones that did not get to the device need not end the connection */
	begin_test();
	conn = connected();
	donor.hold_table = true;
	ios[0] = make_io(RBP_IO_READ, 2, 0, 16 * KB, buf);
	ok(run(conn, ios, 1, 5) == RBP_TIMEOUT, "a large request waits for its key");
	donor.hold_table = false;
	ok(alive(conn), "given up, it does not end the connection");
	ops->close(conn);
	finish_ok("large request without a key");

	/* time that was over before */
	begin_test();
	conn = connected();
	if (!alive(conn))
		abort();
	for (int i = 0; i < 20; i++)
		ios[i] = make_io(RBP_IO_READ, 0, 0, KB, buf + i * KB);
	(void) ops->submit(conn, ios, 20);
	began = rbp_now_ns();
	(void) ops->wait(conn, ios, 20, 0);
	good = true;
	for (int i = 0; i < 20; i++)
		good &= ios[i].status == RBP_OK || ios[i].status == RBP_TIMEOUT;
	ok(good && rbp_now_ns() - began < SECOND, "a wait without time ends at once");
	ok(alive(conn), "and hurts nobody");
	ops->close(conn);
	finish_ok("no time");

	/* nothing is ever answered any more, and still it takes requests */
	begin_test();
	conn = connected();
	if (!alive(conn))
		abort();
	donor.hold = true;
	good = true;
	for (int round = 0; round < 30; round++)
	{
		RbpStatus	status;

		for (int i = 0; i < 10; i++)
			ios[i] = make_io(i % 2 == 0 ? RBP_IO_READ : RBP_IO_WRITE, 0, 0, KB, buf + i * KB);
		status = run(conn, ios, 10, 1);
		good &= status == RBP_TIMEOUT;
	}
	ok(good, "request after request times out");
	donor.hold = false;
	ok(alive(conn), "all come late");
	ops->close(conn);
	finish_ok("many timeouts");

	/* or the connection is closed with them */
	begin_test();
	conn = connected();
	if (!alive(conn))
		abort();
	donor.hold = true;
	for (int i = 0; i < 30; i++)
		ios[i] = make_io(i % 2 == 0 ? RBP_IO_READ : RBP_IO_WRITE, 0, 0, KB, buf + i * KB);
	ok(run(conn, ios, 30, 1) == RBP_TIMEOUT, "requests time out");
	ops->close(conn);
	finish_ok("close with late answers to come");
	free(buf);
}

/*
 * ---- calls that fail ----------------------------------------------------------------------
 */

/*
 * Some of everything.  Returns whether all of it went well; what went well
 * must be right.  *odd counts what is wrong whatever fails.
 */
static bool
some_of_everything(int *odd)
{
	RbpConn    *conns[2] = {NULL, NULL};
	uint8_t    *buf = malloc(64 * 16 * KB);
	RbpMr	   *mrs[2] = {NULL, NULL};
	RbpIo		ios[40];
	bool		all = true;

	for (int c = 0; c < 2; c++)
	{
		RbpStatus	status = ops->connect(&ep, &cred, &conns[c]);

		if (status != RBP_OK)
		{
			*odd += conns[c] != NULL || status == RBP_INPROGRESS;
			all = false;
			continue;
		}
		status = ops->connect_wait(conns[c], in_ms(2000));
		if (status != RBP_OK)
		{
			if (status == RBP_INPROGRESS)
			{
				diag("connect_wait() does not come to an end");
				(*odd)++;
			}
			all = false;
			ops->close(conns[c]);
			conns[c] = NULL;
			continue;
		}
		status = ops->register_memory(conns[c], buf, 16 * 16 * KB, &mrs[c]);
		if (status != RBP_OK)
		{
			*odd += mrs[c] != NULL;
			all = false;
		}
	}
	for (int round = 0; round < 4; round++)
	{
		RbpConn    *conn = conns[round % 2];

		if (conn == NULL)
			continue;
		pattern(buf, 64 * 16 * KB, (uint32_t) round + 99);
		for (int i = 0; i < 40; i++)
		{
			uint64_t	offset = (uint64_t) (i / LIVE) * 16 * KB;

			ios[i] = make_io(i % 3 == 0 ? RBP_IO_READ : RBP_IO_WRITE, i % LIVE, offset,
							 i % 5 == 0 ? 16 * KB : 8 * KB, buf + (size_t) i * 16 * KB);
			if (i < 16)
				ios[i].mr = mrs[round % 2];
			if (i == 25)
				ios[i] = make_ping();
		}
		(void) ops->submit(conn, ios, 40);
		(void) ops->wait(conn, ios, 40, in_ms(2000));
		for (int i = 0; i < 40; i++)
		{
			if (ios[i].status != RBP_OK)
			{
				if (ios[i].status == RBP_INPROGRESS || ios[i].status == RBP_TIMEOUT ||
					ios[i].status == RBP_INVALID)
				{
					diag("request %d: %s", i, rbp_status_text(ios[i].status));
					(*odd)++;
				}
				all = false;
			}
			else if (ios[i].kind != RBP_IO_PING &&
					 memcmp(ios[i].buf, donor.live[i % LIVE].mem + ios[i].offset,
							ios[i].len) != 0)
			{
				diag("request %d: wrong bytes", i);
				(*odd)++;
			}
		}
	}
	for (int c = 0; c < 2; c++)
	{
		if (mrs[c] != NULL)
			ops->deregister_memory(conns[c], mrs[c]);
		ops->close(conns[c]);
	}
	free(buf);
	return all;
}

static void
test_failing_calls(void)
{
	int			odd = 0;

	begin_test();
	ok(some_of_everything(&odd) && odd == 0, "some of everything goes well");
	finish_ok("some of everything");

	for (int call = 0; call < MOCK_NCALLS; call++)
		for (int way = 0; way < (call == MOCK_POST_SEND ? 3 : 1); way++)
		{
			bool		clean = true;
			uint32_t	nth;

			odd = 0;
			if (call == MOCK_DEREG_MR)
				continue;		/* nobody can do anything about it */
			for (nth = 1; nth < 120; nth++)
			{
				char		what[100];
				bool		failed;

				begin_test();
				mock_lazy = way == 2;
				mock_fail_at = way;
				mock_fail((MockCall) call, nth, ENOMEM);
				(void) some_of_everything(&odd);
				failed = mock_failed((MockCall) call);
				snprintf(what, sizeof(what), "failure %u of %s, way %d", nth,
						 mock_call_name((MockCall) call), way);
				if (!finish(what) || odd > 0)
				{
					if (odd > 0)
						diag("so after: %s", what);
					clean = false;
					break;
				}
				if (!failed)
					break;
			}
			if (nth > 1)
				ok(clean, "each of %u calls of %s fails, way %d", nth - 1,
				   mock_call_name((MockCall) call), way);
		}
}

/*
 * A post that fails half way: what went out arrives, so that no write may be
 * said to be canceled or denied, which would mean that it never does.
 */
static void
test_half_posted(void)
{
	uint8_t    *buf = malloc(8 * KB);

	for (int error = 0; error < 2; error++)
	{
		RbpConn    *conn;
		RbpIo		ios[4];
		bool		unsure = true;

		begin_test();
		conn = connected();
		ok(alive(conn), "a region's key is known");
		memset(buf, 0x77 + error, 8 * KB);
		for (int i = 0; i < 4; i++)
			ios[i] = make_io(RBP_IO_WRITE, 0, (uint64_t) i * KB, 1 * KB, buf);
		mock_fail_at = 2;
		mock_fail(MOCK_POST_SEND, 1, error == 0 ? ENOMEM : EIO);
		ok(ops->submit(conn, ios, 4) != RBP_OK, "a post fails half way");
		for (int i = 0; i < 4; i++)
			unsure = unsure && (ios[i].status == RBP_CONNLOST || ios[i].status == RBP_NOMEM);
		ok(unsure, "all of its requests are lost, none is canceled or denied");
		ok(memcmp(donor.live[0].mem, buf, 2 * KB) == 0 &&
		   memcmp(donor.live[0].mem + 2 * KB, buf, 1 * KB) != 0, "the first two have arrived");
		ops->close(conn);
		finish_ok("half posted, error %d", error);
	}
	free(buf);
}

/* Interrupted calls are no failures. */
static void
test_interrupted(void)
{
	RbpConn    *conn = NULL;

	begin_test();
	mock_fail(MOCK_GET_EVENT, 1, EINTR);
	ok(ops->connect(&ep, &cred, &conn) == RBP_OK &&
	   ops->connect_wait(conn, in_ms(2000)) == RBP_OK, "a signal while it connects does no harm");
	ops->close(conn);
	finish_ok("a signal");
}

/*
 * ---- close at each moment -------------------------------------------------------------------
 */
static uint32_t polls_left;

static int
hold_for_a_while(const MockWork *work)
{
	if (polls_left > 0)
	{
		polls_left--;
		return MOCK_HOLD;
	}
	return on_work(work);
}

static void
test_close_anytime(void)
{
	uint8_t    *buf = malloc(64 * 16 * KB);
	RbpIo		ios[64];
	bool		clean = true;

	for (uint32_t moment = 0; moment < 60 && clean; moment++)
	{
		RbpConn    *conn;
		RbpMr	   *mr = NULL;

		begin_test();
		mock_lazy = true;
		mock_poll_max = 1 + (int) moment % 3;
		mock_flush_polls = (int) moment % 4 * 2;
		conn = connected();
		mock_hooks.on_work = hold_for_a_while;
		polls_left = moment % 7;
		if (ops->register_memory(conn, buf, 32 * 16 * KB, &mr) != RBP_OK)
			abort();
		for (int i = 0; i < 64; i++)
		{
			ios[i] = make_io(i % 2 == 0 ? RBP_IO_READ : RBP_IO_WRITE, i % LIVE,
							 (uint64_t) i * KB, i % 3 == 0 ? 16 * KB : 8 * KB,
							 buf + i * 16 * KB);
			ios[i].mr = i % 5 == 0 ? mr : NULL;
			if (i % 16 == 15)
				ios[i] = make_ping();
		}
		(void) ops->submit(conn, ios, 20);
		for (uint32_t i = 0; i < moment / 7; i++)
			(void) ops->wait(conn, ios, 1, 0);
		(void) ops->submit(conn, ios + 20, 44);
		if (moment % 2 == 0)
			(void) ops->wait(conn, ios + 30, 4, 0);

		/* the caller's way: what is registered is given up before the close */
		if (moment % 3 == 0)
		{
			(void) ops->wait(conn, ios, 64, 0);
			ops->deregister_memory(conn, mr);
			mr = NULL;
		}
		if (mr != NULL)
		{
			(void) ops->wait(conn, ios, 64, in_ms(2000));
			ops->deregister_memory(conn, mr);
		}
		ops->close(conn);
		memset(buf, 0x12, 64 * 16 * KB);
		memset(ios, 0x34, sizeof(ios));
		clean = finish("close at some moment");
		if (!clean)
			diag("moment %u", moment);
	}
	ok(clean, "connections are closed at sixty moments");

	for (int how = 0; how < 8; how++)
	{
		RbpConn    *conn;

		begin_test();
		mock_flush_polls = how % 4;
		mock_lazy = how >= 4;
		conn = connected();
		donor.hold = true;
		for (int i = 0; i < 64; i++)
			ios[i] = make_io(i % 2 == 0 ? RBP_IO_READ : RBP_IO_WRITE, i % LIVE,
							 0, i % 3 == 0 ? 16 * KB : 8 * KB, buf + i * 16 * KB);
		(void) ops->submit(conn, ios, 64);
		ops->close(conn);
		donor.hold = false;
		memset(buf, 0x12, 64 * 16 * KB);
		mock_progress();
		{
			bool		good = true;

			for (int i = 0; i < 64 * 16 * KB; i++)
				good &= buf[i] == 0x12;
			ok(good, "after close() no buffer is touched, way %d", how);
		}
		finish_ok("close with requests under way, way %d", how);
	}
	free(buf);
}

int
main(void)
{
	test_errors();
	test_news();
	test_timeouts();
	test_failing_calls();
	test_half_posted();
	test_interrupted();
	test_close_anytime();
	return done_testing();
}
