/*-------------------------------------------------------------------------
 *
 * plan.c
 *	  Decisions of the lease worker, and the JSON of its requests and the
 *	  broker's answers.
 *
 * The broker is trusted to grant memory, and no further: everything that it
 * answers is checked here for types, ranges, lengths and references, before it
 * reaches shared memory.
 *
 *-------------------------------------------------------------------------
 */
#include "common/clock.h"
#include "common/json.h"
#include "common/limits.h"
#include "common/text.h"
#include "lease/plan.h"
#include "transport/transport.h"

#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* From one renewal to the next, at most and at least */
#define RENEW_NS		NANOS_PER_S
#define MIN_RENEW_NS	(50 * NANOS_PER_MS)

/* ... after a failure */
#define MAX_RETRY_NS	(5 * NANOS_PER_S)
#define MIN_RETRY_NS	(100 * NANOS_PER_MS)

/* A step of emptying regions lasts so long at most, and at least */
#define STEP_NS			(200 * NANOS_PER_MS)
#define MIN_STEP_NS		(10 * NANOS_PER_MS)

#define MAX_TTL_MS		(INT64_C(24) * 3600 * 1000)

/* The memory of as many donors as a broker has, of 1 PiB each */
#define MAX_LEASE_BYTES	(UINT64_C(1) << 60)

#define GRACE_MS		INT64_C(10000)	/* default, if the broker does not say */
#define MAX_GRACE_MS	INT64_C(60000)	/* a longer one counts as this */

/* Where to write what is wrong with an answer */
typedef struct ParseError
{
	char	   *buf;
	size_t		len;
} ParseError;

__attribute__((format(printf, 2, 3)))
static bool
parse_error(ParseError *c, const char *fmt,...)
{
	va_list		args;

	va_start(args, fmt);
	vsnprintf(c->buf, c->len, fmt, args);
	va_end(args);
	return false;
}

/*
 * Copy a text member of at most len - 1 bytes.  All of them have to be
 * printable ASCII, and no spaces, so that the text may be logged and sent as it is.
 */
static bool
get_text(const json_t *object, const char *key, bool required,
		 char *buf, size_t len, ParseError *c)
{
	const json_t *value = json_object_get(object, key);
	const char *text;

	buf[0] = '\0';
	if (value == NULL || json_is_null(value))
		return required ? parse_error(c, "\"%s\" is missing", key) : true;
	text = json_string_value(value);
	if (text == NULL)
		return parse_error(c, "\"%s\" is not a string", key);
	if (json_string_length(value) >= len)
		return parse_error(c, "\"%s\" is too long", key);
	if (required && text[0] == '\0')
		return parse_error(c, "\"%s\" is empty", key);
	for (size_t i = 0; i < json_string_length(value); i++)
	{
		if (text[i] <= ' ' || text[i] > '~')
			return parse_error(c, "\"%s\" has a character that is not allowed", key);
	}
	memcpy(buf, text, json_string_length(value) + 1);
	return true;
}

/* *out stays as it is if the member is missing and not required. */
static bool
get_number(const json_t *object, const char *key, bool required,
		   int64_t min, int64_t max, int64_t *out, ParseError *c)
{
	const json_t *value = json_object_get(object, key);
	json_int_t	n;

	if (value == NULL && !required)
		return true;
	if (!json_is_integer(value))
		return parse_error(c, "\"%s\" is not an integer", key);
	n = json_integer_value(value);
	if (n < min || n > max)
		return parse_error(c, "\"%s\" is out of range", key);
	*out = n;
	return true;
}

