/*-------------------------------------------------------------------------
 *
 * test_wire.c
 *	  Wire messages: known bytes, round trips, every truncation, every byte
 *	  changed.
 *
 *-------------------------------------------------------------------------
 */
#include "tap.h"

#include "wire/wire.h"

#include <stdlib.h>
#include <string.h>

static const char lease[] = "4e8b2f0a-7b1e-4c57-9d57-0f2f8a1c9b33";

/*
 * Decoders of all kinds behind one face: what they accept is put into
 * *value so that changes can be told from no change.
 */
typedef struct Value
{
	uint64_t	numbers[6];
	uint8_t		bytes[96];
} Value;

typedef bool (*Decoder) (const uint8_t *buf, size_t len, Value *value);

static bool
hello(const uint8_t *buf, size_t len, Value *v)
{
	RbpWireHello out;

	if (!rbp_wire_get_hello(buf, len, &out))
		return false;
	v->numbers[0] = out.version;
	memcpy(v->bytes, out.lease, sizeof(out.lease));
	return true;
}

static bool
challenge(const uint8_t *buf, size_t len, Value *v)
{
	return rbp_wire_get_challenge(buf, len, v->bytes);
}

static bool
auth(const uint8_t *buf, size_t len, Value *v)
{
	RbpWireAuth out;

	if (!rbp_wire_get_auth(buf, len, &out))
		return false;
	memcpy(v->bytes, out.nonce, sizeof(out.nonce));
	memcpy(v->bytes + sizeof(out.nonce), out.mac, sizeof(out.mac));
	return true;
}

static bool
welcome(const uint8_t *buf, size_t len, Value *v)
{
	RbpWireWelcome out;

	if (!rbp_wire_get_welcome(buf, len, &out))
		return false;
	v->numbers[0] = out.prefix.status;
	v->numbers[1] = out.regions;
	v->numbers[2] = out.region_size;
	memcpy(v->bytes, out.mac, out.prefix.status == RBP_WIRE_OK ? sizeof(out.mac) : 0);
	return true;
}

static bool
request(const uint8_t *buf, size_t len, Value *v)
{
	RbpWireRequest out;

	if (!rbp_wire_get_request(buf, len, &out))
		return false;
	v->numbers[0] = out.prefix.op;
	v->numbers[1] = out.id;
	v->numbers[2] = out.region;
	v->numbers[3] = out.len;
	v->numbers[4] = out.offset;
	return true;
}

static bool
answer(const uint8_t *buf, size_t len, Value *v)
{
	RbpWireAnswer out;

	if (!rbp_wire_get_answer(buf, len, &out))
		return false;
	v->numbers[0] = out.op;
	v->numbers[1] = out.status;
	v->numbers[2] = out.payload;
	v->numbers[3] = out.id;
	return true;
}

static bool
verbs_hello(const uint8_t *buf, size_t len, Value *v)
{
	RbpWireVerbsHello out;

	if (!rbp_wire_get_verbs_hello(buf, len, &out))
		return false;
	v->numbers[0] = out.version;
	memcpy(v->bytes, out.digest, sizeof(out.digest));
	memcpy(v->bytes + 16, out.nonce, sizeof(out.nonce));
	memcpy(v->bytes + 32, out.mac, sizeof(out.mac));
	return true;
}

static bool
verbs_welcome(const uint8_t *buf, size_t len, Value *v)
{
	RbpWireVerbsWelcome out;

	if (!rbp_wire_get_verbs_welcome(buf, len, &out))
		return false;
	v->numbers[0] = out.status;
	v->numbers[1] = out.regions;
	v->numbers[2] = out.table_key;
	v->numbers[3] = out.region_size;
	v->numbers[4] = out.table_address;
	memcpy(v->bytes, out.mac, out.status == RBP_WIRE_OK ? sizeof(out.mac) : 0);
	return true;
}

/*
 * Every truncation is refused, without a look past the end (the copy is
 * exactly as long, for the address sanitizer), and a change of any bit is
 * either refused or seen in the result.
 */
