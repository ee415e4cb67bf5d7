/*
 * path.h
 *	  For the libraries of this directory: what a descriptor is open on.
 */
#ifndef PRELOAD_PATH_H
#define PRELOAD_PATH_H

#include <stdio.h>
#include <unistd.h>

/* Returns 0, and sets path to "", if that is not known. */
static inline int
path_of(int fd, char *path, size_t size)
{
	char		link[64];
	ssize_t		n;

	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	n = readlink(link, path, size - 1);
	path[n < 0 ? 0 : n] = '\0';
	return n >= 0;
}

#endif							/* PRELOAD_PATH_H */
