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

static const CtlColumn lease_columns[] = {
	{"LEASE", "lease", ctl_put_text, false},
	{"CLIENT", "client", ctl_put_text, false},
	{"PURPOSE", "purpose", ctl_put_text, false},
	{"HAS", "bytes", ctl_put_bytes, true},
	{"WANTS", "wanted", ctl_put_bytes, true},
	{"ENDS IN", "remaining_ms", ctl_put_ms_as_seconds, true},
	{"DONORS", "donors", ctl_put_donors, false},
	{NULL, NULL, NULL, false}
};

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
		offered += ctl_int_of(donor, "region_size") * ctl_int_of(donor, "regions");
		leased += ctl_int_of(donor, "region_size") * ctl_int_of(donor, "leased");
	}
	ctl_table_print(out, donor_columns, list);
	fprintf(out, "(%zu donors, %s, of which %s leased)\n", json_array_size(list),
			rbp_format_size((uint64_t) offered, total[0], sizeof(total[0])),
			rbp_format_size((uint64_t) leased, total[1], sizeof(total[1])));
}

void
ctl_show_leases(FILE *out, const json_t *answer)
{
	const json_t *list = json_object_get(answer, "leases");

	ctl_table_print(out, lease_columns, list);
	fprintf(out, "(%zu leases)\n", json_array_size(list));
}

void
ctl_show_drain(FILE *out, const json_t *answer)
{
	fprintf(out, "draining donor %s: %" PRId64 " regions to be given back\n",
			ctl_text_of(answer, "id"), (int64_t) ctl_int_of(answer, "leased"));
}

void
ctl_show_revoke(FILE *out, const json_t *answer)
{
	fprintf(out, "revoked lease %s: %" PRId64 " regions\n",
			ctl_text_of(answer, "lease"), (int64_t) ctl_int_of(answer, "regions"));
}
