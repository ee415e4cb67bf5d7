/*-------------------------------------------------------------------------
 *
 * advice.c
 *	  The rows of the view remote_bp_advice, as a table.
 *
 *-------------------------------------------------------------------------
 */
#include "broker/ctl/ctl.h"

#include <inttypes.h>

static const CtlColumn columns[] = {
	{"TIER SIZE", "tier_size", ctl_put_bytes, true},
	{"HIT RATIO", "hit_ratio", ctl_put_percent, true},
	{"ERROR", "hit_ratio_error", ctl_put_percent, true},
	{"HITS", "hits", ctl_put_count, true},
	{"FIRST READS", "first_reads", ctl_put_count, true},
	{"PAGE CACHE", "page_cache_reads", ctl_put_count, true},
	{"DISK", "disk_reads", ctl_put_count, true},
	{"SAVED", "saved_ms_per_s", ctl_put_ms_per_s, true},
	{NULL, NULL, NULL, false}
};

static const json_t *
last_row(const json_t *rows)
{
	return json_array_get(rows, json_array_size(rows) - 1);
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

void
ctl_advice_print(FILE *out, const json_t *rows)
{
	const json_t *row = last_row(rows);
	double		rate = ctl_number_of(row, "sample_rate");
	json_t	   *shown = rows_that_differ(rows);
	char		disk[CTL_MAX_CELL];
	char		donor[CTL_MAX_CELL];

	if (!json_is_number(json_object_get(row, "hit_ratio")))
		fprintf(out, "too little was observed to say: %" PRId64 " reads, %" PRId64 " events of the sample\n",
				(int64_t) ctl_int_of(row, "reads"), (int64_t) ctl_int_of(row, "events"));
	else
	{
		ctl_table_print(out, columns, shown);
		if (json_array_size(shown) < json_array_size(rows))
			fprintf(out, "(a larger tier would have no more hits)\n");
	}
	json_decref(shown);
	ctl_put_us(disk, row, "disk_read_us");
	ctl_put_us(donor, row, "donor_read_us");
	fprintf(out, "(%" PRId64 " reads since %s; one page in %.0f is observed; a read takes %s from the disk, %s%s from a donor)\n",
			(int64_t) ctl_int_of(row, "reads"), ctl_text_of(row, "observed_since"),
			rate > 0 ? 1 / rate : 0, disk, donor,
			json_is_true(json_object_get(row, "donor_measured")) ? "" : " (assumed)");
}
