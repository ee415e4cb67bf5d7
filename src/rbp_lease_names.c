/*-------------------------------------------------------------------------
 *
 * rbp_lease_names.c
 *	  Names: who this server is to the broker, and where donors are.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <sys/stat.h>
#include <unistd.h>

#include "access/xlog.h"
#include "common/hashfn.h"
#include "miscadmin.h"
#include "storage/fd.h"

#include "rbp_lease_names.h"

/* How long a host's address is kept, and that it has none */
#define RESOLVED_NS			INT64CONST(60000000000)
#define UNRESOLVED_NS		INT64CONST(5000000000)

void
rbp_lease_client_name(char name[RBP_DONOR_ID_LEN])
{
	struct
	{
		uint64		system_identifier;
		uint64		device;
		uint64		inode;
		char		host[256];
		char		machine[64];
	}			identity;
	struct stat st;
	FILE	   *file;
	char		readable[33];
	int			n = 0;

	memset(&identity, 0, sizeof(identity));
	identity.system_identifier = GetSystemIdentifier();
	if (stat(DataDir, &st) == 0)
	{
		identity.device = (uint64) st.st_dev;
		identity.inode = (uint64) st.st_ino;
	}
	if (gethostname(identity.host, sizeof(identity.host) - 1) != 0)
		identity.host[0] = '\0';
	/* a clone that was made with care differs in this; not all are */
	file = AllocateFile("/etc/machine-id", "r");
	if (file != NULL)
	{
		if (fgets(identity.machine, sizeof(identity.machine), file) == NULL)
			identity.machine[0] = '\0';
		FreeFile(file);
	}

	for (const char *p = identity.host; *p != '\0' && n < sizeof(readable) - 1; p++)
	{
		if ((*p >= 'a' && *p <= 'z') || (*p >= 'A' && *p <= 'Z') ||
			(*p >= '0' && *p <= '9') || *p == '-' || *p == '.' || *p == '_')
			readable[n++] = *p;
	}
	readable[n] = '\0';
	snprintf(name, RBP_DONOR_ID_LEN, "pg-%s-%016" INT64_MODIFIER "x",
			 n > 0 ? readable : "host",
			 hash_bytes_extended((const unsigned char *) &identity,
								 sizeof(identity), 0));
}

bool
rbp_lease_instance(char instance[RBP_LEASE_INSTANCE_LEN])
{
	uint8		b[16];

	if (!pg_strong_random(b, sizeof(b)))
		return false;
	b[6] = (b[6] & 0x0f) | 0x40;
	b[8] = (b[8] & 0x3f) | 0x80;
	snprintf(instance, RBP_LEASE_INSTANCE_LEN,
			 "%s/%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-"
			 "%02x%02x%02x%02x%02x%02x",
			 rbp_transport_boot_id(),
			 b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7],
			 b[8], b[9], b[10], b[11], b[12], b[13], b[14], b[15]);
	return true;
}

/*
 * Put a numeric address in the place of a donor's name, in host[RBP_HOST_LEN].
 * Answers are kept for a while, failures for a shorter one; a host that has
 * no address keeps the last one that it had, or its name.
 */
static void
resolve_host(const char *donor, char *host)
{
	static struct
	{
		char		name[RBP_HOST_LEN];
		char		numeric[RBP_HOST_LEN];
		int64		until;
	}			cache[2 * RBP_MAX_DONORS];	/* host and rdma_host */
	int64		now = rbp_now_ns();
	int			place = 0;

	if (host[0] == '\0')
		return;
	for (int c = 0; c < lengthof(cache); c++)
	{
		if (strcmp(cache[c].name, host) == 0)
		{
			place = c;
			break;
		}
		if (cache[c].until < cache[place].until)
			place = c;
	}
	if (strcmp(cache[place].name, host) != 0 || cache[place].until < now)
	{
		char		numeric[RBP_HOST_LEN];
		bool		had = strcmp(cache[place].name, host) == 0;

		if (rbp_transport_resolve(host, numeric))
		{
			strlcpy(cache[place].numeric, numeric, RBP_HOST_LEN);
			cache[place].until = now + RESOLVED_NS;
		}
		else
		{
			ereport(LOG,
					(errmsg("remote_bp: no address for donor \"%s\", host \"%s\"",
							donor, host)));
			/* the last one that it had is better than none */
			if (!had)
				strlcpy(cache[place].numeric, host, RBP_HOST_LEN);
			cache[place].until = now + UNRESOLVED_NS;
		}
		strlcpy(cache[place].name, host, RBP_HOST_LEN);
	}
	memset(host, 0, RBP_HOST_LEN);	/* endpoints are compared as bytes */
	strlcpy(host, cache[place].numeric, RBP_HOST_LEN);
}

void
rbp_lease_resolve_donors(RbpLease *lease)
{
	for (int i = 0; i < lease->ndonors; i++)
	{
		RbpEndpoint *ep = &lease->donors[i];

		resolve_host(ep->donor, ep->host);
		resolve_host(ep->donor, ep->rdma_host);
	}
}
