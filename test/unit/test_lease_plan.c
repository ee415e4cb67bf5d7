/*-------------------------------------------------------------------------
 *
 * test_lease_plan.c
 *	  What the lease worker understands of the broker's answers, and what it
 *	  decides.
 *
 *-------------------------------------------------------------------------
 */
#include "lease/plan.h"
#include "transport/transport.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "tap.h"

#define MB			(UINT64_C(1) << 20)
#define S			INT64_C(1000000000)
#define SECRET		"000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1eff"
#define UUID		"123e4567-e89b-42d3-a456-426614174000"

#define DONOR_A		"{\"id\":\"a\",\"host\":\"10.0.0.1\",\"port\":5001," \
	"\"shm_name\":\"rbp-a\",\"boot_id\":\"b-1\",\"transports\":[\"shm\",\"tcp\"]}"
#define DONOR_B		"{\"id\":\"b\",\"host\":\"b.example\",\"port\":5002," \
	"\"transports\":[\"tcp\",\"pigeon\"]}"
#define DONOR_R		"{\"id\":\"r\",\"host\":\"r.example\",\"port\":0," \
	"\"rdma_host\":\"192.168.7.1\",\"rdma_port\":65535,\"transports\":[\"verbs\"]}"
#define REGIONS		"{\"donor\":\"b\",\"region\":0,\"bytes\":67108864,\"rev\":1}," \
	"{\"donor\":\"a\",\"region\":7,\"bytes\":67108864,\"rev\":9}," \
	"{\"donor\":\"a\",\"region\":2,\"bytes\":16777216,\"rev\":4}"

static char err[200];

/* A lease object with these parts. */
static RbpLease *
parse(const char *head, const char *donors, const char *regions,
	  const char *tail)
{
	static char text[8192];
	int			len = snprintf(text, sizeof(text),
							   "{%s,\"donors\":[%s],\"regions\":[%s]%s}",
							   head, donors, regions, tail);

	/* exactly as long as it is, so that reading past the end is noticed */
	char	   *exact = malloc(len);
	RbpLease   *lease;

	memcpy(exact, text, len);
	err[0] = '\0';
	lease = rbp_lease_parse(exact, len, err, sizeof(err));
	free(exact);
	return lease;
}

#define HEAD	"\"lease\":\"" UUID "\",\"secret\":\"" SECRET "\",\"ttl_ms\":30000"

static RbpLease *
good(void)
{
	return parse(HEAD, DONOR_A "," DONOR_B, REGIONS,
				 ",\"client\":\"x\",\"bytes\":1,\"wanted\":1,"
				 "\"reclaim\":[{\"donor\":\"a\",\"regions\":2,\"grace_ms\":10}]");
}

static void
test_parse(void)
{
	RbpLease   *lease = good();

	if (!ok(lease != NULL, "a lease is understood"))
	{
		diag("%s", err);
		return;
	}
	ok(strcmp(lease->cred.lease, UUID) == 0, "its id");
	ok(lease->has_secret && lease->cred.secret[0] == 0 &&
	   lease->cred.secret[30] == 0x1e && lease->cred.secret[31] == 0xff,
	   "its secret");
	is_u64(lease->ttl_ms, 30000, "its TTL");
	is_u64(lease->bytes, 144 * MB, "the size is that of its regions");
	ok(lease->ndonors == 2 && strcmp(lease->donors[0].donor, "a") == 0 &&
	   strcmp(lease->donors[1].donor, "b") == 0, "donors, sorted");
	ok(lease->donors[0].port == 5001 &&
	   strcmp(lease->donors[0].host, "10.0.0.1") == 0 &&
	   strcmp(lease->donors[0].shm_name, "rbp-a") == 0 &&
	   strcmp(lease->donors[0].boot_id, "b-1") == 0 &&
	   lease->donors[0].transports == (RBP_TRANSPORT_SHM | RBP_TRANSPORT_TCP),
	   "how to reach a donor");
	ok(lease->donors[1].transports == RBP_TRANSPORT_TCP &&
	   lease->donors[1].shm_name[0] == '\0',
	   "an unknown transport is passed over, a missing name is empty");
	ok(lease->nregions == 3 &&
	   strcmp(lease->regions[0].donor, "a") == 0 && lease->regions[0].region == 2 &&
	   lease->regions[1].region == 7 && lease->regions[2].region == 0,
	   "regions, sorted");
	ok(lease->regions[1].rev == 9 && lease->regions[0].rev == 4, "which grants they are");
	ok(lease->nreclaims == 1 && lease->reclaims[0].regions == 2 &&
	   strcmp(lease->reclaims[0].donor, "a") == 0, "what is asked back");
	ok(lease->donors[0].rdma_host[0] == '\0' && lease->donors[0].rdma_port == 0,
	   "a donor without RDMA has no address for it");
	rbp_lease_free(lease);

	lease = parse(HEAD, DONOR_R, "", "");
	ok(lease != NULL && lease->donors[0].transports == RBP_TRANSPORT_VERBS &&
	   strcmp(lease->donors[0].rdma_host, "192.168.7.1") == 0 &&
	   lease->donors[0].rdma_port == 65535 && lease->donors[0].port == 0,
	   "a donor with nothing else has that, and no port for tcp");
	rbp_lease_free(lease);

	lease = parse("\"lease\":\"" UUID "\",\"ttl_ms\":1", "", "", "");
	ok(lease != NULL && !lease->has_secret && lease->nregions == 0 &&
	   lease->bytes == 0, "a renewal may lack the secret, a lease all memory");
	rbp_lease_free(lease);
}

