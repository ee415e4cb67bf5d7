/*-------------------------------------------------------------------------
 *
 * test_link.c
 *	  What each event of a link does: the table in link.c, and what it
 *	  depends on besides.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <stdlib.h>

#include "mock_server.h"
#include "base/guc.h"
#include "common/status.h"
#include "remote/remote_internal.h"

#include "tap.h"

#define PENALTY_BEFORE		100

static const RbpTransportOps tcp = {.name = "tcp",.bit = RBP_TRANSPORT_TCP};
static const RbpTransportOps shm = {
	.name = "shm",.bit = RBP_TRANSPORT_SHM,.one_sided = true,.local = true
};
static const RbpTransportOps verbs = {
	.name = "verbs",.bit = RBP_TRANSPORT_VERBS,.one_sided = true,.costly = true
};

/* A connection of which something is told, and its donor */
static RbpLocalConn conn;
static RbpRemoteDonor *d;

static RbpBreaker *
over(void)
{
	return link_breaker(d, LINK_OF(conn.ops->bit));
}

/* A donor that is well, and a connection to it, or one that is being made */
static void
set_up(const RbpTransportOps *ops, RbpConnState state)
{
	mock_now += 3600000 * MS;
	memset(rbp_remote_shared, 0, sizeof(*rbp_remote_shared));
	memset(rbp_link_holds, 0, sizeof(rbp_link_holds));
	d = &rbp_remote_shared->donors[0];
	rbp_link_init(d);
	for (int pool = 0; pool < RBP_POOLS; pool++)
	{
		pg_atomic_init_u32(&rbp_remote_shared->leases[pool].serial, 1);
		pg_atomic_init_u32(&rbp_remote_shared->leases[pool].recheck, 0);
		d->known[pool] = true;
	}
	conn = (RbpLocalConn)
	{
		.ops = ops,.state = state
	};
	conn.serial = conn_serial(&conn);
	pg_atomic_write_u32(&link_breaker(d, ANY_LINK)->penalty, PENALTY_BEFORE);
	mock_wakes[RBP_WORKER_PUSHER] = 0;
	mock_now += MS;
}

static uint64
counted(RbpDonorCount what)
{
	uint64		sum = 0;

	for (int i = 0; i < RBP_DONOR_STRIPES; i++)
		sum += pg_atomic_read_u64(&d->stripes[i].counts[what]);
	return sum;
}

static void
say(char *text, bool is, const char *what)
{
	if (is)
		strcat(strcat(text, text[0] != '\0' ? ", " : ""), what);
}

/* What has become of the links, in words */
static const char *
outcome(int verdict)
{
	static const char *const states[] = {"", "suspect", "down"};
	static const char *const link_states[] = {"", "link suspect", "link open"};
	static char text[512];
	RbpBreaker *donor = link_breaker(d, ANY_LINK);
	uint32		penalty = pg_atomic_read_u32(&donor->penalty);

	text[		0] = '\0';

	say(text, breaker_state(donor) != BREAKER_CLOSED, states[breaker_state(donor)]);
	say(text, rbp_link_is_held(0, ANY_LINK), "held");
	say(text, penalty > PENALTY_BEFORE, "penalty");
	say(text, penalty < PENALTY_BEFORE, "less penalty");
	say(text, pg_atomic_read_u32(&d->serial) != 0, "stale");
	say(text, breaker_state(over()) != BREAKER_CLOSED, link_states[breaker_state(over())]);
	say(text, rbp_link_is_held(0, LINK_OF(conn.ops->bit)), "link held");
	say(text, pg_atomic_read_u32(&over()->penalty) != 0, "link penalty");
	say(text, counted(RBP_DONOR_FAILURES) != 0, "failure");
	say(text, counted(RBP_DONOR_TIMEOUTS) != 0, "timeout");
	say(text, pg_atomic_read_u32(&rbp_remote_shared->leases[0].recheck) != 0, "recheck");
	say(text, pg_atomic_read_u32(&rbp_remote_shared->leases[1].recheck) != 0, "recheck other");
	say(text, pg_atomic_read_u64(&d->refused_until[0]) > (uint64) mock_now, "refused");
	say(text, mock_wakes[RBP_WORKER_PUSHER] > 0, "woken");
	say(text, (verdict & VERDICT_CLOSE) != 0, "close");
	say(text, (verdict & VERDICT_CLOSE_AGAIN) != 0, "close again");
	say(text, (verdict & VERDICT_DENIED) != 0, "may have ended");
	say(text, (verdict & VERDICT_PAUSE) != 0, "pause");
	say(text, (verdict & VERDICT_ELSEWHERE) != 0, "elsewhere");
	return text;
}

