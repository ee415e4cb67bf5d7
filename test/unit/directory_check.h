/*-------------------------------------------------------------------------
 *
 * directory_check.h
 *	  What tests ask of the directory, and nobody else.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DIRECTORY_CHECK_H
#define DIRECTORY_CHECK_H

#include <stdbool.h>
#include <stdint.h>

#include "buffer/directory.h"

/* A reference to the page, that lives as long as the block. */
#define REF(page)	((RbpPageRef[1]) {rbp_page_ref(page)})

/*
 * Check every list, chain and count of every partition; NULL if all is well, else
 * a constant text.  Exclusive locks.
 */
extern const char *directory_check(RbpDirectory *dir);

/* Likewise the accounts and databases' counts of pages, while nobody uses the directory. */
extern const char *directory_check_sums(RbpDirectory *dir);

/* rbp_directory_open(), with extents of its own, which child processes share. */
extern RbpDirectory *directory_init(void *mem, uint32_t max_slots, uint32_t staging_slots,
									uint32_t buffers);

/* As after a crash; or a copy of it, in mem, of that size and aligned as for the directory. */
extern void directory_reopen(RbpDirectory *dir, uint32_t buffers);
extern size_t directory_copy_size(const RbpDirectory *dir);
extern RbpDirectory *directory_reopen_copy(const RbpDirectory *dir, void *mem, uint32_t buffers);

/* Build a partition, unless it is built; or all of them. */
extern void directory_build(RbpDirectory *dir, int partition);
extern void directory_build_all(RbpDirectory *dir);

/* The whole sweep of a partition; returns how many entries were freed. */
extern uint32_t directory_sweep(RbpDirectory *dir, int partition);

/* Is there a slot for the page without evicting another one? */
#define directory_has_room(dir, page)	(rbp_directory_room(dir, page) == RBP_ROOM_FREE)

/* The push of the staged page has failed. */
#define directory_abandon(dir, page, staging_slot, slot) \
	((void) rbp_directory_publish(dir, page, staging_slot, slot, false))

/* The page's write stamp now */
static inline uint32_t
directory_stamp(RbpDirectory *dir, const RbpPageRef *page)
{
	RbpVersion	version;

	rbp_directory_note_version(dir, page, &version);
	return version.stamp;
}

/* rbp_directory_counts(), and more */
typedef struct DirectoryCounts
{
	uint64_t	remote;			/* live remote entries */
	uint64_t	staged;			/* live staged entries */
	uint64_t	free;			/* free slots of online extents */
	uint64_t	small;			/* slots in small queues */
	uint64_t	main;			/* slots in main queues */
	uint64_t	kept;			/* slots of pages that are kept */
	uint64_t	reserved;		/* slots that a pusher holds */
	uint64_t	online;			/* slots of online extents */
	uint64_t	evictions;		/* live pages evicted, in total */
} DirectoryCounts;

extern void directory_counts(RbpDirectory *dir, DirectoryCounts *counts);

/* Drop the pages of the relation's forks; returns how many. */
extern uint64_t directory_drop_relation(RbpDirectory *dir, uint32_t rel, uint16_t space);

/* What remote does with extents. */
extern bool directory_extent_absent(RbpDirectory *dir, uint32_t extent);
extern void directory_extent_online(RbpDirectory *dir, uint32_t extent, uint32_t account);
extern void directory_extent_drain(RbpDirectory *dir, uint32_t extent);
extern void directory_extent_undrain(RbpDirectory *dir, uint32_t extent);
extern void directory_extent_close(RbpDirectory *dir, uint32_t extent);
extern uint32_t directory_closed(RbpDirectory *dir);
extern uint32_t directory_collect(RbpDirectory *dir, uint32_t max);

extern bool directory_extent_is_online(RbpDirectory *dir, uint32_t extent);

/* The sum of 1 + access count over the extent's live entries.  Shared locks. */
extern uint64_t directory_extent_heat(RbpDirectory *dir, uint32_t extent);

/*
 * Close the extent and collect what is closed; returns how many live pages the extent
 * had, which is only told exactly where nobody else uses the directory.
 */
extern uint32_t directory_extent_offline(RbpDirectory *dir, uint32_t extent);

#endif							/* DIRECTORY_CHECK_H */
