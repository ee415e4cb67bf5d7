/*-------------------------------------------------------------------------
 *
 * test_follow_row.c
 *	  Rows of another server's list of hot pages: what is right is taken, and
 *	  whatever is not is refused.
 *
 *-------------------------------------------------------------------------
 */
#include "follow/row.h"

#include <stdlib.h>
#include <string.h>

#include "random.h"
#include "tap.h"

/* A row, in memory of its own, so that a sanitizer sees what is read beyond it */
typedef struct Row
{
	char	   *values[RBP_ROW_COLUMNS];
	int			lengths[RBP_ROW_COLUMNS];
} Row;

static void
set(Row *row, int column, const void *bytes, int length)
{
	char	   *value = malloc(length > 0 ? (size_t) length : 1);

	memcpy(value, bytes, (size_t) length);
	free(row->values[column]);
	row->values[column] = value;
	row->lengths[column] = length;
}

static void
set_number(Row *row, int column, uint64_t number, int length)
{
	unsigned char bytes[8];

	for (int i = 0; i < length; i++)
		bytes[i] = (unsigned char) (number >> 8 * (length - 1 - i));
	set(row, column, bytes, length);
}

static void
set_bitmap(Row *row, int length, unsigned char last)
{
	unsigned char *bytes = calloc(1, (size_t) length + 1);

	if (length > 0)
		bytes[length - 1] = last;
	set(row, 6, bytes, length);
	free(bytes);
}

static void
set_right(Row *row)
{
	set_number(row, 0, 1663, 4);
	set_number(row, 1, 5, 4);
	set_number(row, 2, 16384, 4);
	set(row, 3, "main", 4);
	set_number(row, 4, 3, 4);
	set_number(row, 5, 1, 4);
	set_bitmap(row, 2, 0x81);
}

static const char *
parse(const Row *row, const RbpHotPart *previous, RbpHotPart *part)
{
	const uint8_t *bitmap;

	return rbp_row_parse((const char *const *) row->values, row->lengths, previous, part, &bitmap);
}

static void
is_refused(const Row *row, const char *what, const char *name)
{
	RbpHotPart	part;
	const char *wrong = parse(row, NULL, &part);

	if (!ok(wrong != NULL && strstr(wrong, what) != NULL, "%s is refused", name))
		diag("  said: %s", wrong != NULL ? wrong : "nothing");
}

static void
test_right(void)
{
	Row			row = {0};
	RbpHotPart	part;
	const uint8_t *bitmap;

	set_right(&row);
	ok(rbp_row_parse((const char *const *) row.values, row.lengths, NULL, &part, &bitmap) == NULL,
	   "a row that is right is taken");
	ok(part.spc == 1663 && part.db == 5 && part.rel == 16384 && part.part == 3 &&
	   part.class == RBP_HOT_MAIN && part.fork == 0 && part.length == 2,
	   "the part has what the row says");
	is_u64(rbp_hot_count(&part, bitmap, 0), 2, "the bitmap has its bits");
	ok(rbp_hot_bit(bitmap, 8) && rbp_hot_bit(bitmap, 15), "the lowest bit of a byte is the first block");
	is_u64(rbp_hot_count(&part, bitmap, 9), 1, "bits are counted from a block on");

	set(&row, 3, "vm", 2);
	ok(parse(&row, NULL, &part) == NULL && part.fork == 2, "the visibility map is taken");
	set_bitmap(&row, RBP_HOT_BITMAP_BYTES, 0x80);
	ok(parse(&row, NULL, &part) == NULL && part.length == RBP_HOT_BITMAP_BYTES, "a whole bitmap is taken");
	set_number(&row, 0, UINT32_MAX, 4);
	set_number(&row, 1, UINT32_MAX, 4);
	set_number(&row, 2, UINT32_MAX, 4);
	ok(parse(&row, NULL, &part) == NULL && part.rel == UINT32_MAX, "the largest Oids are taken");
	set_number(&row, 4, UINT32_MAX / RBP_HOT_PART_BLOCKS, 4);
	set_bitmap(&row, RBP_HOT_BITMAP_BYTES, 0x40);
	ok(parse(&row, NULL, &part) == NULL, "the last block that there can be is taken");
	set_bitmap(&row, RBP_HOT_BITMAP_BYTES, 0x80);
	is_refused(&row, "bitmap", "a block after that");
	for (int i = 0; i < RBP_ROW_COLUMNS; i++)
		free(row.values[i]);
}

