/*-------------------------------------------------------------------------
 *
 * places.h
 *	  A bounded number of connections, of which the oldest end when others come.
 *
 * A connection takes a place.  If its holder (an address, a credential) has as many as
 * he may, his oldest ones end, and if there are no more places, the oldest of all.  So
 * newcomers are let in, whatever those do who are there.  Those that have just come are
 * spared: many processes of one machine may come at once, and need a moment each.
 *
 * A connection is ended by shutdown(2): whoever serves it finds it closed by the peer,
 * as it were, and frees it.  Any thread may call these functions.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_PLACES_H
#define RBP_PLACES_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/queue.h>
#include <sys/socket.h>

/* As many may one address have, or one credential, so that others have some, too. */
#define RBP_SHARE			64

#define RBP_PLACE_CHAINS	256

typedef struct RbpPlaces RbpPlaces;

typedef struct RbpPlace
{
	int			fd;				/* open as long as it has the place */
	uint64_t	holder;			/* set by rbp_place_take() */
	_Atomic int64_t deadline;	/* rbp_mono_ms(), for rbp_places_end_late() */

	/* private */
	RbpPlaces  *places;			/* NULL: it has none */
	int64_t		since;			/* rbp_mono_ms() */
				TAILQ_ENTRY(RbpPlace) link;
				TAILQ_ENTRY(RbpPlace) chain_link;
} RbpPlace;

typedef TAILQ_HEAD(RbpPlaceList, RbpPlace) RbpPlaceList;

struct RbpPlaces
{
	int			most;
	int			n;
	RbpPlaceList list;			/* the oldest first */
	RbpPlaceList chains[RBP_PLACE_CHAINS];	/* the same, by holder */
};

extern void rbp_places_init(RbpPlaces *places, int most);

/* Whose connections have ended for another one: nobody's, its holder's, anybody's. */
typedef enum RbpEnded
{
	RBP_ENDED_NONE,
	RBP_ENDED_OWN,
	RBP_ENDED_ANY
} RbpEnded;

/* Take a place, and leave the former one, if there is one.  most: of this holder. */
extern RbpEnded rbp_place_take(RbpPlaces *places, RbpPlace *place, uint64_t holder, int most);

/* Leave the place, if it was not lost; to be called before fd is closed. */
extern void rbp_place_leave(RbpPlace *place);

/* End the oldest.  False if there is none. */
extern bool rbp_places_end_oldest(RbpPlaces *places);

/* End those whose deadline has passed; tell() is called before, and must not call these functions. */
extern void rbp_places_end_late(RbpPlaces *places, int64_t now, void (*tell) (const RbpPlace *place));

/* A holder by his name, or his address without the port: a hash that nobody outside can compute. */
extern uint64_t rbp_place_holder(const void *bytes, size_t len);
extern uint64_t rbp_place_holder_of(const struct sockaddr *address);

#endif							/* RBP_PLACES_H */
