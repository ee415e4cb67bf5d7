/*-------------------------------------------------------------------------
 *
 * wire.c
 *	  Encoding and decoding of the messages in wire.h.
 *
 *-------------------------------------------------------------------------
 */
#include "wire/wire.h"

#include <string.h>

static void
put_prefix(uint8_t *buf, uint8_t op, uint16_t status, size_t length)
{
	RbpWirePrefix prefix = {.op = op,.status = status,.length = (uint32_t) length};

	memcpy(buf, &prefix, sizeof(prefix));
}

/*
 * Copy the first size bytes of a message into a struct that begins with the
 * prefix.  False if there are fewer, or if a flag is set, since flags that
 * this version does not know could mean anything.
 */
static bool
get_message(const uint8_t *buf, size_t len, void *out, size_t size)
{
	if (len < size)
		return false;
	memcpy(out, buf, size);
	return ((RbpWirePrefix *) out)->flags == 0;
}

/* The same, for a message of this kind, which always has this size. */
static bool
get_fixed(const uint8_t *buf, size_t len, RbpWireOp op, void *out, size_t size)
{
	const RbpWirePrefix *prefix = out;

	return get_message(buf, len, out, size) && prefix->op == op &&
		prefix->length == size - RBP_PREFIX_SIZE;
}

void
rbp_wire_put_hello(uint8_t *buf, const char *lease)
{
	RbpWireHello hello = {.version = RBP_WIRE_VERSION};

	memcpy(hello.magic, RBP_WIRE_MAGIC, RBP_WIRE_MAGIC_LEN);
	memcpy(hello.lease, lease, strnlen(lease, RBP_LEASE_ID_LEN - 1));
	memcpy(buf, &hello, sizeof(hello));
	put_prefix(buf, RBP_OP_HELLO, 0, sizeof(hello) - RBP_PREFIX_SIZE);
}

bool
rbp_wire_get_hello(const uint8_t *buf, size_t len, RbpWireHello *out)
{
	const char *lease = out->lease;
	size_t		n;

	if (!get_fixed(buf, len, RBP_OP_HELLO, out, sizeof(*out)) ||
		out->prefix.status != 0 || out->reserved8 != 0 || out->reserved32 != 0 ||
		memcmp(out->magic, RBP_WIRE_MAGIC, RBP_WIRE_MAGIC_LEN) != 0)
		return false;

	/* printable text, then nothing but zero bytes */
	for (n = 0; n < RBP_LEASE_ID_LEN && lease[n] != '\0'; n++)
		if (lease[n] <= ' ' || lease[n] > '~')
			return false;
	if (n == 0 || n == RBP_LEASE_ID_LEN)
		return false;
	for (size_t i = n; i < RBP_LEASE_ID_LEN; i++)
		if (lease[i] != '\0')
			return false;
	return true;
}

void
rbp_wire_put_challenge(uint8_t *buf, const uint8_t nonce[RBP_NONCE_LEN])
{
	put_prefix(buf, RBP_OP_CHALLENGE, 0, RBP_NONCE_LEN);
	memcpy(buf + RBP_PREFIX_SIZE, nonce, RBP_NONCE_LEN);
}

bool
rbp_wire_get_challenge(const uint8_t *buf, size_t len, uint8_t nonce[RBP_NONCE_LEN])
{
	RbpWireChallenge challenge;

	if (!get_fixed(buf, len, RBP_OP_CHALLENGE, &challenge, sizeof(challenge)) ||
		challenge.prefix.status != 0)
		return false;
	memcpy(nonce, challenge.nonce, RBP_NONCE_LEN);
	return true;
}

void
rbp_wire_put_auth(uint8_t *buf, const RbpWireAuth *auth)
{
	memcpy(buf, auth, sizeof(*auth));
	put_prefix(buf, RBP_OP_AUTH, 0, sizeof(*auth) - RBP_PREFIX_SIZE);
}

bool
rbp_wire_get_auth(const uint8_t *buf, size_t len, RbpWireAuth *out)
{
	return get_fixed(buf, len, RBP_OP_AUTH, out, sizeof(*out)) && out->prefix.status == 0;
}

size_t
rbp_wire_put_welcome(uint8_t *buf, const RbpWireWelcome *welcome)
{
	RbpWireWelcome refusal = {0};
	bool		good = welcome->prefix.status == RBP_WIRE_OK;
	size_t		size = good ? RBP_WELCOME_SIZE : RBP_REFUSAL_SIZE;

	memcpy(buf, good ? welcome : &refusal, size);
	put_prefix(buf, RBP_OP_WELCOME, welcome->prefix.status, size - RBP_PREFIX_SIZE);
	return size;
}

