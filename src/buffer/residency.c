/*-------------------------------------------------------------------------
 *
 * residency.c
 *	  Policies of files, limits of databases, and excluded tablespaces.
 *
 * The directory deals with 16-bit space numbers and partitions; the callers
 * deal with tablespaces, databases and files.  This file translates.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "port/atomics.h"

#include "base/relfile.h"
#include "buffer/buffer.h"
#include "buffer/buffer_internal.h"
#include "buffer/directory.h"
#include "buffer/page.h"

static void (*on_change) (Oid database) = NULL;

void
rbp_residency_set_on_change(void (*callback) (Oid database))
{
	on_change = callback;
}

void
rbp_residency_changed(Oid database)
{
	if (on_change != NULL)
		on_change(database);
}

/*
 * ---- policies of files --------------------------------------------------------------
 *
 * A file that has no space has no policy: the directory finds none.
 */

RbpFilePolicy
rbp_residency_policy(const RbpRelFile *file)
{
	return rbp_directory_file_policy(rbp_dir, file->rel, rbp_space_find(file->spc, file->db));
}

bool
rbp_residency_set_policy(const RbpRelFile *file, RbpPolicy policy)
{
	uint16		space = rbp_space_get(file->spc, file->db);

	return space != RBP_INVALID_SPACE &&
		rbp_directory_set_policy(rbp_dir, file->rel, space, policy);
}

bool
rbp_residency_next_policy(uint32 *at, RbpRelFile *file)
{
	uint16		space;

	memset(file, 0, sizeof(*file));
	while (rbp_directory_next_policy(rbp_dir, at, &file->rel, &space))
		if (rbp_space_resolve(space, &file->spc, &file->db))
			return true;
	return false;
}

/* For walks: go on to the next partition, unless the process is interrupted. */
static bool
next_partition(int *part)
{
	CHECK_FOR_INTERRUPTS();
	return ++* part < RBP_PARTITIONS;
}

static bool
page_is_excluded(const RbpPageId *page, const RbpLookup *at, void *arg)
{
	return rbp_residency_excludes(page->space) &&
		rbp_directory_policy(rbp_dir, page->rel, page->space) != RBP_POLICY_KEEP;
}

void
rbp_residency_apply_policies(void)
{
	for (int part = -1; next_partition(&part);)
	{
		(void) rbp_directory_apply_policies(rbp_dir, part);
		if (pg_atomic_read_u32(&rbp_tier_shared->nexcluded) > 0)
			(void) rbp_directory_visit(rbp_dir, part, true, page_is_excluded, NULL);
	}
	rbp_directory_policies_applied(rbp_dir);
}

void
rbp_residency_set_new(const RbpRelFile *file, uint32 pages)
{
	rbp_directory_set_new_of(rbp_dir, file->rel, rbp_space_find(file->spc, file->db), pages);
}

int64
rbp_residency_keep_room(void)
{
	return rbp_directory_keep_room(rbp_dir);
}

void
rbp_residency_set_keep_max(uint64 pages)
{
	rbp_directory_set_keep_max(rbp_dir, pages);
}

void
rbp_residency_sweep(void)
{
	uint32		freed = 0;

	for (int part = -1; next_partition(&part);)
		while (rbp_directory_sweep_step(rbp_dir, part, &freed))
			;
}

/*
 * ---- tablespaces ---------------------------------------------------------------------
 */

bool
rbp_residency_excludes(uint16 space)
{
	uint32		n = pg_atomic_read_u32(&rbp_tier_shared->nexcluded);
	Oid			spc;
	Oid			db;

	if (n == 0 || !rbp_space_resolve(space, &spc, &db))
		return false;
	for (uint32 i = 0; i < n; i++)
		if (pg_atomic_read_u32(&rbp_tier_shared->excluded[i]) == spc)
			return true;
	return false;
}

bool
rbp_residency_set_excluded(const Oid *tablespaces, int n)
{
	bool		changed = pg_atomic_read_u32(&rbp_tier_shared->nexcluded) != (uint32) n;

	for (int i = 0; i < n && !changed; i++)
		changed = pg_atomic_read_u32(&rbp_tier_shared->excluded[i]) != tablespaces[i];
	if (!changed)
		return false;

	/*
	 * a concurrent reader may see too few tablespaces; their pages are
	 * dropped later
	 */
	pg_atomic_write_u32(&rbp_tier_shared->nexcluded, 0);
	for (int i = 0; i < n; i++)
		pg_atomic_write_u32(&rbp_tier_shared->excluded[i], tablespaces[i]);
	pg_memory_barrier();
	pg_atomic_write_u32(&rbp_tier_shared->nexcluded, (uint32) n);
	return n > 0;
}

/*
 * ---- databases ------------------------------------------------------------------------
 */

void
rbp_residency_name_database(uint16 space)
{
	Oid			spc;
	Oid			db;
	uint16		database = rbp_space_resolve(space, &spc, &db) ?
	rbp_space_get(RBP_ALL_TABLESPACES, db) : RBP_INVALID_SPACE;

	if (database != RBP_INVALID_SPACE)
		rbp_directory_set_database(rbp_dir, space, database);
}

bool
rbp_residency_next_database(uint32 *at, RbpDatabaseUse *use)
{
	while (*at < RBP_MAX_SPACES)
	{
		uint16		space = (uint16) (*at)++;
		Oid			spc;

		if (!rbp_space_resolve(space, &spc, &use->database) || spc != RBP_ALL_TABLESPACES)
			continue;
		use->pages = rbp_directory_database_pages(rbp_dir, space);
		use->max_pages = rbp_directory_limit(rbp_dir, space);
		return true;
	}
	return false;
}

int64
rbp_residency_limit(Oid database)
{
	uint16		number = rbp_space_find(RBP_ALL_TABLESPACES, database);

	return number == RBP_INVALID_SPACE ? -1 : rbp_directory_limit(rbp_dir, number);
}

bool
rbp_residency_at_limit(Oid database)
{
	int64		limit = rbp_residency_limit(database);

	return limit >= 0 &&
		(int64) rbp_directory_database_pages(rbp_dir, rbp_space_find(RBP_ALL_TABLESPACES, database)) >= limit;
}

void
rbp_residency_set_limit(Oid database, int64 max_pages)
{
	uint16		number = rbp_space_get(RBP_ALL_TABLESPACES, database);

	if (number != RBP_INVALID_SPACE)
		rbp_directory_set_limit(rbp_dir, number, max_pages);
}

void
rbp_residency_trim(Oid database)
{
	uint16		number = rbp_space_find(RBP_ALL_TABLESPACES, database);

	for (int part = -1; number != RBP_INVALID_SPACE && next_partition(&part);)
		(void) rbp_directory_trim(rbp_dir, part, number);
}
