/*-------------------------------------------------------------------------
 *
 * file_model.c
 *	  Drive temporary files through the server's own functions, and compare
 *	  every byte, return value and size with a model in memory: what an
 *	  ordinary file would do.
 *
 * Steps are random, but a function of the seed alone: never of what a call
 * returned.  So each process can make the model of a file as it was after so
 * many steps without touching the file ("replay"), and check what another one
 * wrote.
 *
 * It has nothing of remote_bp and passes on a stock server.  The calls are
 * made in the server's executable (FileRead() and so on), because only its
 * own calls to libc go through remote_bp; FileRead() and FileWrite() pass
 * offset and length to pread() and pwrite() as they are.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <fcntl.h>
#include <unistd.h>

#include "access/xact.h"
#include "catalog/pg_type_d.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "storage/buffile.h"
#include "storage/fd.h"
#include "storage/fileset.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/resowner.h"
#include "utils/wait_event.h"

PG_MODULE_MAGIC;

PG_FUNCTION_INFO_V1(file_model);
PG_FUNCTION_INFO_V1(file_model_buffile);
PG_FUNCTION_INFO_V1(file_model_set);
PG_FUNCTION_INFO_V1(file_model_set_delete);
PG_FUNCTION_INFO_V1(file_model_open);
PG_FUNCTION_INFO_V1(file_model_steps);
PG_FUNCTION_INFO_V1(file_model_check);
PG_FUNCTION_INFO_V1(file_model_check_prefix);
PG_FUNCTION_INFO_V1(file_model_stripes);
PG_FUNCTION_INFO_V1(file_model_stripes_check);
PG_FUNCTION_INFO_V1(file_model_path);
PG_FUNCTION_INFO_V1(file_model_close);
PG_FUNCTION_INFO_V1(file_model_unlink);
PG_FUNCTION_INFO_V1(file_model_buffile_write);
PG_FUNCTION_INFO_V1(file_model_buffile_check);

#define NO_EVENT		0
#define GUARD			64		/* bytes behind a buffer, never written */
#define GUARD_BYTE		0xA5
#define MAX_IO			65536
#define MAX_HANDLES		64
#define MAX_FILES		200
#define SCAN_CHUNKS		40

/*
 * ---- random numbers (splitmix64) ------------------------------------------
 */

typedef struct Rng
{
	uint64		state;
} Rng;

static uint64
next_random(Rng *rng)
{
	uint64		z = (rng->state += UINT64CONST(0x9E3779B97F4A7C15));

	z = (z ^ (z >> 30)) * UINT64CONST(0xBF58476D1CE4E5B9);
	z = (z ^ (z >> 27)) * UINT64CONST(0x94D049BB133111EB);
	return z ^ (z >> 31);
}

/* 0 .. n - 1 */
static int64
below(Rng *rng, int64 n)
{
	return n <= 0 ? 0 : (int64) (next_random(rng) % (uint64) n);
}

static void
fill_random(unsigned char *p, Size len, uint64 seed)
{
	Rng			rng = {seed};

	while (len > 0)
	{
		uint64		r = next_random(&rng);
		Size		n = Min(len, sizeof(r));

		memcpy(p, &r, n);
		p += n;
		len -= n;
	}
}

/*
 * ---- what to do ---------------------------------------------------------
 */

typedef enum Op
{
	WRITE,
	READ,
	APPEND,						/* several chunks, one behind the other */
	SCAN,						/* chunks, forwards, to past the end maybe */
	SCAN_BACK,
	SIZE,
	TRUNCATE,
	ADVISE,						/* must change nothing */
	STAT,						/* by name */
	REOPEN,						/* from here on, only files with a name */
	CREATE_ANEW,
	UNLINK,
	NUM_OPS
} Op;

static const char *const op_names[NUM_OPS] = {
	"write", "read", "append", "scan", "scan backwards", "size", "truncate",
	"advise", "stat", "reopen", "create anew", "unlink"
};

typedef struct Profile
{
	const char *name;
	int			files;			/* that are interleaved, in file_model() */
	int64		most;			/* bytes that a file grows to */
	bool		named;			/* in a file set */
	bool		relation;		/* as of a temporary relation */
	bool		aligned;		/* whole blocks at their places only */
	int			weight[NUM_OPS];
} Profile;

static const Profile profiles[] = {
	/* wr  rd  ap  sc  bk  sz  tr  ad  st  re  cr  un */
	{"random", 1, 2 << 20, false, false, false, {34, 28, 10, 6, 3, 6, 5, 4, 4, 0, 0, 0}},
	{"blocks", 3, 2 << 20, false, false, true, {40, 35, 10, 6, 3, 2, 2, 2, 0, 0, 0, 0}},
	{"overwrites", 1, 2 << 20, false, false, true, {60, 30, 5, 3, 0, 2, 0, 0, 0, 0, 0, 0}},
	{"streams", 8, 2 << 20, false, false, false, {4, 8, 60, 20, 2, 3, 1, 1, 1, 0, 0, 0}},
	{"many", MAX_FILES, 1 << 18, false, false, false, {30, 30, 20, 8, 3, 3, 3, 1, 2, 0, 0, 0}},
	{"named", 4, 1 << 20, true, false, false, {30, 26, 10, 6, 2, 5, 4, 2, 4, 6, 3, 2}},
	{"relations", 3, 2 << 20, false, true, true, {40, 35, 10, 6, 2, 4, 4, 2, 4, 6, 3, 3}},
	{"shared", 1, 2 << 20, true, false, false, {38, 28, 10, 6, 2, 6, 4, 2, 4, 0, 0, 0}},
	{"grow", 1, 4 << 20, true, false, false, {0, 10, 80, 5, 0, 5, 0, 0, 0, 0, 0, 0}},
};

typedef struct Step
{
	Op			op;
	int64		offset;
	int64		len;
	int			chunk;
	int			chunks;
	uint64		fill;
	bool		variant;
} Step;

