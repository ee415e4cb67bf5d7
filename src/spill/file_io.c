/*-------------------------------------------------------------------------
 *
 * file_io.c
 *	  Reading and writing temporary files block by block, and reporting
 *	  failures.
 *
 * A call is split at block boundaries.  Blocks go to donors or to the real
 * file, whichever costs less.  A part of a block is written as the whole block,
 * unless that is in the real file.  The invariants are in files.c.
 *
 * Locks: the file's lock is taken shared to find a block and to copy from
 * staging.  It is not held while waiting for a donor, and while waiting for the
 * disk only if a block moves from elsewhere to the real file.
 *
 * Local to a process: the last lost block that it has met.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"

#include "base/geometry.h"
#include "base/guc.h"
#include "base/libc.h"
#include "base/page_cache.h"
#include "base/stats.h"
#include "common/clock.h"
#include "remote/remote.h"
#include "spill/spill.h"
#include "spill/spill_internal.h"
#include "spill/table.h"

/*
 * ---- failures ----------------------------------------------------------
 */

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

/*
 * ---- reads -------------------------------------------------------------
 */

static inline int
file_system(RbpSpillOpen *o, int fd)
{
	return rbp_page_cache_file_system(fd, &o->file_system);
}

/*
 * rbp_spill_cost_begin() for a call that shows the cost of a block, else 0.
 * Parts of blocks do not show it, nor do temporary tables, which are accessed
 * differently.
 */
static inline int64
cost_begin(RbpSpillOpen *o, int fd, size_t len, bool donor, bool write)
{
	return len == BLCKSZ && !o->relation && rbp_guc_spill_temp_files && attached() ?
		rbp_spill_cost_begin(file_system(o, fd), donor, write) : 0;
}

/* preadv() of the real file. */
static ssize_t
read_file(RbpSpillOpen *o, int fd, const struct iovec *iov, int iovcnt, off_t offset)
{
	int64		started = cost_begin(o, fd, iov->iov_len, false, false);
	ssize_t		n = rbp_libc_readv(fd, iov, iovcnt, offset);

	if (n == BLCKSZ)
		rbp_spill_cost_end(file_system(o, fd), false, false, started);
	return n;
}

/* pwritev() of the real file. */
static ssize_t
write_file(RbpSpillOpen *o, int fd, const struct iovec *iov, int iovcnt, off_t offset)
{
	int64		started = cost_begin(o, fd, iov->iov_len, false, true);
	ssize_t		n = rbp_libc_writev(fd, iov, iovcnt, offset);

	if (n == BLCKSZ)
		rbp_spill_cost_end(file_system(o, fd), false, true, started);
	return n;
}

ssize_t
rbp_spill_read_part(RbpSpillOpen *o, int fd, char *buf, size_t len, off_t offset)
{
	uint32		block = (uint32) (offset / BLCKSZ);
	uint32		start = (uint32) (offset % BLCKSZ);
	int			got = 0;

	while (got == 0)
	{
		RbpSpillFile *file = rbp_spill_open_lock(o, false);
		RbpSpilledBlock b = {.handle = o->handle,.block = block};
		int64		started;

		if (file == NULL)
			return -1;
		if (offset >= file->size)
		{
			rbp_spill_file_unlock(file);
			return 0;
		}
		len = (size_t) Min((int64) len, file->size - offset);
		b.value = rbp_spill_block_get(file, block);
		if (IS_STAGED(b.value))
		{
			memcpy(buf, staging_page(STAGED_PAGE(b.value)) + start, len);
			rbp_spill_file_unlock(file);
			rbp_stats_count(RBP_COUNT_SPILL_STAGED_READS, 1);
			return (ssize_t) len;
		}
		if (b.value == VALUE_NONE)
		{
			struct iovec iov = {.iov_base = buf,.iov_len = len};
			ssize_t		n;

			rbp_spill_file_unlock(file);
			n = read_file(o, fd, &iov, 1, offset);
			if (n >= 0 && n < (ssize_t) len)
				memset(buf + n, 0, len - n);	/* a hole */
			return n < 0 ? n : (ssize_t) len;
		}
		if (b.value == VALUE_LOST)
		{
			rbp_spill_file_unlock(file);
			rbp_spill_block_lost(o->name,
								 "Free disk space, and see in remote_bp_stat_donors why donors take no temporary data. Then run the query again.",
								 "could not read block %u of temporary file \"%s\": no donor took it when it was written, and the file could not be written",
								 block, o->name);
			errno = EIO;
			return -1;
		}
		b.slot = VALUE_SLOT(b.value);
		b.hash = slot_info(b.slot)->hash;
		b.mirror = slot_info(b.slot)->mirror;
		rbp_spill_file_unlock(file);
		started = cost_begin(o, fd, len, true, false);
		got = rbp_spill_fetch(&b, o->relation, start, (uint32) len, buf);
		if (got > 0)
		{
			rbp_spill_cost_slot(b.slot);
			rbp_spill_cost_end(file_system(o, fd), true, false, started);
		}
	}
	if (got < 0)
	{
		errno = got == RBP_SPILL_INTERRUPTED ? EINTR : EIO;
		return -1;
	}
	return (ssize_t) len;
}

