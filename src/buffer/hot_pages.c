/*-------------------------------------------------------------------------
 *
 * hot_pages.c
 *	  Which pages are hot: remote_bp_hot_pages(), for the servers that follow this one.
 *
 * A scan takes the names of pages that shared buffers use and the tier has, and writes
 * them to a file (base/hot_list.h), from which all callers read.
 *
 * - Only names are taken, and who gets one reads the page from its own disk.  So a
 *	 name may be old or wrong: buffer headers are read without their locks.
 * - One process scans at a time, and none within SCAN_PART times the duration of the last
 *	 scan, which therefore takes less than a twentieth of one CPU, however many ask.
 *	 The others get the result that there is.
 * - A partition's lock is held, shared, while the names of a thousand of its entries are copied.
 *	 Nothing waits or allocates memory meanwhile.
 * - A scan takes at most as many bitmaps as fit into a list, whatever there is: pages
 *	 that were never read in the tier are left out first.
 * - In a transaction, both functions have the same result, which is held open until its end.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xlog.h"
#include "access/xlogrecovery.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "port/atomics.h"
#include "storage/ipc.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "base/compat.h"
#include "base/hot_list.h"
#include "base/injection_point.h"
#include "base/sql.h"
#include "base/wait.h"
#include "buffer/buffer_internal.h"
#include "buffer/page.h"
#include "common/clock.h"

PG_FUNCTION_INFO_V1(rbp_sql_hot_pages);
PG_FUNCTION_INFO_V1(rbp_sql_hot_pages_info);

#define SCAN_PART		20

#define MAX_BITMAPS		(RBP_INJECTION_POINT("few-hot-pages") ? 4 : \
						 (int) (RBP_HOT_LIST_MAX / (sizeof(RbpHotPart) + RBP_HOT_BITMAP_BYTES)) - 1)

/* How often a scan checks for interrupts, in buffers */
#define CHECK_BUFFERS	4096

/* The result that this transaction has, in its memory */
static RbpHotReader *held = NULL;

/*
 * ---- the parts ----------------------------------------------------------------
 */

typedef struct PartKey
{
	uint32		rel;
	uint32		part;
	uint16		space;
	uint16		fork;
} PartKey;

typedef struct Part
{
	PartKey		key;
	uint8	   *bitmaps[RBP_HOT_CLASSES];	/* NULL: no such page */
	char		status;			/* of the hash table */
} Part;

#define SH_PREFIX		parts
#define SH_ELEMENT_TYPE	Part
#define SH_KEY_TYPE		PartKey
#define SH_KEY			key
#define SH_HASH_KEY(table, key) \
	((uint32) rbp_mix64(rbp_fork_hash((key).rel, (key).space, (uint8) (key).fork) ^ (key).part))
#define SH_EQUAL(table, a, b)	(memcmp(&(a), &(b), sizeof(PartKey)) == 0)
#define SH_SCOPE		static inline
#define SH_DECLARE
#define SH_DEFINE
#include "lib/simplehash.h"

typedef struct HotScan
{
	parts_hash *parts;
	int			bitmaps;
	bool		no_small;		/* there is no room for pages of that class */
	bool		complete;
} HotScan;

/* Make room for hotter pages. */
static void
drop_small(HotScan *scan)
{
	parts_iterator i;
	Part	   *part;

	parts_start_iterate(scan->parts, &i);
	while ((part = parts_iterate(scan->parts, &i)) != NULL)
	{
		if (part->bitmaps[RBP_HOT_SMALL] == NULL)
			continue;
		pfree(part->bitmaps[RBP_HOT_SMALL]);
		part->bitmaps[RBP_HOT_SMALL] = NULL;
		scan->bitmaps--;
	}
	scan->no_small = true;
	scan->complete = false;
}

/* Note a page, unless it is noted in a hotter class. */
static void
note_page(HotScan *scan, const RbpPageId *page, RbpHotClass class)
{
	PartKey		key = {page->rel, page->block / RBP_HOT_PART_BLOCKS, page->space, page->fork};
	uint32		bit = page->block % RBP_HOT_PART_BLOCKS;
	bool		found = true;
	bool		room;
	Part	   *part;

	if (scan->bitmaps >= MAX_BITMAPS && class != RBP_HOT_SMALL && !scan->no_small)
		drop_small(scan);
	room = scan->bitmaps < MAX_BITMAPS && (class != RBP_HOT_SMALL || !scan->no_small);
	part = room ? parts_insert(scan->parts, key, &found) : parts_lookup(scan->parts, key);
	if (!found)
		memset(part->bitmaps, 0, sizeof(part->bitmaps));
	if (part == NULL || (part->bitmaps[class] == NULL && !room))
	{
		scan->complete = false;
		return;
	}
	for (int hotter = 0; hotter < (int) class; hotter++)
		if (part->bitmaps[hotter] != NULL && rbp_hot_bit(part->bitmaps[hotter], bit))
			return;
	if (part->bitmaps[class] == NULL)
	{
		part->bitmaps[class] = palloc0(RBP_HOT_BITMAP_BYTES);
		scan->bitmaps++;
	}
	part->bitmaps[class][bit / 8] |= (uint8) (1 << bit % 8);
}

