/*-------------------------------------------------------------------------
 *
 * fault.c
 *	  Faults on demand, around any transport; linked into test builds.
 *
 * In a test build the entries of rbp_transports are wrapped when the
 * environment variable RBP_FAULT_FILE names a file as the process starts.  Tests write that
 * file while everything runs; each process looks at it anew once in 5 ms, at
 * its next call.  A file that is missing or empty means no faults.  Replace
 * it by rename(), so that nobody reads half of it.
 *
 * A line is
 *
 *		[TRANSPORT] [donor ID] [read | write | ping | connect | register]
 *			FAULT [NUMBER] [PROBABILITY]
 *
 * The first words limit it to one transport, shm for example, to one donor,
 * and to such requests; else it is for all transports and donors, for reads,
 * writes and pings.
 * The probability, 0 to 1, is for each request; without it, always.
 * '#' starts a comment.  FAULT is
 *
 *		delay_us NUMBER	the answer takes that much longer
 *		drop			no answer ever comes
 *		corrupt			one byte is changed: of what was read, or of what
 *						reaches the donor
 *		truncate		only the first half is read (the rest of the buffer
 *						becomes 0xEE) or written
 *		deny			RBP_DENIED, as if the lease had ended
 *		cut				the connection breaks, with all that is in flight
 *		seed NUMBER		of the random numbers; default: differs each time
 *
 * and, for connect only, "refuse" (RBP_CONNLOST at once), "drop" (never
 * comes about), "deny" and "delay_us NUMBER"; and after the word register,
 * "refuse" (RBP_NOMEM, as if memory could not be pinned).  A line that cannot
 * be understood is reported on stderr, once for each version of the file.
 *
 * No connection is known to lead to this host, so that pages are sealed as those for other hosts are.
 *
 * Transports named in the environment variable RBP_FAULT_COSTLY say that their
 * connections are costly, so that what follows from that can be tested where
 * there is no RDMA.
 *
 *-------------------------------------------------------------------------
 */

#include "common/clock.h"
#include "common/status.h"
#include "test/fault/fault.h"
#include "transport/transport.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define LOOK_NS		5000000
#define MAX_RULES	32

typedef enum FaultKind
{
	FAULT_DELAY,
	FAULT_DROP,
	FAULT_CORRUPT,
	FAULT_TRUNCATE,
	FAULT_DENY,
	FAULT_CUT,
	FAULT_REFUSE
} FaultKind;

#define ON_CONNECT	8			/* beside 1 << RbpIoKind */
#define ON_REGISTER	16
#define ON_ANY_IO	7

typedef struct Rule
{
	uint32_t	transport;		/* RBP_TRANSPORT_*, 0 for all */
	char		donor[RBP_DONOR_ID_LEN];	/* "" for all */
	unsigned int on;
	FaultKind	kind;
	uint64_t	number;
	double		probability;
} Rule;

/* The rules in force, and the version of the file that they are from. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static Rule rules[MAX_RULES];
static int	nrules;
static int64_t looked_at;
static struct stat version;
static uint64_t random_state;

/* One request: the caller's, and the one that the inner transport sees. */
typedef struct FaultIo
{
	RbpIo		inner;
	void	   *copy;			/* of a write's bytes, changed; or NULL */
	int64_t		due;			/* the answer may not come before */
	bool		drop;
	bool		corrupt;
	bool		truncate;
	struct FaultIo *prev,
			   *next;
} FaultIo;

typedef struct FaultConn
{
	RbpConn		base;
	RbpConn    *inner;
	const RbpTransportOps *ops; /* of inner */
	char		donor[RBP_DONOR_ID_LEN];
	bool		cut;
	bool		connect_drop;
	bool		connect_deny;
	int64_t		connect_due;
	FaultIo    *ios;			/* those not waited for yet */
} FaultConn;

/* under lock */
static double
random_fraction(void)
{
	if (random_state == 0)
		random_state = (uint64_t) rbp_now_ns() * 2654435761u + (uint64_t) getpid() + 1;
	random_state ^= random_state << 13;
	random_state ^= random_state >> 7;
	random_state ^= random_state << 17;
	return (double) (random_state >> 11) / (double) (UINT64_C(1) << 53);
}