static void
test_wrong(void)
{
	static const char *const what[RBP_ROW_COLUMNS] = {
		"tablespace", "database", "relfilenode", "fork", "part", "class", "bitmap"
	};
	Row			row = {0};

	for (int column = 0; column < RBP_ROW_COLUMNS; column++)
	{
		char		name[64];
		char	   *value;

		set_right(&row);
		value = row.values[column];
		row.values[column] = NULL;
		snprintf(name, sizeof(name), "no %s", what[column]);
		is_refused(&row, what[column], name);
		row.values[column] = value;
		set(&row, column, "", 0);
		snprintf(name, sizeof(name), "an empty %s", what[column]);
		is_refused(&row, what[column], name);
		set_right(&row);
		set(&row, column, row.values[column], column == 6 ? 1 : row.lengths[column] - 1);
		snprintf(name, sizeof(name), "a short %s", what[column]);
		is_refused(&row, what[column], name);
	}
	for (int column = 0; column < 3; column++)
	{
		set_right(&row);
		set_number(&row, column, 0, 4);
		is_refused(&row, what[column], "an Oid of 0");
		set_number(&row, column, 5, 8);
		is_refused(&row, what[column], "a number of eight bytes");
	}
	set_right(&row);
	set(&row, 3, "fsm", 3);
	is_refused(&row, "fork", "another fork");
	set(&row, 3, "main\0x", 6);
	is_refused(&row, "fork", "more than a fork");
	set_right(&row);
	set_number(&row, 4, UINT32_MAX / RBP_HOT_PART_BLOCKS + 1, 4);
	is_refused(&row, "part", "a part beyond the last block");
	set_number(&row, 4, UINT32_MAX, 4);
	is_refused(&row, "part", "a negative part");
	set_right(&row);
	set_number(&row, 5, RBP_HOT_CLASSES, 4);
	is_refused(&row, "class", "another class");
	set_number(&row, 5, UINT32_MAX, 4);
	is_refused(&row, "class", "a negative class");
	set_right(&row);
	set_bitmap(&row, RBP_HOT_BITMAP_BYTES + 1, 1);
	is_refused(&row, "bitmap", "a bitmap that is too long");
	set_bitmap(&row, 5, 0);
	is_refused(&row, "bitmap", "a bitmap that ends with nothing");
	for (int i = 0; i < RBP_ROW_COLUMNS; i++)
		free(row.values[i]);
}

/* Any two rows are in one order at most, and none is twice. */
static void
test_order(void)
{
	static const int columns[] = {5, 0, 1, 2, 4};
	Row			row = {0};
	RbpHotPart	first;
	RbpHotPart	second;

	set_right(&row);
	(void) parse(&row, NULL, &first);
	ok(parse(&row, &first, &second) != NULL, "a row is not taken twice");
	set_bitmap(&row, 3, 1);
	ok(parse(&row, &first, &second) != NULL, "nor with another bitmap");
	for (int i = 0; i < 5; i++)
	{
		set_right(&row);
		set_number(&row, columns[i], columns[i] == 5 ? 2 : 20000, 4);
		ok(parse(&row, &first, &second) == NULL, "a row with a greater column %d comes after it", columns[i]);
		set_right(&row);
		ok(parse(&row, &second, &first) != NULL, "and not before it");
	}
	set(&row, 3, "vm", 2);
	ok(parse(&row, &first, &second) == NULL, "the visibility map comes after the table");
	set_number(&row, 5, 0, 4);
	ok(parse(&row, &first, &second) != NULL, "the class counts first");
	for (int i = 0; i < RBP_ROW_COLUMNS; i++)
		free(row.values[i]);
}