static bool
parse_donor(const json_t *object, RbpLease *lease, ParseError *c)
{
	RbpEndpoint *ep = &lease->donors[lease->ndonors++];
	int64_t		port;
	int64_t		rdma_port = 0;
	const json_t *transports;
	const json_t *name;
	size_t		i;

	if (!get_text(object, "id", true, ep->donor, sizeof(ep->donor), c) ||
		!get_text(object, "host", true, ep->host, sizeof(ep->host), c) ||
		!get_number(object, "port", true, 0, UINT16_MAX, &port, c) ||
		!get_text(object, "shm_name", false, ep->shm_name,
				  sizeof(ep->shm_name), c) ||
		!get_text(object, "boot_id", false, ep->boot_id,
				  sizeof(ep->boot_id), c) ||
		!get_text(object, "rdma_host", false, ep->rdma_host,
				  sizeof(ep->rdma_host), c) ||
		!get_number(object, "rdma_port", false, 0, UINT16_MAX, &rdma_port, c))
		return false;
	ep->port = (uint16_t) port;
	ep->rdma_port = (uint16_t) rdma_port;

	/* a donor may offer transports unknown to this version */
	transports = json_object_get(object, "transports");
	if (!json_is_array(transports))
		return parse_error(c, "\"transports\" is not an array");
	json_array_foreach(transports, i, name)
	{
		const char *text = json_string_value(name);

		if (text == NULL)
			return parse_error(c, "a transport is not a string");
		if (strcmp(text, "shm") == 0)
			ep->transports |= RBP_TRANSPORT_SHM;
		else if (strcmp(text, "tcp") == 0)
			ep->transports |= RBP_TRANSPORT_TCP;
		else if (strcmp(text, "verbs") == 0)
			ep->transports |= RBP_TRANSPORT_VERBS;
	}
	return true;
}

static int
compare_donors(const void *a, const void *b)
{
	return strcmp(((const RbpEndpoint *) a)->donor,
				  ((const RbpEndpoint *) b)->donor);
}

static const RbpEndpoint *
find_donor(const RbpLease *lease, const char *donor)
{
	RbpEndpoint key = {0};

	snprintf(key.donor, sizeof(key.donor), "%s", donor);
	return bsearch(&key, lease->donors, lease->ndonors, sizeof(RbpEndpoint),
				   compare_donors);
}

static bool
parse_region(const json_t *object, RbpLease *lease, ParseError *c)
{
	RbpRegionGrant *region = &lease->regions[lease->nregions++];
	int64_t		number;
	int64_t		bytes;
	int64_t		rev;

	if (!get_text(object, "donor", true, region->donor, sizeof(region->donor), c) ||
		!get_number(object, "region", true, 0, UINT32_MAX, &number, c) ||
		!get_number(object, "bytes", true, 1, INT64_C(1) << 50, &bytes, c) ||
		!get_number(object, "rev", true, 0, INT64_MAX, &rev, c))
		return false;
	if ((uint64_t) bytes % RBP_LEASE_REGION_UNIT != 0)
		return parse_error(c, "a region's size is not a multiple of 1 MiB");
	if (find_donor(lease, region->donor) == NULL)
		return parse_error(c, "a region is on donor \"%s\", which is not described",
						   region->donor);
	region->region = (uint32_t) number;
	region->bytes = (uint64_t) bytes;
	region->rev = (uint64_t) rev;
	lease->bytes += region->bytes;
	return lease->bytes <= MAX_LEASE_BYTES || parse_error(c, "the regions have more than 1 EiB");
}

static bool
parse_reclaim(const json_t *object, RbpLease *lease, ParseError *c)
{
	RbpLeaseReclaim *reclaim = &lease->reclaims[lease->nreclaims++];
	int64_t		regions;
	int64_t		others = 0;

	reclaim->grace_ms = GRACE_MS;
	if (!get_text(object, "donor", true, reclaim->donor, sizeof(reclaim->donor), c) ||
		!get_number(object, "regions", true, 0, INT32_MAX, &regions, c) ||
		!get_number(object, "shared", false, 0, regions, &others, c) ||
		!get_number(object, "grace_ms", false, 0, INT64_MAX, &reclaim->grace_ms, c))
		return false;
	reclaim->regions = (int) regions;
	reclaim->shared = (int) others;
	return true;
}

/* Parse the elements of the array under key; the lease has room for them. */
static bool
parse_array(const json_t *root, const char *key, size_t max,
			bool (*parse) (const json_t *object, RbpLease *lease, ParseError *c),
			RbpLease *lease, ParseError *c)
{
	const json_t *array = json_object_get(root, key);
	const json_t *object;
	size_t		i;

	if (array == NULL)
		return parse_error(c, "\"%s\" is missing", key);
	if (!json_is_array(array))
		return parse_error(c, "\"%s\" is not an array", key);
	if (json_array_size(array) > max)
		return parse_error(c, "\"%s\" has more than %zu elements", key, max);
	json_array_foreach(array, i, object)
	{
		if (!json_is_object(object))
			return parse_error(c, "\"%s\" has an element that is not an object", key);
		if (!parse(object, lease, c))
			return false;
	}
	return true;
}

