/*-------------------------------------------------------------------------
 *
 * lock.h
 *	  Locks in shared memory, of a directory partition for example: LWLocks in
 *	  the server.  Unit tests have test/unit/instead/base/lock.h in place of
 *	  this, and so test the directory unchanged.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_LOCK_H
#define RBP_LOCK_H

#include "postgres.h"
#include "storage/lwlock.h"

typedef LWLock RbpLock;

/*
 * Register a tranche of that name.  Each initialization of shared memory, also
 * after a crash of a backend, resets the server's count of tranches.  So call
 * this again each time: an id kept from before would be assigned twice.
 */
static inline int
rbp_lock_tranche(const char *name)
{
	int			tranche = LWLockNewTrancheId();

	/* the postmaster registers it, and its children inherit that */
	LWLockRegisterTranche(tranche, name);
	return tranche;
}

#define rbp_lock_init(lock, tranche)	LWLockInitialize(lock, tranche)
#define rbp_lock_shared(lock)		((void) LWLockAcquire(lock, LW_SHARED))
#define rbp_lock_exclusive(lock)	((void) LWLockAcquire(lock, LW_EXCLUSIVE))
#define rbp_lock_try(lock, exclusive) \
	LWLockConditionalAcquire(lock, (exclusive) ? LW_EXCLUSIVE : LW_SHARED)
#define rbp_lock_release(lock)		LWLockRelease(lock)

#endif							/* RBP_LOCK_H */
