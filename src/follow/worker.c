/*-------------------------------------------------------------------------
 *
 * worker.c
 *	  The follower: fetches the names of pages that are hot on another server.
 *
 * The launcher (policy/launcher.c) starts it while the server is in recovery and
 * remote_bp.follow is set; it ends when that changes.
 *
 * - It takes names, and writes no page.  What becomes of them is in policy/warm.c.
 * - It is the only process with libpq, and waits for nothing else than its latch and the
 *	 connection.  A server that sends nothing for SILENCE_NS, or is not done after
 *	 FETCH_NS, is given up, so SIGTERM ends it at once, unless libpq is looking up a name.
 * - Nothing that comes is believed unchecked (row.c).  A list beyond the bound, rows out of order,
 *	 another cluster or format end the connection, and change nothing.  Nor can
 *	 another server use up memory: the process has a limit.
 * - While no list can be had, the last one is used for an hour; after a failure the next try is
 *	 a second later, then two, and so on up to a minute.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <libpq-fe.h>
#include <sys/resource.h>

#include "access/xlog.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "storage/ipc.h"
#include "storage/latch.h"

#include "base/guc.h"
#include "base/hot_list.h"
#include "base/wait.h"
#include "base/workers.h"
#include "common/clock.h"
#include "common/kernel.h"
#include "common/text.h"
#include "follow/row.h"
#include "policy/follow.h"

/* The room is a library of its own: no other process needs libpq. */
PG_MODULE_MAGIC;

extern PGDLLEXPORT void rbp_follower_main(Datum arg);


#define SILENCE_NS		(10 * NANOS_PER_S)
#define FETCH_NS		(120 * NANOS_PER_S)
#define PAUSE_NS		NANOS_PER_S
#define MAX_PAUSE_NS	(60 * NANOS_PER_S)

/* More memory than this is not needed, beside what there is at the start */
#define MAX_MEMORY		(256 * 1024 * 1024)

#define UNDEFINED_FUNCTION	"42883"

/*
 * Find the extension, wherever it is, and limit the queries.  The other server's transaction
 * keeps its list for both queries.
 */
static const char *const set_up =
"BEGIN READ ONLY;"
" SELECT pg_catalog.set_config('search_path', pg_catalog.quote_ident(n.nspname), true),"
" pg_catalog.set_config('statement_timeout', '60s', true)"
" FROM pg_catalog.pg_extension e JOIN pg_catalog.pg_namespace n ON n.oid = e.extnamespace"
" WHERE e.extname = 'remote_bp'";

static PGconn *conn = NULL;
static int64 fetch_until;
static int64 silent_until;
static char reason[256];		/* why the last list could not be had */

/* Returns false. */
static bool
fail(const char *text)
{
	char		line[sizeof(reason)];
	size_t		len = strlcpy(line, text, sizeof(line));

	len = Min(len, sizeof(line) - 1);
	for (char *c = line; *c != '\0'; c++)
		if (*c == '\n' || *c == '\t')
			*c = ' ';
	while (len > 0 && line[len - 1] == ' ')
		len--;
	rbp_copy_printable(reason, sizeof(reason), line, len);
	return false;
}

/* May the process go on? */
static bool
goes_on(void)
{
	return !ShutdownRequestPending && rbp_follow_is_wanted();
}

/* Wait until the socket is ready; PQconnectPoll() must not be called before that. */
static bool
wait_socket(int event)
{
	int			events = 0;

	while ((events & event) == 0)
	{
		int64		left = Min(silent_until, fetch_until) - rbp_now_ns();

		if (!goes_on())
			return fail("stopped");
		if (left <= 0)
			return fail(silent_until < fetch_until ? "the server does not answer" : "the server is too slow");
		events = WaitLatchOrSocket(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH | event,
								   PQsocket(conn), (long) Min(left / NANOS_PER_MS + 1, 1000),
								   rbp_wait_events[RBP_WAIT_MAIN]);
		if (events & WL_LATCH_SET)
			ResetLatch(MyLatch);
		CHECK_FOR_INTERRUPTS();
	}
	silent_until = rbp_now_ns() + SILENCE_NS;
	return true;
}

