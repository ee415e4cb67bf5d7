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
 * The rules are those in src/README.md:
 *
 *	no-invalidate		1: a write neither drops the entry nor bumps the stamp
 *	no-removal			2: truncation and removal of few blocks drop no entry,
 *						and bump no stamp
 *	no-generation		2: those of many do not bump the generation
 *	no-capture-hash		3: a capture does not compare the copy with the claim
 *	no-capture-stamp	3: a capture ignores the stamp and the generation
 *	publish-early		4: a page is published before it is written to its slot
 *	no-publish-check	4: a page is published although its staged entry is
 *						gone
 *	no-verify			5: pages read are not compared with their hash
 *	serve-private		6: reads into memory other than frames are served
 *	no-checksum			7: a capture does not set pd_checksum in the copy
 *	no-lease-check		8: the lease's deadline is not checked
 *	trust-reads			9: pages from reads of the disk are captured
 *						unverified, and a page that is read again is served
 *	prewarm-unlocked	11: prewarm reads a page without the lock on its
 *						buffer, and writes are slow, to make the race likely
 *	read-ahead-no-lookup	12: a page that was read ahead is used, whatever
 *						the directory says when it is needed
 *	prefetch-old-generation	12: the same, but only after the generation has
 *						moved
 *
 * Those of sealed pages are in src/remote/README.md:
 *
 *	reuse-nonce			1: a slot has the same version each time
 *	no-seal-check		6: the tag is not checked
 *	open-shared			7: what is opened is read from the donor's memory then
 *
 * These points break no rule:
 *
 *	few-hot-pages		a list of hot pages has room for four bitmaps only, and its
 *						scan takes a second
 *	full-dictionary		no other pair of tablespace and database gets a number
 *	slow-lookup			two seconds pass between finding a relation by its file and
 *						locking it, to read hot pages
 *	slow-writes			writes are slow after their pages were invalidated
 *	mix-spill			each temporary block goes to a file or to a donor at
 *						random
 *	kill-changing		the lease worker is killed when it begins to change the
 *						regions
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