static bool
parse_rule(char *line, Rule *rule)
{
	static const struct
	{
		const char *name;
		FaultKind	kind;
		bool		number;
	}			kinds[] = {
		{"delay_us", FAULT_DELAY, true}, {"drop", FAULT_DROP, false},
		{"corrupt", FAULT_CORRUPT, false}, {"truncate", FAULT_TRUNCATE, false},
		{"deny", FAULT_DENY, false}, {"cut", FAULT_CUT, false},
		{"refuse", FAULT_REFUSE, false},
	};
	char	   *save = NULL;
	char	   *word = strtok_r(line, " \t\n", &save);
	char	   *end;

	rule->transport = 0;
	rule->donor[0] = '\0';
	if (word != NULL && rbp_transport_by_name(word) != NULL)
	{
		rule->transport = rbp_transport_by_name(word)->bit;
		word = strtok_r(NULL, " \t\n", &save);
	}
	if (word != NULL && strcmp(word, "donor") == 0)
	{
		word = strtok_r(NULL, " \t\n", &save);
		if (word == NULL || strlen(word) >= sizeof(rule->donor))
			return false;
		strcpy(rule->donor, word);
		word = strtok_r(NULL, " \t\n", &save);
	}
	if (word == NULL)
		return false;
	rule->on = strcmp(word, "read") == 0 ? 1 << RBP_IO_READ
		: strcmp(word, "write") == 0 ? 1 << RBP_IO_WRITE
		: strcmp(word, "ping") == 0 ? 1 << RBP_IO_PING
		: strcmp(word, "connect") == 0 ? ON_CONNECT
		: strcmp(word, "register") == 0 ? ON_REGISTER : 0;
	if (rule->on != 0)
		word = strtok_r(NULL, " \t\n", &save);
	else
		rule->on = ON_ANY_IO;
	rule->number = 0;
	rule->probability = 1.0;
	for (size_t i = 0; word != NULL && i < sizeof(kinds) / sizeof(kinds[0]); i++)
	{
		if (strcmp(word, kinds[i].name) != 0)
			continue;
		rule->kind = kinds[i].kind;
		word = strtok_r(NULL, " \t\n", &save);
		if (kinds[i].number)
		{
			if (word == NULL)
				return false;
			rule->number = strtoull(word, &end, 10);
			if (*end != '\0')
				return false;
			word = strtok_r(NULL, " \t\n", &save);
		}
		if (word != NULL)
		{
			rule->probability = strtod(word, &end);
			if (*end != '\0')
				return false;
		}
		return strtok_r(NULL, " \t\n", &save) == NULL;
	}
	return false;
}

/* under lock */
static void
read_rules(const char *path)
{
	FILE	   *f = fopen(path, "re");
	char		line[256];

	nrules = 0;
	if (f == NULL)
		return;
	while (fgets(line, sizeof(line), f) != NULL)
	{
		char		copy[256];

		line[strcspn(line, "#\n")] = '\0';
		if (line[strspn(line, " \t")] == '\0')
			continue;
		strcpy(copy, line);
		if (strncmp(copy, "seed ", 5) == 0)
			random_state = strtoull(copy + 5, NULL, 10);
		else if (nrules < MAX_RULES && parse_rule(copy, &rules[nrules]))
			nrules++;
		else
			fprintf(stderr, "RBP_FAULT_FILE: cannot understand \"%s\"\n", line);
	}
	fclose(f);
}

static void
look_at_file(void)
{
	const char *path = getenv("RBP_FAULT_FILE");
	int64_t		now = rbp_now_ns();
	struct stat st;

	if (path == NULL || now - looked_at < LOOK_NS)
		return;
	looked_at = now;
	if (stat(path, &st) != 0)
		memset(&st, 0, sizeof(st));
	if (st.st_ino == version.st_ino && st.st_size == version.st_size &&
		st.st_mtim.tv_sec == version.st_mtim.tv_sec &&
		st.st_mtim.tv_nsec == version.st_mtim.tv_nsec)
		return;
	version = st;
	read_rules(path);
}

