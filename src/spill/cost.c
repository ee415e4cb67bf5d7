/*-------------------------------------------------------------------------
 *
 * cost.c
 *	  Whether a temporary block goes to its file or to a donor.
 *
 * A temporary file that fits in the page cache, or whose disk is fast, costs
 * less than a network: base/choice.c decides by what writing and reading a
 * block has cost.  Blocks of temporary tables follow those of files.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "base/choice.h"
#include "base/injection_point.h"
#include "common/clock.h"
#include "common/pg_prng.h"
#include "remote/remote.h"
#include "spill/spill.h"
#include "spill/spill_internal.h"

/* Time without files after one has refused a block */
#define REFUSED_NS				INT64CONST(10000000000)
#define LOG_EVERY_NS			INT64CONST(60000000000)

static int64 file_refused_until = 0;

/* To the donors that were used last */
static int	transport = 0;

void
rbp_spill_cost_slot(uint32 slot)
{
	transport = rbp_remote_slot_transport(slot);
}

double
rbp_spill_cost_us(bool donor)
{
	return (double) rbp_choice_temp_cost(!donor) / 1000;
}

void
rbp_spill_cost_end(int fs, bool donor, bool write, int64 started)
{
	if (started != 0)
		rbp_cost_add(fs, donor ? transport : RBP_NO_TRANSPORT,
					 write ? RBP_COST_TEMP_WRITE : RBP_COST_TEMP_READ, 1,
					 rbp_now_ns() - started);
}

bool
rbp_spill_prefer_file(int fs)
{
	if (RBP_INJECTION_POINT("mix-spill"))
		return pg_prng_bool(&pg_global_prng_state);
	if (file_refused_until != 0 && rbp_now_ns() < file_refused_until)
		return false;
	file_refused_until = 0;
	return rbp_choose_temp_file(fs);
}

void
rbp_spill_file_refused(void)
{
	file_refused_until = rbp_now_ns() + REFUSED_NS;
}

void
rbp_spill_cost_report(int64 now)
{
	static bool file_reported = false;	/* what was logged last: files are
										 * cheaper */
	static int64 reported_at = 0;

	if (rbp_guc_read_from != RBP_READ_AUTO ||
		!rbp_remote_usable(RBP_POOL_TEMP, now) ||
		rbp_choice_temp_file_cheaper(RBP_UNKNOWN_FILE_SYSTEM, file_reported) == file_reported ||
		(reported_at != 0 && now - reported_at < LOG_EVERY_NS))
		return;
	file_reported = !file_reported;
	reported_at = now;
	ereport(LOG,
			(errmsg("remote_bp: temporary blocks are written to %s",
					file_reported ? "files" : "donors again"),
			 errdetail("Writing and reading a block takes %.1f us there, and %.1f us %s.",
					   rbp_spill_cost_us(!file_reported), rbp_spill_cost_us(file_reported),
					   file_reported ? "at donors" : "in files")));
}