bool
rbp_wire_get_welcome(const uint8_t *buf, size_t len, RbpWireWelcome *out)
{
	/* a refusal has no valid values behind the status */
	if (!get_message(buf, len, out, RBP_REFUSAL_SIZE))
		return false;
	if (out->prefix.status != RBP_WIRE_OK)
		return get_fixed(buf, len, RBP_OP_WELCOME, out, RBP_REFUSAL_SIZE);
	return get_fixed(buf, len, RBP_OP_WELCOME, out, sizeof(*out)) &&
		out->regions > 0 && out->regions <= RBP_DONOR_MAX_REGIONS &&
		out->reserved32 == 0 &&
		out->region_size > 0 && out->region_size <= RBP_MAX_REGION_SIZE;
}

/* Bytes that follow the prefix of a request */
static uint32_t
request_length(const RbpWireRequest *req)
{
	return RBP_REQUEST_SIZE - RBP_PREFIX_SIZE +
		(req->prefix.op == RBP_OP_WRITE ? req->len : 0);
}

void
rbp_wire_put_request(uint8_t *buf, const RbpWireRequest *req)
{
	memcpy(buf, req, sizeof(*req));
	put_prefix(buf, req->prefix.op, 0, request_length(req));
}

bool
rbp_wire_get_request(const uint8_t *buf, size_t len, RbpWireRequest *out)
{
	if (!get_message(buf, len, out, sizeof(*out)) || out->prefix.status != 0)
		return false;
	switch (out->prefix.op)
	{
		case RBP_OP_READ:
		case RBP_OP_WRITE:
			if (out->len == 0 || out->len > RBP_WIRE_MAX_IO)
				return false;
			break;
		case RBP_OP_PING:
			if (out->len != 0 || out->offset != 0 || out->region != 0)
				return false;
			break;
		case RBP_OP_MAP:
			if (out->len != 0 || out->offset != 0)
				return false;
			break;
		default:
			return false;
	}
	return out->prefix.length == request_length(out);
}

void
rbp_wire_put_answer(uint8_t *buf, const RbpWireAnswer *ans)
{
	put_prefix(buf, ans->op | RBP_OP_ANSWER, ans->status,
			   sizeof(ans->id) + ans->payload);
	memcpy(buf + RBP_PREFIX_SIZE, &ans->id, sizeof(ans->id));
}

bool
rbp_wire_get_answer(const uint8_t *buf, size_t len, RbpWireAnswer *out)
{
	RbpWirePrefix prefix;

	if (len < RBP_ANSWER_SIZE || !get_message(buf, len, &prefix, sizeof(prefix)) ||
		(prefix.op & RBP_OP_ANSWER) == 0 || prefix.length < sizeof(out->id))
		return false;

	out->op = prefix.op & (uint8_t) ~RBP_OP_ANSWER;
	out->status = prefix.status;
	out->payload = prefix.length - (uint32_t) sizeof(out->id);
	memcpy(&out->id, buf + RBP_PREFIX_SIZE, sizeof(out->id));

	switch (out->op)
	{
		case RBP_OP_READ:
			if (out->status == RBP_WIRE_OK)
				return out->payload > 0 && out->payload <= RBP_WIRE_MAX_IO;
			break;
		case RBP_OP_MAP:
			if (out->status == RBP_WIRE_OK)
				return out->payload == RBP_MAP_PAYLOAD_SIZE;
			break;
		case RBP_OP_WRITE:
		case RBP_OP_PING:
			break;
		default:
			return false;
	}
	return out->payload == 0;
}

void
rbp_wire_put_map(uint8_t *buf, uint64_t region_size)
{
	memcpy(buf, &region_size, sizeof(region_size));
}

bool
rbp_wire_get_map(const uint8_t *buf, size_t len, uint64_t *region_size)
{
	if (len != sizeof(*region_size))
		return false;
	memcpy(region_size, buf, sizeof(*region_size));
	return *region_size > 0 && *region_size <= RBP_MAX_REGION_SIZE;
}

/*
 * ---- over verbs ---------------------------------------------------------
 */
void
rbp_wire_put_verbs_hello(uint8_t *buf, const RbpWireVerbsHello *hello)
{
	memcpy(buf, hello, sizeof(*hello));
	memcpy(buf, RBP_VERBS_MAGIC, RBP_VERBS_MAGIC_LEN);
}

bool
rbp_wire_get_verbs_hello(const uint8_t *buf, size_t len, RbpWireVerbsHello *out)
{
	if (len < sizeof(*out))
		return false;
	memcpy(out, buf, sizeof(*out));
	return memcmp(out->magic, RBP_VERBS_MAGIC, RBP_VERBS_MAGIC_LEN) == 0;
}

