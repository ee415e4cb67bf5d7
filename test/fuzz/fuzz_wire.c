/*-------------------------------------------------------------------------
 *
 * fuzz_wire.c
 *	  Any bytes into every decoder.  What one accepts must come out of its
 *	  encoder as the same bytes: no two messages mean the same, and nothing
 *	  in a message is ignored.
 *
 *-------------------------------------------------------------------------
 */
#include "fuzz.h"

#include "wire/wire.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void
same(const char *what, const uint8_t *data, const uint8_t *again, size_t size)
{
	if (memcmp(data, again, size) != 0)
	{
		fprintf(stderr, "%s is not encoded as it came\n", what);
		abort();
	}
}

void
fuzz_wire(const uint8_t *data, size_t size)
{
	uint8_t		again[RBP_HANDSHAKE_MAX];
	uint8_t		bytes[32];
	RbpWireHello hello;
	RbpWireAuth auth;
	RbpWireWelcome welcome;
	RbpWireRequest req;
	RbpWireAnswer ans;
	RbpWireVerbsHello verbs_hello;
	RbpWireVerbsWelcome verbs_welcome;
	uint64_t	number;
	uint32_t	key;

	if (rbp_wire_get_hello(data, size, &hello))
	{
		rbp_wire_put_hello(again, hello.lease);
		if (hello.version == RBP_WIRE_VERSION)
			same("HELLO", data, again, RBP_HELLO_SIZE);
	}
	if (rbp_wire_get_challenge(data, size, bytes))
	{
		rbp_wire_put_challenge(again, bytes);
		same("CHALLENGE", data, again, RBP_CHALLENGE_SIZE);
	}
	if (rbp_wire_get_auth(data, size, &auth))
	{
		rbp_wire_put_auth(again, &auth);
		same("AUTH", data, again, RBP_AUTH_SIZE);
	}
	if (rbp_wire_get_welcome(data, size, &welcome) && welcome.prefix.status == RBP_WIRE_OK)
		same("WELCOME", data, again, rbp_wire_put_welcome(again, &welcome));
	if (rbp_wire_get_request(data, size, &req))
	{
		if (req.len > RBP_WIRE_MAX_IO)
			abort();
		rbp_wire_put_request(again, &req);
		same("a request", data, again, RBP_REQUEST_SIZE);
	}
	if (rbp_wire_get_answer(data, size, &ans))
	{
		if (ans.payload > RBP_WIRE_MAX_IO)
			abort();
		rbp_wire_put_answer(again, &ans);
		same("an answer", data, again, RBP_ANSWER_SIZE);
	}
	if (rbp_wire_get_map(data, size, &number))
	{
		rbp_wire_put_map(again, number);
		same("MAP's payload", data, again, RBP_MAP_PAYLOAD_SIZE);
	}
	if (rbp_wire_get_verbs_hello(data, size, &verbs_hello))
	{
		rbp_wire_put_verbs_hello(again, &verbs_hello);
		same("a REQ", data, again, RBP_VERBS_HELLO_SIZE);
	}
	if (rbp_wire_get_verbs_welcome(data, size, &verbs_welcome) &&
		verbs_welcome.status != RBP_WIRE_VERSION_MISMATCH)
		same("a REP or REJ", data, again, rbp_wire_put_verbs_welcome(again, &verbs_welcome));
	if (size >= RBP_VERBS_ENTRY_SIZE)
	{
		RbpVerbsEntryState state = rbp_wire_get_verbs_entry(data, 9, &number, &key);

		rbp_wire_put_verbs_entry(again, state, 9, number, key);
		if (state != RBP_VERBS_ENTRY_TORN)
			same("an entry", data, again, RBP_VERBS_ENTRY_SIZE);
	}
}

#ifdef FUZZ_TARGET
int			LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	FUZZ_TARGET(data, size);
	return 0;
}
#endif
