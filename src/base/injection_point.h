/*-------------------------------------------------------------------------
 *
 * injection_point.h
 *	  Named points at which a test changes what the code does.
 *
 * A test that never fails proves nothing.  In test builds, one point at a time
 * can be attached (remote_bp.injection_point), and then the code at that
 * point breaks a rule that keeps the tier coherent; the tests check that this
 * is noticed.  In any other build a point is the constant false.
 *
 *	no-invalidate		a write neither drops the entry nor moves the stamp
 *	no-generation		truncation and removal leave the generation alone
 *	no-capture-hash		a victim's frame is not hashed again
 *	no-capture-stamp	a capture ignores the stamp and the generation
 *	publish-early		a page is published before it is written to its slot
 *	no-publish-check	a page is published although its staged entry is gone
 *	no-verify			pages read are not compared with their hash
 *	serve-private		reads into private memory are served
 *	no-checksum			the staged copy has no pd_checksum
 *	no-lease-check		the lease's deadline is not checked
 *	trust-reads			pages from reads of the disk are captured unverified,
 *						and a page that is read again is served
 *	prewarm-unlocked	prewarm reads pages bypassing the buffer manager, and
 *						writes are slow
 *
 * One point breaks no rule:
 *
 *	mix-spill			each temporary block goes to a file or to a donor at
 *						random
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_INJECTION_POINT_H
#define RBP_INJECTION_POINT_H

#if defined(RBP_INJECTION_POINTS) || defined(RBP_UNIT_TEST)

#include <string.h>

/* The point that is attached, or "" */
extern const char *rbp_injection_point;

#define RBP_INJECTION_POINT(name) \
	__builtin_expect(strcmp(rbp_injection_point, name) == 0, 0)

#else

#define RBP_INJECTION_POINT(name)	(0)

#endif

#endif							/* RBP_INJECTION_POINT_H */