typedef struct BadLease
{
	const char *what;
	const char *head;
	const char *donors;
	const char *regions;
	const char *tail;
} BadLease;

static void
test_refuse(void)
{
	static const BadLease bad[] = {
		{"no id", "\"ttl_ms\":1", "", "", ""},
		{"an id that is a path", "\"lease\":\"../../x\",\"ttl_ms\":1", "", "", ""},
		{"an id that is too long", "\"lease\":\"" UUID UUID "\",\"ttl_ms\":1", "", "", ""},
		{"a short secret", "\"lease\":\"" UUID "\",\"secret\":\"00ff\",\"ttl_ms\":1", "", "", ""},
		{"a secret that is no hex", "\"lease\":\"" UUID "\",\"secret\":\"g" SECRET "\",\"ttl_ms\":1", "", "", ""},
		{"no TTL", "\"lease\":\"" UUID "\"", "", "", ""},
		{"a TTL of zero", "\"lease\":\"" UUID "\",\"ttl_ms\":0", "", "", ""},
		{"a negative TTL", "\"lease\":\"" UUID "\",\"ttl_ms\":-5", "", "", ""},
		{"an endless TTL", "\"lease\":\"" UUID "\",\"ttl_ms\":9223372036854775807", "", "", ""},
		{"namesakes that are no number", HEAD ",\"namesakes\":\"1\"", "", "", ""},
		{"fewer namesakes than none", HEAD ",\"namesakes\":-1", "", "", ""},
		{"a TTL that is text", "\"lease\":\"" UUID "\",\"ttl_ms\":\"1\"", "", "", ""},
		{"a region of an unknown donor", HEAD, DONOR_A, REGIONS, ""},
		{"a region listed twice", HEAD, DONOR_A "," DONOR_B, REGIONS "," REGIONS, ""},
		{"a donor listed twice", HEAD, DONOR_A "," DONOR_A, "", ""},
		{"a region listed twice, of two grants", HEAD, DONOR_A,
			"{\"donor\":\"a\",\"region\":1,\"bytes\":1048576,\"rev\":1},"
		"{\"donor\":\"a\",\"region\":1,\"bytes\":1048576,\"rev\":2}", ""},
		{"a region without a rev", HEAD, DONOR_A, "{\"donor\":\"a\",\"region\":1,\"bytes\":1048576}", ""},
		{"a negative rev", HEAD, DONOR_A, "{\"donor\":\"a\",\"region\":1,\"bytes\":1048576,\"rev\":-1}", ""},
		{"a region of an odd size", HEAD, DONOR_A, "{\"donor\":\"a\",\"region\":1,\"bytes\":1048577,\"rev\":1}", ""},
		{"a region of no size", HEAD, DONOR_A, "{\"donor\":\"a\",\"region\":1,\"bytes\":0,\"rev\":1}", ""},
		{"a region number past 32 bits", HEAD, DONOR_A, "{\"donor\":\"a\",\"region\":4294967296,\"bytes\":1048576,\"rev\":1}", ""},
		{"a negative region number", HEAD, DONOR_A, "{\"donor\":\"a\",\"region\":-1,\"bytes\":1048576,\"rev\":1}", ""},
		{"a region that is a number", HEAD, DONOR_A, "5", ""},
		{"a port past 16 bits", HEAD, "{\"id\":\"a\",\"host\":\"h\",\"port\":65536,\"transports\":[]}", "", ""},
		{"a port for RDMA past 16 bits", HEAD, "{\"id\":\"a\",\"host\":\"h\",\"port\":1,\"rdma_host\":\"h\","
		"\"rdma_port\":65536,\"transports\":[]}", "", ""},
		{"a port for RDMA that is text", HEAD, "{\"id\":\"a\",\"host\":\"h\",\"port\":1,\"rdma_host\":\"h\","
		"\"rdma_port\":\"1\",\"transports\":[]}", "", ""},
		{"a host for RDMA with a blank", HEAD, "{\"id\":\"a\",\"host\":\"h\",\"port\":1,\"rdma_host\":\"h h\","
		"\"rdma_port\":1,\"transports\":[]}", "", ""},
		{"a donor without a host", HEAD, "{\"id\":\"a\",\"port\":1,\"transports\":[]}", "", ""},
		{"a host with a line feed", HEAD, "{\"id\":\"a\",\"host\":\"h\\n\",\"port\":1,\"transports\":[]}", "", ""},
		{"a donor without transports", HEAD, "{\"id\":\"a\",\"host\":\"h\",\"port\":1}", "", ""},
		{"a donor's name that is too long", HEAD,
			"{\"id\":\"0123456789012345678901234567890123456789012345678901234567890123\","
		"\"host\":\"h\",\"port\":1,\"transports\":[]}", "", ""},
		{"a reclaim that is no array", HEAD, "", "", ",\"reclaim\":{}"},
		{"a negative reclaim", HEAD, DONOR_A, "", ",\"reclaim\":[{\"donor\":\"a\",\"regions\":-1}]"},
		{"a key given twice", HEAD "," HEAD, "", "", ""}
	};

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
	{
		RbpLease   *lease = parse(bad[i].head, bad[i].donors, bad[i].regions,
								  bad[i].tail);

		ok(lease == NULL && err[0] != '\0', "refused: %s (%s)", bad[i].what, err);
		rbp_lease_free(lease);
	}
}