static void
is_outcome(int verdict, const char *expected, const char *name)
{
	const char *text = outcome(verdict);

	if (!ok(strcmp(text, expected) == 0, "%s: %s", name, expected))
		diag("%s", text);
}

/*
 * ---- failures --------------------------------------------------------------
 */

#define LATE		"suspect, held, penalty, timeout, woken, close again"
#define LOST		"down, stale, failure, recheck, recheck other, woken"
#define SHORT		"pause"
#define ELSEWHERE	"link open, elsewhere"

static const struct
{
	const char *name;
	RbpLinkPhase phase;
	RbpLinkEvent event;
	const char *outcomes[3];	/* tcp, verbs, shm; of connecting: tcp, verbs,
								 * verbs beside another transport */
}			failures[] = {
	{"a request is late", ON_REQUEST, LINK_LATE, {LATE, LATE, "suspect, held, timeout, woken, close again"}},
	{"a request is late for very long", ON_REQUEST, LINK_SILENT, {"down, timeout, woken, close"}},
	{"a connection is lost", ON_REQUEST, LINK_LOST, {LOST ", close"}},
	{"a connection that nobody waits for is lost", ON_REQUEST, LINK_DROPPED, {"suspect, held, woken, close"}},
	{"a request lacks something", ON_REQUEST, LINK_SHORTAGE, {"close, pause"}},
	{"a request is denied", ON_REQUEST, LINK_DENIED, {"failure, recheck, may have ended"}},
	{"connecting is late", ON_CONNECT, LINK_LATE, {"suspect, held, timeout, woken"}},
	{"connecting is late for very long", ON_CONNECT, LINK_SILENT, {"down, timeout, woken"}},
	{"a handshake hangs", ON_CONNECT, LINK_HUNG, {"", "", "link suspect, link held, link penalty, woken, elsewhere"}},
	{"a handshake is left unfinished", ON_CONNECT, LINK_UNFINISHED, {"", "", "link suspect, link penalty, woken"}},
	{"a connection is refused", ON_CONNECT, LINK_LOST, {LOST, "suspect, held, failure, woken", ELSEWHERE}},
	{"a device cannot be used", ON_CONNECT, LINK_NO_DEVICE, {SHORT, SHORT, ELSEWHERE}},
	{"connecting lacks something", ON_CONNECT, LINK_SHORTAGE, {SHORT, SHORT, "link held, elsewhere"}},
	{"a connection is denied", ON_CONNECT, LINK_DENIED, {"failure, recheck, refused"}},
	{"a ping is late", ON_PING, LINK_LATE, {"down, timeout, woken, close again"}},
	{"a ping's connection is lost", ON_PING, LINK_LOST, {LOST ", close"}},
	{"a ping lacks something", ON_PING, LINK_SHORTAGE, {"close"}},
	{"a ping is denied", ON_PING, LINK_DENIED, {"recheck, close"}},
	{"a trial is late", ON_TRIAL, LINK_LATE, {"link suspect, link penalty, woken"}},
	{"a trial is refused", ON_TRIAL, LINK_LOST, {"link open"}},
	{"a trial's device cannot be used", ON_TRIAL, LINK_NO_DEVICE, {"link open"}},
};

static void
test_failures(void)
{
	for (int i = 0; i < lengthof(failures); i++)
	{
		RbpLinkPhase phase = failures[i].phase;
		bool		connecting = phase == ON_CONNECT || phase == ON_TRIAL;

		for (int kind = 0; kind < 3; kind++)
		{
			const RbpTransportOps *ops = kind == 0 ? &tcp : kind == 1 || connecting ? &verbs : &shm;
			const char *expected = failures[i].outcomes[kind];
			uint32		error;

			set_up(ops, connecting ? CONN_NONE : CONN_READY);
			conn.has_other = kind == 2 && connecting;
			is_outcome(rbp_link_failed(&conn, phase, failures[i].event, RBP_PROTOCOL),
					   expected != NULL ? expected : failures[i].outcomes[0], failures[i].name);
			error = pg_atomic_read_u32(&d->links[ANY_LINK].error);
			ok(phase == ON_TRIAL || failures[i].event == LINK_UNFINISHED ? error == 0 :
			   ERROR_TRANSPORT(error) == ops->bit && ERROR_STATUS(error) == RBP_PROTOCOL &&
			   (ERROR_WHAT(error) == DONOR_ERROR_REQUEST) == !connecting,
			   "%s: the donor's error says so", failures[i].name);
			error = pg_atomic_read_u32(&d->links[LINK_OF(ops->bit)].error);
			ok(connecting ? ERROR_STATUS(error) == RBP_PROTOCOL : error == 0,
			   "%s: the link's error is why no connection is made", failures[i].name);
		}
	}
}

