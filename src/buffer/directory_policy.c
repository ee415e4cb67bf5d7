/*-------------------------------------------------------------------------
 *
 * directory_policy.c
 *	  Policies of the directory: which files' pages are kept, or excluded, how many
 *	  are kept, and limits for databases.  All of it is atomics: no locks.
 *
 * directory_pages.c explains how this fits together with the other files.
 *
 *-------------------------------------------------------------------------
 */
#include "buffer/directory_internal.h"

/* The bits of a word (see RBP_POLICY_BUCKETS) with the policy. */
#define POLICY_MASK		0xffff

/*
 * The value of these bits, beside those of RbpPolicy, after the policy was
 * reset to default.  Pages of the file may still be on a list of kept pages, so
 * its place is freed only by rbp_directory_policies_applied().
 */
#define POLICY_RESET	0xffff

/*
 * ---- the words ----------------------------------------------------------------
 */

/* First place of the name's first (which: 0) or second bucket (1). */
static inline uint32_t
policy_bucket(uint32_t rel, uint16_t space, int which)
{
	uint64_t	h = rbp_fork_hash(rel, space, 0);

	return (uint32_t) (which == 0 ? h : h >> 32) % RBP_POLICY_BUCKETS *
		RBP_POLICY_WAYS;
}

/*
 * Find the file's policy.  Returns its place, and its word in *word;
 * RBP_NO_PLACE if it has none.
 */
static uint32_t
find_policy(const RbpDirectory *dir, uint32_t rel, uint16_t space, uint64_t *word)
{
	uint64_t	name = ((uint64_t) rel << 32) | ((uint64_t) space << 16);

	for (int which = 0; which < 2; which++)
	{
		uint32_t	bucket = policy_bucket(rel, space, which);

		for (uint32_t i = bucket; i < bucket + RBP_POLICY_WAYS; i++)
		{
			*word = __atomic_load_n(&dir->policies[i], __ATOMIC_ACQUIRE);
			if (*word != 0 && (*word & ~(uint64_t) POLICY_MASK) == name)
				return i;
		}
	}
	return RBP_NO_PLACE;
}

/* Find an empty place for the file, in the emptier one of its two buckets. */
static uint32_t
empty_place(const RbpDirectory *dir, uint32_t rel, uint16_t space)
{
	uint32_t	place = RBP_NO_PLACE;
	int			most = 0;

	for (int which = 0; which < 2; which++)
	{
		uint32_t	bucket = policy_bucket(rel, space, which);
		uint32_t	last = RBP_NO_PLACE;
		int			n = 0;

		for (uint32_t i = bucket; i < bucket + RBP_POLICY_WAYS; i++)
			if (dir->policies[i] == 0)
			{
				last = i;
				n++;
			}
		if (n > most)
		{
			most = n;
			place = last;
		}
	}
	return place;
}

static inline RbpPolicy
word_policy(uint64_t word)
{
	return (word & POLICY_MASK) == POLICY_RESET ? RBP_POLICY_DEFAULT :
		(RbpPolicy) (word & POLICY_MASK);
}

RbpPolicy
rbp_directory_policy(const RbpDirectory *dir, uint32_t rel, uint16_t space)
{
	uint64_t	word;

	if (__atomic_load_n(&dir->npolicies, __ATOMIC_RELAXED) == 0 ||
		find_policy(dir, rel, space, &word) == RBP_NO_PLACE)
		return RBP_POLICY_DEFAULT;
	return word_policy(word);
}

bool
rbp_directory_set_policy(RbpDirectory *dir, uint32_t rel, uint16_t space,
						 RbpPolicy policy)
{
	uint64_t	word;
	uint32_t	place = find_policy(dir, rel, space, &word);

	if (place == RBP_NO_PLACE)
	{
		if (policy == RBP_POLICY_DEFAULT)
			return true;
		place = empty_place(dir, rel, space);
		if (place == RBP_NO_PLACE)
			return false;
		__atomic_store_n(&dir->file_counts[place].kept, 0, __ATOMIC_RELAXED);
		__atomic_store_n(&dir->file_counts[place].new_pages, 0, __ATOMIC_RELAXED);
		__atomic_fetch_add(&dir->npolicies, 1, __ATOMIC_RELAXED);
	}
	word = ((uint64_t) rel << 32) | ((uint64_t) space << 16) |
		(policy == RBP_POLICY_DEFAULT ? POLICY_RESET : (uint64_t) policy);
	__atomic_store_n(&dir->policies[place], word, __ATOMIC_SEQ_CST);
	return true;
}

bool
rbp_directory_next_policy(const RbpDirectory *dir, uint32_t *at, uint32_t *rel,
						  uint16_t *space)
{
	while (*at < RBP_POLICY_PLACES)
	{
		uint64_t	word = __atomic_load_n(&dir->policies[(*at)++], __ATOMIC_ACQUIRE);

		if (word == 0 || word_policy(word) == RBP_POLICY_DEFAULT)
			continue;
		*rel = (uint32_t) (word >> 32);
		*space = (uint16_t) (word >> 16);
		return true;
	}
	return false;
}

/*
 * ---- pages that are kept ----------------------------------------------------------
 */

