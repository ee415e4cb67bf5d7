/*-------------------------------------------------------------------------
 *
 * test_lease_names.c
 *	  Donors' addresses, as a lease worker knows them that was started anew
 *	  while no name can be looked up.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <stdlib.h>

#include "access/xlog.h"
#include "common/hashfn.h"
#include "storage/fd.h"

#include "mock_server.h"
#include "lease/names.h"
#include "lease/plan.h"
#include "remote/remote_internal.h"
#include "transport/transport.h"

#include "tap.h"

/* What the worker before this one has left in shared memory. */
static RbpDonorInfo left[1];

RbpDonorInfo *
rbp_remote_donor_info(int *n)
{
	RbpDonorInfo *infos = palloc(sizeof(left));

	memcpy(infos, left, sizeof(left));
	*n = 1;
	return infos;
}

bool
rbp_remote_donor_is_down(const char *donor)
{
	return false;
}

/* The name server knows nobody. */
bool
rbp_transport_resolve(const char *host, char *addresses, size_t len)
{
	return false;
}

bool
rbp_transport_is_numeric(const char *host)
{
	return strspn(host, "0123456789.") == strlen(host) && host[0] != '\0';
}

/* for names of this server, which nobody asks for */
char	   *DataDir = NULL;

uint64
GetSystemIdentifier(void)
{
	return 0;
}

FILE *
AllocateFile(const char *name, const char *mode)
{
	return NULL;
}

int
FreeFile(FILE *file)
{
	return 0;
}

uint64
hash_bytes_extended(const unsigned char *k, int keylen, uint64 seed)
{
	return 0;
}

bool
pg_strong_random(void *buf, size_t len)
{
	return false;
}

const char *
rbp_transport_boot_id(void)
{
	return "";
}

int
main(void)
{
	RbpEndpoint donors[2] = {{.donor = "a",.host = "a.test",.rdma_host = "a-rdma.test"},
	{.donor = "b",.host = "b.test",.rdma_host = "b-rdma.test"}};
	RbpLease	lease = {.ndonors = 2,.donors = donors};

	strlcpy(left[0].endpoint.donor, "a", sizeof(left[0].endpoint.donor));
	strlcpy(left[0].endpoint.host, "10.0.0.1", sizeof(left[0].endpoint.host));
	strlcpy(left[0].endpoint.rdma_host, "10.0.1.1", sizeof(left[0].endpoint.rdma_host));
	rbp_lease_resolve_donors(&lease);
	ok(strcmp(donors[0].host, "10.0.0.1") == 0, "a donor's address is that of before (%s)", donors[0].host);
	ok(strcmp(donors[0].rdma_host, "10.0.1.1") == 0, "so is that of its device (%s)", donors[0].rdma_host);
	ok(donors[1].host[0] == '\0' && donors[1].rdma_host[0] == '\0', "a donor that was not there has none");
	return done_testing();
}