ssize_t
rbp_spill_preadv(RbpSpillOpen *o, int fd, const struct iovec *iov, int iovcnt,
				 off_t offset)
{
	ssize_t		done = 0;

	if (offset < 0 || !rbp_spill_open_lookup(o))
		return read_file(o, fd, iov, iovcnt, offset);
	for (int i = 0; i < iovcnt; i++)
		for (size_t at = 0; at < iov[i].iov_len;)
		{
			off_t		from = offset + done;
			size_t		len = Min(iov[i].iov_len - at, (size_t) (BLCKSZ - from % BLCKSZ));
			ssize_t		n = rbp_spill_read_part(o, fd, (char *) iov[i].iov_base + at, len, from);

			/* a short count would be taken for the end of the file */
			if (n < 0)
				return -1;
			done += n;
			at += n;
			if (n < (ssize_t) len)
				return done;
		}
	return done;
}

/*
 * ---- writes ------------------------------------------------------------
 */

/* A piece of a write() call that lies within one block. */
typedef struct Part
{
	RbpSpillOpen *o;
	int			fd;				/* descriptor of the real file */
	const char *buf;
	size_t		len;
	off_t		offset;
	uint32		block;
} Part;

/*
 * Like pwrite(), into the real file.  If the block is elsewhere, the whole
 * block must be given.  The lock is then held during the write, since
 * evacuation could write old content to the same place.
 */
static ssize_t
write_real(const Part *p)
{
	RbpSpillFile *file = rbp_spill_open_lock(p->o, true);
	ssize_t		n;
	int			save_errno;

	if (file == NULL)
		return -1;
	if (rbp_spill_block_get(file, p->block) == VALUE_NONE)
	{
		struct iovec iov = {.iov_base = unconstify(char *, p->buf),.iov_len = p->len};

		rbp_spill_file_unlock(file);
		n = write_file(p->o, p->fd, &iov, 1, p->offset);
		if (n <= 0)
			return n;
		save_errno = errno;
		file = rbp_spill_open_lock(p->o, true);
		if (file == NULL)
			return -1;
	}
	else
	{
		n = rbp_libc.pwrite(p->fd, p->buf, p->len, p->offset);
		if (n < (ssize_t) p->len)
		{
			/* the block stays where it is */
			if (n >= 0)
				errno = ENOSPC;
			rbp_spill_file_unlock(file);
			return -1;
		}
		save_errno = errno;
		(void) rbp_spill_set_value(file, p->block, VALUE_NONE);
	}
	file->size = Max(file->size, p->offset + n);
	rbp_spill_file_unlock(file);
	errno = save_errno;
	return n;
}

/*
 * Is this a part of a block that is in the real file?  *new: the block begins at
 * or behind the end of the file.  False, with EIO, if the file's entry is gone.
 */
static bool
find_part(const Part *p, bool *in_file, bool *new)
{
	RbpSpillFile *file = rbp_spill_open_lock(p->o, false);

	if (file == NULL)
		return false;
	*in_file = rbp_spill_block_get(file, p->block) == VALUE_NONE;
	*new = (int64) p->block * BLCKSZ >= file->size;
	rbp_spill_file_unlock(file);
	return true;
}

/*
 * Make the part a whole block, in that buffer: the rest is as it was, and zeros
 * behind the end of the file.
 */
static bool
complete_part(Part *p, char *whole)
{
	off_t		start = p->offset % BLCKSZ;
	ssize_t		n = rbp_spill_read_part(p->o, p->fd, whole, BLCKSZ, p->offset - start);

	if (n < 0)
		return false;
	memset(whole + n, 0, BLCKSZ - n);
	memcpy(whole + start, p->buf, p->len);
	p->buf = whole;
	p->len = Max((size_t) n, start + p->len);
	p->offset -= start;
	return true;
}