/*
 * The faults for one request or connect to a donor over a transport, as bits
 * 1 << FaultKind; *delay_us is the sum of the delays.
 */
static unsigned int
draw(uint32_t transport, const char *donor, unsigned int on, uint64_t *delay_us)
{
	unsigned int faults = 0;

	*delay_us = 0;
	pthread_mutex_lock(&lock);
	look_at_file();
	for (int i = 0; i < nrules; i++)
	{
		if ((rules[i].on & on) == 0 ||
			(rules[i].transport != 0 && rules[i].transport != transport) ||
			(rules[i].donor[0] != '\0' && strcmp(rules[i].donor, donor) != 0) ||
			random_fraction() >= rules[i].probability)
			continue;
		faults |= 1u << rules[i].kind;
		if (rules[i].kind == FAULT_DELAY)
			*delay_us += rules[i].number;
	}
	pthread_mutex_unlock(&lock);
	return faults;
}

/* False if the wait was given up before. */
static bool
sleep_until(int64_t when)
{
	for (int64_t now = rbp_now_ns(); now < when; now = rbp_now_ns())
	{
		int64_t		left = when - now < RBP_GIVE_UP_NS ? when - now : RBP_GIVE_UP_NS;
		struct timespec ts = {.tv_nsec = left};

		if (rbp_transport_give_up())
			return false;
		(void) nanosleep(&ts, NULL);
	}
	return true;
}

static RbpStatus
wrap_connect(const RbpTransportOps *ops, const RbpTransportOps *wrapper,
			 const RbpEndpoint *ep, const RbpCredentials *cred, RbpConn **out)
{
	uint64_t	delay_us;
	unsigned int faults = draw(ops->bit, ep->donor, ON_CONNECT, &delay_us);
	FaultConn  *conn;
	RbpStatus	status;

	if (faults & 1u << FAULT_REFUSE)
		return RBP_CONNLOST;
	conn = calloc(1, sizeof(*conn));
	if (conn == NULL)
		return RBP_NOMEM;
	conn->base.ops = wrapper;
	conn->ops = ops;
	memcpy(conn->donor, ep->donor, sizeof(conn->donor));
	conn->connect_drop = (faults & 1u << FAULT_DROP) != 0;
	conn->connect_deny = (faults & 1u << FAULT_DENY) != 0;
	conn->connect_due = delay_us > 0 ? rbp_now_ns() + (int64_t) delay_us * 1000 : 0;
	status = ops->connect(ep, cred, &conn->inner);
	if (status != RBP_OK)
	{
		free(conn);
		return status;
	}
	*out = &conn->base;
	return RBP_OK;
}

static RbpStatus
fault_connect_wait(RbpConn *base, int64_t deadline_ns)
{
	FaultConn  *conn = (FaultConn *) base;

	if (conn->connect_deny)
		return RBP_DENIED;
	if (conn->connect_drop ||
		(conn->connect_due > 0 && conn->connect_due > deadline_ns))
	{
		(void) sleep_until(deadline_ns);
		return RBP_INPROGRESS;
	}
	if (!sleep_until(conn->connect_due))
		return RBP_INPROGRESS;
	return conn->ops->connect_wait(conn->inner, deadline_ns);
}

static RbpStatus
fault_register_memory(RbpConn *base, void *at, size_t len, RbpMr **mr)
{
	FaultConn  *conn = (FaultConn *) base;
	uint64_t	delay_us;

	if (draw(conn->ops->bit, conn->donor, ON_REGISTER, &delay_us) & 1u << FAULT_REFUSE)
		return RBP_NOMEM;
	if (conn->ops->register_memory != NULL)
		return conn->ops->register_memory(conn->inner, at, len, mr);
	*mr = (RbpMr *) conn;		/* the device of a transport that plays costly */
	return RBP_OK;
}

static void
fault_deregister_memory(RbpConn *base, RbpMr *mr)
{
	FaultConn  *conn = (FaultConn *) base;

	if (conn->ops->deregister_memory != NULL)
		conn->ops->deregister_memory(conn->inner, mr);
}