void
rbp_kept_add(RbpDirectory *dir, uint32_t index, int pages)
{
	const RbpEntry *e = rbp_entry(dir, index);
	uint64_t	word;
	uint32_t	place = find_policy(dir, e->rel, e->space, &word);

	/*
	 * a place is freed only after a walk that left none of the file's pages
	 * on this list
	 */
	Assert(place != RBP_NO_PLACE);
	__atomic_fetch_add(&dir->kept, (uint64_t) (int64_t) pages, __ATOMIC_RELAXED);
	/* if it happens nevertheless, a wrong count is better than a wild write */
	if (place != RBP_NO_PLACE)
		__atomic_fetch_add(&dir->file_counts[place].kept, (uint32_t) pages, __ATOMIC_RELAXED);
}

int64_t
rbp_directory_keep_room(const RbpDirectory *dir)
{
	uint64_t	max = __atomic_load_n(&dir->keep_max, __ATOMIC_RELAXED);
	uint64_t	slots = (uint64_t) rbp_partition_slots(dir) * RBP_PARTITIONS;

	if (max == RBP_KEEP_HALF)
		max = slots / 2;
	else if (max > slots / 4 * 3)
		max = slots / 4 * 3;
	return (int64_t) (max - __atomic_load_n(&dir->kept, __ATOMIC_RELAXED));
}

/*
 * Maximum number of kept pages in a partition; the other slots are for pages
 * that come and go.
 */
static uint32_t
max_kept_in_partition(const RbpDirectory *dir)
{
	return rbp_s3fifo_main_room(rbp_partition_slots(dir));
}

bool
rbp_may_keep_page(const RbpDirectory *dir, const RbpPartition *p, const RbpEntry *e)
{
	return e->fork == 0 &&
		rbp_directory_policy(dir, e->rel, e->space) == RBP_POLICY_KEEP &&
		p->lists[RBP_SLOT_KEPT].count < max_kept_in_partition(dir) &&
		rbp_directory_keep_room(dir) > 0;
}

bool
rbp_kept_too_many(const RbpDirectory *dir, const RbpPartition *p)
{
	return p->lists[RBP_SLOT_KEPT].count > max_kept_in_partition(dir) ||
		rbp_directory_keep_room(dir) < 0;
}

RbpFilePolicy
rbp_directory_file_policy(const RbpDirectory *dir, uint32_t rel, uint16_t space)
{
	RbpFilePolicy result = {RBP_POLICY_DEFAULT};
	uint64_t	word;
	uint32_t	place = find_policy(dir, rel, space, &word);

	result.fits = place != RBP_NO_PLACE || empty_place(dir, rel, space) != RBP_NO_PLACE;
	if (place != RBP_NO_PLACE)
	{
		result.policy = word_policy(word);
		result.kept = __atomic_load_n(&dir->file_counts[place].kept, __ATOMIC_RELAXED);
		result.new_pages = __atomic_load_n(&dir->file_counts[place].new_pages, __ATOMIC_RELAXED);
	}
	return result;
}

void
rbp_directory_set_new_of(RbpDirectory *dir, uint32_t rel, uint16_t space,
						 uint32_t pages)
{
	uint64_t	word;
	uint32_t	place = find_policy(dir, rel, space, &word);

	if (place != RBP_NO_PLACE)
		__atomic_store_n(&dir->file_counts[place].new_pages, pages, __ATOMIC_RELAXED);
}

void
rbp_directory_set_keep_max(RbpDirectory *dir, uint64_t pages)
{
	__atomic_store_n(&dir->keep_max, pages, __ATOMIC_RELAXED);
}

void
rbp_directory_policies_applied(RbpDirectory *dir)
{
	for (uint32_t i = 0; i < RBP_POLICY_PLACES; i++)
	{
		if ((dir->policies[i] & POLICY_MASK) == POLICY_RESET)
		{
			__atomic_store_n(&dir->policies[i], 0, __ATOMIC_SEQ_CST);
			__atomic_fetch_sub(&dir->npolicies, 1, __ATOMIC_RELAXED);
		}
	}
}

/*
 * ---- limits ------------------------------------------------------------------------
 */

void
rbp_directory_set_database(RbpDirectory *dir, uint16_t space, uint16_t database)
{
	if (rbp_database_of(dir, space) != database)
		__atomic_store_n(&dir->databases[space], database + 1, __ATOMIC_RELAXED);
}

uint64_t
rbp_directory_database_pages(const RbpDirectory *dir, uint16_t database)
{
	int64_t		pages = 0;

	for (uint32_t stripe = 0; stripe < dir->nstripes; stripe++)
		pages += __atomic_load_n(rbp_database_pages(dir, stripe, database), __ATOMIC_RELAXED);
	return pages > 0 ? (uint64_t) pages : 0;
}

void
rbp_directory_set_limit(RbpDirectory *dir, uint16_t database, int64_t max_pages)
{
	__atomic_store_n(&dir->limits[database], (uint32_t) (max_pages + 1), __ATOMIC_RELAXED);
}

int64_t
rbp_directory_limit(const RbpDirectory *dir, uint16_t database)
{
	return (int64_t) __atomic_load_n(&dir->limits[database], __ATOMIC_RELAXED) - 1;
}
