/*-------------------------------------------------------------------------
 *
 * show.c
 *	  Answers of the broker as text.
 *
 *-------------------------------------------------------------------------
 */
#include "broker/common/format.h"
#include "broker/ctl/show.h"
#include "broker/ctl/table.h"

#include "common/text.h"

#include <inttypes.h>
#include <string.h>

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

static const CtlColumn lease_columns[] = {
	{"LEASE", "lease", ctl_put_text, false},
	{"CLIENT", "client", ctl_put_text, false},
	{"PURPOSE", "purpose", ctl_put_text, false},
	{"HAS", "bytes", ctl_put_bytes, true},
	{"WANTS", "wanted", ctl_put_bytes, true},
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
ctl_show_revoke(FILE *out, const json_t *answer)
{
	fprintf(out, "revoked lease %s: %s\n",
			ctl_text_of(answer, "lease"), COUNT(ctl_int_of(answer, "regions"), "region"));
}

bool
ctl_show_health(FILE *out, const json_t *donors, const json_t *leases)
{
	const json_t *list = json_object_get(donors, "donors");
	json_int_t	leased = 0;
	size_t		silent = 0;
	char		size[32];
	size_t		i;
	const json_t *donor;

	json_array_foreach(list, i, donor)
	{
		const char *state = ctl_text_of(donor, "state");

		if (strcmp(state, "away") == 0 || ctl_is_gone(donor))
			fprintf(out, "%s%s is %s", silent++ == 0 ? "not well: donor " : ", ",
					ctl_text_of(donor, "id"), state);
		else
			leased += ctl_int_of(donor, "region_size") * ctl_int_of(donor, "leased");
	}
	fprintf(out, "%s%zu of %s heard of, %s leased by %s\n", silent == 0 ? "well: " : "; ",
			json_array_size(list) - silent, COUNT(json_array_size(list), "donor"),
			rbp_format_size((uint64_t) leased, size, sizeof(size)),
			COUNT(json_array_size(json_object_get(leases, "leases")), "lease"));
	return silent == 0;
}
