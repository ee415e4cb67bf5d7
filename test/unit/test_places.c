/*-------------------------------------------------------------------------
 *
 * test_places.c
 *	  Places of connections: whose end when others come.
 *
 * The source is included whole, so that its clock stands still.
 *
 *-------------------------------------------------------------------------
 */
#include "common/clock.h"

#include <stdatomic.h>

static _Atomic int64_t now_ms;

static int64_t
still_now(void)
{
	return now_ms;
}

#define rbp_mono_ms	still_now
#include "broker/common/places.c"
#undef rbp_mono_ms

#include "broker/common/log.h"
#include "tap.h"

#include <arpa/inet.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MANY	100

static RbpPlace places[MANY];
static int	peers[MANY];		/* the other ends */

static void
open_all(void)
{
	memset(places, 0, sizeof(places));
	for (int i = 0; i < MANY; i++)
	{
		int			pair[2];

		if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) != 0)
			abort();
		places[i].fd = pair[0];
		peers[i] = pair[1];
	}
}

static void
close_all(void)
{
	for (int i = 0; i < MANY; i++)
	{
		rbp_place_leave(&places[i]);
		close(places[i].fd);
		close(peers[i]);
	}
}

static bool
has_ended(int i)
{
	char		byte;

	return recv(peers[i], &byte, 1, MSG_DONTWAIT) == 0;
}

/* Which have ended, as text: "0 2 " */
static const char *
ended(void)
{
	static char text[8 * MANY];

	text[0] = '\0';
	for (int i = 0; i < MANY; i++)
		if (has_ended(i))
			snprintf(text + strlen(text), sizeof(text) - strlen(text), "%d ", i);
	return text;
}

static void
test_holders(void)
{
	RbpPlaces	few;
	RbpPlaces	others;

	open_all();
	rbp_places_init(&few, 6);
	rbp_places_init(&others, 6);
	now_ms = 1000;
	ok(rbp_place_take(&few, &places[0], 1, 3) == RBP_ENDED_NONE &&
	   rbp_place_take(&few, &places[1], 1, 3) == RBP_ENDED_NONE &&
	   rbp_place_take(&few, &places[2], 1 + RBP_PLACE_CHAINS, 3) == RBP_ENDED_NONE &&
	   rbp_place_take(&few, &places[3], 1, 3) == RBP_ENDED_NONE, "a holder has three places");
	now_ms += SPARED_MS;
	ok(rbp_place_take(&few, &places[4], 1, 3) == RBP_ENDED_OWN && strcmp(ended(), "0 ") == 0,
	   "with another one, his oldest ends: %s", ended());
	ok(rbp_place_take(&few, &places[5], 2, 3) == RBP_ENDED_NONE &&
	   rbp_place_take(&few, &places[6], 3, 3) == RBP_ENDED_NONE && few.n == 6, "others have some, too");
	ok(rbp_place_take(&few, &places[7], 4, 3) == RBP_ENDED_ANY && strcmp(ended(), "0 1 ") == 0,
	   "when all are taken, the oldest of all ends: %s", ended());
	rbp_place_leave(&places[1]);
	rbp_place_leave(&places[5]);
	ok(few.n == 5 && rbp_place_take(&few, &places[8], 5, 3) == RBP_ENDED_NONE,
	   "one who leaves makes room, but not one who has lost his place");
	ok(rbp_place_take(&others, &places[2], 1, 1) == RBP_ENDED_NONE && few.n == 5 && others.n == 1,
	   "one who takes another place leaves his");
	ok(rbp_place_take(&few, &places[9], 6, 3) == RBP_ENDED_NONE && strcmp(ended(), "0 1 ") == 0, "which others can have");
	ok(rbp_places_end_oldest(&few) && strcmp(ended(), "0 1 3 ") == 0, "the oldest of all ends when that is asked: %s", ended());
	while (rbp_places_end_oldest(&few))
		;
	ok(few.n == 0 && TAILQ_EMPTY(&few.list) && others.n == 1 && !has_ended(2), "until there is none");
	close_all();
	ok(others.n == 0, "nobody is left");
}

/* Many come at once. */
static void
test_spared(void)
{
	RbpPlaces	some;

	open_all();
	rbp_places_init(&some, 20);
	for (int i = 0; i < 10; i++)
		(void) rbp_place_take(&some, &places[i], 1, 3);
	now_ms += SPARED_MS - 1;
	ok(rbp_place_take(&some, &places[10], 1, 3) == RBP_ENDED_NONE && some.n == 11, "who has just come is spared");
	now_ms++;
	ok(rbp_place_take(&some, &places[11], 1, 3) == RBP_ENDED_OWN && some.n == 3 && !has_ended(9) && !has_ended(10),
	   "later as many end as are too many: %s", ended());
	for (int i = 12; i < 30; i++)
		(void) rbp_place_take(&some, &places[i], 1, 3);
	ok(some.n == 20 && !has_ended(10) && rbp_place_take(&some, &places[30], 1, 3) == RBP_ENDED_ANY &&
	   has_ended(10) && !has_ended(11), "nobody is spared when all places are taken: %s", ended());
	close_all();
}