typedef struct Model
{
	unsigned char *data;		/* zero from size on */
	unsigned char *doubt;		/* not zero where a failed write may have been */
	int64		size;
	int64		most;
} Model;

static const Profile *
find_profile(const char *name)
{
	for (int i = 0; i < lengthof(profiles); i++)
	{
		if (strcmp(profiles[i].name, name) == 0)
			return &profiles[i];
	}
	elog(ERROR, "no profile \"%s\"", name);
}

static void
model_init(Model *m, int64 most)
{
	m->data = MemoryContextAllocExtended(CurrentMemoryContext, most,
										 MCXT_ALLOC_HUGE | MCXT_ALLOC_ZERO);
	m->doubt = MemoryContextAllocExtended(CurrentMemoryContext, most,
										  MCXT_ALLOC_HUGE | MCXT_ALLOC_ZERO);
	m->size = 0;
	m->most = most;
}

static void
model_free(Model *m)
{
	pfree(m->data);
	pfree(m->doubt);
}

static void
model_resize(Model *m, int64 size)
{
	if (size < m->size)
	{
		memset(m->data + size, 0, m->size - size);
		memset(m->doubt + size, 0, m->size - size);
	}
	m->size = size;
}

static void
model_write(Model *m, int64 offset, int64 len, uint64 fill)
{
	fill_random(m->data + offset, len, fill);
	memset(m->doubt + offset, 0, len);
	m->size = Max(m->size, offset + len);
}

/* Where: mostly where blocks meet, and around the end. */
static int64
choose_offset(Rng *rng, const Model *m, bool past_end)
{
	int64		blocks = m->size / BLCKSZ + 1;
	int64		offset;

	switch (below(rng, past_end ? 8 : 7))
	{
		case 0:
		case 1:
			offset = below(rng, m->size + 1);
			break;
		case 2:
		case 3:
			offset = below(rng, blocks) * BLCKSZ;
			break;
		case 4:
			offset = below(rng, blocks) * BLCKSZ + below(rng, 33) - 16;
			break;
		case 5:
			offset = m->size;
			break;
		case 6:
			offset = m->size - below(rng, 3 * BLCKSZ);
			break;
		default:
			offset = m->size + below(rng, 6 * BLCKSZ);
			break;
	}
	return Min(Max(offset, 0), m->most - 1);
}

static int64
choose_len(Rng *rng)
{
	switch (below(rng, 6))
	{
		case 0:
			return 1 + below(rng, 100);
		case 1:
		case 2:
			return BLCKSZ;
		case 3:
			return (1 + below(rng, MAX_IO / BLCKSZ)) * BLCKSZ;
		case 4:
			return (1 + below(rng, MAX_IO / BLCKSZ - 1)) * BLCKSZ + below(rng, 33) - 16;
		default:
			return 1 + below(rng, MAX_IO);
	}
}

static int
choose_chunk(Rng *rng)
{
	static const int chunks[] = {
		BLCKSZ, BLCKSZ, BLCKSZ, BLCKSZ, 4096, 1000, BLCKSZ - 1, BLCKSZ + 1,
		3 * BLCKSZ, MAX_IO, 12345, 61
	};

	return chunks[below(rng, lengthof(chunks))];
}

static void
choose_step(Rng *rng, const Model *m, const Profile *profile, Step *s)
{
	int			sum = 0;
	int			pick;

	for (int op = 0; op < NUM_OPS; op++)
		sum += profile->weight[op];
	pick = (int) below(rng, sum);
	memset(s, 0, sizeof(*s));
	for (int op = 0; op < NUM_OPS; op++)
	{
		pick -= profile->weight[op];
		if (pick < 0)
		{
			s->op = (Op) op;
			break;
		}
	}
	/* as many numbers for each step, whatever it is */
	s->offset = choose_offset(rng, m, s->op == READ || s->op == SCAN ||
							  s->op == WRITE || s->op == TRUNCATE);
	s->len = choose_len(rng);
	s->chunk = choose_chunk(rng);
	s->chunks = 1 + (int) below(rng, SCAN_CHUNKS);
	s->fill = next_random(rng);
	s->variant = below(rng, 2) == 1;

	if (s->op == APPEND)
	{
		s->offset = m->size;
		if (s->offset >= m->most)
			s->op = profile->weight[TRUNCATE] > 0 ? TRUNCATE : SIZE;
	}
	if (s->op == TRUNCATE && s->variant && m->size == m->most)
		s->offset = 0;
	if (s->op == READ && below(rng, 50) == 0)
		s->len = 0;
	if (profile->aligned)
	{
		s->offset -= s->offset % BLCKSZ;
		s->len = Max(BLCKSZ, s->len - s->len % BLCKSZ);
		s->chunk = Max(BLCKSZ, s->chunk - s->chunk % BLCKSZ);
	}
	if (s->op == WRITE)
		s->len = Min(s->len, m->most - s->offset);
	if (s->op == APPEND)
	{
		s->chunks = Min(s->chunks, (m->most - s->offset) / s->chunk);
		if (s->chunks == 0)
		{
			s->chunks = 1;
			s->chunk = m->most - s->offset;
		}
	}
}

/* What the step does to an ordinary file. */
static void
apply_step(Model *m, const Step *s)
{
	switch (s->op)
	{
		case WRITE:
			model_write(m, s->offset, s->len, s->fill);
			break;
		case APPEND:
			for (int i = 0; i < s->chunks; i++)
				model_write(m, s->offset + (int64) i * s->chunk, s->chunk, s->fill + i);
			break;
		case TRUNCATE:
			model_resize(m, s->offset);
			break;
		case CREATE_ANEW:
		case UNLINK:
			model_resize(m, 0);
			break;
		default:
			break;
	}
}

/*
 * ---- doing it --------------------------------------------------------------
 */

typedef struct Stream
{
	File		file;
	bool		used;
	bool		writable;
	bool		named;
	bool		relation;
	FileSet		set;
	char		name[NAMEDATALEN];
	char		path[MAXPGPATH];
} Stream;

