/*-------------------------------------------------------------------------
 *
 * row.c
 *	  Rows of remote_bp_hot_pages() and remote_bp_hot_pages_info().
 *
 *-------------------------------------------------------------------------
 */
#include "follow/row.h"

#include <string.h>

/* The server's ForkNumber and MaxBlockNumber */
#define MAIN_FORK			0
#define VM_FORK				2
#define MAX_BLOCK			UINT32_C(0xFFFFFFFE)

/* No list is older than this; what is added to a time must not overflow it. */
#define MAX_AGE_MS			(INT64_C(366) * 24 * 3600 * 1000)

/* A number of so many bytes.  Returns false if the value has others, or is null. */
static bool
get(const char *value, int length, int bytes, uint64_t *number)
{
	if (value == NULL || length != bytes)
		return false;
	*number = 0;
	for (int i = 0; i < bytes; i++)
		*number = *number << 8 | (uint8_t) value[i];
	return true;
}

/* The same, of an int4 or Oid, that is between these. */
static bool
get_32(const char *value, int length, uint32_t least, uint32_t most, uint32_t *number)
{
	uint64_t	n;

	if (!get(value, length, 4, &n) || n < least || n > most)
		return false;
	*number = (uint32_t) n;
	return true;
}

static bool
get_fork(const char *value, int length, uint8_t *fork)
{
	bool		is_main = value != NULL && length == 4 && memcmp(value, "main", 4) == 0;

	*fork = is_main ? MAIN_FORK : VM_FORK;
	return is_main || (value != NULL && length == 2 && memcmp(value, "vm", 2) == 0);
}

/* A bitmap is as short as possible, and names no block that cannot be. */
static bool
get_bitmap(const char *value, int length, RbpHotPart *part, const uint8_t **bitmap)
{
	uint64_t	last;

	if (value == NULL || length < 1 || length > RBP_HOT_BITMAP_BYTES || value[length - 1] == 0)
		return false;
	*bitmap = (const uint8_t *) value;
	part->length = (uint16_t) length;
	last = (uint64_t) part->part * RBP_HOT_PART_BLOCKS + (uint64_t) length * 8 - 1;
	while (!rbp_hot_bit(*bitmap, (uint32_t) (last % RBP_HOT_PART_BLOCKS)))
		last--;
	return last <= MAX_BLOCK;
}

const char *
rbp_row_parse(const char *const values[RBP_ROW_COLUMNS], const int lengths[RBP_ROW_COLUMNS],
			  const RbpHotPart *previous, RbpHotPart *part, const uint8_t **bitmap)
{
	uint32_t	class;

	if (!get_32(values[0], lengths[0], 1, UINT32_MAX, &part->spc))
		return "a tablespace is invalid";
	if (!get_32(values[1], lengths[1], 1, UINT32_MAX, &part->db))
		return "a database is invalid";
	if (!get_32(values[2], lengths[2], 1, UINT32_MAX, &part->rel))
		return "a relfilenode is invalid";
	if (!get_fork(values[3], lengths[3], &part->fork))
		return "a fork is invalid";
	if (!get_32(values[4], lengths[4], 0, MAX_BLOCK / RBP_HOT_PART_BLOCKS, &part->part))
		return "a part is invalid";
	if (!get_32(values[5], lengths[5], 0, RBP_HOT_CLASSES - 1, &class))
		return "a class is invalid";
	part->class = (uint8_t) class;
	if (!get_bitmap(values[6], lengths[6], part, bitmap))
		return "a bitmap is invalid";
	if (previous != NULL && rbp_hot_compare(previous, part) >= 0)
		return "rows are not in order";
	return NULL;
}

const char *
rbp_row_parse_info(const char *const values[RBP_INFO_COLUMNS],
				   const int lengths[RBP_INFO_COLUMNS], RbpHotHeader *header, int64_t *age_ms)
{
	uint64_t	age;
	uint64_t	complete;

	if (!get(values[0], lengths[0], 8, &header->system))
		return "the system identifier is invalid";
	if (!get_32(values[1], lengths[1], 1, UINT32_MAX, &header->timeline))
		return "the timeline is invalid";
	if (!get_32(values[2], lengths[2], 0, UINT32_MAX, &header->format))
		return "the format is invalid";
	if (!get(values[3], lengths[3], 8, &age) || age > (uint64_t) MAX_AGE_MS)
		return "the age is invalid";
	if (!get(values[4], lengths[4], 1, &complete))
		return "the last column is invalid";
	*age_ms = (int64_t) age;
	header->complete = complete != 0;
	return NULL;
}
