/*-------------------------------------------------------------------------
 *
 * hot_list.h
 *	  A list of names of hot pages, which one server takes and another follows;
 *	  and the file that it is kept in.  No postgres.h.
 *
 * A part is up to RBP_HOT_PART_BLOCKS blocks of a relation fork, with a bit for each
 * block that is hot in one way (its class), the lowest bit of the first byte first.
 * A list has its parts in ascending order, by class first: rbp_hot_compare().  It is
 * limited to RBP_HOT_LIST_MAX bytes.
 *
 * A list is written to a new file, which then takes the place of the last one.  So who
 * has opened a file sees one list, until he closes it, whatever others do.  The files are
 * in a directory that base backups and pg_rewind leave out.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_HOT_LIST_H
#define RBP_HOT_LIST_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

/* Both ends of a connection must have the same. */
#define RBP_HOT_FORMAT			1

#define RBP_HOT_PART_BLOCKS		8192
#define RBP_HOT_BITMAP_BYTES	(RBP_HOT_PART_BLOCKS / 8)
#define RBP_HOT_LIST_MAX		(64 * 1024 * 1024)

/* What a server has of its hot pages, and what it has taken from another one */
#define RBP_HOT_PAGES_FILE		"pg_stat_tmp/remote_bp_hot_pages.stat"
#define RBP_FOLLOW_FILE			"pg_stat_tmp/remote_bp_follow.stat"

typedef enum RbpHotClass
{
	RBP_HOT_BUFFERS,			/* in shared buffers, and in use there */
	RBP_HOT_MAIN,				/* kept in the tier, in its main queue, or
								 * read since it is in the small one */
	RBP_HOT_SMALL,				/* in the tier, not read there yet */
	RBP_HOT_CLASSES
} RbpHotClass;

typedef struct RbpHotPart
{
	uint32_t	spc;			/* tablespace */
	uint32_t	db;
	uint32_t	rel;			/* relfilenumber */
	uint32_t	part;			/* its first block / RBP_HOT_PART_BLOCKS */
	uint16_t	length;			/* bytes of the bitmap, which ends with a bit
								 * that is set */
	uint8_t		class;			/* RbpHotClass */
	uint8_t		fork;			/* main or visibility map */
} RbpHotPart;

typedef struct RbpHotHeader
{
	uint32_t	format;
	uint32_t	timeline;
	uint64_t	system;			/* identifier of the server's cluster */
	int64_t		taken_at;		/* TimestampTz */
	uint64_t	pages[RBP_HOT_CLASSES];
	bool		complete;		/* no page was left out for lack of room */
} RbpHotHeader;

static inline bool
rbp_hot_bit(const uint8_t *bitmap, uint32_t block)
{
	return (bitmap[block / 8] >> block % 8 & 1) != 0;
}

/* Number of pages from this block of the part on */
static inline uint32_t
rbp_hot_count(const RbpHotPart *part, const uint8_t *bitmap, uint32_t from)
{
	uint32_t	n = 0;

	for (; from < part->length * 8u; from++)
		n += rbp_hot_bit(bitmap, from);
	return n;
}

/* The order of parts in a list: negative, zero or positive */
static inline int
rbp_hot_compare(const RbpHotPart *a, const RbpHotPart *b)
{
	const uint32_t order[6][2] = {
		{a->class, b->class}, {a->spc, b->spc}, {a->db, b->db}, {a->rel, b->rel},
		{a->fork, b->fork}, {a->part, b->part}
	};

	for (int i = 0; i < 6; i++)
		if (order[i][0] != order[i][1])
			return order[i][0] < order[i][1] ? -1 : 1;
	return 0;
}

/*
 * Write a list.  create and finish return false, with errno set, if that is not possible;
 * add, if the list would become too long.  The caller sets the header, but for pages,
 * before finish, which gives the file its name.  Only one process may write a file; a
 * list that is not finished is abandoned.
 */
typedef struct RbpHotWriter
{
	FILE	   *file;
	const char *name;
	uint64_t	bytes;
	RbpHotHeader header;
} RbpHotWriter;

extern bool rbp_hot_create(RbpHotWriter *writer, const char *name);
extern bool rbp_hot_add(RbpHotWriter *writer, const RbpHotPart *part, const uint8_t *bitmap);
extern bool rbp_hot_finish(RbpHotWriter *writer);
extern void rbp_hot_abandon(RbpHotWriter *writer);

/*
 * Read one.  open returns false, with errno set, if there is none.  next returns false at the
 * end.  file may be set to where a part was before, or to the first one.
 */
typedef struct RbpHotReader
{
	FILE	   *file;
	RbpHotHeader header;
	uint8_t		bitmap[RBP_HOT_BITMAP_BYTES];	/* of the part that was read */
} RbpHotReader;

#define RBP_HOT_FIRST	((off_t) sizeof(RbpHotHeader))

extern bool rbp_hot_open(RbpHotReader *reader, const char *name);
extern bool rbp_hot_next(RbpHotReader *reader, RbpHotPart *part);
extern void rbp_hot_close(RbpHotReader *reader);

#endif							/* RBP_HOT_LIST_H */