static void
mistreat(const char *what, Decoder decode, const uint8_t *good, size_t size)
{
	Value		expected = {0};
	Value		got;
	uint8_t		copy[128];
	unsigned int blind = 0;
	unsigned int short_ok = 0;

	memcpy(copy, good, size);
	ok(decode(copy, size, &expected), "%s: the whole is accepted", what);
	for (size_t len = 0; len < size; len++)
	{
		uint8_t    *exact = malloc(len > 0 ? len : 1);

		if (exact == NULL)
			exit(1);
		memcpy(exact, good, len);
		short_ok += decode(exact, len, &got);
		free(exact);
	}
	is_u64(short_ok, 0, "%s: no truncation is", what);

	for (size_t bit = 0; bit < size * 8; bit++)
	{
		copy[bit / 8] ^= (uint8_t) (1 << bit % 8);
		memset(&got, 0, sizeof(got));
		if (decode(copy, size, &got) && memcmp(&got, &expected, sizeof(got)) == 0)
		{
			blind++;
			diag("bit %zu does not matter", bit);
		}
		copy[bit / 8] ^= (uint8_t) (1 << bit % 8);
	}
	is_u64(blind, 0, "%s: every bit matters", what);
}

static void
test_handshake(void)
{
	static const uint8_t known[RBP_HELLO_SIZE] = {
		1, 0, 0, 0, 56, 0, 0, 0, 'r', 'e', 'm', 'o', 't', 'e', '_', 'b', 'p', 0, 2, 0, 0, 0, 0, 0, 'x', 'y'
	};
	static const uint8_t known_welcome[RBP_WELCOME_SIZE] = {
		4, 0, 0, 0, 48, 0, 0, 0, 128, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0,
		1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16,
		17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32
	};
	static const uint8_t known_refusal[RBP_REFUSAL_SIZE] = {4, 0, RBP_WIRE_VERSION_MISMATCH, 0, 16};
	uint8_t		buf[RBP_HANDSHAKE_MAX];
	uint8_t		bytes[32];
	RbpWireHello h;
	RbpWireAuth a;
	RbpWireWelcome w = {.regions = 128,.region_size = UINT64_C(64) << 20};
	char		longest[RBP_LEASE_ID_LEN + 20];

	rbp_wire_put_hello(buf, "xy");
	ok(memcmp(buf, known, sizeof(known)) == 0, "HELLO has the documented bytes");
	rbp_wire_put_hello(buf, lease);
	mistreat("HELLO", hello, buf, RBP_HELLO_SIZE);
	ok(rbp_wire_get_hello(buf, sizeof(buf), &h) && strcmp(h.lease, lease) == 0 &&
	   h.version == RBP_WIRE_VERSION, "HELLO carries lease and version");

	memset(longest, 'a', sizeof(longest) - 1);
	longest[sizeof(longest) - 1] = '\0';
	rbp_wire_put_hello(buf, longest);
	ok(rbp_wire_get_hello(buf, sizeof(buf), &h) && strlen(h.lease) == RBP_LEASE_ID_LEN - 1,
	   "a lease that is too long is cut, and stays terminated");
	buf[RBP_HELLO_SIZE - 1] = 'a';
	ok(!rbp_wire_get_hello(buf, sizeof(buf), &h), "one without an end is refused");
	rbp_wire_put_hello(buf, "");
	ok(!rbp_wire_get_hello(buf, sizeof(buf), &h), "an empty one, too");
	rbp_wire_put_hello(buf, "a\nb");
	ok(!rbp_wire_get_hello(buf, sizeof(buf), &h), "and one that would spoil a log");
	rbp_wire_put_hello(buf, "ab");
	buf[offsetof(RbpWireHello, lease) + 5] = 'x';
	ok(!rbp_wire_get_hello(buf, sizeof(buf), &h), "and one with something behind its end");

	for (int i = 0; i < 32; i++)
		bytes[i] = (uint8_t) (i * 7 + 1);
	rbp_wire_put_challenge(buf, bytes);
	ok(memcmp(buf, "\2\0\0\0\x20\0\0", 8) == 0 && memcmp(buf + 8, bytes, 32) == 0,
	   "CHALLENGE has the documented bytes");
	mistreat("CHALLENGE", challenge, buf, RBP_CHALLENGE_SIZE);
	memcpy(a.nonce, bytes, sizeof(a.nonce));
	for (int i = 0; i < 32; i++)
		a.mac[i] = w.mac[i] = (uint8_t) (i + 1);
	rbp_wire_put_auth(buf, &a);
	ok(memcmp(buf, "\3\0\0\0\x40\0\0", 8) == 0 && memcmp(buf + 8, bytes, 32) == 0 &&
	   memcmp(buf + 40, a.mac, 32) == 0, "AUTH has the documented bytes");
	mistreat("AUTH", auth, buf, RBP_AUTH_SIZE);
	ok(!rbp_wire_get_challenge(buf, RBP_AUTH_SIZE, bytes), "AUTH is no CHALLENGE");

	ok(rbp_wire_put_welcome(buf, &w) == RBP_WELCOME_SIZE &&
	   memcmp(buf, known_welcome, sizeof(known_welcome)) == 0, "WELCOME has the documented bytes");
	mistreat("WELCOME", welcome, buf, RBP_WELCOME_SIZE);
	w.prefix.status = RBP_WIRE_VERSION_MISMATCH;
	ok(rbp_wire_put_welcome(buf, &w) == RBP_REFUSAL_SIZE &&
	   memcmp(buf, known_refusal, sizeof(known_refusal)) == 0, "a refusal is as in version 1");
	ok(rbp_wire_get_welcome(buf, RBP_REFUSAL_SIZE, &w) && w.prefix.status == RBP_WIRE_VERSION_MISMATCH &&
	   !rbp_wire_get_welcome(buf, RBP_REFUSAL_SIZE - 1, &w), "and is understood");
	buf[2] = RBP_WIRE_OK;
	ok(!rbp_wire_get_welcome(buf, RBP_WELCOME_SIZE, &w), "a WELCOME without a MAC is not");
	w = (RbpWireWelcome)
	{
		.prefix.status = RBP_WIRE_OK,.regions = 1
	};
	rbp_wire_put_welcome(buf, &w);
	ok(!rbp_wire_get_welcome(buf, RBP_WELCOME_SIZE, &w), "a welcome with empty regions is refused");
	w = (RbpWireWelcome)
	{
		.prefix.status = RBP_WIRE_OK,.regions = UINT32_MAX,.region_size = 1
	};
	rbp_wire_put_welcome(buf, &w);
	ok(!rbp_wire_get_welcome(buf, RBP_WELCOME_SIZE, &w), "so is one with absurdly many");
}