/* What an event does depends on what was before, too. */
static void
test_conditions(void)
{
	/* to this host alone */
	set_up(&shm, CONN_NONE);
	is_outcome(rbp_link_failed(&conn, ON_CONNECT, LINK_LOST, RBP_CONNLOST), LOST, "refused over shm alone");
	set_up(&shm, CONN_NONE);
	conn.has_other = true;
	is_outcome(rbp_link_failed(&conn, ON_CONNECT, LINK_LOST, RBP_CONNLOST), ELSEWHERE, "refused over shm beside another transport");
	set_up(&tcp, CONN_NONE);
	conn.has_other = true;
	is_outcome(rbp_link_failed(&conn, ON_CONNECT, LINK_LOST, RBP_CONNLOST), LOST, "refused over tcp beside another transport");

	/* what is no news */
	set_up(&tcp, CONN_READY);
	conn.serial--;
	is_outcome(rbp_link_failed(&conn, ON_REQUEST, LINK_LOST, RBP_CONNLOST), "close", "a stale connection is lost");
	is_outcome(rbp_link_failed(&conn, ON_REQUEST, LINK_DENIED, RBP_DENIED),
			   "failure, recheck, may have ended", "but what it is denied is news");
	set_up(&tcp, CONN_READY);
	conn.serial--;
	is_outcome(rbp_link_failed(&conn, ON_REQUEST, LINK_LATE, RBP_TIMEOUT), LATE, "so is that it is late: nobody waits twice");
	set_up(&tcp, CONN_DENIED);
	is_outcome(rbp_link_failed(&conn, ON_REQUEST, LINK_LOST, RBP_CONNLOST), "close", "one that was denied something is lost");
	is_outcome(rbp_link_failed(&conn, ON_REQUEST, LINK_DROPPED, RBP_CONNLOST), "close", "also if nobody waits");
	is_outcome(rbp_link_failed(&conn, ON_REQUEST, LINK_LATE, RBP_TIMEOUT), LATE, "but that it is late is news");
	set_up(&tcp, CONN_READY);
	rbp_remote_donor_down(d, false);
	is_outcome(rbp_link_failed(&conn, ON_PING, LINK_LOST, RBP_CONNLOST), "down, woken, close", "a donor that is down does not answer a ping");
	is_outcome(rbp_link_failed(&conn, ON_REQUEST, LINK_LOST, RBP_CONNLOST), "down, failure, woken, close", "but other failures of it count");

	/* a transport that is not costly, but not for us */
	set_up(&shm, CONN_NONE);
	is_outcome(rbp_link_failed(&conn, ON_CONNECT, LINK_NO_DEVICE, RBP_NOT_ADMITTED), SHORT, "shared memory is not for this user");
	set_up(&shm, CONN_NONE);
	conn.has_other = true;
	is_outcome(rbp_link_failed(&conn, ON_CONNECT, LINK_NO_DEVICE, RBP_NOT_ADMITTED), ELSEWHERE, "but there is TCP");

	/* a donor that answers over no transport says nothing of this one */
	set_up(&verbs, CONN_NONE);
	conn.has_other = true;
	(void) rbp_breaker_suspect(link_breaker(d, ANY_LINK));
	is_outcome(rbp_link_failed(&conn, ON_CONNECT, LINK_UNFINISHED, RBP_TIMEOUT), "suspect", "a suspect donor: a handshake is left unfinished");
	is_outcome(rbp_link_failed(&conn, ON_TRIAL, LINK_LATE, RBP_TIMEOUT), "suspect", "a suspect donor: a trial is late");
	is_outcome(rbp_link_failed(&conn, ON_CONNECT, LINK_HUNG, RBP_TIMEOUT),
			   "suspect, link suspect, link held, link penalty, woken, elsewhere", "a suspect donor: a handshake hangs");

	/* what is left unfinished counts as the first only; three open the link */
	set_up(&verbs, CONN_NONE);
	conn.has_other = true;
	for (int i = 0; i < 10; i++)
		(void) rbp_link_failed(&conn, ON_CONNECT, LINK_UNFINISHED, RBP_TIMEOUT);
	is_outcome(0, "link suspect, link penalty, woken", "ten handshakes are left unfinished");
	(void) rbp_link_failed(&conn, ON_TRIAL, LINK_LATE, RBP_TIMEOUT);
	is_outcome(0, "link suspect, link penalty, woken", "then one hangs");
	(void) rbp_link_failed(&conn, ON_TRIAL, LINK_LATE, RBP_TIMEOUT);
	is_outcome(0, "link open, link penalty, woken", "and another one");

	/* late again and again */
	set_up(&tcp, CONN_READY);
	for (int i = 0; i < 18; i++)
		(void) rbp_link_failed(&conn, ON_REQUEST, LINK_LATE, RBP_TIMEOUT);
	ok(!donor_is_down(d), "a donor is late 18 times");
	(void) rbp_link_failed(&conn, ON_REQUEST, LINK_LATE, RBP_TIMEOUT);
	ok(donor_is_down(d) && ERROR_WHAT(pg_atomic_read_u32(&d->links[ANY_LINK].error)) == DONOR_ERROR_OFTEN_LATE,
	   "once more: it is down, for that reason");
	is_u64(counted(RBP_DONOR_TIMEOUTS), 19, "each time counts");
}

