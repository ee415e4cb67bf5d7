/*-------------------------------------------------------------------------
 *
 * guc.c
 *	  The settings, remote_bp.*
 *
 * Check hooks refuse bad values with a detail and never raise.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "utils/guc.h"
#include "utils/varlena.h"

#include "base/geometry.h"
#include "base/choice.h"
#include "base/guc.h"
#include "base/injection_point.h"
#include "common/limits.h"
#include "common/urls.h"

/* Their defaults are in the tables below. */
char	   *rbp_guc_broker;
bool		rbp_guc_enabled;
int			rbp_guc_buffer_tier_max_size;
int			rbp_guc_staging_size;
char	   *rbp_guc_transport;
char	   *rbp_guc_token_file;
char	   *rbp_guc_broker_ca_file;
char	   *rbp_guc_client_name;
int			rbp_guc_lease_ttl;
int			rbp_guc_keep_time;
bool		rbp_guc_compare_with_disk;
int			rbp_guc_read_from;
int			rbp_guc_use_tier;
int			rbp_guc_warm_restart;
int			rbp_guc_encrypt;
int			rbp_guc_policy_interval;
char	   *rbp_guc_exclude_tablespaces;
int			rbp_guc_read_ahead;
int			rbp_guc_max_connections;
char	   *rbp_guc_rdma_device;
int			rbp_guc_rdma_port;
int			rbp_guc_rdma_gid_index;
int			rbp_guc_rdma_traffic_class;
int			rbp_guc_rdma_ack_timeout;
int			rbp_guc_rdma_retry_count;
uint32		rbp_guc_connect_settings_version = 0;
int			rbp_guc_temp_tier_max_size;
int			rbp_guc_temp_tier_size;
int			rbp_guc_temp_staging_size;
bool		rbp_guc_temp_mirror;
bool		rbp_guc_spill_temp_files;
bool		rbp_guc_spill_temp_tables;
int			rbp_guc_relations_max;
int			rbp_guc_statements_max;

char	   *rbp_guc_follow;
int			rbp_guc_follow_interval;
int			rbp_guc_follow_rate;

bool		rbp_guc_advice;
int			rbp_guc_advice_max_size;

static int	buffer_tier_size;	/* MB; 0 gives all back, -1: the maximum */
static double io_timeout;		/* ms */
static int	idle_connection_timeout;	/* s */
static int	temp_io_timeout;	/* ms */
static int	keep_max_size;		/* MB */
static int	database_limit;		/* MB; never read: the setting is there for
								 * ALTER DATABASE, whose values
								 * policy/server.c reads in the catalog */

static const struct config_enum_entry use_tier_choices[] = {
	{"on", RBP_USE_TIER_ON, false},
	{"read", RBP_USE_TIER_READ, false},
	{"off", RBP_USE_TIER_OFF, false},
	{NULL, 0, false}
};

static const struct config_enum_entry read_from_choices[] = {
	{"auto", RBP_READ_AUTO, false},
	{"donor", RBP_READ_DONOR, false},
	{"file", RBP_READ_FILE, false},
	/* for tests and benchmarks */
	{"cache", RBP_READ_CACHE, true},
	{NULL, 0, false}
};

static const struct config_enum_entry warm_restart_choices[] = {
	{"on", RBP_WARM_RESTART_ON, false},
	{"crash", RBP_WARM_RESTART_CRASH, false},
	{"off", RBP_WARM_RESTART_OFF, false},
	{NULL, 0, false}
};

static const struct config_enum_entry encrypt_choices[] = {
	{"auto", RBP_ENCRYPT_AUTO, false},
	{"on", RBP_ENCRYPT_ON, false},
	{"off", RBP_ENCRYPT_OFF, false},
	{NULL, 0, false}
};

/* The longest name of an RDMA device: the kernel's IB_DEVICE_NAME_MAX. */
#define DEVICE_NAME_MAX		64