/* Of one call of a function; for its messages, and its result. */
static struct
{
	int			seed;
	int			step;
	const char *what;
	bool		eio_allowed;
	uint64		eio;
	uint64		bytes_read;
	uint64		bytes_written;
	uint64		done[NUM_OPS];
}			run;

static unsigned char *io_buffer;

static void
run_init(int seed, const char *what)
{
	memset(&run, 0, sizeof(run));
	run.seed = seed;
	run.what = what;
	io_buffer = palloc(MAX_IO + GUARD);
}

static void
disagree(const Stream *stream, const Step *s, const char *detail)
{
	ereport(ERROR,
			(errcode(ERRCODE_DATA_CORRUPTED),
			 errmsg("file and model disagree: %s", detail),
			 errdetail("seed %d, %s, step %d: %s at %lld of %lld bytes (%d chunks of %d), file \"%s\", pid %d",
					   run.seed, run.what, run.step, op_names[s->op],
					   (long long) s->offset, (long long) s->len, s->chunks,
					   s->chunk, stream->path, MyProcPid)));
}

typedef enum FileCall
{
	CALL_READ,
	CALL_WRITE,
	CALL_TRUNCATE
} FileCall;

/*
 * FileRead(), FileWrite() or FileTruncate().  A block that is lost is raised out
 * of them, with the reason: where such a failure may be, that is -1 and EIO as
 * well.
 */
static int
file_call(FileCall call, const Stream *stream, unsigned char *buffer, int64 len,
		  int64 offset)
{
	MemoryContext context = CurrentMemoryContext;
	volatile int result = -1;

	errno = 0;
	PG_TRY();
	{
		result = call == CALL_TRUNCATE ?
			FileTruncate(stream->file, offset, NO_EVENT) :
			call == CALL_WRITE ?
			FileWrite(stream->file, (char *) buffer, (int) len, offset, NO_EVENT) :
			FileRead(stream->file, (char *) buffer, (int) len, offset, NO_EVENT);
	}
	PG_CATCH();
	{
		if (!run.eio_allowed || geterrcode() != ERRCODE_IO_ERROR)
			PG_RE_THROW();
		MemoryContextSwitchTo(context);
		FlushErrorState();
		pgstat_report_wait_end();
		errno = EIO;
	}
	PG_END_TRY();
	return result;
}

/* May this failure be?  Counts it if so. */
static bool
allowed_failure(int result)
{
	if (result >= 0 || !run.eio_allowed || errno != EIO)
		return false;
	run.eio++;
	return true;
}

static void
compare_read(const Stream *stream, const Step *s, const Model *m,
			 const unsigned char *buffer, int64 offset, int64 len, int64 result,
			 int save_errno)
{
	int64		expected = Max(0, Min(len, m->size - offset));

	if (result != expected)
		disagree(stream, s, psprintf("read of %lld bytes at %lld gives %lld (%s), not %lld; size is %lld",
									 (long long) len, (long long) offset,
									 (long long) result,
									 result < 0 ? strerror(save_errno) : "no error",
									 (long long) expected, (long long) m->size));
	if (memcmp(buffer, m->data + offset, result) != 0)
	{
		int64		wrong = 0;
		int64		first = -1;
		int64		last = -1;

		for (int64 i = 0; i < result; i++)
		{
			if (buffer[i] != m->data[offset + i] && !m->doubt[offset + i])
			{
				if (first < 0)
					first = offset + i;
				last = offset + i;
				wrong++;
			}
		}
		if (wrong > 0)
			disagree(stream, s, psprintf("%lld wrong bytes from %lld (block %lld, byte %lld) to %lld; first is %02x, not %02x; size is %lld",
										 (long long) wrong, (long long) first,
										 (long long) first / BLCKSZ,
										 (long long) first % BLCKSZ,
										 (long long) last,
										 buffer[first - offset],
										 m->data[first],
										 (long long) m->size));
	}
	for (int i = 0; i < GUARD; i++)
	{
		if (buffer[len + i] != GUARD_BYTE)
			disagree(stream, s, psprintf("read of %lld bytes at %lld wrote behind its buffer",
										 (long long) len, (long long) offset));
	}
}

static void
do_read(Stream *stream, const Step *s, const Model *m, int64 offset, int64 len)
{
	int			result;

	memset(io_buffer, GUARD_BYTE, len + GUARD);
	result = file_call(CALL_READ, stream, io_buffer, len, offset);
	if (allowed_failure(result))
		return;
	compare_read(stream, s, m, io_buffer, offset, len, result, errno);
	run.bytes_read += result;
}

static off_t
file_size(Stream *stream, const Step *s)
{
	off_t		size = FileSize(stream->file);

	if (size < 0)
		disagree(stream, s, psprintf("no size: %s", strerror(errno)));
	return size;
}

/* Writes, and the model with it. */
static void
do_write(Stream *stream, const Step *s, Model *m, int64 offset, int64 len,
		 uint64 fill)
{
	int			result;
	int64		done = 0;
	int64		size;

	fill_random(io_buffer, len, fill);
	do
	{
		result = file_call(CALL_WRITE, stream, io_buffer + done, len - done,
						   offset + done);
		done += Max(result, 0);
	} while (run.eio_allowed && result > 0 && done < len);

	if (done == len)
	{
		model_write(m, offset, len, fill);
		run.bytes_written += len;
		return;
	}
	if (!allowed_failure(result))
		disagree(stream, s, psprintf("write of %lld bytes at %lld gives %d (%s)",
									 (long long) len, (long long) offset, result,
									 result < 0 ? strerror(errno) : "no error"));

	/* of the rest, none, some or all may be there */
	size = file_size(stream, s);
	if (size < m->size || (done > 0 && size < offset + done) ||
		size > Max(m->size, offset + len))
		disagree(stream, s, psprintf("size after a failed write is %lld, was %lld",
									 (long long) size, (long long) m->size));
	memcpy(m->data + offset, io_buffer, done);
	memset(m->doubt + offset, 0, done);
	memset(m->doubt + offset + done, 1, len - done);
	m->size = size;
	memset(m->doubt + size, 0, m->most - size);
}