size_t
rbp_wire_put_verbs_welcome(uint8_t *buf, const RbpWireVerbsWelcome *welcome)
{
	RbpWireVerbsWelcome w = {.status = welcome->status};
	bool		good = welcome->status == RBP_WIRE_OK;
	size_t		size = good ? RBP_VERBS_WELCOME_SIZE : RBP_VERBS_REFUSAL_SIZE;

	if (good)
		w = *welcome;
	memcpy(w.magic, RBP_VERBS_MAGIC, RBP_VERBS_MAGIC_LEN);
	w.version = RBP_WIRE_VERSION;
	memcpy(buf, &w, size);
	return size;
}

bool
rbp_wire_get_verbs_welcome(const uint8_t *buf, size_t len,
						   RbpWireVerbsWelcome *out)
{
	if (len < RBP_VERBS_REFUSAL_SIZE)
		return false;
	memcpy(out, buf, RBP_VERBS_REFUSAL_SIZE);
	if (memcmp(out->magic, RBP_VERBS_MAGIC, RBP_VERBS_MAGIC_LEN) != 0)
		return false;

	/* the rest of a message of another version cannot be interpreted */
	if (out->version != RBP_WIRE_VERSION)
		return out->status == RBP_WIRE_VERSION_MISMATCH;
	if (out->reserved16 != 0)
		return false;
	if (out->status != RBP_WIRE_OK)
		return out->regions == 0 && out->table_key == 0 &&
			out->region_size == 0 && out->table_address == 0;
	if (len < sizeof(*out))
		return false;
	memcpy(out, buf, sizeof(*out));
	return out->regions > 0 && out->regions <= RBP_DONOR_MAX_REGIONS &&
		out->region_size > 0 && out->region_size <= RBP_MAX_REGION_SIZE &&
		out->table_address > 0 &&
		out->table_address <= UINT64_MAX - (uint64_t) out->regions * RBP_VERBS_ENTRY_SIZE;
}

uint32_t
rbp_wire_verbs_check(uint32_t region, uint64_t address, uint32_t key)
{
	uint64_t	x = address;

	/*
	 * A hash, by the constants of splitmix64, so that a reader notices halves
	 * of two versions of an entry; it is no protection from forgery.  Each
	 * step mixes all bits of the value so far with the new ones.
	 */
	x = (x ^ x >> 32) * UINT64_C(0x9E3779B97F4A7C15);
	x = (x ^ x >> 29 ^ key) * UINT64_C(0xBF58476D1CE4E5B9);
	x = (x ^ x >> 32 ^ region) * UINT64_C(0x94D049BB133111EB);
	x ^= x >> 31;
	x = (uint32_t) x;
	/* smaller values say that there is no key */
	return x > RBP_VERBS_CHECK_PENDING ? (uint32_t) x : (uint32_t) x + RBP_VERBS_CHECK_PENDING + 1;
}

void
rbp_wire_put_verbs_entry(uint8_t *buf, RbpVerbsEntryState state,
						 uint32_t region, uint64_t address, uint32_t key)
{
	RbpWireVerbsEntry entry = {.check = RBP_VERBS_CHECK_NONE};

	if (state == RBP_VERBS_ENTRY_PENDING)
		entry.check = RBP_VERBS_CHECK_PENDING;
	else if (state == RBP_VERBS_ENTRY_READY)
	{
		entry.address = address;
		entry.key = key;
		entry.check = rbp_wire_verbs_check(region, address, key);
	}
	memcpy(buf, &entry, sizeof(entry));
}

RbpVerbsEntryState
rbp_wire_get_verbs_entry(const uint8_t *buf, uint32_t region,
						 uint64_t *address, uint32_t *key)
{
	RbpWireVerbsEntry entry;

	memcpy(&entry, buf, sizeof(entry));
	*address = entry.address;
	*key = entry.key;
	if (entry.check == RBP_VERBS_CHECK_NONE || entry.check == RBP_VERBS_CHECK_PENDING)
	{
		if (entry.address != 0 || entry.key != 0)
			return RBP_VERBS_ENTRY_TORN;
		return entry.check == RBP_VERBS_CHECK_PENDING ? RBP_VERBS_ENTRY_PENDING : RBP_VERBS_ENTRY_NONE;
	}
	return entry.check == rbp_wire_verbs_check(region, entry.address, entry.key)
		? RBP_VERBS_ENTRY_READY : RBP_VERBS_ENTRY_TORN;
}
