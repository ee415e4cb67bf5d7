/*-------------------------------------------------------------------------
 *
 * rbp_guc.c
 *	  The settings, remote_bp.*
 *
 * Check hooks refuse bad values with a detail and never raise.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <limits.h>

#include "utils/guc.h"

#include "rbp_guc.h"
#include "rbp_mutation.h"
#include "transport/rbp_transport.h"

char	   *rbp_guc_broker = NULL;
bool		rbp_guc_enabled = true;
int			rbp_guc_buffer_tier_max_size = 1024;
int			rbp_guc_buffer_tier_size = -1;
int			rbp_guc_staging_size = 4096;
char	   *rbp_guc_transport = NULL;
char	   *rbp_guc_token_file = NULL;
int			rbp_guc_lease_ttl = 30000;
bool		rbp_guc_compare_with_disk = false;

static double io_timeout = 10.0;	/* ms */

static bool
check_broker(char **newval, void **extra, GucSource source)
{
	const char *url = *newval;
	const char *host;

	if (url[0] == '\0')
		return true;
	if (strncmp(url, "http://", 7) != 0)
	{
		GUC_check_errdetail("A broker's URL starts with \"http://\".");
		return false;
	}
	host = url + 7;
	if (host[0] == '\0' || host[0] == ':' || host[0] == '/' ||
		strpbrk(url, " \t\r\n\"\\") != NULL)
	{
		GUC_check_errdetail("A broker's URL looks like \"http://host:port\".");
		return false;
	}
	return true;
}

static bool
check_transport(char **newval, void **extra, GucSource source)
{
	if (strcmp(*newval, "auto") == 0 || rbp_transport_by_name(*newval) != NULL)
		return true;
	GUC_check_errdetail("The transports are \"auto\", \"shm\" and \"tcp\".");
	return false;
}

static bool
check_tier_size(int *newval, void **extra, GucSource source)
{
	/* The maximum is defined before this one, so it is known here. */
	if (*newval > rbp_guc_buffer_tier_max_size)
	{
		GUC_check_errdetail("remote_bp.buffer_tier_size must not be greater than remote_bp.buffer_tier_max_size (%d MB).",
							rbp_guc_buffer_tier_max_size);
		return false;
	}
	return true;
}

static bool
check_staging_size(int *newval, void **extra, GucSource source)
{
	if (*newval % (BLCKSZ / 1024) != 0)
	{
		GUC_check_errdetail("remote_bp.staging_size must be a multiple of %d kB, the size of a page.",
							BLCKSZ / 1024);
		return false;
	}
	return true;
}

#ifdef RBP_TEST_MUTATIONS
static const struct config_enum_entry mutations[] = {
	{"none", RBP_MUTATION_NONE, false},
	{"no_invalidate", RBP_MUTATION_NO_INVALIDATE, false},
	{"no_generation", RBP_MUTATION_NO_GENERATION, false},
	{"no_capture_hash", RBP_MUTATION_NO_CAPTURE_HASH, false},
	{"no_capture_stamp", RBP_MUTATION_NO_CAPTURE_STAMP, false},
	{"publish_early", RBP_MUTATION_PUBLISH_EARLY, false},
	{"no_publish_check", RBP_MUTATION_NO_PUBLISH_CHECK, false},
	{"no_verify", RBP_MUTATION_NO_VERIFY, false},
	{"serve_private", RBP_MUTATION_SERVE_PRIVATE, false},
	{"no_checksum", RBP_MUTATION_NO_CHECKSUM, false},
	{"no_lease_check", RBP_MUTATION_NO_LEASE_CHECK, false},
	{NULL, 0, false}
};
#endif