/*
 * Write a block, or a part of it: where it is, if that is the real file, else the
 * whole block anew.
 */
static ssize_t
write_part(const Part *p)
{
	char		copy[BLCKSZ];
	Part		whole = *p;
	bool		in_file = true;
	bool		new = true;
	ssize_t		n;

	/* a whole block is as one that is new */
	if (p->len < BLCKSZ && !find_part(p, &in_file, &new))
		return -1;
	if (in_file && (!new || !spill_enabled(p->o)))
		return write_real(p);
	if (in_file && rbp_spill_prefer_file(file_system(p->o, p->fd)))
	{
		if (write_real(p) == (ssize_t) p->len)
		{
			rbp_stats_count(RBP_COUNT_SPILL_BYPASSED, p->len / BLCKSZ);
			return (ssize_t) p->len;
		}
		/* the disk may be full */
		rbp_spill_file_refused();
	}
	if (p->len < BLCKSZ && !complete_part(&whole, copy))
		return -1;
	if (spill_enabled(p->o))
	{
		int64		started = cost_begin(p->o, p->fd, p->len, true, true);

		if (rbp_spill_put(p->o->handle, p->block, whole.buf, p->offset + (off_t) p->len))
		{
			rbp_spill_cost_end(file_system(p->o, p->fd), true, true, started);
			return (ssize_t) p->len;
		}
		rbp_stats_count(RBP_COUNT_SPILL_LOCAL, p->len / BLCKSZ);
	}
	n = write_real(&whole);
	if (n < 0)
		return -1;
	/* of a short write, what is of this part */
	n -= p->offset - whole.offset;
	if (n > 0)
		return Min(n, (ssize_t) p->len);
	errno = ENOSPC;
	return -1;
}

/*
 * n bytes were written to a file that had no entry, or the write has failed
 * (-1).  Returns n.  A process that has created the entry meanwhile may have
 * seen the old size.
 */
static ssize_t
extend_new_entry(RbpSpillOpen *o, off_t offset, ssize_t n)
{
	int			save_errno = errno;

	pg_memory_barrier();
	if (n > 0 && rbp_spill_open_lookup(o))
		(void) rbp_spill_open_extend(o, offset + n);
	errno = save_errno;
	return n;
}

ssize_t
rbp_spill_pwritev(RbpSpillOpen *o, int fd, const struct iovec *iov, int iovcnt,
				  off_t offset)
{
	int64		start_ns;
	ssize_t		len = 0;
	ssize_t		done = 0;

	if (offset < 0 || !o->writable || !attached())
		return rbp_libc_writev(fd, iov, iovcnt, offset);
	start_ns = rbp_now_ns();
	for (int i = 0; i < iovcnt; i++)
		len += iov[i].iov_len;
	if (!rbp_spill_open_lookup(o))
	{
		bool		to_donors = spill_enabled(o) && rbp_remote_usable(RBP_POOL_TEMP, start_ns);

		if (to_donors && rbp_spill_prefer_file(file_system(o, fd)))
		{
			ssize_t		n = extend_new_entry(o, offset, write_file(o, fd, iov, iovcnt, offset));

			if (n == len)
			{
				rbp_stats_count(RBP_COUNT_SPILL_BYPASSED, n / BLCKSZ);
				return n;
			}
			/* the disk may be full: donors may have room */
			rbp_spill_file_refused();
		}
		if (!to_donors || (!rbp_spill_open_lookup(o) && !rbp_spill_open_create(o, fd)))
			return extend_new_entry(o, offset, rbp_libc_writev(fd, iov, iovcnt, offset));
	}
	for (int i = 0; i < iovcnt; i++)
		for (size_t at = 0; at < iov[i].iov_len;)
		{
			off_t		to = offset + done;
			Part		part = {
				.o = o,.fd = fd,.buf = (const char *) iov[i].iov_base + at,.offset = to,
				.len = Min(iov[i].iov_len - at, (size_t) (BLCKSZ - to % BLCKSZ)),
				.block = (uint32) (to / BLCKSZ)
			};
			ssize_t		n = write_part(&part);

			if (n < 0)
				return done > 0 ? done : -1;
			done += n;
			at += n;
			if (n < (ssize_t) part.len)
				return done;
		}
	rbp_stats_latency(RBP_LATENCY_SPILL_WRITES, rbp_now_ns() - start_ns);
	return done;
}