static bool
check_broker(char **newval, void **extra, GucSource source)
{
	if ((*newval)[0] == '\0' || rbp_urls_valid(*newval))
		return true;
	GUC_check_errdetail("A broker's URL looks like \"https://host:port\"; several are separated by commas.");
	return false;
}

/* Set by rbp_guc_init(), since base/ must not call transport/. */
static bool (*is_transport) (const char *name) = NULL;

static bool
check_transport(char **newval, void **extra, GucSource source)
{
	if (strcmp(*newval, "auto") == 0 || is_transport(*newval))
		return true;
	GUC_check_errdetail("The transports are \"auto\", \"shm\", \"verbs\" and \"tcp\".");
	return false;
}

/* The maximum was defined before, see ints[]. */
static bool
check_size(int size, int max_size, const char *name)
{
	if (size <= max_size)
		return true;
	GUC_check_errdetail("remote_bp.%s_size must not be greater than remote_bp.%s_max_size (%d MB).",
						name, name, max_size);
	return false;
}

static bool
check_tier_size(int *newval, void **extra, GucSource source)
{
	return check_size(*newval, rbp_guc_buffer_tier_max_size, "buffer_tier");
}

static bool
check_temp_tier_size(int *newval, void **extra, GucSource source)
{
	return check_size(*newval, rbp_guc_temp_tier_max_size, "temp_tier");
}

static bool
check_pages(int *newval, void **extra, GucSource source)
{
	if (*newval % (BLCKSZ / 1024) == 0)
		return true;
	GUC_check_errdetail("The value must be a multiple of %d kB, the size of a page.", BLCKSZ / 1024);
	return false;
}

static bool
check_tablespaces(char **newval, void **extra, GucSource source)
{
	char	   *copy = pstrdup(*newval);
	List	   *names;
	bool		good = SplitIdentifierString(copy, ',', &names);

	if (!good)
		GUC_check_errdetail("List syntax is invalid.");
	else
		list_free(names);
	pfree(copy);
	return good;
}