/* Size by name, -1 if there is no such file. */
static int64
named_size(const char *path)
{
	Oid			types[1] = {TEXTOID};
	Datum		values[1];
	int64		size = -1;

	if (SPI_connect() != SPI_OK_CONNECT)
		elog(ERROR, "SPI_connect failed");
	values[0] = CStringGetTextDatum(path);
	if (SPI_execute_with_args("SELECT size FROM pg_stat_file($1, true)", 1,
							  types, values, NULL, true, 1) != SPI_OK_SELECT)
		elog(ERROR, "SPI_execute failed");
	if (SPI_processed == 1)
	{
		bool		isnull;
		Datum		d = SPI_getbinval(SPI_tuptable->vals[0],
									  SPI_tuptable->tupdesc, 1, &isnull);

		if (!isnull)
			size = DatumGetInt64(d);
	}
	SPI_finish();
	return size;
}

/* The same from a listing of the directory; of files outside of sets. */
static int64
listed_size(const char *path)
{
	static const char dir[] = "base/pgsql_tmp/";
	Oid			types[1] = {TEXTOID};
	Datum		values[1];
	int64		size = -1;

	if (strncmp(path, dir, strlen(dir)) != 0 ||
		strchr(path + strlen(dir), '/') != NULL)
		return named_size(path);
	if (SPI_connect() != SPI_OK_CONNECT)
		elog(ERROR, "SPI_connect failed");
	values[0] = CStringGetTextDatum(path + strlen(dir));
	if (SPI_execute_with_args("SELECT size FROM pg_ls_tmpdir() WHERE name = $1",
							  1, types, values, NULL, true, 1) != SPI_OK_SELECT)
		elog(ERROR, "SPI_execute failed");
	if (SPI_processed == 1)
	{
		bool		isnull;

		size = DatumGetInt64(SPI_getbinval(SPI_tuptable->vals[0],
										   SPI_tuptable->tupdesc, 1, &isnull));
	}
	SPI_finish();
	return size;
}

/* base/DATABASE/tBACKEND_RELATION, as md.c opens it */
static void
open_relation(Stream *stream, bool create)
{
	stream->writable = true;
	stream->file = PathNameOpenFile(stream->path, O_RDWR | PG_BINARY |
									(create ? O_CREAT | O_EXCL : 0));
	if (stream->file <= 0)
		ereport(ERROR,
				(errcode_for_file_access(),
				 errmsg("could not open \"%s\": %m", stream->path)));
}

static void
open_named(Stream *stream, const char *name, bool create, int mode)
{
	if (stream->relation)
	{
		open_relation(stream, create);
		return;
	}
	strlcpy(stream->name, name, sizeof(stream->name));
	stream->named = true;
	stream->writable = create || mode != O_RDONLY;
	stream->file = create ? FileSetCreate(&stream->set, name) :
		FileSetOpen(&stream->set, name, mode);
	if (stream->file <= 0)
		ereport(ERROR,
				(errcode_for_file_access(),
				 errmsg("could not open \"%s\" of the set: %m", name)));
	strlcpy(stream->path, FilePathName(stream->file), sizeof(stream->path));
}

static void
check_named_size(Stream *stream, const Step *s, const Model *m, bool listed)
{
	int64		size = listed ? listed_size(stream->path) : named_size(stream->path);

	if (size != m->size)
		disagree(stream, s, psprintf("%s says %lld bytes, the model %lld",
									 listed ? "pg_ls_tmpdir" : "pg_stat_file",
									 (long long) size, (long long) m->size));
}

/* The step, on the file and in the model. */
static void
do_step(Stream *stream, Model *m, const Step *s)
{
	int64		offset;

	run.done[s->op]++;
	switch (s->op)
	{
		case WRITE:
			do_write(stream, s, m, s->offset, s->len, s->fill);
			break;
		case READ:
			do_read(stream, s, m, s->offset, s->len);
			break;
		case APPEND:
			for (int i = 0; i < s->chunks; i++)
				do_write(stream, s, m, s->offset + (int64) i * s->chunk, s->chunk,
						 s->fill + i);
			break;
		case SCAN:
			offset = s->offset;
			for (int i = 0; i < s->chunks && offset <= m->size + BLCKSZ; i++)
			{
				do_read(stream, s, m, offset, s->chunk);
				offset += s->chunk;
			}
			break;
		case SCAN_BACK:
			offset = s->offset;
			for (int i = 0; i < s->chunks && offset >= 0; i++)
			{
				do_read(stream, s, m, offset, s->chunk);
				offset -= s->chunk;
			}
			break;
		case SIZE:
			if (file_size(stream, s) != m->size)
				disagree(stream, s, psprintf("size is %lld, not %lld",
											 (long long) FileSize(stream->file),
											 (long long) m->size));
			break;
		case TRUNCATE:
			if (file_call(CALL_TRUNCATE, stream, NULL, 0, s->offset) != 0)
			{
				if (!allowed_failure(-1))
					disagree(stream, s, psprintf("%s", strerror(errno)));
				/* not even the size is known: begin again */
				if (FileTruncate(stream->file, 0, NO_EVENT) != 0)
					disagree(stream, s, psprintf("to 0: %s", strerror(errno)));
				model_resize(m, 0);
				break;
			}
			model_resize(m, s->offset);
			break;
		case ADVISE:
			if (s->variant)
				(void) FilePrefetch(stream->file, s->offset, (int) s->len, NO_EVENT);
			else
				FileWriteback(stream->file, s->offset, s->len, NO_EVENT);
			break;
		case STAT:
			check_named_size(stream, s, m, s->variant);
			break;
		case REOPEN:
			FileClose(stream->file);
			open_named(stream, stream->name, false, O_RDWR);
			if (s->variant)
				check_named_size(stream, s, m, false);
			break;
		case CREATE_ANEW:
			if (stream->relation)
			{
				/* as mdunlink() does, by name */
				if (pg_truncate(stream->path, s->variant ? 0 : m->size / 2) != 0)
					disagree(stream, s, strerror(errno));
				model_resize(m, s->variant ? 0 : m->size / 2);
				break;
			}
			if (s->variant)
			{
				/* over the head of an open descriptor */
				File		old = stream->file;

				open_named(stream, stream->name, true, O_RDWR);
				FileClose(old);
			}
			else
			{
				FileClose(stream->file);
				open_named(stream, stream->name, true, O_RDWR);
			}
			model_resize(m, 0);
			break;
		case UNLINK:
			FileClose(stream->file);
			check_named_size(stream, s, m, false);
			if (stream->relation)
			{
				if (durable_unlink(stream->path, LOG) != 0)
					disagree(stream, s, strerror(errno));
				model_resize(m, 0);
				if (named_size(stream->path) != -1)
					disagree(stream, s, "still there after it was deleted");
				open_relation(stream, true);
				break;
			}
			if (!FileSetDelete(&stream->set, stream->name, true))
				disagree(stream, s, "not there to be deleted");
			model_resize(m, 0);
			if (named_size(stream->path) != -1 ||
				FileSetOpen(&stream->set, stream->name, O_RDONLY) > 0 ||
				FileSetDelete(&stream->set, stream->name, false))
				disagree(stream, s, "still there after it was deleted");
			open_named(stream, stream->name, true, O_RDWR);
			break;
		default:
			break;
	}
}