/* No prefix of a lease is one, and each is read no further than its end. */
static void
test_truncated(void)
{
	static const char text[] = "{" HEAD ",\"donors\":[" DONOR_A "," DONOR_B
	"],\"regions\":[" REGIONS "]}";
	int			understood = 0;

	for (size_t len = 0; len < sizeof(text) - 1; len++)
	{
		char	   *prefix = malloc(len + 1);
		RbpLease   *lease;

		memcpy(prefix, text, len);
		lease = rbp_lease_parse(prefix, len, err, sizeof(err));
		understood += lease != NULL;
		rbp_lease_free(lease);
		free(prefix);
	}
	is_u64(understood, 0, "no truncated answer is understood");
}

/* Has a region of the lease before lost its content? */
static bool
lost_content(const RbpLease *before, const RbpLease *now, int region)
{
	return rbp_lease_lost_content(before, now, &before->regions[region]);
}

static void
test_compare_and_forget(void)
{
	RbpLease   *a = good();
	RbpLease   *b = good();
	RbpRegionGrant gone[2];

	ok(rbp_lease_same_regions(a, b), "equal leases have the same memory");
	b->regions[1].region++;
	ok(!rbp_lease_same_regions(a, b), "another region is not the same");
	b->regions[1].region--;
	b->regions[1].rev++;
	ok(!rbp_lease_same_regions(a, b) && lost_content(a, b, 1) && !lost_content(a, b, 0),
	   "nor is one that was granted anew");
	b->regions[1].rev--;
	b->donors[1].port++;
	ok(!rbp_lease_same_regions(a, b), "nor is a donor at another port");
	ok(lost_content(a, b, 2) && !lost_content(a, b, 0),
	   "which is another process than before");
	b->donors[1].port--;
	b->donors[1].host[0] ^= 1;
	b->donors[1].rdma_host[0] ^= 1;
	ok(!rbp_lease_same_regions(a, b) && !lost_content(a, b, 2),
	   "one whose name has another address now is the same process");
	b->donors[1].host[0] ^= 1;
	b->donors[1].rdma_host[0] ^= 1;
	b->donors[1].shm_name[0] ^= 1;
	ok(lost_content(a, b, 2), "one with another socket is not");
	b->donors[1].shm_name[0] ^= 1;
	b->donors[1].rdma_port++;
	ok(!rbp_lease_same_regions(a, b), "nor one that RDMA reaches at another port");
	b->donors[1].rdma_port--;
	ok(!lost_content(a, b, 2), "unlike one at the same");
	b->nregions--;
	b->donors[1].port++;
	ok(!lost_content(a, b, 2) && !rbp_lease_lost_content(b, a, &a->regions[2]),
	   "a region that is not in both leases has not lost its content between them");
	b->donors[1].port--;
	b->nregions++;
	b->cred.secret[0] ^= 1;
	ok(rbp_lease_same_regions(a, b), "the secret has nothing to do with it");

	memset(gone, 0, sizeof(gone));
	strcpy(gone[0].donor, "a");
	gone[0].region = 7;
	gone[0].rev = 9;
	strcpy(gone[1].donor, "b");
	gone[1].region = 99;
	ok(rbp_lease_find_region(b, &gone[0]) && !rbp_lease_find_region(b, &gone[1]),
	   "which regions are in the lease");
	rbp_lease_remove_regions(b, gone, 2);
	ok(b->nregions == 2 && !rbp_lease_find_region(b, &gone[0]),
	   "a region that was given up is forgotten, an unknown one ignored");
	is_u64(b->bytes, 80 * MB, "and so is its size");
	ok(!rbp_lease_same_regions(a, b), "which makes a difference");
	rbp_lease_remove_regions(b, b->regions, 1);
	strcpy(gone[0].donor, "b");
	gone[0].region = 0;
	gone[0].rev = 0;
	rbp_lease_remove_regions(b, gone, 1);
	ok(b->nregions == 0 && b->bytes == 0, "all can be forgotten");
	rbp_lease_free(a);
	rbp_lease_free(b);
}

