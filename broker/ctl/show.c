/*-------------------------------------------------------------------------
 *
 * show.c
 *	  Answers of the broker as text.
 *
 *-------------------------------------------------------------------------
 */
#include "broker/common/format.h"
#include "broker/ctl/ctl.h"

#include "common/text.h"

#include <inttypes.h>

static const CtlColumn donor_columns[] = {
	{"DONOR", "id", ctl_put_text, false},
	{"ADDRESS", "host", ctl_put_address, false},
	{"STATE", "state", ctl_put_text, false},
	{"TRANSPORTS", "transports", ctl_put_words, false},
	{"MEMORY", "regions", ctl_put_regions_as_bytes, true},
	{"LEASED", "leased", ctl_put_regions_as_bytes, true},
	{"FREE", "free", ctl_put_regions_as_bytes, true},
	{"CLEANING", "dirty", ctl_put_regions_as_bytes, true},
	{"ASKED BACK", "reclaiming", ctl_put_regions_as_bytes, true},
	{"HEARD", "heard_ms", ctl_put_ms_as_seconds, true},
	{NULL, NULL, NULL, false}
};

static void
put_age(char *cell, const json_t *lease, const char *key)
{
	static const struct
	{
		int64_t		most;
		int64_t		seconds;
		const char *unit;
	}			units[] = {
		{120, 1, "s"}, {7200, 60, "min"}, {172800, 3600, "h"}, {INT64_MAX, 86400, "d"}
	};
	int64_t		age = ctl_int_of(lease, key);
	int			i = 0;

	while (age >= units[i].most)
		i++;
	snprintf(cell, CTL_MAX_CELL, "%" PRId64 " %s", age / units[i].seconds, units[i].unit);
}

static const CtlColumn lease_columns[] = {
	{"LEASE", "lease", ctl_put_text, false},
	{"CLIENT", "client", ctl_put_text, false},
	{"HOST", "host", ctl_put_text, false},
	{"PURPOSE", "purpose", ctl_put_text, false},
	{"HAS", "bytes", ctl_put_bytes, true},
	{"WANTS", "wanted", ctl_put_bytes, true},
	{"AGE", "age_s", put_age, true},
	{"TTL LEFT", "remaining_ms", ctl_put_ttl_left, true},
	{"DONORS", "donors", ctl_put_donors, false},
	{NULL, NULL, NULL, false}
};

/* "1 donor", "2 donors"; valid until the end of the enclosing block */
#define COUNT(n, noun)	count_text((int64_t) (n), noun, (char[48]) {0})

static const char *
count_text(int64_t n, const char *noun, char text[48])
{
	snprintf(text, 48, "%" PRId64 " %s%s", n, noun, RBP_PLURAL(n));
	return text;
}

void
ctl_show_donors(FILE *out, const json_t *answer)
{
	const json_t *list = json_object_get(answer, "donors");
	json_int_t	offered = 0;
	json_int_t	leased = 0;
	char		total[2][32];
	size_t		i;
	const json_t *donor;

	json_array_foreach(list, i, donor)
	{
		if (ctl_is_gone(donor))
			continue;
		offered += ctl_int_of(donor, "region_size") * ctl_int_of(donor, "regions");
		leased += ctl_int_of(donor, "region_size") * ctl_int_of(donor, "leased");
	}
	ctl_table_print(out, donor_columns, list);
	fprintf(out, "(%s, %s, of which %s leased)\n", COUNT(json_array_size(list), "donor"),
			rbp_format_size((uint64_t) offered, total[0], sizeof(total[0])),
			rbp_format_size((uint64_t) leased, total[1], sizeof(total[1])));
}

void
ctl_show_leases(FILE *out, const json_t *answer)
{
	const json_t *list = json_object_get(answer, "leases");

	ctl_table_print(out, lease_columns, list);
	fprintf(out, "(%s)\n", COUNT(json_array_size(list), "lease"));
}

void
ctl_show_drain(FILE *out, const json_t *answer)
{
	fprintf(out, "draining donor %s: %s to be given back\n",
			ctl_text_of(answer, "id"), COUNT(ctl_int_of(answer, "leased"), "region"));
}

void
ctl_show_undrain(FILE *out, const json_t *answer)
{
	fprintf(out, "not draining donor %s any more: its memory is leased again\n", ctl_text_of(answer, "id"));
}

void
ctl_show_forget(FILE *out, const json_t *answer)
{
	fprintf(out, "forgot donor %s\n", ctl_text_of(answer, "id"));
}

void
ctl_show_revoke(FILE *out, const json_t *answer)
{
	fprintf(out, "revoked lease %s: %s\n",
			ctl_text_of(answer, "lease"), COUNT(ctl_int_of(answer, "regions"), "region"));
}