/* All of it, in chunks of that size, and that it ends where it should. */
static void
check_all(Stream *stream, const Model *m, int chunk)
{
	Step		s = {.op = SCAN,.chunk = chunk};
	int64		offset;

	if (FileSize(stream->file) != m->size)
		disagree(stream, &s, psprintf("size is %lld, not %lld",
									  (long long) FileSize(stream->file),
									  (long long) m->size));
	for (offset = 0; offset <= m->size; offset += chunk)
	{
		CHECK_FOR_INTERRUPTS();
		do_read(stream, &s, m, offset, chunk);
	}
	do_read(stream, &s, m, offset, chunk);
}

static text *
summary(int steps)
{
	StringInfoData out;

	initStringInfo(&out);
	appendStringInfo(&out, "%d steps, %llu bytes written, %llu read, %llu failed calls:",
					 steps, (unsigned long long) run.bytes_written,
					 (unsigned long long) run.bytes_read,
					 (unsigned long long) run.eio);
	for (int op = 0; op < NUM_OPS; op++)
	{
		if (run.done[op] > 0)
			appendStringInfo(&out, " %s %llu", op_names[op],
							 (unsigned long long) run.done[op]);
	}
	return cstring_to_text(out.data);
}

/*
 * file_model(seed, steps, profile, eio_allowed): steps on the profile's
 * number of files, in turns of random length; in the end all of each is
 * compared, and files outside of sets have their sizes compared with a
 * listing of the directory.
 */
Datum
file_model(PG_FUNCTION_ARGS)
{
	int			seed = PG_GETARG_INT32(0);
	int			steps = PG_GETARG_INT32(1);
	const Profile *profile = find_profile(text_to_cstring(PG_GETARG_TEXT_PP(2)));
	Rng			rng = {(uint64) seed * 1000003};
	Stream	   *streams = palloc0(sizeof(Stream) * profile->files);
	Model	   *models = palloc0(sizeof(Model) * profile->files);
	FileSet		set;
	int			at = 0;
	int			chunk;

	run_init(seed, profile->name);
	run.eio_allowed = PG_GETARG_BOOL(3);
	if (profile->named)
		FileSetInit(&set);
	for (int i = 0; i < profile->files; i++)
	{
		model_init(&models[i], profile->most);
		if (profile->relation)
		{
			/* no relation has such a number in a test's database */
			streams[i].relation = true;
			snprintf(streams[i].path, MAXPGPATH, "base/%u/t%d_%u", MyDatabaseId,
					 MyProcPid, 4000000000U + (unsigned) i);
			open_relation(&streams[i], true);
		}
		else if (profile->named)
		{
			streams[i].set = set;
			open_named(&streams[i], psprintf("file%d", i), true, O_RDWR);
		}
		else
		{
			streams[i].file = OpenTemporaryFile(false);
			strlcpy(streams[i].path, FilePathName(streams[i].file), MAXPGPATH);
		}
	}
	for (run.step = 0; run.step < steps; run.step++)
	{
		Step		s;

		CHECK_FOR_INTERRUPTS();
		if (below(&rng, 3) == 0)
			at = (int) below(&rng, profile->files);
		choose_step(&rng, &models[at], profile, &s);
		do_step(&streams[at], &models[at], &s);
	}
	chunk = choose_chunk(&rng);
	for (int i = 0; i < profile->files; i++)
	{
		Step		s = {.op = STAT};

		check_named_size(&streams[i], &s, &models[i], true);
		check_all(&streams[i], &models[i], Max(chunk, 1000));
		FileClose(streams[i].file);
		if (named_size(streams[i].path) !=
			(profile->named || profile->relation ? models[i].size : -1))
			disagree(&streams[i], &s, "size by name after close");
		if (profile->relation && durable_unlink(streams[i].path, LOG) != 0)
			disagree(&streams[i], &s, strerror(errno));
		model_free(&models[i]);
	}
	if (profile->named)
		FileSetDeleteAll(&set);
	PG_RETURN_TEXT_P(summary(steps));
}

/*
 * ---- files that several processes have open ------------------------------------
 *
 * Handles live to the end of the transaction at most.
 */

static Stream handles[MAX_HANDLES];

