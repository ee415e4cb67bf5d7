/*-------------------------------------------------------------------------
 *
 * test_fuzz.c
 *	  The fuzz targets with random bytes; with seeds, so that a failure can
 *	  be had again (RBP_FUZZ_SEED; RBP_FUZZ_ROUNDS for longer runs).
 *
 *-------------------------------------------------------------------------
 */
#include "tap.h"

#include "../fuzz/fuzz.h"
#include "wire/wire.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define NEAR_MAX	72			/* an AUTH */

static uint64_t state;

static uint32_t
any(uint32_t below)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return (uint32_t) (state >> 20) % below;
}

/* The same for those over verbs, which begin otherwise. */
static size_t
near_verbs_message(uint8_t *buf)
{
	static const size_t sizes[] = {RBP_VERBS_HELLO_SIZE, RBP_VERBS_WELCOME_SIZE, RBP_VERBS_REFUSAL_SIZE, RBP_VERBS_ENTRY_SIZE};
	uint32_t	which = any(4);
	size_t		size = sizes[which];

	for (size_t i = 0; i < NEAR_MAX; i++)
		buf[i] = any(3) == 0 ? (uint8_t) any(256) : 0;
	if (which < 3)
		memcpy(buf, "rb\2\0", 4);
	if (which == 1)
		memset(buf + 4, 0, 4);	/* RBP_WIRE_OK */
	if (which == 1)
		buf[11] = buf[22] = buf[23] = 0;
	if (which == 2)
		memset(buf + 5, 0, size - 5);
	if (which == 3)
		rbp_wire_put_verbs_entry(buf, (RbpVerbsEntryState) any(3), 9, any(UINT32_MAX), any(UINT32_MAX));
	for (uint32_t flips = any(3); flips > 0; flips--)
		buf[any(NEAR_MAX)] ^= (uint8_t) (1 << any(8));
	return any(4) == 0 ? any((uint32_t) size + 1) : size;
}

/* Something near to a message: pure noise would all fail at its first byte. */
static size_t
near_message(uint8_t *buf)
{
	static const struct
	{
		uint8_t		op;
		uint8_t		size;
	}			messages[] = {
		{1, 64}, {2, 40}, {3, 72}, {4, 56}, {4, 24}, {16, 32}, {17, 32}, {18, 32},
		{19, 32}, {0x90, 16}, {0x91, 16}, {0x92, 16}, {0x93, 16}
	};
	uint32_t	which = any(sizeof(messages) / sizeof(messages[0]));
	uint8_t		op = messages[which].op;
	size_t		size = messages[which].size;
	size_t		len;

	for (size_t i = 0; i < NEAR_MAX; i++)
		buf[i] = any(3) == 0 ? (uint8_t) any(256) : 0;
	memset(buf, 0, 8);
	buf[0] = op;
	buf[4] = (uint8_t) (size - 8);
	if (op == 1)
	{
		memcpy(buf + 8, RBP_WIRE_MAGIC "\0\2\0\0\0\0\0", 16);
		len = any(40);
		memset(buf + 24, 0, 40);
		for (size_t i = 0; i < len; i++)
			buf[24 + i] = (uint8_t) ('!' + any(94));
	}
	if (op == 4)
		buf[12] = buf[13] = buf[14] = buf[15] = buf[21] = buf[22] = buf[23] = 0;
	if (op == 4 && size == RBP_REFUSAL_SIZE)
		buf[2] = (uint8_t) any(6);
	if (op >= 16 && op < 0x80)
	{
		uint32_t	payload = any(2) ? any(70000) : 0;

		buf[20] = (uint8_t) payload;
		buf[21] = (uint8_t) (payload >> 8);
		buf[22] = (uint8_t) (payload >> 16);
		buf[23] = 0;
		if (op == 17)
		{
			uint32_t	all = 24 + payload;

			for (int i = 0; i < 4; i++)
				buf[4 + i] = (uint8_t) (all >> (8 * i));
		}
	}
	for (uint32_t flips = any(3); flips > 0; flips--)
		buf[any(NEAR_MAX)] ^= (uint8_t) (1 << any(8));
	return any(4) == 0 ? any((uint32_t) size + 1) : size;
}

int
main(void)
{
	const char *text = getenv("RBP_FUZZ_SEED");
	const char *text_rounds = getenv("RBP_FUZZ_ROUNDS");
	uint64_t	seed = text != NULL ? strtoull(text, NULL, 10) : (uint64_t) time(NULL);
	uint32_t	rounds = text_rounds != NULL ? (uint32_t) strtoul(text_rounds, NULL, 10) : 1;
	unsigned int accepted = 0;
	unsigned int welcomed = 0;

	signal(SIGPIPE, SIG_IGN);
	diag("RBP_FUZZ_SEED=%" PRIu64, seed);
	state = seed * 2 + 1;
	for (int i = 0; i < 20; i++)
		(void) any(2);

	for (uint32_t i = 0; i < 300000 * rounds; i++)
	{
		uint8_t		buf[NEAR_MAX];
		size_t		len = any(4) == 0 ? near_verbs_message(buf) : near_message(buf);
		uint8_t    *exact = malloc(len > 0 ? len : 1);
		RbpWireRequest req;
		RbpWireVerbsWelcome welcome;

		if (exact == NULL)
			return 1;
		memcpy(exact, buf, len);
		fuzz_wire(exact, len);
		accepted += rbp_wire_get_request(exact, len, &req);
		welcomed += rbp_wire_get_verbs_welcome(exact, len, &welcome);
		free(exact);
	}
	ok(accepted > 1000 && welcomed > 1000, "decoders hold; %u requests and %u welcomes over verbs were accepted",
	   accepted, welcomed);

	for (int shm = 0; shm < 2; shm++)
	{
		for (uint32_t i = 0; i < 2000 * rounds; i++)
		{
			uint8_t		script[80];
			size_t		len = any(sizeof(script)) + 1;

			/* mostly sane, so that scripts get somewhere */
			for (size_t k = 0; k < len; k++)
				script[k] = (uint8_t) (any(3) == 0 ? any(256) : any(2) * 128 + 8 + any(4));
			if (shm)
				fuzz_client_shm(script, len);
			else
				fuzz_client_tcp(script, len);
		}
		ok(true, "the %s client survives mad donors", shm ? "shm" : "tcp");
	}
	return done_testing();
}
