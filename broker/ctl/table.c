/*-------------------------------------------------------------------------
 *
 * table.c
 *	  Tables of JSON objects, such as donors, leases or rows of a view.
 *
 *-------------------------------------------------------------------------
 */
#include "broker/common/format.h"
#include "broker/ctl/ctl.h"

#include <inttypes.h>
#include <string.h>

#define MAX_COLUMNS		12

/*
 * ---- members of answers --------------------------------------------------
 */

const char *
ctl_text_of(const json_t *object, const char *key)
{
	const char *text = json_string_value(json_object_get(object, key));

	return text != NULL ? text : "?";
}

json_int_t
ctl_int_of(const json_t *object, const char *key)
{
	return json_integer_value(json_object_get(object, key));
}

double
ctl_number_of(const json_t *object, const char *key)
{
	return json_number_value(json_object_get(object, key));
}

/*
 * ---- cells ---------------------------------------------------------------
 */

void
ctl_put_text(char *cell, const json_t *object, const char *key)
{
	snprintf(cell, CTL_MAX_CELL, "%s", ctl_text_of(object, key));
}

void
ctl_put_bytes(char *cell, const json_t *object, const char *key)
{
	json_int_t	bytes = ctl_int_of(object, key);

	rbp_format_size(bytes > 0 ? (uint64_t) bytes : 0, cell, CTL_MAX_CELL);
}

bool
ctl_is_gone(const json_t *donor)
{
	return strcmp(ctl_text_of(donor, "state"), "gone") == 0;
}

void
ctl_put_regions_as_bytes(char *cell, const json_t *donor, const char *key)
{
	json_int_t	bytes = ctl_int_of(donor, "region_size") * ctl_int_of(donor, key);

	if (ctl_is_gone(donor))
		snprintf(cell, CTL_MAX_CELL, "-");
	else
		rbp_format_size(bytes > 0 ? (uint64_t) bytes : 0, cell, CTL_MAX_CELL);
}

void
ctl_put_ms_as_seconds(char *cell, const json_t *object, const char *key)
{
	json_int_t	ms = ctl_int_of(object, key);

	if (json_is_integer(json_object_get(object, key)))
		snprintf(cell, CTL_MAX_CELL, "%" PRId64 ".%d s", (int64_t) ms / 1000,
				 (int) (ms % 1000 / 100));
	else
		snprintf(cell, CTL_MAX_CELL, "never");
}

void
ctl_put_ttl_left(char *cell, const json_t *lease, const char *key)
{
	if (json_is_true(json_object_get(lease, "lapsed")))
		snprintf(cell, CTL_MAX_CELL, "lapsed");
	else
		ctl_put_ms_as_seconds(cell, lease, key);
}

void
ctl_put_address(char *cell, const json_t *donor, const char *key)
{
	if (ctl_int_of(donor, "port") != 0)
		rbp_format_hostport(ctl_text_of(donor, key), (uint16_t) ctl_int_of(donor, "port"),
							cell, CTL_MAX_CELL);
	else
		ctl_put_text(cell, donor, key);
}

/* Append "word" to a cell, after a comma if the cell is not empty. */
static void
append_word(char *cell, const char *word)
{
	size_t		used = strlen(cell);

	snprintf(cell + used, CTL_MAX_CELL - used, "%s%s", used > 0 ? ", " : "", word);
}

void
ctl_put_words(char *cell, const json_t *donor, const char *key)
{
	size_t		i;
	const json_t *word;

	json_array_foreach(json_object_get(donor, key), i, word)
	{
		append_word(cell, json_is_string(word) ? json_string_value(word) : "?");
	}
}

void
ctl_put_donors(char *cell, const json_t *lease, const char *key)
{
	size_t		i;
	const json_t *donor;

	json_array_foreach(json_object_get(lease, key), i, donor)
	{
		char		size[CTL_MAX_CELL];
		char		word[CTL_MAX_CELL + 128];

		ctl_put_bytes(size, donor, "bytes");
		snprintf(word, sizeof(word), "%s: %s", ctl_text_of(donor, "id"), size);
		append_word(cell, word);
	}
}

void
ctl_put_count(char *cell, const json_t *object, const char *key)
{
	snprintf(cell, CTL_MAX_CELL, "%" PRId64, (int64_t) ctl_int_of(object, key));
}

/* What is not known is null. */
static void
put_number(char *cell, const json_t *object, const char *key, double factor, const char *unit)
{
	if (json_is_number(json_object_get(object, key)))
		snprintf(cell, CTL_MAX_CELL, "%.1f %s", factor * ctl_number_of(object, key), unit);
	else
		snprintf(cell, CTL_MAX_CELL, "-");
}

void
ctl_put_us(char *cell, const json_t *object, const char *key)
{
	put_number(cell, object, key, 1, "us");
}

void
ctl_put_ms_per_s(char *cell, const json_t *object, const char *key)
{
	put_number(cell, object, key, 1, "ms/s");
}

void
ctl_put_percent(char *cell, const json_t *object, const char *key)
{
	put_number(cell, object, key, 100, "%");
}

/*
 * ---- tables --------------------------------------------------------------
 */

/* Rows count from 1; row 0 is the header. */
static void
put_cell(char *cell, const CtlColumn *column, const json_t *list, size_t row)
{
	cell[0] = '\0';
	if (row == 0)
		snprintf(cell, CTL_MAX_CELL, "%s", column->title);
	else
		column->put(cell, json_array_get(list, row - 1), column->key);
}

void
ctl_table_print(FILE *out, const CtlColumn *columns, const json_t *list)
{
	int			width[MAX_COLUMNS] = {0};
	char		cell[CTL_MAX_CELL];

	for (size_t row = 0; row <= json_array_size(list); row++)
		for (int c = 0; columns[c].title != NULL; c++)
		{
			put_cell(cell, &columns[c], list, row);
			if ((int) strlen(cell) > width[c])
				width[c] = (int) strlen(cell);
		}
	for (size_t row = 0; row <= json_array_size(list); row++)
		for (int c = 0; columns[c].title != NULL; c++)
		{
			bool		last = columns[c + 1].title == NULL;

			put_cell(cell, &columns[c], list, row);
			fprintf(out, "%*s%s", columns[c].right ? width[c] : last ? 0 : -width[c], cell,
					last ? "\n" : "  ");
		}
}