static void
forget_handles(XactEvent event, void *arg)
{
	if (event == XACT_EVENT_COMMIT || event == XACT_EVENT_ABORT)
		memset(handles, 0, sizeof(handles));
}

static Stream *
get_handle(int n)
{
	if (n < 0 || n >= MAX_HANDLES || !handles[n].used)
		elog(ERROR, "no handle %d", n);
	return &handles[n];
}

static FileSet *
set_argument(FunctionCallInfo fcinfo, int n)
{
	bytea	   *arg = PG_GETARG_BYTEA_PP(n);
	FileSet    *set = palloc(sizeof(FileSet));

	if (VARSIZE_ANY_EXHDR(arg) != sizeof(FileSet))
		elog(ERROR, "not a file set");
	memcpy(set, VARDATA_ANY(arg), sizeof(FileSet));
	return set;
}

Datum
file_model_set(PG_FUNCTION_ARGS)
{
	bytea	   *result = palloc0(VARHDRSZ + sizeof(FileSet));
	FileSet		set;

	memset(&set, 0, sizeof(set));
	FileSetInit(&set);
	SET_VARSIZE(result, VARHDRSZ + sizeof(FileSet));
	memcpy(VARDATA(result), &set, sizeof(set));
	PG_RETURN_BYTEA_P(result);
}

Datum
file_model_set_delete(PG_FUNCTION_ARGS)
{
	FileSetDeleteAll(set_argument(fcinfo, 0));
	PG_RETURN_VOID();
}

/* file_model_open(set, name, how): how is create, write or read. */
Datum
file_model_open(PG_FUNCTION_ARGS)
{
	static bool registered = false;
	ResourceOwner owner = CurrentResourceOwner;
	char	   *how = text_to_cstring(PG_GETARG_TEXT_PP(2));
	int			n = -1;

	if (!registered)
	{
		RegisterXactCallback(forget_handles, NULL);
		registered = true;
	}
	for (int i = 0; i < MAX_HANDLES && n < 0; i++)
	{
		if (!handles[i].used)
			n = i;
	}
	if (n < 0)
		elog(ERROR, "too many handles");
	handles[n].set = *set_argument(fcinfo, 0);
	CurrentResourceOwner = TopTransactionResourceOwner;
	open_named(&handles[n], text_to_cstring(PG_GETARG_TEXT_PP(1)),
			   strcmp(how, "create") == 0,
			   strcmp(how, "read") == 0 ? O_RDONLY : O_RDWR);
	CurrentResourceOwner = owner;
	handles[n].used = true;
	PG_RETURN_INT32(n);
}

Datum
file_model_path(PG_FUNCTION_ARGS)
{
	PG_RETURN_TEXT_P(cstring_to_text(get_handle(PG_GETARG_INT32(0))->path));
}

Datum
file_model_close(PG_FUNCTION_ARGS)
{
	Stream	   *stream = get_handle(PG_GETARG_INT32(0));
	ResourceOwner owner = CurrentResourceOwner;

	CurrentResourceOwner = TopTransactionResourceOwner;
	FileClose(stream->file);
	CurrentResourceOwner = owner;
	memset(stream, 0, sizeof(*stream));
	PG_RETURN_VOID();
}

/* file_model_unlink(set, name): was it there? */
Datum
file_model_unlink(PG_FUNCTION_ARGS)
{
	PG_RETURN_BOOL(FileSetDelete(set_argument(fcinfo, 0),
								 text_to_cstring(PG_GETARG_TEXT_PP(1)), false));
}

/* The model after so many steps; the generator is left there. */
static void
replay(Model *m, Rng *rng, const Profile *profile, int seed, int steps)
{
	Step		s;

	rng->state = (uint64) seed * 1000003;
	for (int i = 0; i < steps; i++)
	{
		choose_step(rng, m, profile, &s);
		apply_step(m, &s);
	}
}

/*
 * file_model_steps(handle, seed, from, to, profile): those steps; what was
 * before is known to have been done, by whomever.
 */
Datum
file_model_steps(PG_FUNCTION_ARGS)
{
	Stream	   *stream = get_handle(PG_GETARG_INT32(0));
	int			seed = PG_GETARG_INT32(1);
	int			from = PG_GETARG_INT32(2);
	int			to = PG_GETARG_INT32(3);
	const Profile *profile = find_profile(text_to_cstring(PG_GETARG_TEXT_PP(4)));
	Model		m;
	Rng			rng;

	run_init(seed, profile->name);
	model_init(&m, profile->most);
	replay(&m, &rng, profile, seed, from);
	for (run.step = from; run.step < to; run.step++)
	{
		Step		s;

		CHECK_FOR_INTERRUPTS();
		choose_step(&rng, &m, profile, &s);
		do_step(stream, &m, &s);
	}
	model_free(&m);
	PG_RETURN_TEXT_P(summary(to - from));
}

/*
 * file_model_check(handle, seed, steps, profile, check_seed): the file is as
 * after those steps: random reads first, then all of it, then its sizes.
 */
Datum
file_model_check(PG_FUNCTION_ARGS)
{
	Stream	   *stream = get_handle(PG_GETARG_INT32(0));
	int			seed = PG_GETARG_INT32(1);
	int			steps = PG_GETARG_INT32(2);
	const Profile *profile = find_profile(text_to_cstring(PG_GETARG_TEXT_PP(3)));
	Profile		reads = {.weight = {[READ] = 80,[SCAN] = 10,[SCAN_BACK] = 5,[SIZE] = 5}};
	Rng			check_rng = {(uint64) PG_GETARG_INT32(4)};
	Model		m;
	Rng			rng;
	int			chunk = choose_chunk(&check_rng);
	Step		s = {.op = STAT};

	run_init(seed, "check");
	model_init(&m, profile->most);
	replay(&m, &rng, profile, seed, steps);
	for (run.step = 0; run.step < 60; run.step++)
	{
		CHECK_FOR_INTERRUPTS();
		choose_step(&check_rng, &m, &reads, &s);
		do_step(stream, &m, &s);
	}
	check_all(stream, &m, Max(chunk, 1000));
	s.op = STAT;
	check_named_size(stream, &s, &m, false);
	model_free(&m);
	PG_RETURN_TEXT_P(summary(run.step));
}

