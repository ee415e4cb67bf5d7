/*-------------------------------------------------------------------------
 *
 * mutation.h
 *	  Switches that break one coherence rule at a time, for test builds.
 *
 * A test that never fails proves nothing.  In a build with
 * -DRBP_TEST_MUTATIONS, and in the unit tests, each rule that keeps the tier
 * coherent can be switched off separately at run time, and the tests check
 * that this is noticed.  In any other build RBP_MUTATED() is a constant, and
 * the switches do not exist.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_MUTATION_H
#define RBP_MUTATION_H

typedef enum RbpMutation
{
	RBP_MUTATION_NONE,
	RBP_MUTATION_NO_INVALIDATE, /* a write neither drops the entry nor bumps
								 * the stamp */
	RBP_MUTATION_NO_GENERATION, /* truncate, unlink: generation not bumped */
	RBP_MUTATION_NO_CAPTURE_HASH,	/* victim's frame not hashed again */
	RBP_MUTATION_NO_CAPTURE_STAMP,	/* capture ignores stamp and generation */
	RBP_MUTATION_PUBLISH_EARLY, /* published before the slot is written */
	RBP_MUTATION_NO_PUBLISH_CHECK,	/* published though the staged entry died */
	RBP_MUTATION_NO_VERIFY,		/* pages read are not compared with their hash */
	RBP_MUTATION_SERVE_PRIVATE, /* reads into private memory are served */
	RBP_MUTATION_NO_CHECKSUM,	/* pd_checksum not set on the staged copy */
	RBP_MUTATION_NO_LEASE_CHECK,	/* the lease's deadline is not checked */
	RBP_MUTATION_TRUST_READS,	/* pages from reads of the disk are captured
								 * unverified, and a page that is read again
								 * is served */
	RBP_MUTATION_PREWARM_UNLOCKED,	/* prewarm reads pages bypassing the
									 * buffer manager; writes are slow */
	RBP_MUTATION_MIX_SPILL,		/* no rule is broken: it is random whether a
								 * temporary block goes to a file or to donors */
	RBP_NUM_MUTATIONS
} RbpMutation;

#if defined(RBP_TEST_MUTATIONS) || defined(RBP_UNIT_TEST)

extern int	rbp_mutation;		/* an RbpMutation */

#define RBP_MUTATED(m)	(__builtin_expect(rbp_mutation == (m), 0))

#else

#define RBP_MUTATED(m)	(0)

#endif

#endif							/* RBP_MUTATION_H */