static bool
is_named(uint8 fork)
{
	return fork == MAIN_FORKNUM || fork == VISIBILITYMAP_FORKNUM;
}

/* Relations of all databases are left out: they are few, and each session reads them. */
static void
note_buffers(HotScan *scan)
{
	for (int i = 0; i < NBuffers; i++)
	{
		BufferDesc *buffer = GetBufferDescriptor(i);
		uint32		state = pg_atomic_read_u32(&buffer->state);
		BufferTag	tag;
		RbpRelFile	file;
		RbpPageId	page;

		if (i % CHECK_BUFFERS == 0)
			CHECK_FOR_INTERRUPTS();
		if ((state & (BM_VALID | BM_TAG_VALID | BM_LOCKED)) != (BM_VALID | BM_TAG_VALID) ||
			BUF_STATE_GET_USAGECOUNT(state) == 0)
			continue;
		pg_read_barrier();
		tag = buffer->tag;
		pg_read_barrier();
		/* half a name may be that of a tablespace or database that is none */
		if (pg_atomic_read_u32(&buffer->state) != state)
			continue;
		file = rbp_compat_tag_file(&tag);
		if (!is_named(file.fork) || !OidIsValid(file.db))
			continue;
		page = (RbpPageId)
		{
			.rel = file.rel,.block = tag.blockNum,.fork = file.fork
		};
		page.space = rbp_space_get(file.spc, file.db);
		if (page.space != RBP_INVALID_SPACE)
			note_page(scan, &page, RBP_HOT_BUFFERS);
	}
}

static void
note_in_tier(const RbpPageName *name, void *scan)
{
	if (is_named(name->page.fork))
		note_page(scan, &name->page, name->hot ? RBP_HOT_MAIN : RBP_HOT_SMALL);
}

/*
 * ---- the list -----------------------------------------------------------------
 */

typedef struct ListPart
{
	RbpHotPart	part;			/* but for its length */
	const uint8 *bitmap;
} ListPart;

static int
compare_parts(const void *a, const void *b)
{
	return rbp_hot_compare(&((const ListPart *) a)->part, &((const ListPart *) b)->part);
}

static ListPart *
sorted_parts(HotScan *scan, int *n)
{
	ListPart   *list = palloc(sizeof(ListPart) * Max(scan->bitmaps, 1));
	parts_iterator i;
	Part	   *part;

	*n = 0;
	parts_start_iterate(scan->parts, &i);
	while ((part = parts_iterate(scan->parts, &i)) != NULL)
	{
		RbpHotPart	named = {.rel = part->key.rel,.part = part->key.part,.fork = (uint8) part->key.fork};

		if (!rbp_space_resolve(part->key.space, &named.spc, &named.db) || !OidIsValid(named.db))
			continue;
		for (named.class = 0; named.class < RBP_HOT_CLASSES; named.class++)
			if (part->bitmaps[named.class] != NULL)
				list[(*n)++] = (ListPart)
			{
				named, part->bitmaps[named.class]
			};
	}
	qsort(list, *n, sizeof(ListPart), compare_parts);
	return list;
}

static void
write_list(HotScan *scan, TimestampTz taken_at)
{
	RbpHotWriter writer;
	int			n;
	ListPart   *list = sorted_parts(scan, &n);
	TimeLineID	timeline;

	if (RecoveryInProgress())
		(void) GetXLogReplayRecPtr(&timeline);
	else
		timeline = GetWALInsertionTimeLine();
	if (!rbp_hot_create(&writer, RBP_HOT_PAGES_FILE))
		ereport(ERROR,
				(errcode_for_file_access(),
				 errmsg("could not create a file for \"%s\": %m", RBP_HOT_PAGES_FILE)));
	for (int i = 0; i < n; i++)
	{
		RbpHotPart *part = &list[i].part;

		part->length = RBP_HOT_BITMAP_BYTES;
		while (list[i].bitmap[part->length - 1] == 0)
			part->length--;
		/* MAX_BITMAPS are not too many */
		(void) rbp_hot_add(&writer, part, list[i].bitmap);
	}
	writer.header.system = GetSystemIdentifier();
	writer.header.timeline = timeline;
	writer.header.taken_at = taken_at;
	writer.header.complete = scan->complete;
	if (!rbp_hot_finish(&writer))
		ereport(ERROR,
				(errcode_for_file_access(),
				 errmsg("could not write file \"%s\": %m", RBP_HOT_PAGES_FILE)));
}