/* Sort donors and regions; neither may be listed twice. */
static bool
sort_lists(RbpLease *lease, ParseError *c)
{
	qsort(lease->donors, lease->ndonors, sizeof(RbpEndpoint), compare_donors);
	qsort(lease->regions, lease->nregions, sizeof(RbpRegionGrant), rbp_region_compare);
	for (int d = 1; d < lease->ndonors; d++)
		if (compare_donors(&lease->donors[d - 1], &lease->donors[d]) == 0)
			return parse_error(c, "donor \"%s\" is listed twice", lease->donors[d].donor);
	for (int r = 1; r < lease->nregions; r++)
		if (rbp_region_compare(&lease->regions[r - 1], &lease->regions[r]) == 0)
			return parse_error(c, "region %u of donor \"%s\" is listed twice",
							   (unsigned) lease->regions[r].region, lease->regions[r].donor);
	return true;
}

static bool
parse_lease(const json_t *root, RbpLease *lease, ParseError *c)
{
	char		secret[2 * RBP_SECRET_LEN + 1];
	int64_t		namesakes = 0;

	if (!json_is_object(root))
		return parse_error(c, "it is not an object");
	if (!get_text(root, "lease", true, lease->cred.lease,
				  sizeof(lease->cred.lease), c) ||
		!get_text(root, "secret", false, secret, sizeof(secret), c) ||
		!get_number(root, "ttl_ms", true, 1, MAX_TTL_MS, &lease->ttl_ms, c) ||
		!get_number(root, "namesakes", false, 0, INT32_MAX, &namesakes, c))
		return false;
	lease->namesakes = (int) namesakes;

	/* the id becomes part of a URL's path */
	if (strspn(lease->cred.lease, "0123456789abcdefABCDEF-") !=
		strlen(lease->cred.lease))
		return parse_error(c, "\"lease\" is not a UUID");
	if (secret[0] != '\0')
	{
		if (!rbp_hex_decode(secret, lease->cred.secret, RBP_SECRET_LEN))
			return parse_error(c, "\"secret\" is not %d hexadecimal bytes",
							   RBP_SECRET_LEN);
		lease->has_secret = true;
	}
	return parse_array(root, "donors", RBP_BROKER_MAX_DONORS, parse_donor, lease, c) &&
		sort_lists(lease, c) && /* a region's donor is searched for */
		parse_array(root, "regions", SIZE_MAX, parse_region, lease, c) &&
		sort_lists(lease, c) &&
		(json_object_get(root, "reclaim") == NULL ||
		 parse_array(root, "reclaim", RBP_BROKER_MAX_DONORS, parse_reclaim, lease, c));
}

/* With zeroed lists that have this much room, and are not NULL; NULL: out of memory. */
static RbpLease *
make_lease(size_t ndonors, size_t nregions, size_t nreclaims)
{
	RbpLease   *lease = calloc(1, sizeof(RbpLease));

	if (lease == NULL)
		return NULL;
	lease->donors = calloc(ndonors + 1, sizeof(RbpEndpoint));
	lease->regions = calloc(nregions + 1, sizeof(RbpRegionGrant));
	lease->reclaims = calloc(nreclaims + 1, sizeof(RbpLeaseReclaim));
	if (lease->donors != NULL && lease->regions != NULL && lease->reclaims != NULL)
		return lease;
	rbp_lease_free(lease);
	return NULL;
}

/*
 * Decode an answer.  NULL, with the reason in c unless that is NULL, if it is
 * not JSON, or would take too much memory.
 */
static json_t *
decode(const char *text, size_t len, ParseError *c)
{
	bool		large = rbp_json_values(text, len) > RBP_JSON_ANSWER_VALUES;
	json_t	   *root = large ? NULL : json_loadb(text, len, JSON_REJECT_DUPLICATES, NULL);

	if (root == NULL && c != NULL)
		parse_error(c, large ? "it has too many values or levels" : "it is not JSON");
	return root;
}