static void
test_requests(void)
{
	static const uint8_t known[RBP_REQUEST_SIZE] = {
		17, 0, 0, 0, 24, 32, 0, 0,
		8, 7, 6, 5, 4, 3, 2, 1,
		0x44, 0x33, 0x22, 0x11, 0, 32, 0, 0,
		0, 0x20, 0, 0, 1, 0, 0, 0
	};
	static const uint8_t known_answer[RBP_ANSWER_SIZE] = {
		16 + 128, 0, 0, 0, 8, 32, 0, 0, 0x10, 0x32, 0x54, 0x76, 0x98, 0xBA, 0xDC, 0xFE
	};
	RbpWireRequest write = {.prefix.op = RBP_OP_WRITE,.id = UINT64_C(0x0102030405060708),.region = 0x11223344,.len = 8192,.offset = UINT64_C(0x100002000)};
	RbpWireRequest req;
	uint8_t		buf[RBP_REQUEST_SIZE];
	uint8_t		ans[RBP_ANSWER_SIZE];
	RbpWireAnswer a;
	unsigned int accepted = 0;

	rbp_wire_put_request(buf, &write);
	ok(memcmp(buf, known, sizeof(known)) == 0, "WRITE has the documented bytes");
	mistreat("WRITE", request, buf, RBP_REQUEST_SIZE);
	req = write;
	req.prefix = (RbpWirePrefix)
	{
		.op = RBP_OP_WRITE,.flags = 1,.status = 2,.length = 3
	};
	rbp_wire_put_request(buf, &req);
	ok(memcmp(buf, known, sizeof(known)) == 0, "whatever its struct says in flags, status and length");
	req = write;
	req.prefix.op = RBP_OP_READ;
	rbp_wire_put_request(buf, &req);
	mistreat("READ", request, buf, RBP_REQUEST_SIZE);
	req = (RbpWireRequest)
	{
		.prefix.op = RBP_OP_PING,.id = 77
	};
	rbp_wire_put_request(buf, &req);
	mistreat("PING", request, buf, RBP_REQUEST_SIZE);
	req = (RbpWireRequest)
	{
		.prefix.op = RBP_OP_MAP,.id = 78,.region = 9
	};
	rbp_wire_put_request(buf, &req);
	mistreat("MAP", request, buf, RBP_REQUEST_SIZE);

	req = write;
	req.len = 0;
	rbp_wire_put_request(buf, &req);
	ok(!rbp_wire_get_request(buf, sizeof(buf), &req), "a WRITE of nothing is refused");
	req = write;
	req.len = RBP_WIRE_MAX_IO + 1;
	rbp_wire_put_request(buf, &req);
	ok(!rbp_wire_get_request(buf, sizeof(buf), &req), "so is one of too much");
	req = write;
	req.prefix.op = RBP_OP_READ;
	req.len = UINT32_MAX;
	rbp_wire_put_request(buf, &req);
	ok(!rbp_wire_get_request(buf, sizeof(buf), &req), "and such a READ");

	for (int op = 0; op < 256; op++)
	{
		req = (RbpWireRequest)
		{
			.prefix.op = (uint8_t) op,.id = 1
		};
		rbp_wire_put_request(buf, &req);
		accepted += rbp_wire_get_request(buf, sizeof(buf), &req);
	}
	is_u64(accepted, 2, "of requests without length only PING and MAP are accepted");

	a = (RbpWireAnswer)
	{
		.op = RBP_OP_READ,.payload = 8192,.id = UINT64_C(0xFEDCBA9876543210)
	};
	rbp_wire_put_answer(ans, &a);
	ok(memcmp(ans, known_answer, sizeof(known_answer)) == 0, "READ's answer has the documented bytes");
	mistreat("READ's answer", answer, ans, RBP_ANSWER_SIZE);
	a = (RbpWireAnswer)
	{
		.op = RBP_OP_WRITE,.id = 5
	};
	rbp_wire_put_answer(ans, &a);
	mistreat("WRITE's answer", answer, ans, RBP_ANSWER_SIZE);
	a = (RbpWireAnswer)
	{
		.op = RBP_OP_READ,.status = RBP_WIRE_DENIED,.id = 6
	};
	rbp_wire_put_answer(ans, &a);
	ok(rbp_wire_get_answer(ans, sizeof(ans), &a) && a.status == RBP_WIRE_DENIED && a.payload == 0, "a refused READ");
	a.payload = 8192;
	rbp_wire_put_answer(ans, &a);
	ok(!rbp_wire_get_answer(ans, sizeof(ans), &a), "with a payload makes no sense");
	a = (RbpWireAnswer)
	{
		.op = RBP_OP_READ,.id = 6
	};
	rbp_wire_put_answer(ans, &a);
	ok(!rbp_wire_get_answer(ans, sizeof(ans), &a), "nor a good one without");
	a = (RbpWireAnswer)
	{
		.op = RBP_OP_PING,.payload = 1,.id = 6
	};
	rbp_wire_put_answer(ans, &a);
	ok(!rbp_wire_get_answer(ans, sizeof(ans), &a), "nor a PING with one");
	ans[4] = 0;
	ans[0] = RBP_OP_READ | RBP_OP_ANSWER;
	memset(ans + 4, 0, 4);
	ok(!rbp_wire_get_answer(ans, sizeof(ans), &a), "an answer shorter than its id is refused");
}

