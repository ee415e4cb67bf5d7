/*-------------------------------------------------------------------------
 *
 * names.c
 *	  The name of this server for the broker, and the addresses of hosts.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/stat.h>
#include <unistd.h>

#include "access/xlog.h"
#include "base/guc.h"
#include "common/clock.h"
#include "common/text.h"
#include "lease/names.h"
#include "lease/plan.h"
#include "remote/remote.h"
#include "transport/transport.h"
#include "common/hashfn.h"
#include "miscadmin.h"
#include "storage/fd.h"

/* When a host is looked up again: with an address that works, and without */
#define RESOLVED_NS			INT64CONST(60000000000)
#define UNRESOLVED_NS		INT64CONST(1000000000)
/* A slower lookup is logged */
#define SLOW_NS				INT64CONST(2000000000)
#define POLL_NS				INT64CONST(10000000)
/* Enough for the libraries that nsswitch.conf may name */
#define LOOKUP_STACK		((size_t) 512 * 1024)

/* Entries reserved for brokers */
#define BROKER_NAMES		4
/* and host and rdma_host of each donor, for two leases */
#define MAX_NAMES			(BROKER_NAMES + 4 * RBP_MAX_DONORS)

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

	if (rbp_guc_client_name[0] != '\0')
	{
		strlcpy(name, rbp_guc_client_name, RBP_DONOR_ID_LEN);
		return;
	}
	memset(&identity, 0, sizeof(identity));
	identity.system_identifier = GetSystemIdentifier();
	if (stat(DataDir, &st) == 0)
	{
		identity.device = (uint64) st.st_dev;
		identity.inode = (uint64) st.st_ino;
	}
	if (gethostname(identity.host, sizeof(identity.host) - 1) != 0)
		identity.host[0] = '\0';
	/* a properly made clone differs in this, but not all are */
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
	snprintf(name, RBP_DONOR_ID_LEN, "pg-%s-%016" PRIx64,
			 n > 0 ? readable : "host",
			 hash_bytes_extended((const unsigned char *) &identity,
								 sizeof(identity), 0));
}

bool
rbp_lease_instance(char instance[RBP_LEASE_INSTANCE_LEN])
{
	unsigned char bytes[16];
	char		uuid[RBP_UUID_LEN];

	if (!pg_strong_random(bytes, sizeof(bytes)))
		return false;
	rbp_uuid4_of(bytes, uuid);
	snprintf(instance, RBP_LEASE_INSTANCE_LEN, "%s/%s", rbp_transport_boot_id(), uuid);
	return true;
}

/*
 * ---- addresses ---------------------------------------------------------
 *
 * A name server may hang, and leases have to be renewed meanwhile.  So each
 * lookup has its own thread, which uses nothing but the name's host, found and
 * lookup, and has all signals blocked, since the server's handlers must not run
 * beside the main thread.  Callers get what is known at that time.  There is
 * only one lookup of a name at a time, so that one that never ends costs one
 * thread, and the name's entry.
 */

typedef enum LookupState
{
	LOOKUP_NONE,				/* the thread, if any, no longer uses the
								 * entry */
	LOOKUP_RUNNING,
	LOOKUP_DONE					/* likewise; the result has not been taken */
} LookupState;

typedef struct HostName
{
	char		host[RBP_HOST_LEN];
	char		addresses[RBP_ADDRESSES_LEN];	/* last known ones, "": none */
	char		found[RBP_ADDRESSES_LEN];	/* result of the lookup */
				_Atomic(LookupState) lookup;
	int64		started;		/* when the last lookup began */
	int64		next_lookup;	/* when the next one is due */
	int64		last_use;
	bool		failed;			/* the last lookup found none */
	bool		failure_logged; /* it was logged that there is none */
	bool		shm_searched;	/* shared memory was searched for one */
} HostName;

static HostName names[MAX_NAMES];

/* Main function of a lookup's thread. */
static void *
look_up(void *arg)
{
	HostName   *name = arg;

	(void) rbp_transport_resolve(name->host, name->found, sizeof(name->found));
	name->lookup = LOOKUP_DONE;
	return NULL;
}

static void
start_lookup(HostName *name)
{
	pthread_attr_t attr;
	pthread_t	thread;
	bool		running = false;
	sigset_t	all;
	sigset_t	before;

	name->started = rbp_now_ns();
	name->next_lookup = name->started + UNRESOLVED_NS;
	name->lookup = LOOKUP_RUNNING;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	if (pthread_attr_init(&attr) == 0)
	{
		pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
		pthread_attr_setstacksize(&attr, LOOKUP_STACK);
		running = pthread_create(&thread, &attr, look_up, name) == 0;
		pthread_attr_destroy(&attr);
	}
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (!running)
	{
		name->lookup = LOOKUP_NONE;
		name->failed = true;
	}
}

/* Take the result of the lookup.  True if it brought news. */
static bool
end_lookup(HostName *name)
{
	bool		failed;
	bool		news;

	if (name->lookup != LOOKUP_DONE)
		return false;
	name->lookup = LOOKUP_NONE;
	failed = name->found[0] == '\0';
	news = failed ? !name->failed : strcmp(name->addresses, name->found) != 0;
	name->failed = failed;
	/* keep earlier addresses rather than none */
	if (!failed)
		strlcpy(name->addresses, name->found, sizeof(name->addresses));
	name->next_lookup = rbp_now_ns() + (failed ? UNRESOLVED_NS : RESOLVED_NS);
	return news;
}

/*
 * Find the host's entry among those from first to end, or create it; NULL if
 * all are in use.
 */