RbpLease *
rbp_lease_parse(const char *text, size_t len, char *err, size_t errlen)
{
	ParseError	error_buf = {err, errlen};
	json_t	   *root = decode(text, len, &error_buf);
	RbpLease   *lease;

	if (root == NULL)
		return NULL;
	lease = make_lease(json_array_size(json_object_get(root, "donors")),
					   json_array_size(json_object_get(root, "regions")),
					   json_array_size(json_object_get(root, "reclaim")));
	if (lease == NULL)
		parse_error(&error_buf, "out of memory");
	else if (!parse_lease(root, lease, &error_buf))
	{
		rbp_lease_free(lease);
		lease = NULL;
	}
	json_decref(root);
	return lease;
}

void
rbp_lease_free(RbpLease *lease)
{
	if (lease == NULL)
		return;
	explicit_bzero(lease->cred.secret, sizeof(lease->cred.secret));
	free(lease->donors);
	free(lease->regions);
	free(lease->reclaims);
	free(lease);
}

RbpLease *
rbp_lease_restore(const RbpCredentials *cred, int64_t ttl_ms,
				  const RbpEndpoint *donors, int ndonors,
				  const RbpRegionGrant *regions, int nregions)
{
	RbpLease   *lease = make_lease((size_t) ndonors, (size_t) nregions, 0);
	ParseError	nowhere = {NULL, 0};

	if (lease == NULL)
		return NULL;
	lease->cred = *cred;
	lease->has_secret = true;
	lease->ttl_ms = ttl_ms;
	memcpy(lease->donors, donors, sizeof(RbpEndpoint) * (size_t) ndonors);
	lease->ndonors = ndonors;
	memcpy(lease->regions, regions, sizeof(RbpRegionGrant) * (size_t) nregions);
	lease->nregions = nregions;
	for (int i = 0; i < nregions; i++)
		lease->bytes += regions[i].bytes;
	(void) sort_lists(lease, &nowhere);
	return lease;
}

bool
rbp_lease_same_regions(const RbpLease *a, const RbpLease *b)
{
	/* all of it was zeroed before it was filled, so bytes can be compared */
	return a->ndonors == b->ndonors && a->nregions == b->nregions &&
		memcmp(a->donors, b->donors, sizeof(RbpEndpoint) * a->ndonors) == 0 &&
		memcmp(a->regions, b->regions,
			   sizeof(RbpRegionGrant) * a->nregions) == 0;
}

RbpRegionGrant *
rbp_lease_find_region(const RbpLease *lease, const RbpRegionGrant *region)
{
	return bsearch(region, lease->regions, lease->nregions,
				   sizeof(RbpRegionGrant), rbp_region_compare);
}

static bool
donor_restarted(const RbpLease *before, const RbpLease *now, const char *donor)
{
	const RbpEndpoint *was = find_donor(before, donor);
	const RbpEndpoint *is = find_donor(now, donor);

	/* addresses do not count: names are resolved repeatedly, or not at all */
	return was != NULL && is != NULL &&
		(was->transports != is->transports || was->port != is->port ||
		 was->rdma_port != is->rdma_port ||
		 strcmp(was->shm_name, is->shm_name) != 0 ||
		 strcmp(was->boot_id, is->boot_id) != 0);
}

bool
rbp_lease_lost_content(const RbpLease *before, const RbpLease *now,
					   const RbpRegionGrant *region)
{
	const RbpRegionGrant *was = rbp_lease_find_region(before, region);
	const RbpRegionGrant *is = rbp_lease_find_region(now, region);

	return was != NULL && is != NULL &&
		(was->rev != is->rev || donor_restarted(before, now, region->donor));
}

void
rbp_lease_remove_regions(RbpLease *lease, const RbpRegionGrant *gone, int n)
{
	int			kept = 0;

	if (n == 0)
		return;
	/* mark them, no region has no bytes; then move the others up, once */
	for (int i = 0; i < n; i++)
	{
		RbpRegionGrant *found = rbp_lease_find_region(lease, &gone[i]);

		if (found == NULL)
			continue;
		lease->bytes -= found->bytes;
		found->bytes = 0;
	}
	for (int i = 0; i < lease->nregions; i++)
	{
		if (lease->regions[i].bytes > 0)
			lease->regions[kept++] = lease->regions[i];
	}
	lease->nregions = kept;
}