static void
test_map(void)
{
	uint8_t		buf[RBP_MAP_PAYLOAD_SIZE];
	uint64_t	size = 0;

	rbp_wire_put_map(buf, UINT64_C(64) << 20);
	ok(rbp_wire_get_map(buf, sizeof(buf), &size) && size == UINT64_C(64) << 20, "MAP's payload");
	for (size_t len = 0; len < sizeof(buf); len++)
		ok(!rbp_wire_get_map(buf, len, &size), "not %zu bytes of it", len);
	rbp_wire_put_map(buf, 0);
	ok(!rbp_wire_get_map(buf, sizeof(buf), &size), "an empty region is refused");
	rbp_wire_put_map(buf, UINT64_MAX);
	ok(!rbp_wire_get_map(buf, sizeof(buf), &size), "and one larger than address spaces");
}

static void
test_verbs_handshake(void)
{
	static const uint8_t known_hello[RBP_VERBS_HELLO_SIZE] = {
		'r', 'b', 2, 0,
		1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16,
		17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32,
		33, 34, 35, 36, 37, 38, 39, 40, 41, 42, 43, 44, 45, 46, 47, 48, 49, 50, 51, 52
	};
	static const uint8_t known_welcome[RBP_VERBS_WELCOME_SIZE] = {
		'r', 'b', 2, 0, 0, 0, 0, 0,
		0x03, 0x02, 0, 0, 0x44, 0x33, 0x22, 0x11,
		0, 0, 0, 4, 0, 0, 0, 0,
		0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11,
		1, 2, 3
	};
	static const uint8_t known_refusal[RBP_VERBS_REFUSAL_SIZE] = {'r', 'b', 2, 0, RBP_WIRE_BUSY};
	const RbpWireVerbsWelcome good = {.mac = {1, 2, 3},.regions = 0x0203,.table_key = 0x11223344,.region_size = UINT64_C(64) << 20,.table_address = UINT64_C(0x1122334455667788)};
	uint8_t		buf[256] = {0};
	RbpWireVerbsHello h = {.version = RBP_WIRE_VERSION};
	RbpWireVerbsWelcome w = good;
	unsigned int accepted = 0;

	for (int i = 0; i < 16; i++)
	{
		h.digest[i] = (uint8_t) (i + 1);
		h.nonce[i] = (uint8_t) (i + 17);
	}
	for (int i = 0; i < RBP_VERBS_MAC_LEN; i++)
		h.mac[i] = (uint8_t) (i + 33);
	rbp_wire_put_verbs_hello(buf, &h);
	ok(memcmp(buf, known_hello, sizeof(known_hello)) == 0, "a REQ has the documented bytes");
	mistreat("REQ", verbs_hello, buf, RBP_VERBS_HELLO_SIZE);
	ok(rbp_wire_get_verbs_hello(buf, sizeof(buf), &h), "zeroes behind it do not matter");
	h.version = 77;
	rbp_wire_put_verbs_hello(buf, &h);
	h.version = 0;
	ok(rbp_wire_get_verbs_hello(buf, RBP_VERBS_HELLO_SIZE, &h) && h.version == 77, "its version is told, not judged");

	ok(rbp_wire_put_verbs_welcome(buf, &w) == RBP_VERBS_WELCOME_SIZE &&
	   memcmp(buf, known_welcome, sizeof(known_welcome)) == 0, "a REP has the documented bytes");
	mistreat("REP", verbs_welcome, buf, RBP_VERBS_WELCOME_SIZE);
	w.status = RBP_WIRE_BUSY;
	ok(rbp_wire_put_verbs_welcome(buf, &w) == RBP_VERBS_REFUSAL_SIZE &&
	   memcmp(buf, known_refusal, sizeof(known_refusal)) == 0, "a REJ tells nothing but its status");
	mistreat("REJ", verbs_welcome, buf, RBP_VERBS_REFUSAL_SIZE);

	/* of another version */
	for (unsigned int status = 0; status < 256; status++)
	{
		memset(buf, 0xA5, sizeof(buf));
		memcpy(buf, "rb\1\0", 4);
		buf[4] = (uint8_t) status;
		buf[5] = 0;
		accepted += rbp_wire_get_verbs_welcome(buf, RBP_VERBS_REFUSAL_SIZE, &w);
	}
	is_u64(accepted, 1, "another version can only say that it is another");

	for (int i = 0; i < 7; i++)
	{
		static const char *const what[] = {"no regions", "absurdly many", "empty ones",
		"absurdly large ones", "no table", "a table that wraps around", "nothing wrong"};

		w = good;
		if (i == 0)
			w.regions = 0;
		if (i == 1)
			w.regions = RBP_DONOR_MAX_REGIONS + 1;
		if (i == 2)
			w.region_size = 0;
		if (i == 3)
			w.region_size = (UINT64_C(1) << 46) + 1;
		if (i == 4)
			w.table_address = 0;
		if (i == 5)
			w.table_address = UINT64_MAX - RBP_VERBS_ENTRY_SIZE;
		rbp_wire_put_verbs_welcome(buf, &w);
		ok(rbp_wire_get_verbs_welcome(buf, RBP_VERBS_WELCOME_SIZE, &w) == (i == 6),
		   "a REP with %s is %s", what[i], i == 6 ? "accepted" : "refused");
	}
}