static void
free_io(FaultConn *conn, FaultIo *f)
{
	if (f->prev != NULL)
		f->prev->next = f->next;
	else
		conn->ios = f->next;
	if (f->next != NULL)
		f->next->prev = f->prev;
	free(f->copy);
	free(f);
}

static RbpStatus
submit_one(FaultConn *conn, RbpIo *io)
{
	uint64_t	delay_us;
	bool		known = (unsigned int) io->kind <= RBP_IO_PING;
	unsigned int faults = draw(conn->ops->bit, conn->donor, known ? 1u << io->kind : 0, &delay_us);
	FaultIo    *f;

	io->cookie = 0;
	if (faults & 1u << FAULT_CUT)
		conn->cut = true;
	if (conn->cut)
		return RBP_CONNLOST;
	if (faults & 1u << FAULT_DENY)
		return RBP_DENIED;

	f = calloc(1, sizeof(*f));
	if (f == NULL)
		return RBP_NOMEM;
	f->inner = *io;
	f->due = delay_us > 0 ? rbp_now_ns() + (int64_t) delay_us * 1000 : 0;
	f->drop = (faults & 1u << FAULT_DROP) != 0;
	f->corrupt = (faults & 1u << FAULT_CORRUPT) != 0;
	f->truncate = (faults & 1u << FAULT_TRUNCATE) != 0 && io->len > 1;
	f->next = conn->ios;
	if (conn->ios != NULL)
		conn->ios->prev = f;
	conn->ios = f;

	if (f->drop)
		f->inner.status = RBP_INPROGRESS;
	else
	{
		if (io->kind == RBP_IO_WRITE && f->truncate)
			f->inner.len /= 2;
		if (io->kind == RBP_IO_WRITE && f->corrupt && io->buf != NULL && io->len > 0)
		{
			f->copy = malloc(io->len);
			if (f->copy == NULL)
			{
				free_io(conn, f);
				return RBP_NOMEM;
			}
			memcpy(f->copy, io->buf, io->len);
			((uint8_t *) f->copy)[f->inner.len / 2] ^= 0x10;
			f->inner.buf = f->copy;
		}
		(void) conn->ops->submit(conn->inner, &f->inner, 1);
	}
	io->cookie = (uint64_t) (uintptr_t) f;
	return RBP_INPROGRESS;
}

static RbpStatus
fault_submit(RbpConn *base, RbpIo *ios, int n)
{
	FaultConn  *conn = (FaultConn *) base;

	for (int i = 0; i < n; i++)
		ios[i].status = submit_one(conn, &ios[i]);
	if (conn->cut)
	{
		for (int i = 0; i < n; i++)
		{
			FaultIo    *f = (FaultIo *) (uintptr_t) ios[i].cookie;

			/* the inner transport must forget the request, too */
			if (f != NULL)
			{
				if (f->inner.status == RBP_INPROGRESS && !f->drop)
					(void) conn->ops->wait(conn->inner, &f->inner, 1, 0);
				free_io(conn, f);
			}
			ios[i].cookie = 0;
			ios[i].status = RBP_CONNLOST;
		}
		return RBP_CONNLOST;
	}
	return RBP_OK;
}

static void
wait_one(FaultConn *conn, RbpIo *io, int64_t deadline_ns)
{
	FaultIo    *f = (FaultIo *) (uintptr_t) io->cookie;

	if (io->status != RBP_INPROGRESS || f == NULL)
		return;
	if (f->drop)
	{
		(void) sleep_until(deadline_ns);
		f->inner.status = RBP_TIMEOUT;
	}
	else if (f->inner.status == RBP_INPROGRESS)
		(void) conn->ops->wait(conn->inner, &f->inner, 1, deadline_ns);
	if (f->due > deadline_ns)
	{
		(void) sleep_until(deadline_ns);
		f->inner.status = RBP_TIMEOUT;
	}
	else if (!sleep_until(f->due))
		f->inner.status = RBP_TIMEOUT;

	if (f->inner.status == RBP_OK && io->kind == RBP_IO_READ)
	{
		uint8_t    *bytes = io->buf;

		if (f->truncate)
			memset(bytes + io->len / 2, 0xEE, io->len - io->len / 2);
		if (f->corrupt)
			bytes[io->len / 3] ^= 0x10;
	}
	io->status = conn->cut ? RBP_CONNLOST : f->inner.status;
	io->cookie = 0;
	free_io(conn, f);
}