static uint64_t
largest_region(const RbpLease *lease)
{
	uint64_t	largest = 0;

	for (int i = 0; i < lease->nregions; i++)
	{
		if (lease->regions[i].bytes > largest)
			largest = lease->regions[i].bytes;
	}
	return largest;
}

bool
rbp_lease_is_excessive(const RbpLease *lease, uint64_t most)
{
	return lease->bytes - largest_region(lease) > 2 * most;
}

/*
 * That many can go whichever they are, so all are taken to be as large as the
 * largest.
 */
int
rbp_lease_surplus(const RbpLease *lease, uint64_t wanted)
{
	if (lease->bytes <= wanted)
		return 0;
	if (wanted == 0)
		return lease->nregions;
	return (int) ((lease->bytes - wanted) / largest_region(lease));
}

uint64_t
rbp_lease_asked_back(const RbpLease *lease)
{
	uint64_t	regions = 0;

	for (int i = 0; i < lease->nreclaims; i++)
		regions += (uint64_t) (lease->reclaims[i].regions - lease->reclaims[i].shared);
	/* no more than it has, whatever is asked */
	return (regions < (uint64_t) lease->nregions ? regions : (uint64_t) lease->nregions) * largest_region(lease);
}

int
rbp_lease_demands(const RbpLease *lease, uint64_t wanted,
				  RbpLeaseReclaim *demands)
{
	int			n = 0;

	/* if nothing is wanted, all goes anyway, as surplus */
	for (int i = 0; i < lease->nreclaims && wanted > 0; i++)
	{
		if (lease->reclaims[i].regions > 0)
			demands[n++] = lease->reclaims[i];
	}
	if (n == 0)
	{
		demands[0].donor[0] = '\0';
		demands[0].regions = rbp_lease_surplus(lease, wanted);
		demands[0].grace_ms = MAX_GRACE_MS;
		n = demands[0].regions > 0;
	}
	return n;
}

/* Half of the grace time, since the broker has to be told in time, too. */
int64_t
rbp_lease_move_time(const RbpLeaseReclaim *demand)
{
	return (demand->grace_ms < MAX_GRACE_MS ? demand->grace_ms : MAX_GRACE_MS) *
		NANOS_PER_MS / 2;
}

void
rbp_lease_reclaimed(RbpLease *lease, const char *donor, int n)
{
	for (int i = 0; i < lease->nreclaims; i++)
	{
		RbpLeaseReclaim *reclaim = &lease->reclaims[i];

		if (strcmp(reclaim->donor, donor) == 0)
		{
			reclaim->regions -= n < reclaim->regions ? n : reclaim->regions;
			reclaim->shared -= n < reclaim->shared ? n : reclaim->shared;
		}
	}
}

bool
rbp_lease_has_reclaim(const RbpLease *lease, const char *donor)
{
	for (int i = 0; i < lease->nreclaims; i++)
	{
		if (strcmp(lease->reclaims[i].donor, donor) == 0 &&
			lease->reclaims[i].regions > 0)
			return true;
	}
	return false;
}

/* Serialize and free a request; NULL if it could not be built. */
static char *
dump(json_t *root)
{
	char	   *text = root != NULL ? json_dumps(root, JSON_COMPACT) : NULL;

	json_decref(root);
	return text;
}

char *
rbp_lease_new_body(const char *client, const char *instance,
				   const char *purpose, const RbpLeaseWishes *wishes)
{
	return dump(json_pack("{s:s, s:s, s:s, s:I, s:I, s:I, s:o*}",
						  "client", client,
						  "instance", instance,
						  "purpose", purpose,
						  "bytes", (json_int_t) wishes->bytes,
						  "ttl_ms", (json_int_t) wishes->ttl_ms,
						  "keep_ms", (json_int_t) wishes->keep_ms,
						  "elsewhere", wishes->elsewhere ? json_true() : NULL));
}

