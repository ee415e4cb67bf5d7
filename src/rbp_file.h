/*-------------------------------------------------------------------------
 *
 * rbp_file.h
 *	  The file API: what file descriptors and paths mean in terms of
 *	  relation forks and blocks.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_FILE_H
#define RBP_FILE_H

#include "postgres.h"

#include "base/relfile.h"

/*
 * Parse a path as the server gives it to libc: relative to the data
 * directory, with or without "./", or absolute within it.  True if it is a
 * segment file of a permanent or unlogged relation.  Touches no shared
 * memory.
 */
extern bool rbp_file_parse(const char *path, RbpRelFile *file);

/* Install the wrappers; in the postmaster, from _PG_init. */
extern void rbp_file_install(void);

#endif							/* RBP_FILE_H */