static void
test_verbs_entries(void)
{
	static const uint8_t pending[RBP_VERBS_ENTRY_SIZE] = {[12] = 1};
	uint8_t		buf[RBP_VERBS_ENTRY_SIZE];
	uint8_t		old[RBP_VERBS_ENTRY_SIZE];
	uint8_t		mixed[RBP_VERBS_ENTRY_SIZE];
	uint64_t	address = 0;
	uint32_t	key = 0;
	unsigned int wrong = 0;
	unsigned int reserved = 0;

	rbp_wire_put_verbs_entry(buf, RBP_VERBS_ENTRY_READY, 7, UINT64_C(0x7F0012345000), 0xCAFE);
	ok(rbp_wire_get_verbs_entry(buf, 7, &address, &key) == RBP_VERBS_ENTRY_READY &&
	   address == UINT64_C(0x7F0012345000) && key == 0xCAFE, "an entry comes back");
	ok(memcmp(buf, "\0\x50\x34\x12\0\x7F\0\0\xFE\xCA\0", 12) == 0, "with the documented bytes");
	for (uint32_t region = 0; region < 100000; region++)
		wrong += region != 7 &&
			rbp_wire_get_verbs_entry(buf, region, &address, &key) != RBP_VERBS_ENTRY_TORN;
	is_u64(wrong, 0, "it is no other region's");
	for (int bit = 0; bit < RBP_VERBS_ENTRY_SIZE * 8; bit++)
	{
		buf[bit / 8] ^= (uint8_t) (1 << bit % 8);
		wrong += rbp_wire_get_verbs_entry(buf, 7, &address, &key) != RBP_VERBS_ENTRY_TORN;
		buf[bit / 8] ^= (uint8_t) (1 << bit % 8);
	}
	is_u64(wrong, 0, "with any bit changed it is torn");

	rbp_wire_put_verbs_entry(buf, RBP_VERBS_ENTRY_NONE, 7, 5, 6);
	ok(rbp_wire_get_verbs_entry(buf, 7, &address, &key) == RBP_VERBS_ENTRY_NONE, "none");
	for (int i = 0; i < RBP_VERBS_ENTRY_SIZE; i++)
		wrong += buf[i] != 0;
	is_u64(wrong, 0, "is all zeroes");
	rbp_wire_put_verbs_entry(buf, RBP_VERBS_ENTRY_PENDING, 7, 5, 6);
	ok(memcmp(buf, pending, sizeof(pending)) == 0 &&
	   rbp_wire_get_verbs_entry(buf, 7, &address, &key) == RBP_VERBS_ENTRY_PENDING, "one that has no key yet");

	/*
	 * reads that meet a change, cut anywhere: old in front, new behind it, or
	 * the other way
	 */
	for (int from = 0; from < 4; from++)
		for (int to = 0; to < 4; to++)
			for (size_t cut = 0; cut <= RBP_VERBS_ENTRY_SIZE; cut++)
			{
				const RbpVerbsEntryState states[] = {RBP_VERBS_ENTRY_NONE, RBP_VERBS_ENTRY_PENDING,
				RBP_VERBS_ENTRY_READY, RBP_VERBS_ENTRY_READY};
				RbpVerbsEntryState state;

				rbp_wire_put_verbs_entry(old, states[from], 3, UINT64_C(0x7F1111111000) + (uint64_t) from * 0x123000, 0x11110000u + (uint32_t) from);
				rbp_wire_put_verbs_entry(buf, states[to], 3, UINT64_C(0x7F1111111000) + (uint64_t) to * 0x123000, 0x11110000u + (uint32_t) to);
				memcpy(mixed, old, cut);
				memcpy(mixed + cut, buf + cut, sizeof(mixed) - cut);
				state = rbp_wire_get_verbs_entry(mixed, 3, &address, &key);
				wrong += state != RBP_VERBS_ENTRY_TORN && memcmp(mixed, old, sizeof(mixed)) != 0 &&
					memcmp(mixed, buf, sizeof(mixed)) != 0 && state != states[from] && state != states[to];
				wrong += state == RBP_VERBS_ENTRY_READY && memcmp(mixed, old, sizeof(mixed)) != 0 &&
					memcmp(mixed, buf, sizeof(mixed)) != 0;
			}
	is_u64(wrong, 0, "half of an entry and half of another are never a key");

	for (uint32_t i = 0; i < 1000000; i++)
		reserved += rbp_wire_verbs_check(i, UINT64_C(0x7F0000000000) + i * UINT64_C(4096), i * 256 + 1) <= RBP_VERBS_CHECK_PENDING;
	is_u64(reserved, 0, "no check is one of those that mean something else");
}

int
main(void)
{
	test_handshake();
	test_requests();
	test_map();
	test_verbs_handshake();
	test_verbs_entries();
	return done_testing();
}
