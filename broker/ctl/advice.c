/*-------------------------------------------------------------------------
 *
 * advice.c
 *	  The rows of the view remote_bp_advice: as text.
 *
 *-------------------------------------------------------------------------
 */
#include "broker/common/format.h"
#include "broker/ctl/advice.h"
#include "broker/ctl/table.h"

#include <inttypes.h>

#define MIN_BAR			10

static void
put_saved(char *cell, const json_t *row, const char *key)
{
	if (json_is_number(json_object_get(row, key)))
		snprintf(cell, CTL_MAX_CELL, "%.1f ms/s", ctl_number_of(row, key));
	else
		snprintf(cell, CTL_MAX_CELL, "-");
}

static const CtlColumn columns[] = {
	{"TIER SIZE", "tier_size", ctl_put_bytes, true},
	{"HIT RATIO", "hit_ratio", ctl_put_percent, true},
	{"ERROR", "hit_ratio_error", ctl_put_percent, true},
	{"HITS", "hits", ctl_put_count, true},
	{"FIRST READS", "first_reads", ctl_put_count, true},
	{"PAGE CACHE", "page_cache_reads", ctl_put_count, true},
	{"DISK", "disk_reads", ctl_put_count, true},
	{"SAVED", "saved_ms_per_s", put_saved, true},
	{NULL, NULL, NULL, false}
};

static const json_t *
last_row(const json_t *rows)
{
	return json_array_get(rows, json_array_size(rows) - 1);
}

/* Share of the reads that no tier of this size would have served */
static double
miss_ratio(const json_t *row)
{
	return 1 - ctl_number_of(row, "hit_ratio");
}

const char *
ctl_advice_unknown(const json_t *rows)
{
	static char text[CTL_MAX_CELL];
	const json_t *row = last_row(rows);

	if (json_is_number(json_object_get(row, "hit_ratio")))
		return NULL;
	snprintf(text, sizeof(text), "too little was observed to say: %" PRId64 " reads, %" PRId64 " events of the sample",
			 (int64_t) ctl_int_of(row, "reads"), (int64_t) ctl_int_of(row, "events"));
	return text;
}

/* The rows without the last ones that have no more hits than the one before; new */
static json_t *
rows_that_differ(const json_t *rows)
{
	json_t	   *list = json_array();
	size_t		i;
	json_t	   *row;

	json_array_foreach(rows, i, row)
	{
		json_array_append(list, row);
		if (ctl_int_of(row, "hits") >= ctl_int_of(last_row(rows), "hits"))
			break;
	}
	return list;
}

/* Print that so, if rows were left out. */
static void
print_omitted(FILE *out, const json_t *shown, const json_t *rows)
{
	if (json_array_size(shown) < json_array_size(rows))
		fprintf(out, "(a larger tier would have no more hits)\n");
}

void
ctl_advice_print(FILE *out, const json_t *rows)
{
	const json_t *row = last_row(rows);
	const char *unknown = ctl_advice_unknown(rows);
	double		rate = ctl_number_of(row, "sample_rate");
	json_t	   *shown = rows_that_differ(rows);
	char		disk[CTL_MAX_CELL];
	char		donor[CTL_MAX_CELL];

	if (unknown != NULL)
		fprintf(out, "%s\n", unknown);
	else
	{
		ctl_table_print(out, columns, shown);
		print_omitted(out, shown, rows);
	}
	json_decref(shown);
	ctl_put_us(disk, row, "disk_read_us");
	ctl_put_us(donor, row, "donor_read_us");
	fprintf(out, "(%" PRId64 " reads since %s; one page in %.0f is observed; a read takes %s from the disk, %s%s from a donor)\n",
			(int64_t) ctl_int_of(row, "reads"), ctl_text_of(row, "observed_since"),
			rate > 0 ? 1 / rate : 0, disk, donor,
			json_is_true(json_object_get(row, "donor_measured")) ? "" : " (assumed)");
}

void
ctl_advice_bars(FILE *out, const json_t *rows, int width)
{
	const char *unknown = ctl_advice_unknown(rows);
	json_t	   *shown = rows_that_differ(rows);
	size_t		i;
	const json_t *row;
	int			room = width - 24 > MIN_BAR ? width - 24 : MIN_BAR;

	fprintf(out, "%10s  %10s\n", "TIER SIZE", "MISS RATIO");
	if (unknown != NULL)
		fprintf(out, "%s\n", unknown);
	else
	{
		json_array_foreach(shown, i, row)
		{
			double		miss = miss_ratio(row);
			char		size[CTL_MAX_CELL];

			ctl_put_bytes(size, row, "tier_size");
			fprintf(out, "%10s  %8.1f %%  ", size, 100 * miss);
			for (int n = (int) (miss * room + 0.5); n > 0; n--)
				fputc('#', out);
			fputc('\n', out);
		}
		print_omitted(out, shown, rows);
	}
	json_decref(shown);
}
