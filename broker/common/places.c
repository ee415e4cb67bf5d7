/*-------------------------------------------------------------------------
 *
 * places.c
 *	  A bounded number of connections, of which the oldest end when others
 *	  come: see places.h.
 *
 *-------------------------------------------------------------------------
 */
#include "broker/common/places.h"
#include "broker/common/secret.h"
#include "common/clock.h"

#include <netinet/in.h>
#include <pthread.h>
#include <sys/socket.h>
#include <xxhash.h>

#define SPARED_MS	250

/* protects all places */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static uint64_t seed;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void
make_seed(void)
{
	rbp_random_bytes(&seed, sizeof(seed));
}

uint64_t
rbp_place_holder(const void *bytes, size_t len)
{
	(void) pthread_once(&once, make_seed);
	return XXH3_64bits_withSeed(bytes, len, seed);
}

uint64_t
rbp_place_holder_of(const struct sockaddr *address)
{
	const struct in6_addr *v6 = &((const struct sockaddr_in6 *) address)->sin6_addr;

	if (address->sa_family == AF_INET)
		return rbp_place_holder(&((const struct sockaddr_in *) address)->sin_addr, sizeof(struct in_addr));
	if (address->sa_family != AF_INET6)
		return 0;
	/* of IPv4, by a socket of IPv6: the same machine */
	return IN6_IS_ADDR_V4MAPPED(v6) ? rbp_place_holder(&v6->s6_addr[12], sizeof(struct in_addr)) :
		rbp_place_holder(v6, sizeof(*v6));
}

void
rbp_places_init(RbpPlaces *places, int most)
{
	places->most = most;
	places->n = 0;
	TAILQ_INIT(&places->list);
	for (int i = 0; i < RBP_PLACE_CHAINS; i++)
		TAILQ_INIT(&places->chains[i]);
}

static RbpPlaceList *
chain_of(RbpPlaces *places, uint64_t holder)
{
	return &places->chains[holder % RBP_PLACE_CHAINS];
}

/* The following two are called with the lock held. */
static void
leave(RbpPlace *place)
{
	RbpPlaces  *places = place->places;

	if (places == NULL)
		return;
	TAILQ_REMOVE(&places->list, place, link);
	TAILQ_REMOVE(chain_of(places, place->holder), place, chain_link);
	places->n--;
	place->places = NULL;
}

static void
end(RbpPlace *place)
{
	(void) shutdown(place->fd, SHUT_RDWR);
	leave(place);
}

/* End the oldest of the holder's, so that he has fewer than most.  False if there are none. */
static bool
end_own(RbpPlaces *places, uint64_t holder, int most, int64_t now)
{
	RbpPlace   *place;
	RbpPlace   *next;
	bool		any = false;
	int			n = 0;

	TAILQ_FOREACH(place, chain_of(places, holder), chain_link)
		n += place->holder == holder;
	for (place = TAILQ_FIRST(chain_of(places, holder)); place != NULL && n >= most; place = next)
	{
		next = TAILQ_NEXT(place, chain_link);
		if (place->holder != holder || now - place->since < SPARED_MS)
			continue;
		end(place);
		any = true;
		n--;
	}
	return any;
}

RbpEnded
rbp_place_take(RbpPlaces *places, RbpPlace *place, uint64_t holder, int most)
{
	int64_t		now = rbp_mono_ms();
	RbpEnded	ended = RBP_ENDED_NONE;

	pthread_mutex_lock(&lock);
	leave(place);
	if (end_own(places, holder, most, now))
		ended = RBP_ENDED_OWN;
	else if (places->n >= places->most)
	{
		ended = RBP_ENDED_ANY;
		end(TAILQ_FIRST(&places->list));
	}
	place->places = places;
	place->holder = holder;
	place->since = now;
	TAILQ_INSERT_TAIL(&places->list, place, link);
	TAILQ_INSERT_TAIL(chain_of(places, holder), place, chain_link);
	places->n++;
	pthread_mutex_unlock(&lock);
	return ended;
}

void
rbp_place_leave(RbpPlace *place)
{
	pthread_mutex_lock(&lock);
	leave(place);
	pthread_mutex_unlock(&lock);
}

bool
rbp_places_end_oldest(RbpPlaces *places)
{
	RbpPlace   *oldest;

	pthread_mutex_lock(&lock);
	oldest = TAILQ_FIRST(&places->list);
	if (oldest != NULL)
		end(oldest);
	pthread_mutex_unlock(&lock);
	return oldest != NULL;
}

void
rbp_places_end_late(RbpPlaces *places, int64_t now, void (*tell) (const RbpPlace *place))
{
	RbpPlace   *next;

	pthread_mutex_lock(&lock);
	for (RbpPlace *place = TAILQ_FIRST(&places->list); place != NULL; place = next)
	{
		next = TAILQ_NEXT(place, link);
		if (atomic_load(&place->deadline) > now)
			continue;
		tell(place);
		end(place);
	}
	pthread_mutex_unlock(&lock);
}