/* A lease of n regions of so many MB, and so many donors that ask for one back. */
static RbpLease *
large(int n, int megabytes, int reclaims, int padding)
{
	char	   *text;
	size_t		len;
	FILE	   *out = open_memstream(&text, &len);
	RbpLease   *lease;

	fputs("{" HEAD ",\"donors\":[" DONOR_A "],\"regions\":[", out);
	for (int i = 0; i < n; i++)
		fprintf(out, "%s{\"donor\":\"a\",\"region\":%d,\"bytes\":%" PRIu64 ",\"rev\":1}",
				i > 0 ? "," : "", i, (uint64_t) megabytes * MB);
	fputs("],\"reclaim\":[", out);
	for (int i = 0; i < reclaims; i++)
		fprintf(out, "%s{\"donor\":\"d%d\",\"regions\":1}", i > 0 ? "," : "", i);
	fputs("],\"x\":[0", out);
	for (int i = 0; i < padding; i++)
		fputs(",0", out);
	fputs("]}", out);
	fclose(out);
	err[0] = '\0';
	lease = rbp_lease_parse(text, len, err, sizeof(err));
	free(text);
	return lease;
}

/*
 * What takes minutes if it is done for each region by looking at, or moving,
 * all the others, as it would be with a lease of many small regions.
 */