static void
take_list(void)
{
	MemoryContext old = CurrentMemoryContext;
	MemoryContext context = AllocSetContextCreate(old, "remote_bp hot pages",
												  ALLOCSET_DEFAULT_SIZES);
	TimestampTz taken_at = GetCurrentTimestamp();
	HotScan		scan = {.complete = true};

	MemoryContextSwitchTo(context);
	scan.parts = parts_create(context, 1024, NULL);
	note_buffers(&scan);
	rbp_for_each_page(note_in_tier, &scan);
	if (RBP_INJECTION_POINT("few-hot-pages"))
		pg_usleep(1000000);
	write_list(&scan, taken_at);
	MemoryContextSwitchTo(old);
	MemoryContextDelete(context);
}

/*
 * ---- the result ---------------------------------------------------------------
 */

/* Also called if it fails; began: when it did */
static void
end_scan(int code, Datum began)
{
	int64		now = rbp_now_ns();

	pg_atomic_write_u64(&rbp_tier_shared->next_scan_ns, (uint64) (now + (now - DatumGetInt64(began)) * SCAN_PART));
	pg_atomic_write_u32(&rbp_tier_shared->scanning, 0);
}

/* See to it that there is a result, and take a new one if it is time to. */
static void
provide_result(void)
{
	for (;;)
	{
		int64		now = rbp_now_ns();
		bool		has_result = pg_atomic_read_u32(&rbp_tier_shared->has_hot_pages) != 0;
		bool		due = now >= (int64) pg_atomic_read_u64(&rbp_tier_shared->next_scan_ns);
		uint32		idle = 0;

		if (due && pg_atomic_compare_exchange_u32(&rbp_tier_shared->scanning, &idle, 1))
		{
			Datum		began = Int64GetDatum(now);

			PG_ENSURE_ERROR_CLEANUP(end_scan, began);
			{
				take_list();
				pg_atomic_write_u32(&rbp_tier_shared->has_hot_pages, 1);
			}
			PG_END_ENSURE_ERROR_CLEANUP(end_scan, began);
			end_scan(0, began);
			return;
		}
		if (has_result)
			return;
		rbp_wait_latch(RBP_WAIT_MAIN, 50);
		CHECK_FOR_INTERRUPTS();
	}
}

static void
let_go(void *arg)
{
	rbp_hot_close(held);
	held = NULL;
}

/* The result of this transaction, at its beginning */
static RbpHotReader *
hold_result(void)
{
	RbpHotReader *reader;
	MemoryContextCallback *callback;

	if (held != NULL)
	{
		(void) fseeko(held->file, RBP_HOT_FIRST, SEEK_SET);
		return held;
	}
	provide_result();
	reader = MemoryContextAlloc(TopTransactionContext, sizeof(*reader));
	callback = MemoryContextAlloc(TopTransactionContext, sizeof(*callback));
	callback->func = let_go;
	callback->arg = NULL;
	if (!rbp_hot_open(reader, RBP_HOT_PAGES_FILE))
		ereport(ERROR,
				(errcode_for_file_access(),
				 errmsg("could not read file \"%s\": %m", RBP_HOT_PAGES_FILE)));
	held = reader;
	MemoryContextRegisterResetCallback(TopTransactionContext, callback);
	return reader;
}

Datum
rbp_sql_hot_pages(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = rbp_sql_start_rows(fcinfo);
	RbpHotReader *reader = hold_result();
	RbpHotPart	part;

	while (rbp_hot_next(reader, &part))
	{
		char		bytes[VARHDRSZ + RBP_HOT_BITMAP_BYTES] pg_attribute_aligned(MAXIMUM_ALIGNOF);
		RbpRow		row = {0};

		CHECK_FOR_INTERRUPTS();
		memcpy(bytes + VARHDRSZ, reader->bitmap, part.length);
		SET_VARSIZE(bytes, VARHDRSZ + part.length);
		rbp_row_put(&row, "tablespace", ObjectIdGetDatum(part.spc), false);
		rbp_row_put(&row, "database", ObjectIdGetDatum(part.db), false);
		rbp_row_put(&row, "relfilenode", ObjectIdGetDatum(part.rel), false);
		rbp_row_text(&row, "fork", forkNames[part.fork]);
		rbp_row_put(&row, "part", Int32GetDatum((int32) part.part), false);
		rbp_row_put(&row, "class", Int32GetDatum(part.class), false);
		rbp_row_put(&row, "bitmap", PointerGetDatum(bytes), false);
		rbp_sql_add_row(rsinfo, &row);
	}
	return (Datum) 0;
}

Datum
rbp_sql_hot_pages_info(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = rbp_sql_start_rows(fcinfo);
	const RbpHotHeader *header = &hold_result()->header;
	RbpRow		row = {0};

	rbp_row_put(&row, "system_identifier", Int64GetDatum((int64) header->system), false);
	rbp_row_put(&row, "timeline", Int32GetDatum((int32) header->timeline), false);
	rbp_row_put(&row, "format", Int32GetDatum((int32) header->format), false);
	rbp_row_put(&row, "age_ms", Int64GetDatum(TimestampDifferenceMilliseconds(header->taken_at, GetCurrentTimestamp())), false);
	rbp_row_put(&row, "complete", BoolGetDatum(header->complete), false);
	rbp_sql_add_row(rsinfo, &row);
	return (Datum) 0;
}
