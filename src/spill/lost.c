/*-------------------------------------------------------------------------
 *
 * lost.c
 *	  Lost blocks: what the error and the log say of them.
 *
 * Local to a process: the last lost block that it has met.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"

#include "base/stats.h"
#include "remote/remote.h"
#include "spill/spill_internal.h"

/* The last lost block that this process has met. */
static struct
{
	bool		noted;			/* in the current call, which raises it */
	bool		told_later;		/* the server raises it, after the call */
	bool		logged;			/* one was, in this transaction */
	const char *hint;
	char		file[RBP_SPILL_NAME_LEN];
	char		what[1024];
}			lost;

bool		rbp_spill_used_in_xact = false;

static ErrorContextCallback lost_callback;
static emit_log_hook_type prev_emit_log_hook = NULL;

bool
rbp_spill_lost_first(void)
{
	bool		first = !lost.logged;

	lost.logged = rbp_spill_used_in_xact = true;
	return first;
}

/* Called for each error and message: does it come of the lost block? */
static void
add_lost_context(void *arg)
{
	if (!lost.told_later || geterrcode() != ERRCODE_IO_ERROR)
		return;
	errcontext("remote_bp: %s", lost.what);
	errhint("%s", lost.hint);
}

/* Will the server's error have the context?  PG_TRY() takes it away when it ends. */
static bool
has_lost_context(void)
{
	ErrorContextCallback *on_stack = error_context_stack;

	while (on_stack != NULL && on_stack != &lost_callback)
		on_stack = on_stack->previous;
	return lost.told_later && on_stack != NULL;
}

/*
 * Since 18, the server logs each failed read, of which many can be under way,
 * before it raises the error for one of them.  We have told of the first.
 */
static void
drop_log_line(ErrorData *edata)
{
	const char *file = has_lost_context() && edata->elevel == LOG_SERVER_ONLY &&
	edata->sqlerrcode == ERRCODE_IO_ERROR && edata->message != NULL ?
	strstr(edata->message, lost.file) : NULL;

	/* not that of a longer name */
	if (file != NULL && file[strlen(lost.file)] == '"')
		edata->output_to_server = false;
	else if (prev_emit_log_hook != NULL)
		prev_emit_log_hook(edata);
}

void
rbp_spill_install_log_hook(void)
{
	static bool installed = false;

	if (installed)
		return;
	installed = true;
	prev_emit_log_hook = emit_log_hook;
	emit_log_hook = drop_log_line;
}

/*
 * No error can be raised here: the server does, when the call has failed, but
 * knows only EIO.  So its error gets a context, by a callback that is on the
 * stack until a function ends that has one there already, or for good: each
 * removes its own by restoring what was there before.
 *
 * The log is told as well, of the first such block of a transaction: where the
 * server reads ahead many calls fail before it raises an error, if it does.
 *
 * ereport() processes interrupts, but an error must not leave the file call
 * here.  The client gets no message: if it did not read it, we would wait for
 * the client, with interrupts held.
 */
static void
tell_later(void)
{
	if (rbp_spill_lost_first())
	{
		HOLD_INTERRUPTS();
		ereport(LOG_SERVER_ONLY,
				(errmsg("remote_bp: %s", lost.what), errhint("%s", lost.hint)));
		RESUME_INTERRUPTS();
	}
	lost.told_later = true;
	if (has_lost_context())
		return;
	lost_callback.callback = add_lost_context;
	lost_callback.previous = error_context_stack;
	error_context_stack = &lost_callback;
}

void
rbp_spill_block_lost(const char *name, const char *hint, const char *format,...)
{
	int			save_errno = errno;
	va_list		args;

	rbp_stats_count(RBP_COUNT_SPILL_LOST, 1);
	rbp_spill_used_in_xact = true;	/* for rbp_spill_forget_lost() */
	if (has_lost_context() && !rbp_remote_can_raise())
		return;					/* the server raises the first one's error */
	lost.told_later = false;
	lost.noted = true;
	lost.hint = hint;
	strlcpy(lost.file, name, sizeof(lost.file));
	va_start(args, format);
	(void) vsnprintf(lost.what, sizeof(lost.what), format, args);
	va_end(args);
	if (!rbp_remote_can_raise())
		tell_later();
	errno = save_errno;
}

void
rbp_spill_forget_lost(void)
{
	lost.noted = lost.told_later = lost.logged = false;
}

void
rbp_spill_call_failed(void)
{
	int			save_errno = errno;
	bool		noted = lost.noted;

	lost.noted = false;
	if (save_errno == EINTR && rbp_remote_interrupted())
		CHECK_FOR_INTERRUPTS();
	else if (save_errno == EIO && noted && rbp_remote_can_raise())
		ereport(ERROR,
				(errcode(ERRCODE_IO_ERROR),
				 errmsg("%s", lost.what), errhint("%s", lost.hint)));
	errno = save_errno;
}