static void
test_large(void)
{
	const int	n = 300000;
	RbpLease   *lease = large(n, 1, 0, 0);
	RbpRegionGrant *gone = malloc(sizeof(RbpRegionGrant) * n);

	ok(lease != NULL && lease->nregions == n, "a lease of 300,000 regions");
	ok(!rbp_lease_is_excessive(lease, n / 2 * MB) && rbp_lease_is_excessive(lease, (n / 2 - 1) * MB),
	   "is larger than twice another size, or not");
	/* the even ones, the last first */
	for (int i = 0; i < n / 2; i++)
		gone[i] = lease->regions[n - 2 - 2 * i];
	for (int round = 0; round < 10; round++)
		rbp_lease_remove_regions(lease, gone + round * (n / 20), n / 20);
	ok(lease->nregions == n / 2 && lease->bytes == n / 2 * MB, "half of them can be forgotten");
	ok(!rbp_lease_find_region(lease, &gone[0]) && rbp_lease_find_region(lease, &lease->regions[0]) &&
	   lease->regions[0].region == 1 && lease->regions[n / 2 - 1].region == n - 1, "the others are there");
	rbp_lease_remove_regions(lease, gone, n / 2);
	rbp_lease_remove_regions(lease, gone, 0);
	ok(lease->nregions == n / 2, "what is not there any more is ignored");
	free(gone);
	rbp_lease_free(lease);

	lease = large(1024, 1 << 30, 0, 0);
	ok(lease != NULL && rbp_lease_is_excessive(lease, 1 << 20), "a lease of 1 EiB");
	rbp_lease_free(lease);
	ok(large(1025, 1 << 30, 0, 0) == NULL && strstr(err, "1 EiB") != NULL, "no larger one (%s)", err);
	lease = large(0, 1, 1024, 0);
	ok(lease != NULL && lease->nreclaims == 1024, "as many donors as a broker has may ask");
	rbp_lease_free(lease);
	ok(large(0, 1, 1025, 0) == NULL && strstr(err, "reclaim") != NULL, "but not more (%s)", err);
	lease = large(0, 1, 0, 2000000);
	ok(lease != NULL, "an answer of two million values");
	rbp_lease_free(lease);
	ok(large(0, 1, 0, 2100000) == NULL && strcmp(err, "it has too many values or levels") == 0, "not of more (%s)", err);
}

/* What the next worker knows of a lease is the lease, whatever the order. */
static void
test_known(void)
{
	RbpLease   *a = good();
	RbpEndpoint donors[] = {a->donors[1], a->donors[0]};
	RbpRegionGrant regions[] = {a->regions[2], a->regions[1], a->regions[0]};
	RbpLease   *b = rbp_lease_restore(&a->cred, 5000, donors, 2, regions, 3);

	ok(rbp_lease_same_regions(a, b), "a lease that is known has the same memory");
	ok(b->has_secret && memcmp(&a->cred, &b->cred, sizeof(a->cred)) == 0,
	   "id and secret");
	is_u64(b->bytes, 144 * MB, "its size");
	ok(b->ttl_ms == 5000 && b->nreclaims == 0 && rbp_lease_find_region(b, &regions[0]) &&
	   !lost_content(a, b, 0), "and can be worked with");
	rbp_lease_free(b);
	b = rbp_lease_restore(&a->cred, 5000, donors, 0, regions, 0);
	ok(b->nregions == 0 && b->bytes == 0 && !rbp_lease_find_region(b, &regions[0]),
	   "also if it has nothing");
	rbp_lease_free(a);
	rbp_lease_free(b);
}

static void
test_surplus(void)
{
	RbpLease   *lease = good(); /* 64 + 64 + 16 MB */

	is_u64(rbp_lease_surplus(lease, 1000 * MB), 0, "nothing to spare when more is wanted");
	is_u64(rbp_lease_surplus(lease, 144 * MB), 0, "nor when it fits");
	is_u64(rbp_lease_surplus(lease, 81 * MB), 0, "nor when the largest region would be too much");
	is_u64(rbp_lease_surplus(lease, 80 * MB), 1, "one, whichever it is");
	is_u64(rbp_lease_surplus(lease, 16 * MB), 2, "two, whichever they are");
	is_u64(rbp_lease_surplus(lease, 15 * MB), 2, "never so many that the rest is too small");
	is_u64(rbp_lease_surplus(lease, 0), 3, "all when nothing is wanted");
	rbp_lease_free(lease);

	lease = parse(HEAD, "", "", "");
	is_u64(rbp_lease_surplus(lease, 0), 0, "an empty lease has nothing to spare");
	rbp_lease_free(lease);
}

