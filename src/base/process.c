/*-------------------------------------------------------------------------
 *
 * process.c
 *	  The callback for the exit of a process.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "storage/ipc.h"

#include "base/process.h"

static void (*at_exit) (void) = NULL;

void
rbp_process_set_exit(void (*callback) (void))
{
	at_exit = callback;
}

static void
exits(int code, Datum arg)
{
	at_exit();
}

/*
 * Not before_shmem_exit(): within PG_ENSURE_ERROR_CLEANUP, the callback of the
 * caller must remain the latest one there.
 */
void
rbp_process_needs_exit(void)
{
	static bool registered = false;

	if (!registered)
		on_shmem_exit(exits, (Datum) 0);
	registered = true;
}