static bool
connect_to_server(void)
{
	/*
	 * What comes later in the list overrides what came before.  libpq goes on
	 * to the next host if the kernel of one does not answer for so many ms.
	 */
	static const char *const keywords[] = {"tcp_user_timeout", "dbname", "application_name", NULL};
	const char *const values[] = {"3000", rbp_guc_follow, "remote_bp follower", NULL};
	PQconninfoOption *options = PQconninfoParse(rbp_guc_follow, NULL);
	PostgresPollingStatusType status = PGRES_POLLING_WRITING;

	/* libpq's message may have a part of the string, such as a password */
	if (options == NULL)
		return fail("remote_bp.follow is no valid connection string");
	PQconninfoFree(options);
	conn = PQconnectStartParams(keywords, values, 1);
	if (conn == NULL)
		return fail("out of memory");
	if (PQstatus(conn) == CONNECTION_BAD)
		return fail(PQerrorMessage(conn));
	while (status != PGRES_POLLING_OK)
	{
		if (status == PGRES_POLLING_FAILED)
			return fail(PQerrorMessage(conn));
		if (!wait_socket(status == PGRES_POLLING_READING ? WL_SOCKET_READABLE : WL_SOCKET_WRITEABLE))
			return false;
		status = PQconnectPoll(conn);
	}
	return true;
}

/*
 * ---- queries --------------------------------------------------------------------
 */

/* The next result, or NULL after the last one; false if there will be none. */
static bool
next_result(PGresult **result)
{
	*result = NULL;
	while (PQisBusy(conn))
	{
		if (!wait_socket(WL_SOCKET_READABLE))
			return false;
		if (!PQconsumeInput(conn))
			return fail(PQerrorMessage(conn));
	}
	*result = PQgetResult(conn);
	return true;
}

static bool
is_error(const PGresult *result)
{
	ExecStatusType status = PQresultStatus(result);
	const char *state = PQresultErrorField(result, PG_DIAG_SQLSTATE);

	if (status == PGRES_TUPLES_OK || status == PGRES_SINGLE_TUPLE || status == PGRES_COMMAND_OK)
		return false;
	(void) fail(state != NULL && strcmp(state, UNDEFINED_FUNCTION) == 0 ?
				"the database has an older version of the extension remote_bp" :
				PQresultErrorMessage(result));
	return true;
}

/* The values of a row.  Returns false if it has other columns. */
static bool
get_row(const PGresult *result, int columns, const char **values, int *lengths)
{
	if (PQnfields(result) != columns)
		return fail("the server sends other columns");
	for (int i = 0; i < columns; i++)
	{
		values[i] = PQgetisnull(result, 0, i) ? NULL : PQgetvalue(result, 0, i);
		lengths[i] = PQgetlength(result, 0, i);
	}
	return true;
}

/* What to do with each row; false to stop. */
typedef bool (*RowVisit) (const PGresult *result, void *arg);

/*
 * Run a query that is on its way, to its end, row by row.  Stores the number of rows.  The
 * connection is of no use any more if it fails.
 */
static bool
run(bool sent, RowVisit visit, void *arg, uint64 *rows)
{
	PGresult   *result;
	bool		well = true;

	*rows = 0;
	if (!sent || !PQsetSingleRowMode(conn))
		return fail(PQerrorMessage(conn));
	silent_until = rbp_now_ns() + SILENCE_NS;
	while (well && (well = next_result(&result)) && result != NULL)
	{
		well = !is_error(result);
		if (well && PQresultStatus(result) == PGRES_SINGLE_TUPLE)
		{
			(*rows)++;
			well = visit == NULL || visit(result, arg);
		}
		PQclear(result);
	}
	return well;
}

static bool
send_binary(const char *query)
{
	return PQsendQueryParams(conn, query, 0, NULL, NULL, NULL, NULL, 1) != 0;
}

/*
 * ---- a list ---------------------------------------------------------------------
 */

typedef struct HotList
{
	RbpHotWriter writer;
	int64		age_ms;
	RbpHotPart	last;
	uint64		parts;
} HotList;

static bool
take_info(const PGresult *result, void *arg)
{
	HotList    *list = arg;
	const char *values[RBP_INFO_COLUMNS];
	int			lengths[RBP_INFO_COLUMNS];
	const char *wrong;
	RbpHotHeader *header = &list->writer.header;

	if (!get_row(result, RBP_INFO_COLUMNS, values, lengths))
		return false;
	wrong = rbp_row_parse_info(values, lengths, header, &list->age_ms);
	if (wrong != NULL)
		return fail(wrong);
	if (header->system != GetSystemIdentifier())
		return fail("the server is of another cluster");
	if (header->format != RBP_HOT_FORMAT)
		return fail("the server has another version of the extension remote_bp");
	return true;
}

