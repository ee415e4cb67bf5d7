/*-------------------------------------------------------------------------
 *
 * kernel.h
 *	  Numbers that the kernel tells in files.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_KERNEL_H
#define RBP_KERNEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* With "/memory", where cgroups are of version 1 */
#define RBP_CGROUP_ROOT	"/sys/fs/cgroup"

/*
 * Read a number from a file of the kernel: the one that follows this name and
 * a colon or a blank, or, without a name, the one in the first line.  A unit
 * "kB" is taken into account.  False if there is no number, as in "max".
 */
extern bool rbp_kernel_number(const char *dir, const char *file, const char *name,
							  uint64_t *value);

/*
 * Find the directory of this process's memory cgroup; v1 and v2 differ.  In a
 * container it need not exist: the path may be that outside of it.
 */
extern bool rbp_kernel_cgroup(char *dir, size_t len, bool *v2);

#endif							/* RBP_KERNEL_H */