/*
 * ---- successes ---------------------------------------------------------------
 */

#define SUCCESS		"suspect, less penalty, link suspect, link held, link penalty"
#define ANSWERED	"link suspect, link held, link penalty"
#define NOTHING		"suspect, link suspect, link held, link penalty"

static const struct
{
	const char *name;
	RbpLinkPhase phase;
	RbpLinkEvent event;
	const char *outcomes[3];	/* as above */
}			successes[] = {

	{"a request is answered", ON_REQUEST, LINK_DONE,
	{"less penalty, link suspect, link held, link penalty", SUCCESS, NOTHING}},
	{"a request is answered, nobody knows when", ON_REQUEST, LINK_DONE_UNTIMED, {ANSWERED, NOTHING, NOTHING}},
	{"a connection is made", ON_CONNECT, LINK_DONE, {ANSWERED, "", ""}},
	{"a ping is answered", ON_PING, LINK_DONE, {ANSWERED, ANSWERED, ANSWERED}},
};

static void
test_successes(void)
{
	for (int i = 0; i < lengthof(successes); i++)
	{
		RbpLinkPhase phase = successes[i].phase;
		bool		connecting = phase == ON_CONNECT;

		for (int kind = 0; kind < 3; kind++)
		{
			set_up(kind == 0 ? &tcp : kind == 1 || connecting ? &verbs : &shm, CONN_NONE);
			conn.has_other = kind == 2 && connecting;

			/* all that a success can end */
			(void) rbp_breaker_suspect(link_breaker(d, ANY_LINK));
			(void) rbp_breaker_suspect(over());
			(void) rbp_breaker_penalize(over(), 10);
			rbp_link_holds[0][LINK_OF(conn.ops->bit)] = (RbpHold)
			{
				.until = mock_now + 30000 * MS,.delay = 30000 * MS,.serial = donor_serial(0)
			};
			mock_now += MS;
			rbp_link_done(&conn, conn.ops, phase, successes[i].event, mock_now);
			is_outcome(0, successes[i].outcomes[kind], successes[i].name);
		}
	}
	set_up(&tcp, CONN_READY);
	(void) rbp_breaker_suspect(link_breaker(d, ANY_LINK));
	rbp_link_done(&conn, &tcp, ON_REQUEST, LINK_DONE, mock_now - MS);
	is_outcome(0, "suspect, less penalty", "an answer to what was asked before");
}

/*
 * ---- statuses and holds --------------------------------------------------------
 */