static void
test_demands(void)
{
	RbpLease   *lease = good(); /* 64 + 64 + 16 MB, donor a asks for 2 */
	RbpLeaseReclaim demands[2];

	is_u64(rbp_lease_demands(lease, 1000 * MB, demands), 1, "a donor asks");
	is_u64(rbp_lease_asked_back(lease), 128 * MB, "for as much");
	lease->reclaims[0].shared = 1;
	is_u64(rbp_lease_asked_back(lease), 64 * MB, "what is for other leases is not replaced");
	lease->reclaims[0].regions = INT32_MAX;
	is_u64(rbp_lease_asked_back(lease), 3 * 64 * MB, "nor more than there is");
	lease->reclaims[0].regions = 2;
	ok(strcmp(demands[0].donor, "a") == 0 && demands[0].regions == 2,
	   "and gets what it asks for");
	is_u64(rbp_lease_demands(lease, 16 * MB, demands), 1, "it comes before a surplus");
	ok(strcmp(demands[0].donor, "a") == 0 && demands[0].regions == 2, "alone");
	ok(rbp_lease_has_reclaim(lease, "a") && !rbp_lease_has_reclaim(lease, "b"),
	   "who asks");

	rbp_lease_reclaimed(lease, "b", 1);
	rbp_lease_reclaimed(lease, "a", 1);
	rbp_lease_demands(lease, 16 * MB, demands);
	ok(strcmp(demands[0].donor, "a") == 0 && demands[0].regions == 1 && demands[0].shared == 0,
	   "what it got is taken off");
	rbp_lease_reclaimed(lease, "a", 5);
	ok(!rbp_lease_has_reclaim(lease, "a"), "until it asks for nothing");
	is_u64(rbp_lease_demands(lease, 1000 * MB, demands), 0, "then nobody does");
	is_u64(rbp_lease_demands(lease, 16 * MB, demands), 1, "and a surplus has its turn");
	ok(demands[0].donor[0] == '\0' && demands[0].regions == 2, "of any donor");
	rbp_lease_free(lease);

	lease = good();
	is_u64(rbp_lease_demands(lease, 0, demands), 1, "where nothing is wanted");
	ok(demands[0].donor[0] == '\0' && demands[0].regions == 3, "all of it goes, whoever asks");
	rbp_lease_free(lease);

	lease = parse(HEAD, "", "", "");
	is_u64(rbp_lease_demands(lease, 0, demands), 0, "an empty lease can give nothing");
	rbp_lease_free(lease);
}

static void
test_bodies(void)
{
	RbpLease   *lease = good();
	const RbpLeaseWishes large = {.bytes = UINT64_C(17179869184),.ttl_ms = 30000,.keep_ms = 1800000,.elsewhere = true};
	const RbpLeaseWishes small = {.bytes = 5,.ahead = 7,.ttl_ms = 6,.keep_ms = 8};
	unsigned char secret[RBP_SECRET_LEN] = {0x1a};
	const RbpLeaseWishes other = {.bytes = 5,.new_secret = secret,.client = "me",.instance = "here/1"};
	char	   *text = rbp_lease_new_body("cl\"ient", "inst", "buffer", &large);
	json_t	   *root = json_loads(text, 0, NULL);

	ok(strcmp(json_string_value(json_object_get(root, "client")), "cl\"ient") == 0 &&
	   json_integer_value(json_object_get(root, "bytes")) == INT64_C(17179869184) &&
	   json_integer_value(json_object_get(root, "ttl_ms")) == 30000 &&
	   json_integer_value(json_object_get(root, "keep_ms")) == 1800000 &&
	   json_is_true(json_object_get(root, "elsewhere")),
	   "the request for a lease");
	json_decref(root);
	free(text);

	text = rbp_lease_renew_body(&lease->cred, &small, lease->regions, 2);
	root = json_loads(text, 0, NULL);
	ok(strcmp(json_string_value(json_object_get(root, "secret")), SECRET) == 0,
	   "a renewal shows the secret as it was given");
	ok(json_integer_value(json_object_get(root, "bytes")) == 5 &&
	   json_integer_value(json_object_get(root, "ahead")) == 7,
	   "what is wanted, and what may come ahead");
	ok(json_integer_value(json_object_get(root, "ttl_ms")) == 6 &&
	   json_integer_value(json_object_get(root, "keep_ms")) == 8, "for how long");
	is_u64(json_array_size(json_object_get(root, "release")), 2,
		   "and lists what is released");
	ok(json_integer_value(json_object_get(json_array_get(json_object_get(root, "release"), 1),
										  "region")) == 7 &&
	   (uint64_t) json_integer_value(json_object_get(json_array_get(json_object_get(root, "release"), 1), "rev")) == lease->regions[1].rev,
	   "by donor, region and rev");
	ok(json_object_get(root, "new_secret") == NULL && json_object_get(root, "client") == NULL &&
	   json_object_get(root, "instance") == NULL, "and says nothing about who has the lease");
	json_decref(root);
	free(text);
	text = rbp_lease_renew_body(&lease->cred, &other, NULL, 0);
	root = json_loads(text, 0, NULL);
	ok(strncmp(json_string_value(json_object_get(root, "new_secret")), "1a000", 5) == 0 &&
	   strcmp(json_string_value(json_object_get(root, "client")), "me") == 0 &&
	   strcmp(json_string_value(json_object_get(root, "instance")), "here/1") == 0, "unless it is to be another one");
	json_decref(root);
	free(text);

	text = rbp_lease_end_body(&lease->cred);
	ok(strstr(text, SECRET) != NULL, "the end shows the secret");
	free(text);
	rbp_lease_free(lease);
}