static int	told;

static void
tell(const RbpPlace *place)
{
	told++;
	if (has_ended((int) (place - places)))
		told += 1000;
}

static void
test_deadlines(void)
{
	RbpPlaces	some;

	open_all();
	rbp_places_init(&some, MANY);
	for (int i = 0; i < 4; i++)
	{
		atomic_store(&places[i].deadline, i == 1 ? INT64_MAX : 10 * i);
		(void) rbp_place_take(&some, &places[i], 1, MANY);
	}
	rbp_places_end_late(&some, 20, tell);
	ok(told == 2 && strcmp(ended(), "0 2 ") == 0 && some.n == 2, "those end whose time is over, and that is told before: %d, %s",
	   told, ended());
	atomic_store(&places[1].deadline, 0);
	rbp_places_end_late(&some, 20, tell);
	ok(told == 3 && strcmp(ended(), "0 1 2 ") == 0, "deadlines can change: %s", ended());
	close_all();
}

static RbpPlaces shared;

/* A quarter of the connections: they come, and go. */
static void *
come_and_go(void *arg)
{
	int			first = *(int *) arg;

	for (int n = 0; n < 20000; n++)
	{
		RbpPlace   *place = &places[first + n % (MANY / 4)];

		if (n % 3 == 0)
			rbp_place_leave(place);
		else
			(void) rbp_place_take(&shared, place, (uint64_t) (n % 7), 5);
		if (n % 100 == 0)
			now_ms += SPARED_MS;
		if (n % 1000 == 0)
			(void) rbp_places_end_oldest(&shared);
	}
	return NULL;
}

static void
test_threads(void)
{
	pthread_t	threads[4];
	int			first[4];
	int			n = 0;
	RbpPlace   *place;

	open_all();
	rbp_places_init(&shared, 20);
	for (int i = 0; i < 4; i++)
	{
		first[i] = i * (MANY / 4);
		if (pthread_create(&threads[i], NULL, come_and_go, &first[i]) != 0)
			abort();
	}
	for (int i = 0; i < 4; i++)
		pthread_join(threads[i], NULL);
	TAILQ_FOREACH(place, &shared.list, link)
		n += place->places == &shared;
	is_u64((uint64_t) n, (uint64_t) shared.n, "threads keep the count");
	ok(n <= 20, "and the bound");
	close_all();
	ok(shared.n == 0 && TAILQ_EMPTY(&shared.list), "and leave nothing behind");
}

static uint64_t
at(const char *address, uint16_t port)
{
	struct sockaddr_in v4 = {.sin_family = AF_INET,.sin_port = htons(port)};
	struct sockaddr_in6 v6 = {.sin6_family = AF_INET6,.sin6_port = htons(port)};

	if (inet_pton(AF_INET, address, &v4.sin_addr) == 1)
		return rbp_place_holder_of((struct sockaddr *) &v4);
	if (inet_pton(AF_INET6, address, &v6.sin6_addr) != 1)
		abort();
	return rbp_place_holder_of((struct sockaddr *) &v6);
}

static void
test_names(void)
{
	struct sockaddr none = {.sa_family = AF_UNSPEC};
	uid_t		users[] = {1, 1, 2};

	ok(rbp_place_holder("a", 1) == rbp_place_holder("a", 1) && rbp_place_holder("a", 1) != rbp_place_holder("b", 1),
	   "a holder is known by his name");
	ok(at("10.0.0.1", 1) == at("10.0.0.1", 2), "or by his address, whatever its port");
	ok(at("10.0.0.1", 1) != at("10.0.0.2", 1), "another address is another one");
	ok(at("fd00::1", 1) == at("fd00::1", 2) && at("fd00::1", 1) != at("fd00::2", 1), "with IPv6, too");
	ok(at("::ffff:10.0.0.1", 1) == at("10.0.0.1", 1), "an address of IPv4 is the same by a socket of IPv6");
	ok(rbp_place_holder(&users[0], sizeof(uid_t)) == rbp_place_holder(&users[1], sizeof(uid_t)) &&
	   rbp_place_holder(&users[0], sizeof(uid_t)) != rbp_place_holder(&users[2], sizeof(uid_t)), "or as a user of this host");
	is_u64(rbp_place_holder_of(&none), 0, "one without an address is like any other");
}

int
main(void)
{
	rbp_log_init("test_places", RBP_LOG_WARNING);
	test_names();
	test_holders();
	test_spared();
	test_deadlines();
	test_threads();
	return done_testing();
}