/*
 * file_model_check_prefix(handle, seed, steps, profile, check_seed, reads):
 * what the file was after those steps is its beginning now; others may append
 * to it meanwhile.
 */
Datum
file_model_check_prefix(PG_FUNCTION_ARGS)
{
	Stream	   *stream = get_handle(PG_GETARG_INT32(0));
	int			seed = PG_GETARG_INT32(1);
	int			steps = PG_GETARG_INT32(2);
	const Profile *profile = find_profile(text_to_cstring(PG_GETARG_TEXT_PP(3)));
	Rng			check_rng = {(uint64) PG_GETARG_INT32(4)};
	int			reads = PG_GETARG_INT32(5);
	Step		s = {.op = READ};
	Model		m;
	Rng			rng;

	run_init(seed, "check of the prefix");
	model_init(&m, profile->most);
	replay(&m, &rng, profile, seed, steps);
	for (run.step = 0; run.step < reads; run.step++)
	{
		CHECK_FOR_INTERRUPTS();
		s.offset = choose_offset(&check_rng, &m, false);
		s.offset = Min(s.offset, m.size - 1);
		s.len = choose_len(&check_rng);
		s.len = Min(s.len, m.size - s.offset);
		do_read(stream, &s, &m, s.offset, s.len);
		if (FileSize(stream->file) < m.size)
			disagree(stream, &s, "the file has become shorter");
	}
	model_free(&m);
	PG_RETURN_INT32(reads);
}

/*
 * Several writers at once, each with units of its own: unit i is writer
 * (i % writers)'s.  Each writes its units in random order, and all of them
 * again in every round.
 */
static uint64
unit_fill(int seed, int64 unit, int round)
{
	return (uint64) seed * 7919 + (uint64) unit * 104729 + (uint64) round;
}

/* file_model_stripes(handle, seed, writer, writers, unit, units, rounds) */
Datum
file_model_stripes(PG_FUNCTION_ARGS)
{
	Stream	   *stream = get_handle(PG_GETARG_INT32(0));
	int			seed = PG_GETARG_INT32(1);
	int			writer = PG_GETARG_INT32(2);
	int			writers = PG_GETARG_INT32(3);
	int			unit = PG_GETARG_INT32(4);
	int			units = PG_GETARG_INT32(5);
	int			rounds = PG_GETARG_INT32(6);
	int			mine = units / writers;
	int		   *order = palloc(sizeof(int) * mine);
	Rng			rng = {(uint64) seed * 31 + (uint64) writer};
	Step		s = {.op = WRITE,.len = unit};
	unsigned char *expected = palloc(unit);

	run_init(seed, "stripes");
	for (int i = 0; i < mine; i++)
		order[i] = i * writers + writer;
	for (int round = 0; round < rounds; round++)
	{
		for (int i = mine - 1; i > 0; i--)
		{
			int			j = (int) below(&rng, i + 1);
			int			swap = order[i];

			order[i] = order[j];
			order[j] = swap;
		}
		for (int i = 0; i < mine; i++)
		{
			int64		back = order[below(&rng, i + 1)];
			int			result;

			CHECK_FOR_INTERRUPTS();
			run.step = order[i];
			s.offset = (int64) order[i] * unit;
			fill_random(io_buffer, unit, unit_fill(seed, order[i], round));
			result = FileWrite(stream->file, (char *) io_buffer, unit, s.offset,
							   NO_EVENT);
			if (result != unit)
				disagree(stream, &s, psprintf("write gives %d: %s", result, strerror(errno)));

			/* one that this round has written */
			fill_random(expected, unit, unit_fill(seed, back, round));
			s.offset = back * unit;
			result = FileRead(stream->file, (char *) io_buffer, unit, s.offset,
							  NO_EVENT);
			if (result != unit)
				disagree(stream, &s, psprintf("read of an own unit gives %d: %s", result,
											  result < 0 ? strerror(errno) : "no error"));
			if (memcmp(expected, io_buffer, unit) != 0)
				disagree(stream, &s, "an own unit is not as written");
		}
	}
	PG_RETURN_INT32(mine * rounds);
}

/* file_model_stripes_check(handle, seed, unit, units, round): as of a round */
Datum
file_model_stripes_check(PG_FUNCTION_ARGS)
{
	Stream	   *stream = get_handle(PG_GETARG_INT32(0));
	int			seed = PG_GETARG_INT32(1);
	int			unit = PG_GETARG_INT32(2);
	int			units = PG_GETARG_INT32(3);
	int			round = PG_GETARG_INT32(4);
	Model		m;

	run_init(seed, "stripes");
	model_init(&m, (int64) unit * units);
	for (int i = 0; i < units; i++)
		model_write(&m, (int64) i * unit, unit, unit_fill(seed, i, round));
	check_all(stream, &m, BLCKSZ);
	check_all(stream, &m, 10000);
	model_free(&m);
	PG_RETURN_INT32(units);
}

/*
 * ---- BufFile, as sorts and hash joins use it --------------------------------------
 */

#define BUFFILE_MOST	(3 << 20)

static void
buffile_seek(BufFile * file, Stream *stream, const Step *s, int64 to)
{
	if (BufFileSeek(file, 0, to, SEEK_SET) != 0)
		disagree(stream, s, psprintf("cannot seek to %lld", (long long) to));
}

static void
buffile_read(BufFile * file, Stream *stream, const Step *s, const Model *m,
			 int64 *at, int64 len)
{
	size_t		result;

	memset(io_buffer, GUARD_BYTE, len + GUARD);
	result = BufFileRead(file, io_buffer, len);
	compare_read(stream, s, m, io_buffer, *at, len, (int64) result, errno);
	*at += (int64) result;
	run.bytes_read += result;
}

