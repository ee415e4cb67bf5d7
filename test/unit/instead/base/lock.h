/*-------------------------------------------------------------------------
 *
 * lock.h
 *	  Locks in shared memory, for unit tests: pthread rwlocks in place of
 *	  LWLocks.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_LOCK_H
#define RBP_LOCK_H

#include <pthread.h>

/* The server's header has this by way of postgres.h. */
#ifndef Assert
#include <assert.h>
#define Assert(cond)	assert(cond)
#endif

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

#endif							/* RBP_LOCK_H */
