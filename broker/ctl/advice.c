/*-------------------------------------------------------------------------
 *
 * advice.c
 *	  The rows of the view remote_bp_advice: as text, and as a drawing.
 *
 *-------------------------------------------------------------------------
 */
#include "broker/common/format.h"
#include "broker/ctl/advice.h"
#include "broker/ctl/table.h"

#include <inttypes.h>

/* Of the drawing, in pixels */
#define WIDTH			720
#define HEIGHT			420
#define LEFT			64
#define RIGHT			24
#define TOP				56
#define BOTTOM			56

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

/*
 * ---- the drawing -----------------------------------------------------------
 */

static double
x_of(double size, double largest)
{
	return LEFT + (WIDTH - LEFT - RIGHT) * size / largest;
}

static double
y_of(double share)
{
	return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * share;
}

/* Share of the reads that would go to the disk, and are not the first of a page */
static double
disk_share(const json_t *row)
{
	return ctl_number_of(row, "disk_reads") / ctl_number_of(row, "reads");
}

/* A line from "first", without a tier, through the points of all rows */
static void
draw_curve(FILE *out, const json_t *rows, double first,
		   double (*share) (const json_t *row), const char *colour)
{
	double		largest = ctl_number_of(last_row(rows), "tier_size");
	size_t		i;
	const json_t *row;

	fprintf(out, "<polyline fill=\"none\" stroke=\"%s\" stroke-width=\"2\" points=\"%.1f,%.1f",
			colour, x_of(0, largest), y_of(first));
	json_array_foreach(rows, i, row)
	{
		fprintf(out, " %.1f,%.1f", x_of(ctl_number_of(row, "tier_size"), largest), y_of(share(row)));
	}
	fprintf(out, "\"/>\n");
	json_array_foreach(rows, i, row)
	{
		fprintf(out, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3\" fill=\"%s\"/>\n",
				x_of(ctl_number_of(row, "tier_size"), largest), y_of(share(row)), colour);
	}
}

static void
draw_legend(FILE *out, int y, const char *colour, const char *text)
{
	fprintf(out, "<line x1=\"%d\" y1=\"%d\" x2=\"%d\" y2=\"%d\" stroke=\"%s\" stroke-width=\"2\"/>\n",
			WIDTH - RIGHT - 230, y - 4, WIDTH - RIGHT - 206, y - 4, colour);
	fprintf(out, "<text x=\"%d\" y=\"%d\">%s</text>\n", WIDTH - RIGHT - 200, y, text);
}

static void
draw_axes(FILE *out, double largest)
{
	for (int percent = 0; percent <= 100; percent += 20)
	{
		double		y = y_of(percent / 100.0);

		fprintf(out, "<line x1=\"%d\" y1=\"%.1f\" x2=\"%d\" y2=\"%.1f\" stroke=\"%s\"/>\n",
				LEFT, y, WIDTH - RIGHT, y, percent == 0 ? "black" : "#dddddd");
		fprintf(out, "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%d %%</text>\n",
				LEFT - 8, y + 4, percent);
	}
	for (int eighth = 0; eighth <= 8; eighth++)
	{
		double		size = largest * eighth / 8;
		char		text[32];

		fprintf(out, "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%s</text>\n",
				x_of(size, largest), HEIGHT - BOTTOM + 20,
				rbp_format_size((uint64_t) size, text, sizeof(text)));
	}
}

static double
largest_error(const json_t *rows)
{
	double		error = 0;
	size_t		i;
	const json_t *row;

	json_array_foreach(rows, i, row)
	{
		if (ctl_number_of(row, "hit_ratio_error") > error)
			error = ctl_number_of(row, "hit_ratio_error");
	}
	return error;
}

void
ctl_advice_plot(FILE *out, const json_t *rows)
{
	const json_t *last = last_row(rows);
	double		reads = ctl_number_of(last, "reads");
	double		disk_hits = ctl_number_of(last, "hits") - ctl_number_of(last, "page_cache_hits");

	fprintf(out, "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %d\" font-family=\"sans-serif\" font-size=\"12\">\n",
			WIDTH, HEIGHT, WIDTH, HEIGHT);
	fprintf(out, "<title>Reads that a tier would not serve, by its size</title>\n");
	fprintf(out, "<rect width=\"%d\" height=\"%d\" fill=\"white\"/>\n", WIDTH, HEIGHT);
	fprintf(out, "<text x=\"%d\" y=\"20\" font-size=\"14\">Reads that a tier would not serve, by its size</text>\n", LEFT);
	fprintf(out, "<text x=\"%d\" y=\"38\">%.0f reads of pages that were not in shared buffers, %.1f %% first reads; standard error up to %.1f %%</text>\n",
			LEFT, reads, 100 * ctl_number_of(last, "first_reads") / reads, 100 * largest_error(rows));
	draw_axes(out, ctl_number_of(last, "tier_size"));
	draw_curve(out, rows, 1, miss_ratio, "#336791");
	draw_curve(out, rows, disk_share(last) + disk_hits / reads, disk_share, "#b35900");
	draw_legend(out, TOP + 16, "#336791", "not in the tier (miss ratio)");
	draw_legend(out, TOP + 34, "#b35900", "read again from the disk");
	fprintf(out, "</svg>\n");
}