/* file_model_buffile(seed, steps) */
Datum
file_model_buffile(PG_FUNCTION_ARGS)
{
	int			seed = PG_GETARG_INT32(0);
	int			steps = PG_GETARG_INT32(1);
	Rng			rng = {(uint64) seed * 1000003};
	BufFile    *file = BufFileCreateTemp(false);
	Stream		stream = {.path = "a BufFile"};
	Model		m;
	int64		at = 0;
	Step		s = {.op = READ};

	run_init(seed, "buffile");
	model_init(&m, BUFFILE_MOST);
	for (run.step = 0; run.step < steps; run.step++)
	{
		int			fileno;
		off_t		offset;

		CHECK_FOR_INTERRUPTS();
		memset(&s, 0, sizeof(s));
		s.offset = at;
		s.len = choose_len(&rng);
		switch (below(&rng, 8))
		{
			case 0:
			case 1:
			case 2:
				s.op = WRITE;
				s.len = Min(s.len, m.most - at);
				s.fill = next_random(&rng);
				if (s.len == 0)
					break;
				fill_random(io_buffer, s.len, s.fill);
				BufFileWrite(file, io_buffer, s.len);
				model_write(&m, at, s.len, s.fill);
				at += s.len;
				run.bytes_written += s.len;
				break;
			case 3:
			case 4:
				s.op = READ;
				buffile_read(file, &stream, &s, &m, &at, s.len);
				break;
			case 5:
				at = choose_offset(&rng, &m, false);
				buffile_seek(file, &stream, &s, at);
				break;
			case 6:
				at = below(&rng, m.size / BLCKSZ + 1) * BLCKSZ;
				if (BufFileSeekBlock(file, at / BLCKSZ) != 0)
					disagree(&stream, &s, "cannot seek to a block");
				break;
			default:
				s.op = SCAN;
				s.chunk = choose_chunk(&rng);
				s.chunks = 1 + (int) below(&rng, SCAN_CHUNKS);
				for (int i = 0; i < s.chunks && at < m.size; i++)
					buffile_read(file, &stream, &s, &m, &at, s.chunk);
				break;
		}
		run.done[s.op]++;
		BufFileTell(file, &fileno, &offset);
		if (fileno != 0 || offset != at)
			disagree(&stream, &s, psprintf("position is %d/%lld, not %lld", fileno,
										   (long long) offset, (long long) at));
	}
	at = 0;
	buffile_seek(file, &stream, &s, 0);
	s.op = SCAN;
	while (at < m.size)
		buffile_read(file, &stream, &s, &m, &at, BLCKSZ);
	buffile_read(file, &stream, &s, &m, &at, BLCKSZ);
	BufFileClose(file);
	model_free(&m);
	PG_RETURN_TEXT_P(summary(steps));
}

/*
 * file_model_buffile_write(set, name, seed, bytes): a BufFile in a set, as a
 * worker of a parallel CREATE INDEX leaves it.
 */
Datum
file_model_buffile_write(PG_FUNCTION_ARGS)
{
	FileSet    *set = set_argument(fcinfo, 0);
	char	   *name = text_to_cstring(PG_GETARG_TEXT_PP(1));
	int			seed = PG_GETARG_INT32(2);
	int			bytes = PG_GETARG_INT32(3);
	unsigned char *data = palloc(bytes + 1);
	BufFile    *file = BufFileCreateFileSet(set, name);
	Rng			rng = {(uint64) seed};
	int			done = 0;

	fill_random(data, bytes, (uint64) seed);
	while (done < bytes)
	{
		int64		len = choose_len(&rng);
		int			n = (int) Min(len, bytes - done);

		BufFileWrite(file, data + done, n);
		done += n;
	}
	BufFileExportFileSet(file);
	BufFileClose(file);
	PG_RETURN_INT32(done);
}

/*
 * file_model_buffile_check(set, name, seeds, bytes): append the BufFiles
 * named so, with a number each from 0 on, to one of our own, as the leader
 * does, read them there, overwrite and read them again.
 */
Datum
file_model_buffile_check(PG_FUNCTION_ARGS)
{
	FileSet    *set = set_argument(fcinfo, 0);
	char	   *name = text_to_cstring(PG_GETARG_TEXT_PP(1));
	int			files = PG_GETARG_INT32(2);
	int			bytes = PG_GETARG_INT32(3);
	BufFile    *target = BufFileCreateFileSet(set, "appended_to");
	unsigned char *data = palloc(bytes + 1);
	unsigned char *got = palloc(bytes + BLCKSZ);
	long	   *start = palloc(sizeof(long) * files);
	char		mine[BLCKSZ];

	memset(mine, 'm', sizeof(mine));
	BufFileWrite(target, mine, sizeof(mine));
	for (int i = 0; i < files; i++)
	{
		BufFile    *source = BufFileOpenFileSet(set, psprintf("%s%d", name, i),
												O_RDONLY, false);

		if (BufFileSize(source) != bytes)
			elog(ERROR, "BufFileSize of %d gives %lld, not %d", i,
				 (long long) BufFileSize(source), bytes);
		start[i] = BufFileAppend(target, source);
	}
	for (int turn = 0; turn < 2; turn++)
	{
		for (int i = 0; i < files; i++)
		{
			size_t		n;

			fill_random(data, bytes, (uint64) i);
			if (BufFileSeekBlock(target, start[i]) != 0)
				elog(ERROR, "cannot seek to block %ld", start[i]);
			/* not past its end: the next one follows */
			n = BufFileRead(target, got, bytes);
			if (n != bytes)
				elog(ERROR, "file %d: %zu bytes, not %d", i, n, bytes);
			if (memcmp(data, got, bytes) != 0)
				elog(ERROR, "file %d is not as it was written", i);
		}
	}
	BufFileClose(target);
	PG_RETURN_INT32(files);
}
