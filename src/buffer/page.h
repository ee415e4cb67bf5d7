/*-------------------------------------------------------------------------
 *
 * page.h
 *	  The name of a page, and hashes of names.  No postgres.h.
 *
 * A page is named by relation fork and block, as in the server, except that
 * the pair (tablespace, database) is replaced by a 16-bit "space" number out
 * of a small shared dictionary (rbp_space), which keeps a directory entry
 * small.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_PAGE_H
#define RBP_PAGE_H

#include <stdbool.h>
#include <stdint.h>


#define RBP_INVALID_SPACE	UINT16_MAX
#define RBP_MAX_SPACES		32768	/* a space is below, or invalid */

#define RBP_FORKS			4

/*
 * When a fork is truncated or dropped, up to so many blocks are invalidated one
 * by one, and more by the fork's generation.
 */
#define RBP_FEW_BLOCKS		1024

typedef struct RbpPageId
{
	uint32_t	rel;			/* relfilenumber */
	uint32_t	block;			/* block number within the fork */
	uint16_t	space;			/* (tablespace, database), see above */
	uint8_t		fork;			/* ForkNumber, below RBP_FORKS */
} RbpPageId;

/* State in which a page was seen on disk; needed to capture or publish it */
typedef struct RbpVersion
{
	uint64_t	hash;			/* XXH3-64 of the content as on disk */
	uint32_t	stamp;			/* write stamp of the page then */
	uint32_t	generation;		/* generation of the relation fork then */
} RbpVersion;

/* Numbers of pages in the tier */
typedef struct RbpTierPages
{
	uint64_t	remote;			/* pages on donors */
	uint64_t	kept;			/* ... of which kept by policy */
	uint64_t	staged;			/* pages in staging */
	uint64_t	free;			/* free slots */
	uint64_t	online;			/* slots of online extents */
	uint64_t	max;			/* slots of a tier of maximum size */
} RbpTierPages;

/* Whose slot a page would get that enters the tier */
typedef enum RbpRoom
{
	RBP_ROOM_NONE,				/* that of a page that was read, or none */
	RBP_ROOM_UNREAD,			/* that of a page that was never read */
	RBP_ROOM_FREE				/* a free one */
} RbpRoom;

static inline bool
rbp_page_equal(const RbpPageId *a, const RbpPageId *b)
{
	return a->rel == b->rel && a->block == b->block &&
		a->space == b->space && a->fork == b->fork;
}

/* Are both pages of the same fork? */
static inline bool
rbp_page_same_fork(const RbpPageId *a, const RbpPageId *b)
{
	return a->rel == b->rel && a->space == b->space && a->fork == b->fork;
}

/* The finalizer of MurmurHash3 (A. Appleby): full avalanche on 64 bits. */
static inline uint64_t
rbp_mix64(uint64_t h)
{
	h ^= h >> 33;
	h *= UINT64_C(0xff51afd7ed558ccd);
	h ^= h >> 33;
	h *= UINT64_C(0xc4ceb9fe1a85ec53);
	h ^= h >> 33;
	return h;
}

/* Hash of the relation fork alone, for the generation stripes. */
static inline uint64_t
rbp_fork_hash(uint32_t rel, uint16_t space, uint8_t fork)
{
	return rbp_mix64(((uint64_t) rel << 32) | ((uint64_t) space << 8) | fork);
}

/* Hash of the whole page name. */
static inline uint64_t
rbp_page_hash(const RbpPageId *p)
{
	return rbp_mix64(rbp_fork_hash(p->rel, p->space, p->fork) ^
					 ((uint64_t) p->block * UINT64_C(0x9e3779b97f4a7c15)));
}

/*
 * A page and the hash of its name, whose lowest bits are the page's partition of the
 * directory.  It is made once for a read of a page, and once for its victim.
 */
typedef struct RbpPageRef
{
	RbpPageId	id;
	uint64_t	hash;
} RbpPageRef;

static inline RbpPageRef
rbp_page_ref(const RbpPageId *page)
{
	return (RbpPageRef)
	{
		*page, rbp_page_hash(page)
	};
}

#endif							/* RBP_PAGE_H */