static bool
take_part(const PGresult *result, void *arg)
{
	HotList    *list = arg;
	const char *values[RBP_ROW_COLUMNS];
	int			lengths[RBP_ROW_COLUMNS];
	RbpHotPart	part;
	const uint8 *bitmap;
	const char *wrong;

	if (!get_row(result, RBP_ROW_COLUMNS, values, lengths))
		return false;
	wrong = rbp_row_parse(values, lengths, list->parts > 0 ? &list->last : NULL, &part, &bitmap);
	if (wrong != NULL)
		return fail(wrong);
	if (!rbp_hot_add(&list->writer, &part, bitmap))
		return fail("the list is too long");
	list->last = part;
	list->parts++;
	return true;
}

static bool
fetch_list(HotList *list)
{
	uint64		rows;

	if (!connect_to_server() ||
		!run(PQsendQuery(conn, set_up) != 0, NULL, NULL, &rows))
		return false;
	if (rows != 1)
		return fail("the database does not have the extension remote_bp");
	if (!run(send_binary(RBP_INFO_QUERY), take_info, list, &rows))
		return false;
	if (rows != 1)
		return fail("the server sends other rows");
	return run(send_binary(RBP_ROW_QUERY), take_part, list, &rows);
}

/* Fetch a list, and have it used.  Returns false, with the reason, if there is none. */
static bool
follow(void)
{
	static HotList list;
	char		server[256] = "";
	bool		fetched;

	fetch_until = rbp_now_ns() + FETCH_NS;
	silent_until = rbp_now_ns() + SILENCE_NS;
	memset(&list, 0, sizeof(list));
	if (!rbp_hot_create(&list.writer, RBP_FOLLOW_FILE))
		return fail("could not create the file for the list");
	fetched = fetch_list(&list);
	if (fetched)
		snprintf(server, sizeof(server), "%s:%s", PQhost(conn), PQport(conn));
	PQfinish(conn);
	conn = NULL;
	if (fetched && rbp_hot_finish(&list.writer))
	{
		rbp_follow_new_list(&list.writer.header, list.age_ms, server);
		return true;
	}
	if (fetched)
		(void) fail("could not write the file for the list");
	rbp_hot_abandon(&list.writer);
	return false;
}

/*
 * ---- the process ----------------------------------------------------------------
 */

static void
limit_memory(void)
{
	struct rlimit limit;
	uint64		used;

	if (getrlimit(RLIMIT_DATA, &limit) != 0 ||
		!rbp_kernel_number("/proc/self", "status", "VmData", &used))
		return;
	limit.rlim_cur = Min(limit.rlim_cur, used + MAX_MEMORY);
	(void) setrlimit(RLIMIT_DATA, &limit);
}

void
rbp_follower_main(Datum arg)
{
	int64		next_ns = 0;
	int64		pause_ns = PAUSE_NS;

	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	pqsignal(SIGTERM, SignalHandlerForShutdownRequest);
	BackgroundWorkerUnblockSignals();

	rbp_worker_check_version("follower");
	/* an earlier launcher may have left one */
	if (!rbp_follow_begin())
		proc_exit(0);
	limit_memory();
	/* nothing else bounds how long libpq looks up a name */
	(void) setenv("RES_OPTIONS", "timeout:1 attempts:2", 0);

	while (goes_on())
	{
		int64		now = rbp_now_ns();

		if (now >= next_ns && follow())
		{
			next_ns = now + rbp_guc_follow_interval * NANOS_PER_S;
			pause_ns = PAUSE_NS;
		}
		else if (now >= next_ns && goes_on())
		{
			rbp_follow_failed(reason);
			next_ns = rbp_now_ns() + pause_ns;
			pause_ns = Min(pause_ns * 2, MAX_PAUSE_NS);
		}
		rbp_follow_watch_cache();
		rbp_wait_latch(RBP_WAIT_MAIN, (long) Max(Min((next_ns - rbp_now_ns()) / NANOS_PER_MS, 500), 0) + 1);
		CHECK_FOR_INTERRUPTS();
		if (rbp_worker_reload())
		{
			next_ns = 0;
			pause_ns = PAUSE_NS;
		}
	}
	proc_exit(0);
}