static void
test_statuses(void)
{
	static const struct
	{
		RbpStatus	status;
		RbpLinkEvent event;
	}			statuses[] = {
		{RBP_OK, LINK_DONE}, {RBP_TIMEOUT, LINK_LATE}, {RBP_CONNLOST, LINK_LOST},
		{RBP_PROTOCOL, LINK_LOST}, {RBP_OTHER_VERSION, LINK_LOST}, {RBP_UNPROVEN, LINK_LOST}, {RBP_OTHER_DEVICE, LINK_NO_DEVICE}, {RBP_BAD_DEVICE, LINK_NO_DEVICE},
		{RBP_NOLIBRARY, LINK_NO_DEVICE}, {RBP_NOT_ADMITTED, LINK_NO_DEVICE}, {RBP_NOMEM, LINK_SHORTAGE}, {RBP_NOROUTE, LINK_SHORTAGE},
		{RBP_BUSY, LINK_SHORTAGE}, {RBP_DENIED, LINK_DENIED}, {RBP_CANCELED, LINK_OTHER},
		{RBP_INVALID, LINK_OTHER}, {RBP_INPROGRESS, LINK_OTHER},
	};

	for (int i = 0; i < lengthof(statuses); i++)
		is_u64(rbp_link_event(statuses[i].status), statuses[i].event, "status %d", (int) statuses[i].status);
}

static void
test_holds(void)
{
	RbpHold    *h = &rbp_link_holds[0][LINK_OF(RBP_TRANSPORT_VERBS)];
	int64		delay = 30000 * MS;

	set_up(&verbs, CONN_NONE);
	conn.has_other = true;
	for (int i = 0; i < 8; i++)
	{
		(void) rbp_link_failed(&conn, ON_CONNECT, LINK_SHORTAGE, RBP_NOMEM);
		is_u64((uint64) (h->until - mock_now), (uint64) delay, "a link is held for so long");
		mock_now = h->until - 1;
		ok(rbp_link_is_held(0, LINK_OF(RBP_TRANSPORT_VERBS)), "it is");
		mock_now++;
		ok(!rbp_link_is_held(0, LINK_OF(RBP_TRANSPORT_VERBS)), "and no longer");
		delay = Min(2 * delay, 600000 * MS);
	}
	(void) rbp_link_failed(&conn, ON_CONNECT, LINK_SHORTAGE, RBP_NOMEM);
	mock_now += MS;
	(void) rbp_breaker_close(over());
	ok(!rbp_link_is_held(0, LINK_OF(RBP_TRANSPORT_VERBS)), "nor when it is known to work");
	(void) rbp_link_failed(&conn, ON_CONNECT, LINK_SHORTAGE, RBP_NOMEM);
	rbp_guc_connect_settings_version++;
	ok(!rbp_link_is_held(0, LINK_OF(RBP_TRANSPORT_VERBS)) && h->delay == 0, "nor with other settings");
	set_up(&verbs, CONN_NONE);
	conn.has_other = true;
	(void) rbp_link_failed(&conn, ON_CONNECT, LINK_SHORTAGE, RBP_NOMEM);
	rbp_link_make_stale(&d->serial);
	ok(!rbp_link_is_held(0, LINK_OF(RBP_TRANSPORT_VERBS)) && h->delay == 0, "nor when the donor has moved");

	/* a donor */
	set_up(&tcp, CONN_READY);
	(void) rbp_link_failed(&conn, ON_REQUEST, LINK_LATE, RBP_TIMEOUT);
	mock_now += 999 * MS;
	ok(rbp_link_is_held(0, ANY_LINK), "a suspect donor is held for a second");
	mock_now += MS;
	ok(!rbp_link_is_held(0, ANY_LINK), "but not longer, if nobody pings");
	(void) rbp_link_failed(&conn, ON_REQUEST, LINK_LATE, RBP_TIMEOUT);
	mock_now += 999 * MS;
	ok(rbp_link_is_held(0, ANY_LINK), "the next time for as long");
	mock_now += MS;
	rbp_breaker_clear_suspicion(link_breaker(d, ANY_LINK), mock_now);
	ok(!rbp_link_is_held(0, ANY_LINK), "and not when somebody was answered");
}

int
main(void)
{
	mock_init();
	rbp_remote_shared = calloc(1, sizeof(*rbp_remote_shared));
	test_failures();
	test_conditions();
	test_successes();
	test_statuses();
	test_holds();
	return done_testing();
}