/* As donors' names are, and with slashes. */
static bool
check_client_name(char **newval, void **extra, GucSource source)
{
	const char *name = *newval;

	if (name[0] == '\0' ||
		(strlen(name) < RBP_DONOR_ID_LEN && name[0] != '-' && name[0] != '.' &&
		 name[strspn(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._:-/")] == '\0'))
		return true;
	GUC_check_errdetail("A name has letters, digits and . _ : - /, at most %d, and begins with neither . nor -.",
						RBP_DONOR_ID_LEN - 1);
	return false;
}

static bool
check_rdma_device(char **newval, void **extra, GucSource source)
{
	const char *name = *newval;

	if (strlen(name) >= DEVICE_NAME_MAX)
	{
		GUC_check_errdetail("The name of an RDMA device is shorter than %d bytes.",
							DEVICE_NAME_MAX);
		return false;
	}
	if (name[0] == '.' || strpbrk(name, "/ \t\r\n") != NULL)
	{
		GUC_check_errdetail("The value must be the name of an RDMA device, such as \"mlx5_0\", and not of a file.");
		GUC_check_errhint("\"rdma link\" lists the devices.");
		return false;
	}
	return true;
}

/*
 * Changing one of these settings makes the connections to donors obsolete: a
 * connection that was made under another version is closed.  A reload assigns
 * every setting in the file, whether its value changes or not, so the old value
 * is compared.
 */
#define ASSIGN_STRING(name) \
static void \
assign_##name(const char *newval, void *extra) \
{ \
	if (rbp_guc_##name == NULL || strcmp(newval, rbp_guc_##name) != 0) \
		rbp_guc_connect_settings_version++; \
}

#define ASSIGN_INT(name) \
static void \
assign_##name(int newval, void *extra) \
{ \
	if (newval != rbp_guc_##name) \
		rbp_guc_connect_settings_version++; \
}

ASSIGN_STRING(transport)
ASSIGN_STRING(rdma_device)
ASSIGN_INT(rdma_port)
ASSIGN_INT(rdma_gid_index)
ASSIGN_INT(rdma_traffic_class)
ASSIGN_INT(rdma_ack_timeout)
ASSIGN_INT(rdma_retry_count)

static const struct
{
	const char *name;
	bool	   *variable;
	bool		initial;
	GucContext	context;
	int			flags;
	const char *text;
	const char *detail;
}			bools[] = {

	{"remote_bp.enabled", &rbp_guc_enabled, true,
		PGC_SIGHUP, 0,
		"Serves page reads from remote memory, and stores evicted pages there.",
	"Turning it off keeps the leases and the stored pages."},
	{"remote_bp.compare_with_disk", &rbp_guc_compare_with_disk, false,
		PGC_SUSET, 0,
		"Compares every page from remote memory with the disk.",
	"A difference is logged and counted, and the page on disk is used."},
	{"remote_bp.temp_mirror", &rbp_guc_temp_mirror, false,
		PGC_USERSET, 0,
		"Stores temporary data on two donors.",
	"Blocks for which there is no second donor go to the file on disk."},
	{"remote_bp.spill_temp_files", &rbp_guc_spill_temp_files, true,
		PGC_USERSET, 0,
	"Stores new blocks of temporary files on donors."},
	{"remote_bp.spill_temp_tables", &rbp_guc_spill_temp_tables, false,
		PGC_USERSET, 0,
	"Stores evicted blocks of temporary tables on donors, too."},
	{"remote_bp.advice", &rbp_guc_advice, false,
		PGC_SIGHUP, 0,
		"Observes reads to estimate how large the tier should be; see remote_bp_advice.",
	"This works without a broker, too."},
};

/* A maximum comes before the size that it limits, whose check looks at it. */
static const struct
{
	const char *name;
	int		   *variable;
	int			initial;
	int			least;
	int			most;
	GucContext	context;
	int			flags;
	const char *text;
	const char *detail;
	GucIntCheckHook check;
	GucIntAssignHook assign;
}			ints[] = {

	{"remote_bp.buffer_tier_max_size", &rbp_guc_buffer_tier_max_size, 1024, 1, 16 * 1024 * 1024,
		PGC_POSTMASTER, GUC_UNIT_MB,
		"Sets the maximum of remote_bp.buffer_tier_size.",
	"The page directory takes some 54 bytes of shared memory for each 8 kB, 14 more for what may be encrypted."},
	{"remote_bp.buffer_tier_size", &buffer_tier_size, -1, -1, 16 * 1024 * 1024,
		PGC_SIGHUP, GUC_UNIT_MB,
		"Sets the remote memory that is leased for the buffer tier.",
		"0 gives all memory back; -1 means remote_bp.buffer_tier_max_size.",
	.check = check_tier_size},
	{"remote_bp.staging_size", &rbp_guc_staging_size, 4096, 128, 4 * 1024 * 1024,
		PGC_POSTMASTER, GUC_UNIT_KB,
		"Sets the pinned shared memory in which evicted pages wait to be written to donors.",
	.check = check_pages},
	{"remote_bp.lease_ttl", &rbp_guc_lease_ttl, 30000, 2000, 3600 * 1000,
		PGC_SIGHUP, GUC_UNIT_MS,
	"Sets the time for which leased memory can be used without a renewal."},
	{"remote_bp.keep_time", &rbp_guc_keep_time, 1800, 0, 24 * 3600,
		PGC_SIGHUP, GUC_UNIT_S,
		"Sets the time for which donors keep the buffer tier's pages after that.",
	"Nobody else gets that memory meanwhile, unless it is asked back."},
	{"remote_bp.keep_max_size", &keep_max_size, -1, -1, 16 * 1024 * 1024,
		PGC_SIGHUP, GUC_UNIT_MB,
		"Sets the maximum memory for relations that are kept in the tier.",
	"-1 means half of the memory of the tier."},
	{"remote_bp.policy_interval", &rbp_guc_policy_interval, 60, 1, 24 * 3600,
		PGC_SIGHUP, GUC_UNIT_S,
	"Sets the interval between reviews of policies, if no event triggers one."},
	{"remote_bp.database_limit", &database_limit, -1, -1, 16 * 1024 * 1024,
		PGC_SUSET, GUC_UNIT_MB,
		"The most memory of the tier for a database; -1 for no limit.",
	"Only for ALTER DATABASE; see remote_bp_set_database_limit()."},
	{"remote_bp.read_ahead", &rbp_guc_read_ahead, 64, 0, RBP_READ_AHEAD_MAX,
		PGC_USERSET, 0,
		"Sets the number of pages that are read ahead at once where a relation is read in order.",
	"0 turns reading ahead off."},
	{"remote_bp.max_connections", &rbp_guc_max_connections, 200, 1, 10000,
		PGC_SIGHUP, 0,
		"Sets the maximum number of connections of this server's backends to one donor.",
	"A backend beyond it reads from disk."},
	{"remote_bp.idle_connection_timeout", &idle_connection_timeout, 300, 0, 7 * 24 * 3600,
		PGC_SIGHUP, GUC_UNIT_S,
		"Closes connections to donors that were not used for this long.",
	"0 keeps them."},
	{"remote_bp.rdma_port", &rbp_guc_rdma_port, 0, 0, 255,
		PGC_SIGHUP, 0,
		"Sets the port of the RDMA device, from 1; 0 for any.",
	.assign = assign_rdma_port},
	{"remote_bp.rdma_gid_index", &rbp_guc_rdma_gid_index, -1, -1, 65535,
		PGC_SIGHUP, 0,
		"Sets the entry of the port's GID table to connect from; -1 for that of the route.",
	.assign = assign_rdma_gid_index},
	{"remote_bp.rdma_traffic_class", &rbp_guc_rdma_traffic_class, -1, -1, 255,
		PGC_SIGHUP, 0,
		"Sets the traffic class of RDMA packets; -1 for the default of the system.",
	.assign = assign_rdma_traffic_class},
	{"remote_bp.rdma_ack_timeout", &rbp_guc_rdma_ack_timeout, 10, 1, 31,
		PGC_SIGHUP, 0,
		"Sets the exponent of the time, 4.096 us * 2^value, after which an RDMA packet is sent again.",
	.assign = assign_rdma_ack_timeout},
	{"remote_bp.rdma_retry_count", &rbp_guc_rdma_retry_count, 6, 0, 6,
		PGC_SIGHUP, 0,
		"Sets the number of times that an RDMA packet is sent again before the connection is closed.",
	.assign = assign_rdma_retry_count},
	{"remote_bp.temp_tier_max_size", &rbp_guc_temp_tier_max_size, 1024, 0, 8 * 1024 * 1024,
		PGC_POSTMASTER, GUC_UNIT_MB,
		"Sets the maximum of remote_bp.temp_tier_size.",
	"Tables take some 60 bytes of shared memory for each 8 kB."},
	{"remote_bp.temp_tier_size", &rbp_guc_temp_tier_size, 0, 0, 8 * 1024 * 1024,
		PGC_SIGHUP, GUC_UNIT_MB,
		"Remote memory that is leased for temporary data; 0 for none.",
		"Data there has no other copy, unless remote_bp.temp_mirror is on.",
	.check = check_temp_tier_size},
	{"remote_bp.temp_staging_size", &rbp_guc_temp_staging_size, 8192, 128, 4 * 1024 * 1024,
		PGC_POSTMASTER, GUC_UNIT_KB,
		"Sets the shared memory in which temporary blocks wait until they are on donors.",
	.check = check_pages},
	{"remote_bp.temp_io_timeout", &temp_io_timeout, 5000, 10, 600000,
		PGC_SIGHUP, GUC_UNIT_MS,
	"Sets the maximum time that a query waits for temporary data on a donor that does not answer."},
	{"remote_bp.relations_max", &rbp_guc_relations_max, 10000, 0, RBP_RELATIONS_MAX,
		PGC_POSTMASTER, 0,
		"Sets the maximum number of relation forks in remote_bp_stat_relations.",
	"0 notes nothing for relations and databases."},
	{"remote_bp.statements_max", &rbp_guc_statements_max, 1000, 0, RBP_STATEMENTS_MAX,
		PGC_POSTMASTER, 0,
		"Sets the maximum number of statements in remote_bp_stat_statements.",
	"0 notes no statements."},
	{"remote_bp.follow_interval", &rbp_guc_follow_interval, 60, 1, 24 * 3600,
		PGC_SIGHUP, GUC_UNIT_S,
	"Sets the interval in which the server that is followed is asked for its hot pages."},
	{"remote_bp.follow_rate", &rbp_guc_follow_rate, 20480, 64, 16 * 1024 * 1024,
		PGC_SIGHUP, GUC_UNIT_KB,
	"Sets how much is read in a second of pages that are hot on the server that is followed."},
	{"remote_bp.advice_max_size", &rbp_guc_advice_max_size, 65536, 16, 16 * 1024 * 1024,
		PGC_SIGHUP, GUC_UNIT_MB,
	"Sets the largest size of a tier for which remote_bp_advice gives estimates."},
};

static const struct
{
	const char *name;
	char	  **variable;
	const char *initial;
	GucContext	context;
	int			flags;
	const char *text;
	const char *detail;
	GucStringCheckHook check;
	GucStringAssignHook assign;
}			strings[] = {

	{"remote_bp.broker", &rbp_guc_broker, "",
		PGC_SIGHUP, GUC_SUPERUSER_ONLY,
		"Sets the URLs of the memory brokers, separated by commas; an empty value turns the tier off.",
	.check = check_broker},
	{"remote_bp.transport", &rbp_guc_transport, "auto",
		PGC_SIGHUP, 0,
		"Selects the transport to donors: auto, shm, verbs or tcp.",
	.check = check_transport,.assign = assign_transport},
	{"remote_bp.token_file", &rbp_guc_token_file, "",
		PGC_SIGHUP, GUC_SUPERUSER_ONLY,
	"Sets the file with the credential for the broker; empty for none."},
	{"remote_bp.broker_ca_file", &rbp_guc_broker_ca_file, "",
		PGC_SIGHUP, GUC_SUPERUSER_ONLY,
		"Sets the file with the certificates of the CAs that are believed about the broker; empty for those of the system.",
	"It matters only if the credential has no pin."},
	{"remote_bp.client_name", &rbp_guc_client_name, "",
		PGC_POSTMASTER, 0,
		"Sets the name of this server for the broker; empty for one made from those of machine and data directory.",
	.check = check_client_name},
	{"remote_bp.follow", &rbp_guc_follow, "",
		PGC_SIGHUP, GUC_SUPERUSER_ONLY,
		"Sets the connection string of the server whose hot pages a standby reads into its tier; empty for none.",
	"It has an effect only while the server is in recovery."},
	{"remote_bp.exclude_tablespaces", &rbp_guc_exclude_tablespaces, "",
		PGC_SIGHUP, GUC_LIST_INPUT,
		"Sets the tablespaces whose pages are not stored in the tier, except relations that are kept there.",
	.check = check_tablespaces},
	{"remote_bp.rdma_device", &rbp_guc_rdma_device, "",
		PGC_SIGHUP, 0,
		"Sets the RDMA device; empty for the device of the route to the donor.",
	.check = check_rdma_device,.assign = assign_rdma_device},
};

void
rbp_guc_init(bool (*known_transport) (const char *name))
{
	is_transport = known_transport;

	for (int i = 0; i < lengthof(bools); i++)
		DefineCustomBoolVariable(bools[i].name, bools[i].text, bools[i].detail, bools[i].variable,
								 bools[i].initial, bools[i].context, bools[i].flags,
								 NULL, NULL, NULL);
	for (int i = 0; i < lengthof(ints); i++)
		DefineCustomIntVariable(ints[i].name, ints[i].text, ints[i].detail, ints[i].variable,
								ints[i].initial, ints[i].least, ints[i].most, ints[i].context,
								ints[i].flags, ints[i].check, ints[i].assign, NULL);
	for (int i = 0; i < lengthof(strings); i++)
		DefineCustomStringVariable(strings[i].name, strings[i].text, strings[i].detail,
								   strings[i].variable, strings[i].initial, strings[i].context,
								   strings[i].flags, strings[i].check, strings[i].assign, NULL);
	DefineCustomRealVariable("remote_bp.io_timeout",
							 "Sets the maximum time of one wait for a donor.",
							 "After it, the page is read from disk.",
							 &io_timeout,
							 10.0, 0.1, 10000.0,
							 PGC_SIGHUP, GUC_UNIT_MS,
							 NULL, NULL, NULL);
	DefineCustomEnumVariable("remote_bp.read_from",
							 "Reads pages, and temporary blocks, from donors that have them, or from the file.",
							 "\"auto\" reads what the page cache has from the file, and what it has not from donors unless the disk is faster.",
							 &rbp_guc_read_from,
							 RBP_READ_AUTO, read_from_choices,
							 PGC_USERSET, 0,
							 NULL, NULL, NULL);
	DefineCustomEnumVariable("remote_bp.warm_restart",
							 "Keeps what donors have over a clean restart, and the crash of a backend.",
							 "\"crash\" keeps it over the crash of a backend only.",
							 &rbp_guc_warm_restart,
							 RBP_WARM_RESTART_ON, warm_restart_choices,
							 PGC_POSTMASTER, 0,
							 NULL, NULL, NULL);
	DefineCustomEnumVariable("remote_bp.encrypt",
							 "Encrypts pages and temporary blocks before they go to donors.",
							 "\"auto\" encrypts what goes to other machines, and \"on\" what goes to donors on this machine, too.",
							 &rbp_guc_encrypt,
							 RBP_ENCRYPT_AUTO, encrypt_choices,
							 PGC_POSTMASTER, 0,
							 NULL, NULL, NULL);
	DefineCustomEnumVariable("remote_bp.use_tier",
							 "Uses the tier for the pages that the session reads.",
							 "\"read\" serves pages from the tier, but captures none that the session reads.",
							 &rbp_guc_use_tier,
							 RBP_USE_TIER_ON, use_tier_choices,
							 PGC_USERSET, 0,
							 NULL, NULL, NULL);
#ifdef RBP_INJECTION_POINTS
	DefineCustomStringVariable("remote_bp.injection_point",
							   "Attaches an injection point; in test builds only.",
							   NULL,
							   (char **) &rbp_injection_point,
							   "",
							   PGC_SIGHUP, GUC_NO_SHOW_ALL | GUC_NOT_IN_SAMPLE,
							   NULL, NULL, NULL);
#endif
	MarkGUCPrefixReserved("remote_bp");
}

int
rbp_guc_tier_size_wanted(void)
{
	return buffer_tier_size < 0 ? rbp_guc_buffer_tier_max_size : buffer_tier_size;
}

int
rbp_guc_tier_size_ahead(void)
{
	/* at least a region, as donors make them unless told otherwise */
	return Min(Max(rbp_guc_buffer_tier_max_size / 8, 64), rbp_guc_buffer_tier_max_size);
}

uint64
rbp_guc_keep_max_pages(void)
{
	return keep_max_size < 0 ? RBP_KEEP_HALF :
		(uint64) keep_max_size * (1024 * 1024 / BLCKSZ);
}

int64
rbp_guc_io_timeout_ns(void)
{
	return (int64) (io_timeout * 1000000.0);
}

int64
rbp_guc_idle_timeout_ns(void)
{
	return idle_connection_timeout * INT64CONST(1000000000);
}

int64
rbp_guc_temp_io_timeout_ns(void)
{
	return temp_io_timeout * INT64CONST(1000000);
}