static void
test_info(void)
{
	Row			row = {0};
	RbpHotHeader header = {0};
	int64_t		age = -1;
	const char *wrong;
	static const int lengths[RBP_INFO_COLUMNS] = {8, 4, 4, 8, 1};
	static const uint64_t right[RBP_INFO_COLUMNS] = {UINT64_C(0xF000000000000001), 7, RBP_HOT_FORMAT, 1500, 1};

#define PARSE_INFO() \
	rbp_row_parse_info((const char *const *) row.values, row.lengths, &header, &age)

	for (int i = 0; i < RBP_INFO_COLUMNS; i++)
		set_number(&row, i, right[i], lengths[i]);
	ok(PARSE_INFO() == NULL, "what is told about a list is taken");
	ok(header.system == right[0] && header.timeline == 7 && header.format == RBP_HOT_FORMAT &&
	   age == 1500 && header.complete, "all of it");
	for (int i = 0; i < RBP_INFO_COLUMNS; i++)
	{
		char	   *value = row.values[i];

		row.values[i] = NULL;
		ok(PARSE_INFO() != NULL, "column %d must not be null", i);
		row.values[i] = value;
		set_number(&row, i, right[i], lengths[i] - 1);
		ok(PARSE_INFO() != NULL, "column %d must have its length", i);
		set_number(&row, i, right[i], lengths[i]);
	}
	set_number(&row, 3, UINT64_MAX, 8);
	ok(PARSE_INFO() != NULL, "an age is not negative");
	set_number(&row, 3, INT64_MAX, 8);
	wrong = PARSE_INFO();
	ok(wrong != NULL && strstr(wrong, "age") != NULL, "nor longer than a list can be kept");
	set_number(&row, 3, 1, 8);
	set_number(&row, 1, 0, 4);
	ok(PARSE_INFO() != NULL, "a timeline is not 0");
	for (int i = 0; i < RBP_ROW_COLUMNS; i++)
		free(row.values[i]);
}

/* Whatever is taken is within bounds. */
static void
test_random(void)
{
	uint64_t	seed = 37;
	int			taken = 0;
	int			outside = 0;

	for (int n = 0; n < 200000; n++)
	{
		Row			row = {0};
		RbpHotPart	part = {0};

		set_right(&row);
		for (int changes = (int) (next_random(&seed) % 3); changes >= 0; changes--)
		{
			int			column = (int) (next_random(&seed) % RBP_ROW_COLUMNS);

			if (column == 6)
				set_bitmap(&row, (int) (next_random(&seed) % (RBP_HOT_BITMAP_BYTES + 2)), (unsigned char) next_random(&seed));
			else
				set_number(&row, column, next_random(&seed) >> next_random(&seed) % 64, next_random(&seed) % 8 == 0 ? 5 : 4);
		}
		if (parse(&row, NULL, &part) == NULL)
		{
			taken++;
			outside += part.class >= RBP_HOT_CLASSES || part.length == 0 ||
				part.length > RBP_HOT_BITMAP_BYTES || part.spc == 0 || part.db == 0 || part.rel == 0 ||
				(part.fork != 0 && part.fork != 2) ||
				(uint64_t) part.part * RBP_HOT_PART_BLOCKS + (part.length - 1) * 8 > UINT32_MAX;
		}
		for (int i = 0; i < RBP_ROW_COLUMNS; i++)
			free(row.values[i]);
	}
	ok(taken > 1000, "some rows are taken");
	is_u64((uint64_t) outside, 0, "of those, none is beyond a bound");
}

int
main(void)
{
	test_right();
	test_wrong();
	test_order();
	test_info();
	test_random();
	return done_testing();
}