static RbpStatus
fault_wait(RbpConn *base, RbpIo *ios, int n, int64_t deadline_ns)
{
	FaultConn  *conn = (FaultConn *) base;
	RbpStatus	result = RBP_OK;

	for (int i = 0; i < n; i++)
	{
		wait_one(conn, &ios[i], deadline_ns);
		if (result == RBP_OK)
			result = ios[i].status;
	}
	return result;
}

static void
fault_close(RbpConn *base)
{
	FaultConn  *conn = (FaultConn *) base;

	if (conn == NULL)
		return;
	conn->ops->close(conn->inner);
	while (conn->ios != NULL)
		free_io(conn, conn->ios);
	free(conn);
}

/* A table for each transport, since connect() and usable() get no context. */
#define WRAPPER(which) \
static RbpStatus \
which##_connect(const RbpEndpoint *ep, const RbpCredentials *cred, RbpConn **conn); \
static bool \
which##_usable(const RbpEndpoint *ep) \
{ \
	return rbp_transport_##which.usable(ep); \
} \
static RbpTransportOps wrapped_##which = { \
	.usable = which##_usable, \
	.connect = which##_connect, \
	.connect_wait = fault_connect_wait, \
	.register_memory = fault_register_memory, \
	.deregister_memory = fault_deregister_memory, \
	.submit = fault_submit, \
	.wait = fault_wait, \
	.close = fault_close, \
}; \
static RbpStatus \
which##_connect(const RbpEndpoint *ep, const RbpCredentials *cred, RbpConn **conn) \
{ \
	return wrap_connect(&rbp_transport_##which, &wrapped_##which, ep, cred, conn); \
}

WRAPPER(shm)
WRAPPER(verbs)
WRAPPER(tcp)

/* The device of a transport that plays costly, which is always there. */
static void
configure(const RbpDeviceConfig *config)
{
}

static bool
yes(void)
{
	return true;
}

static const char *
no_error(void)
{
	return NULL;
}

static const RbpTransportDevice played_device = {
	.name = "RDMA",.configure = configure,.present = yes,.usable = yes,.load_error = no_error
};

const RbpTransportOps *
rbp_fault_wrap(const RbpTransportOps *ops)
{
	RbpTransportOps *wrapped = ops == &rbp_transport_shm ? &wrapped_shm
	: ops == &rbp_transport_verbs ? &wrapped_verbs
	: ops == &rbp_transport_tcp ? &wrapped_tcp : NULL;
	const char *costly = getenv("RBP_FAULT_COSTLY");
	const RbpTransportOps *like;

	if (getenv("RBP_FAULT_FILE") == NULL || wrapped == NULL)
		return ops;
	wrapped->name = ops->name;
	wrapped->bit = ops->bit;
	wrapped->one_sided = ops->one_sided;
	wrapped->local = ops->local;
	wrapped->costly = ops->costly ||
		(costly != NULL && strstr(costly, ops->name) != NULL);
	like = wrapped->costly ? &rbp_transport_verbs : ops;
	wrapped->connect_ns = like->connect_ns;
	wrapped->handshake_ns = like->handshake_ns;
	wrapped->device = ops->device != NULL || !wrapped->costly ? ops->device : &played_device;
	/* only what has a device, or plays to have one, registers memory */
	if (!wrapped->costly)
	{
		wrapped->register_memory = NULL;
		wrapped->deregister_memory = NULL;
	}
	return wrapped;
}

/*
 * Whoever is linked with this has faults.  To the rest of the server these are
 * transports like any other: a table and an entry.
 */
__attribute__((constructor))
static void
stand_between(void)
{
	for (int i = 0; rbp_transports[i] != NULL; i++)
		rbp_transports[i] = rbp_fault_wrap(rbp_transports[i]);
}