void
rbp_guc_init(void)
{
	DefineCustomStringVariable("remote_bp.broker",
							   "URL of the memory broker; empty turns the tier off.",
							   NULL,
							   &rbp_guc_broker,
							   "",
							   PGC_SIGHUP, GUC_SUPERUSER_ONLY,
							   check_broker, NULL, NULL);
	DefineCustomBoolVariable("remote_bp.enabled",
							 "Serve page reads from remote memory and fill it.",
							 "Off leaves the leases and their pages as they are.",
							 &rbp_guc_enabled,
							 true,
							 PGC_SIGHUP, 0,
							 NULL, NULL, NULL);
	DefineCustomIntVariable("remote_bp.buffer_tier_max_size",
							"Most remote memory that the buffer tier can grow to.",
							"Sizes the directory in shared memory, some 48 bytes for each 8 kB.",
							&rbp_guc_buffer_tier_max_size,
							1024, 1, 16 * 1024 * 1024,
							PGC_POSTMASTER, GUC_UNIT_MB,
							NULL, NULL, NULL);
	DefineCustomIntVariable("remote_bp.buffer_tier_size",
							"Remote memory that the buffer tier leases.",
							"0 gives everything back; -1 means remote_bp.buffer_tier_max_size.",
							&rbp_guc_buffer_tier_size,
							-1, -1, 16 * 1024 * 1024,
							PGC_SIGHUP, GUC_UNIT_MB,
							check_tier_size, NULL, NULL);
	DefineCustomIntVariable("remote_bp.staging_size",
							"Pinned shared memory in which evicted pages wait to be pushed.",
							NULL,
							&rbp_guc_staging_size,
							4096, 128, 4 * 1024 * 1024,
							PGC_POSTMASTER, GUC_UNIT_KB,
							check_staging_size, NULL, NULL);
	DefineCustomStringVariable("remote_bp.transport",
							   "How to reach donors: auto, shm or tcp.",
							   NULL,
							   &rbp_guc_transport,
							   "auto",
							   PGC_SIGHUP, 0,
							   check_transport, NULL, NULL);
	DefineCustomStringVariable("remote_bp.token_file",
							   "File with the token that the broker wants; empty for none.",
							   NULL,
							   &rbp_guc_token_file,
							   "",
							   PGC_SIGHUP, GUC_SUPERUSER_ONLY,
							   NULL, NULL, NULL);
	DefineCustomIntVariable("remote_bp.lease_ttl",
							"How long leased memory may be used without a renewal.",
							NULL,
							&rbp_guc_lease_ttl,
							30000, 2000, 3600 * 1000,
							PGC_SIGHUP, GUC_UNIT_MS,
							NULL, NULL, NULL);
	DefineCustomRealVariable("remote_bp.io_timeout",
							 "The bound on one wait for a donor.",
							 "Past it the page is read from disk.",
							 &io_timeout,
							 10.0, 0.1, 10000.0,
							 PGC_SIGHUP, GUC_UNIT_MS,
							 NULL, NULL, NULL);
	DefineCustomBoolVariable("remote_bp.compare_with_disk",
							 "Compare every page from remote memory with the disk.",
							 "A difference is logged and counted, and the disk's page is used.",
							 &rbp_guc_compare_with_disk,
							 false,
							 PGC_SUSET, 0,
							 NULL, NULL, NULL);
#ifdef RBP_TEST_MUTATIONS
	DefineCustomEnumVariable("remote_bp.test_mutation",
							 "Switches one coherence rule off; in test builds only.",
							 NULL,
							 &rbp_mutation,
							 RBP_MUTATION_NONE, mutations,
							 PGC_SIGHUP, GUC_NO_SHOW_ALL | GUC_NOT_IN_SAMPLE,
							 NULL, NULL, NULL);
#endif
	MarkGUCPrefixReserved("remote_bp");
}

int
rbp_guc_tier_size_wanted(void)
{
	if (rbp_guc_buffer_tier_size < 0 ||
		rbp_guc_buffer_tier_size > rbp_guc_buffer_tier_max_size)
		return rbp_guc_buffer_tier_max_size;
	return rbp_guc_buffer_tier_size;
}

int64
rbp_guc_io_timeout_ns(void)
{
	return (int64) (io_timeout * 1000000.0);
}