/* The donors that the lease has regions of, which are sorted by donor.  NULL if there is no memory. */
static json_t *
donor_names(const RbpLease *lease)
{
	json_t	   *names = json_array();

	for (int i = 0; i < lease->nregions && names != NULL; i++)
	{
		if ((i == 0 || strcmp(lease->regions[i].donor, lease->regions[i - 1].donor) != 0) &&
			json_array_append_new(names, json_string(lease->regions[i].donor)) != 0)
		{
			json_decref(names);
			names = NULL;
		}
	}
	return names;
}

char *
rbp_lease_renew_body(const RbpCredentials *cred, const RbpLeaseWishes *wishes,
					 const RbpRegionGrant *released, int n)
{
	char		secret[2 * RBP_SECRET_LEN + 1];
	char		new_secret[2 * RBP_SECRET_LEN + 1];
	json_t	   *list = json_array();
	char	   *text;

	for (int i = 0; i < n; i++)
		if (json_array_append_new(list, json_pack("{s:s, s:I, s:I}",
												  "donor", released[i].donor,
												  "region", (json_int_t) released[i].region,
												  "rev", (json_int_t) released[i].rev)) != 0)
		{
			json_decref(list);
			return NULL;
		}
	rbp_hex_encode(cred->secret, RBP_SECRET_LEN, secret);
	if (wishes->new_secret != NULL)
		rbp_hex_encode(wishes->new_secret, RBP_SECRET_LEN, new_secret);
	text = dump(json_pack("{s:s, s:s*, s:s*, s:s*, s:I, s:I, s:I, s:I, s:o*, s:o*, s:o}",
						  "secret", secret,
						  "new_secret", wishes->new_secret != NULL ? new_secret : NULL,
						  "client", wishes->client,
						  "instance", wishes->instance,
						  "bytes", (json_int_t) wishes->bytes,
						  "ahead", (json_int_t) wishes->ahead,
						  "ttl_ms", (json_int_t) wishes->ttl_ms,
						  "keep_ms", (json_int_t) wishes->keep_ms,
						  "elsewhere", wishes->elsewhere ? json_true() : NULL,
						  "donors", wishes->insists != NULL ? donor_names(wishes->insists) : NULL,
						  "release", list));
	explicit_bzero(secret, sizeof(secret));
	explicit_bzero(new_secret, sizeof(new_secret));
	return text;
}

char *
rbp_lease_end_body(const RbpCredentials *cred)
{
	char		secret[2 * RBP_SECRET_LEN + 1];
	char	   *text;

	rbp_hex_encode(cred->secret, RBP_SECRET_LEN, secret);
	text = dump(json_pack("{s:s}", "secret", secret));
	explicit_bzero(secret, sizeof(secret));
	return text;
}

void
rbp_lease_error_text(const char *text, size_t len, char *buf, size_t buflen)
{
	json_t	   *root = decode(text, len, NULL);
	const char *why = json_string_value(json_object_get(root, "error"));

	if (why == NULL)
		why = "no reason given";
	rbp_copy_printable(buf, buflen, why, strlen(why));
	json_decref(root);
}

int64_t
rbp_lease_renew_after(int64_t ttl_ms)
{
	int64_t		third = ttl_ms * NANOS_PER_MS / 3;

	if (third < MIN_RENEW_NS)
		return MIN_RENEW_NS;
	return third < RENEW_NS ? third : RENEW_NS;
}

int64_t
rbp_lease_retry_after(int failures, int64_t remaining_ns)
{
	int64_t		wait = MAX_RETRY_NS;

	/* 1, 2 and 4 s, but leave time for several attempts before the deadline */
	if (failures <= 3)
		wait = NANOS_PER_S << (failures < 1 ? 0 : failures - 1);
	if (remaining_ns > 0 && wait > remaining_ns / 2)
		wait = remaining_ns / 2;
	return wait < MIN_RETRY_NS ? MIN_RETRY_NS : wait;
}

int64_t
rbp_lease_step_until(int64_t now_ns, int64_t due_ns)
{
	int64_t		length = due_ns - now_ns;

	if (length < MIN_STEP_NS)
		length = MIN_STEP_NS;
	return now_ns + (length < STEP_NS ? length : STEP_NS);
}