static HostName *
find_name(const char *host, int first, int end)
{
	int64		now = rbp_now_ns();
	HostName   *oldest = NULL;

	for (int i = first; i < end; i++)
	{
		HostName   *name = &names[i];

		if (strcmp(name->host, host) == 0)
		{
			name->last_use = now;
			return name;
		}
		if (name->lookup == LOOKUP_NONE && (oldest == NULL || name->last_use < oldest->last_use))
			oldest = name;
	}
	if (oldest == NULL ||
		(oldest->host[0] != '\0' && now - oldest->last_use < RESOLVED_NS))
		return NULL;
	memset(oldest, 0, sizeof(HostName));
	strlcpy(oldest->host, host, sizeof(oldest->host));
	oldest->last_use = now;
	return oldest;
}

/* Check for known addresses, and start a lookup if one is due. */
static RbpAddressState
get_address(HostName *name)
{
	int64		now = rbp_now_ns();

	if (name == NULL)
		return RBP_ADDRESS_NONE;
	(void) end_lookup(name);
	if (name->lookup == LOOKUP_NONE && now >= name->next_lookup)
		start_lookup(name);
	if (name->addresses[0] != '\0')
		return RBP_ADDRESS_KNOWN;
	return name->failed || now - name->started >= SLOW_NS ?
		RBP_ADDRESS_NONE : RBP_ADDRESS_PENDING;
}

RbpAddressState
rbp_lease_broker_address(const char *host, char addresses[RBP_ADDRESSES_LEN])
{
	HostName   *name = find_name(host, 0, BROKER_NAMES);
	RbpAddressState known = get_address(name);

	if (known == RBP_ADDRESS_KNOWN)
		strlcpy(addresses, name->addresses, RBP_ADDRESSES_LEN);
	return known;
}

/* Its addresses do not work: a lookup is due, unless there has just been one. */
static void
address_failed(HostName *name)
{
	name->next_lookup = Min(name->next_lookup, name->started + UNRESOLVED_NS);
}

void
rbp_lease_address_failed(const char *host)
{
	for (int i = 0; i < BROKER_NAMES; i++)
	{
		if (strcmp(names[i].host, host) == 0)
		{
			address_failed(&names[i]);
			(void) get_address(&names[i]);
		}
	}
}

bool
rbp_lease_lookups_ended(void)
{
	bool		any = false;

	for (int i = 0; i < MAX_NAMES; i++)
	{
		if (end_lookup(&names[i]))
			any = true;
	}
	return any;
}

int64
rbp_lease_lookups_due(int64 now)
{
	int64		due = PG_INT64_MAX;

	for (int i = 0; i < MAX_NAMES; i++)
	{
		/* often at first, when it matters, then less often */
		if (names[i].lookup != LOOKUP_NONE && names[i].addresses[0] == '\0')
			due = Min(due, now + Max((now - names[i].started) / 4, POLL_NS));
	}
	return due;
}

/*
 * Use the address that an earlier lease worker has left in shared memory, of a
 * donor or of its RDMA device, until the name has been looked up.
 */
static void
use_address_in_shm(HostName *name, const char *donor, bool rdma)
{
	RbpDonorInfo *infos;
	int			n;

	name->shm_searched = true;
	infos = rbp_remote_donor_info(&n);
	for (int i = 0; i < n; i++)
	{
		const RbpEndpoint *ep = &infos[i].endpoint;
		const char *host = rdma ? ep->rdma_host : ep->host;

		if (strcmp(ep->donor, donor) == 0 && rbp_transport_is_numeric(host))
			strlcpy(name->addresses, host, sizeof(name->addresses));
	}
	pfree(infos);
}

/*
 * Replace a donor's host[RBP_HOST_LEN] by its first address, or by "".  rdma:
 * it is that of the donor's RDMA device.
 */
static void
resolve_host(const char *donor, char *host, bool rdma)
{
	HostName   *name;
	RbpAddressState known;

	if (host[0] == '\0' || rbp_transport_is_numeric(host))
		return;
	name = find_name(host, BROKER_NAMES, MAX_NAMES);
	if (name != NULL && rbp_remote_donor_is_down(donor))
		address_failed(name);
	known = get_address(name);
	if (known != RBP_ADDRESS_KNOWN && name != NULL && !name->shm_searched)
	{
		use_address_in_shm(name, donor, rdma);
		known = get_address(name);
	}
	if (known == RBP_ADDRESS_NONE && name != NULL && !name->failure_logged)
	{
		name->failure_logged = true;
		ereport(LOG,
				(errmsg("remote_bp: no address yet for host \"%s\" of donor \"%s\"",
						host, donor),
				 errdetail("The donor is not used over this address until its name is resolved.")));
	}
	else if (known == RBP_ADDRESS_KNOWN && name->failure_logged)
	{
		name->failure_logged = false;
		ereport(LOG,
				(errmsg("remote_bp: host \"%s\" of donor \"%s\" has an address",
						host, donor)));
	}
	memset(host, 0, RBP_HOST_LEN);	/* endpoints are compared bytewise */
	if (known == RBP_ADDRESS_KNOWN)
		memcpy(host, name->addresses,
			   Min(strcspn(name->addresses, ","), RBP_HOST_LEN - 1));
}

void
rbp_lease_resolve_donors(RbpLease *lease)
{
	for (int i = 0; i < lease->ndonors; i++)
	{
		RbpEndpoint *ep = &lease->donors[i];

		resolve_host(ep->donor, ep->host, false);
		resolve_host(ep->donor, ep->rdma_host, true);
	}
}
