/*-------------------------------------------------------------------------
 *
 * lock.h
 *	  Locks in shared memory, of a directory partition for example: LWLocks in
 *	  the server, and pthread rwlocks in the unit tests, so that these test
 *	  the directory unchanged.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_LOCK_H
#define RBP_LOCK_H

#ifdef RBP_UNIT_TEST

#include <pthread.h>

typedef pthread_rwlock_t RbpLock;

static inline void
rbp_lock_init(RbpLock *lock, int tranche)
{
	pthread_rwlockattr_t attr;

	(void) tranche;
	pthread_rwlockattr_init(&attr);
	pthread_rwlockattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
	pthread_rwlock_init(lock, &attr);
	pthread_rwlockattr_destroy(&attr);
}

static inline int
rbp_lock_tranche(const char *name)
{
	(void) name;
	return 0;
}

#define rbp_lock_shared(lock)		((void) pthread_rwlock_rdlock(lock))
#define rbp_lock_exclusive(lock)	((void) pthread_rwlock_wrlock(lock))
#define rbp_lock_try(lock, exclusive) \
	(((exclusive) ? pthread_rwlock_trywrlock(lock) : pthread_rwlock_tryrdlock(lock)) == 0)
#define rbp_lock_release(lock)		((void) pthread_rwlock_unlock(lock))

#else

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

#endif							/* RBP_UNIT_TEST */

#endif							/* RBP_LOCK_H */