static void
test_broker(void)
{
	RbpLease   *lease = parse(HEAD ",\"namesakes\":2", "", "", "");

	ok(lease != NULL && lease->namesakes == 2, "namesakes are counted");
	rbp_lease_free(lease);
	lease = parse(HEAD, "", "", "");
	ok(lease != NULL && lease->namesakes == 0, "without a number there are none");
	rbp_lease_free(lease);
}

static void
test_error_text(void)
{
	char		buf[16];

	rbp_lease_error_text("{\"error\":\"no\\nmemory\"}", 22, buf, sizeof(buf));
	ok(strcmp(buf, "no?memory") == 0, "an error's text, made one line");
	rbp_lease_error_text("{\"error\":\"0123456789012345678901234\"}", 37, buf, sizeof(buf));
	ok(strcmp(buf, "012345678901234") == 0, "cut to what there is room for");
	rbp_lease_error_text("<html>", 6, buf, sizeof(buf));
	ok(strcmp(buf, "no reason given") == 0, "no JSON, no text");
	rbp_lease_error_text("{\"error\":5}", 11, buf, sizeof(buf));
	ok(strcmp(buf, "no reason given") == 0, "nor from a number");
}

static void
test_clock(void)
{
	int			ended = 0;

	is_u64(rbp_lease_renew_after(30000), S, "renewed every second");
	is_u64(rbp_lease_renew_after(1500), S / 2, "or three times in a short TTL");
	is_u64(rbp_lease_renew_after(1), S / 20, "but not all the time");

	is_u64(rbp_lease_retry_after(1, 0), S, "first try again after a second");
	is_u64(rbp_lease_retry_after(2, 0), 2 * S, "then after two");
	is_u64(rbp_lease_retry_after(3, 0), 4 * S, "then four");
	is_u64(rbp_lease_retry_after(4, 0), 5 * S, "then five");
	is_u64(rbp_lease_retry_after(1000000, 0), 5 * S, "and so on");
	is_u64(rbp_lease_retry_after(1000, 4 * S), 2 * S,
		   "sooner if the lease would end meanwhile");
	is_u64(rbp_lease_retry_after(1000, 1), S / 10, "but not all the time");
	is_u64(rbp_lease_retry_after(1000, -S), 5 * S, "an ended lease is in no hurry");

	ok(rbp_lease_step_until(7 * S, 60 * S) == 7 * S + S / 5,
	   "a step of moving data is short");
	ok(rbp_lease_step_until(7 * S, 7 * S + S / 10) == 7 * S + S / 10,
	   "and over when something else is due");
	ok(rbp_lease_step_until(7 * S, 0) == 7 * S + S / 100,
	   "but there is one, even if that is overdue");
	ok(rbp_lease_step_until(7 * S, INT64_MAX / 2) == 7 * S + S / 5,
	   "and one when nothing ever is");

	/* an outage shorter than the TTL is survived, however it is timed */
	for (int64_t outage = S; outage < 30 * S; outage += S)
	{
		int64_t		now = 0;
		int64_t		end = 30 * S;
		int			failures = 0;

		now += rbp_lease_renew_after(30000);
		while (now < outage)
			now += rbp_lease_retry_after(++failures, end - now);
		ended += now >= end;
	}
	is_u64(ended, 0, "no outage of up to 29 s ends a lease of 30 s");
}

int
main(void)
{
	test_parse();
	test_refuse();
	test_truncated();
	test_compare_and_forget();
	test_known();
	test_large();
	test_surplus();
	test_demands();
	test_bodies();
	test_error_text();
	test_broker();
	test_clock();
	return done_testing();
}
