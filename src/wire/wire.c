/*-------------------------------------------------------------------------
 *
 * wire.c
 *	  Encoding and decoding of the messages in wire.h.
 *
 *-------------------------------------------------------------------------
 */
#include "wire/wire.h"

#include <string.h>

/*
 * Access numbers byte by byte: compilers turn this into single moves on
 * little-endian machines, and it is correct on others.
 */
static void
put16(uint8_t *p, uint16_t v)
{
	p[0] = (uint8_t) v;
	p[1] = (uint8_t) (v >> 8);
}

static void
put32(uint8_t *p, uint32_t v)
{
	for (int i = 0; i < 4; i++)
		p[i] = (uint8_t) (v >> (8 * i));
}

static void
put64(uint8_t *p, uint64_t v)
{
	for (int i = 0; i < 8; i++)
		p[i] = (uint8_t) (v >> (8 * i));
}

static uint16_t
get16(const uint8_t *p)
{
	return (uint16_t) (p[0] | p[1] << 8);
}

static uint32_t
get32(const uint8_t *p)
{
	uint32_t	v = 0;

	for (int i = 0; i < 4; i++)
		v |= (uint32_t) p[i] << (8 * i);
	return v;
}

static uint64_t
get64(const uint8_t *p)
{
	uint64_t	v = 0;

	for (int i = 0; i < 8; i++)
		v |= (uint64_t) p[i] << (8 * i);
	return v;
}

static void
put_prefix(uint8_t *buf, uint8_t op, uint16_t status, uint32_t length)
{
	buf[0] = op;
	buf[1] = 0;
	put16(buf + 2, status);
	put32(buf + 4, length);
}

/*
 * Decode the prefix of a message of fixed size, and check the size.  Flags
 * that this version does not know could mean anything, so they are refused.
 */
static bool
get_prefix(const uint8_t *buf, size_t len, size_t size, RbpWirePrefix *prefix)
{
	if (len < size)
		return false;
	prefix->op = buf[0];
	prefix->flags = buf[1];
	prefix->status = get16(buf + 2);
	prefix->length = get32(buf + 4);
	return prefix->flags == 0;
}

static bool
get_fixed(const uint8_t *buf, size_t len, size_t size, RbpWireOp op,
		  uint16_t *status)
{
	RbpWirePrefix prefix;

	if (!get_prefix(buf, len, size, &prefix))
		return false;
	if (prefix.op != op || prefix.length != size - RBP_PREFIX_SIZE)
		return false;
	if (status == NULL)
		return prefix.status == 0;
	*status = prefix.status;
	return true;
}

void
rbp_wire_put_hello(uint8_t *buf, const char *lease)
{
	size_t		n = strnlen(lease, RBP_LEASE_ID_LEN - 1);

	memset(buf, 0, RBP_HELLO_SIZE);
	put_prefix(buf, RBP_OP_HELLO, 0, RBP_HELLO_SIZE - RBP_PREFIX_SIZE);
	memcpy(buf + RBP_PREFIX_SIZE, RBP_WIRE_MAGIC, RBP_WIRE_MAGIC_LEN);
	put16(buf + RBP_OFF_HELLO_VERSION, RBP_WIRE_VERSION);
	memcpy(buf + RBP_OFF_HELLO_LEASE, lease, n);
}

bool
rbp_wire_get_hello(const uint8_t *buf, size_t len, RbpWireHello *out)
{
	const char *lease = (const char *) buf + RBP_OFF_HELLO_LEASE;
	size_t		n;

	if (!get_fixed(buf, len, RBP_HELLO_SIZE, RBP_OP_HELLO, NULL))
		return false;
	if (memcmp(buf + RBP_PREFIX_SIZE, RBP_WIRE_MAGIC, RBP_WIRE_MAGIC_LEN) != 0 ||
		buf[RBP_PREFIX_SIZE + RBP_WIRE_MAGIC_LEN] != 0 ||
		get32(buf + RBP_OFF_HELLO_VERSION + 2) != 0)
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

	out->version = get16(buf + RBP_OFF_HELLO_VERSION);
	memcpy(out->lease, lease, RBP_LEASE_ID_LEN);
	return true;
}

void
rbp_wire_put_challenge(uint8_t *buf, const uint8_t nonce[RBP_NONCE_LEN])
{
	put_prefix(buf, RBP_OP_CHALLENGE, 0, RBP_NONCE_LEN);
	memcpy(buf + RBP_PREFIX_SIZE, nonce, RBP_NONCE_LEN);
}

bool
rbp_wire_get_challenge(const uint8_t *buf, size_t len,
					   uint8_t nonce[RBP_NONCE_LEN])
{
	if (!get_fixed(buf, len, RBP_CHALLENGE_SIZE, RBP_OP_CHALLENGE, NULL))
		return false;
	memcpy(nonce, buf + RBP_PREFIX_SIZE, RBP_NONCE_LEN);
	return true;
}

void
rbp_wire_put_auth(uint8_t *buf, const uint8_t mac[RBP_MAC_LEN])
{
	put_prefix(buf, RBP_OP_AUTH, 0, RBP_MAC_LEN);
	memcpy(buf + RBP_PREFIX_SIZE, mac, RBP_MAC_LEN);
}

bool
rbp_wire_get_auth(const uint8_t *buf, size_t len, uint8_t mac[RBP_MAC_LEN])
{
	if (!get_fixed(buf, len, RBP_AUTH_SIZE, RBP_OP_AUTH, NULL))
		return false;
	memcpy(mac, buf + RBP_PREFIX_SIZE, RBP_MAC_LEN);
	return true;
}

void
rbp_wire_put_welcome(uint8_t *buf, const RbpWireWelcome *welcome)
{
	put_prefix(buf, RBP_OP_WELCOME, welcome->status,
			   RBP_WELCOME_SIZE - RBP_PREFIX_SIZE);
	put32(buf + RBP_OFF_WELCOME_REGIONS, welcome->regions);
	put32(buf + RBP_OFF_WELCOME_REGIONS + 4, 0);
	put64(buf + RBP_OFF_WELCOME_RSIZE, welcome->region_size);
}

bool
rbp_wire_get_welcome(const uint8_t *buf, size_t len, RbpWireWelcome *out)
{
	if (!get_fixed(buf, len, RBP_WELCOME_SIZE, RBP_OP_WELCOME, &out->status))
		return false;
	out->regions = get32(buf + RBP_OFF_WELCOME_REGIONS);
	out->region_size = get64(buf + RBP_OFF_WELCOME_RSIZE);

	/* a refusal has no valid values in the fields below */
	if (out->status != RBP_WIRE_OK)
		return true;
	return out->regions > 0 && out->regions <= RBP_DONOR_MAX_REGIONS &&
		get32(buf + RBP_OFF_WELCOME_REGIONS + 4) == 0 &&
		out->region_size > 0 && out->region_size <= (UINT64_C(1) << 46);
}

void
rbp_wire_put_request(uint8_t *buf, const RbpWireRequest *req)
{
	uint32_t	payload = req->op == RBP_OP_WRITE ? req->len : 0;

	put_prefix(buf, req->op, 0, RBP_REQUEST_SIZE - RBP_PREFIX_SIZE + payload);
	put64(buf + RBP_OFF_REQUEST_ID, req->id);
	put32(buf + RBP_OFF_REQUEST_REGION, req->region);
	put32(buf + RBP_OFF_REQUEST_LEN, req->len);
	put64(buf + RBP_OFF_REQUEST_OFFSET, req->offset);
}

bool
rbp_wire_get_request(const uint8_t *buf, size_t len, RbpWireRequest *out)
{
	RbpWirePrefix prefix;
	uint32_t	payload;

	if (!get_prefix(buf, len, RBP_REQUEST_SIZE, &prefix) || prefix.status != 0)
		return false;

	out->op = prefix.op;
	out->id = get64(buf + RBP_OFF_REQUEST_ID);
	out->region = get32(buf + RBP_OFF_REQUEST_REGION);
	out->len = get32(buf + RBP_OFF_REQUEST_LEN);
	out->offset = get64(buf + RBP_OFF_REQUEST_OFFSET);

	switch (prefix.op)
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
	payload = prefix.op == RBP_OP_WRITE ? out->len : 0;
	return prefix.length == RBP_REQUEST_SIZE - RBP_PREFIX_SIZE + payload;
}

void
rbp_wire_put_answer(uint8_t *buf, const RbpWireAnswer *ans)
{
	put_prefix(buf, ans->op | RBP_OP_ANSWER, ans->status,
			   RBP_ANSWER_SIZE - RBP_PREFIX_SIZE + ans->payload);
	put64(buf + RBP_OFF_ANSWER_ID, ans->id);
}

bool
rbp_wire_get_answer(const uint8_t *buf, size_t len, RbpWireAnswer *out)
{
	RbpWirePrefix prefix;

	if (!get_prefix(buf, len, RBP_ANSWER_SIZE, &prefix))
		return false;
	if ((prefix.op & RBP_OP_ANSWER) == 0 ||
		prefix.length < RBP_ANSWER_SIZE - RBP_PREFIX_SIZE)
		return false;

	out->op = prefix.op & (uint8_t) ~RBP_OP_ANSWER;
	out->status = prefix.status;
	out->payload = prefix.length - (RBP_ANSWER_SIZE - RBP_PREFIX_SIZE);
	out->id = get64(buf + RBP_OFF_ANSWER_ID);

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
	put64(buf, region_size);
}

bool
rbp_wire_get_map(const uint8_t *buf, size_t len, uint64_t *region_size)
{
	if (len != RBP_MAP_PAYLOAD_SIZE)
		return false;
	*region_size = get64(buf);
	return *region_size > 0 && *region_size <= (UINT64_C(1) << 46);
}

size_t
rbp_wire_mac_input(uint8_t *buf, const uint8_t nonce[RBP_NONCE_LEN],
				   const char *lease)
{
	size_t		n = strnlen(lease, RBP_LEASE_ID_LEN);

	memcpy(buf, RBP_WIRE_MAGIC, RBP_WIRE_MAGIC_LEN);
	memcpy(buf + RBP_WIRE_MAGIC_LEN, nonce, RBP_NONCE_LEN);
	memcpy(buf + RBP_WIRE_MAGIC_LEN + RBP_NONCE_LEN, lease, n);
	return RBP_WIRE_MAGIC_LEN + RBP_NONCE_LEN + n;
}

/*
 * ---- over verbs ---------------------------------------------------------
 */
static void
put_verbs_prefix(uint8_t *buf, uint16_t version)
{
	memcpy(buf, RBP_VERBS_MAGIC, RBP_VERBS_MAGIC_LEN);
	put16(buf + RBP_VERBS_MAGIC_LEN, version);
}

static bool
get_verbs_prefix(const uint8_t *buf, size_t len, size_t size, uint16_t *version)
{
	if (len < size || memcmp(buf, RBP_VERBS_MAGIC, RBP_VERBS_MAGIC_LEN) != 0)
		return false;
	*version = get16(buf + RBP_VERBS_MAGIC_LEN);
	return true;
}

void
rbp_wire_put_verbs_hello(uint8_t *buf, const RbpWireVerbsHello *hello)
{
	put_verbs_prefix(buf, hello->version);
	memcpy(buf + RBP_OFF_VERBS_DIGEST, hello->digest, RBP_VERBS_DIGEST_LEN);
	memcpy(buf + RBP_OFF_VERBS_NONCE, hello->nonce, RBP_VERBS_NONCE_LEN);
	memcpy(buf + RBP_OFF_VERBS_MAC, hello->mac, RBP_VERBS_MAC_LEN);
}

bool
rbp_wire_get_verbs_hello(const uint8_t *buf, size_t len, RbpWireVerbsHello *out)
{
	if (!get_verbs_prefix(buf, len, RBP_VERBS_HELLO_SIZE, &out->version))
		return false;
	memcpy(out->digest, buf + RBP_OFF_VERBS_DIGEST, RBP_VERBS_DIGEST_LEN);
	memcpy(out->nonce, buf + RBP_OFF_VERBS_NONCE, RBP_VERBS_NONCE_LEN);
	memcpy(out->mac, buf + RBP_OFF_VERBS_MAC, RBP_VERBS_MAC_LEN);
	return true;
}

void
rbp_wire_put_verbs_welcome(uint8_t *buf, const RbpWireVerbsWelcome *welcome)
{
	memset(buf, 0, RBP_VERBS_WELCOME_SIZE);
	put_verbs_prefix(buf, RBP_WIRE_VERSION);
	put16(buf + RBP_OFF_VERBS_STATUS, welcome->status);
	if (welcome->status != RBP_WIRE_OK)
		return;
	put32(buf + RBP_OFF_VERBS_REGIONS, welcome->regions);
	put32(buf + RBP_OFF_VERBS_TABLE_KEY, welcome->table_key);
	put64(buf + RBP_OFF_VERBS_RSIZE, welcome->region_size);
	put64(buf + RBP_OFF_VERBS_TABLE, welcome->table_address);
}

bool
rbp_wire_get_verbs_welcome(const uint8_t *buf, size_t len,
						   RbpWireVerbsWelcome *out)
{
	uint16_t	version;

	if (!get_verbs_prefix(buf, len, RBP_VERBS_WELCOME_SIZE, &version))
		return false;
	out->status = get16(buf + RBP_OFF_VERBS_STATUS);
	out->regions = get32(buf + RBP_OFF_VERBS_REGIONS);
	out->table_key = get32(buf + RBP_OFF_VERBS_TABLE_KEY);
	out->region_size = get64(buf + RBP_OFF_VERBS_RSIZE);
	out->table_address = get64(buf + RBP_OFF_VERBS_TABLE);

	/* the rest of a message of another version cannot be interpreted */
	if (version != RBP_WIRE_VERSION)
		return out->status == RBP_WIRE_VERSION_MISMATCH;
	if (get16(buf + RBP_OFF_VERBS_STATUS + 2) != 0)
		return false;
	if (out->status != RBP_WIRE_OK)
		return out->regions == 0 && out->table_key == 0 &&
			out->region_size == 0 && out->table_address == 0;
	return out->regions > 0 && out->regions <= RBP_DONOR_MAX_REGIONS &&
		out->region_size > 0 && out->region_size <= (UINT64_C(1) << 46) &&
		out->table_address > 0 &&
		out->table_address <= UINT64_MAX - (uint64_t) out->regions * RBP_VERBS_ENTRY_SIZE;
}

uint32_t
rbp_wire_verbs_check(uint32_t region, uint64_t address, uint32_t key)
{
	uint64_t	x = address;

	/* each step mixes all bits of the value so far with the new ones */
	x = (x ^ x >> 32) * UINT64_C(0x9E3779B97F4A7C15);
	x = (x ^ x >> 29 ^ key) * UINT64_C(0xBF58476D1CE4E5B9);
	x = (x ^ x >> 32 ^ region) * UINT64_C(0x94D049BB133111EB);
	x ^= x >> 31;
	x = (uint32_t) x;
	return x > RBP_VERBS_PENDING ? (uint32_t) x : (uint32_t) x + RBP_VERBS_PENDING + 1;
}

void
rbp_wire_put_verbs_entry(uint8_t *buf, RbpVerbsEntryState state,
						 uint32_t region, uint64_t address, uint32_t key)
{
	bool		ready = state == RBP_VERBS_ENTRY_READY;

	put64(buf, ready ? address : 0);
	put32(buf + RBP_OFF_VERBS_ENTRY_KEY, ready ? key : 0);
	put32(buf + RBP_OFF_VERBS_ENTRY_CHECK,
		  ready ? rbp_wire_verbs_check(region, address, key)
		  : state == RBP_VERBS_ENTRY_WAIT ? RBP_VERBS_PENDING : RBP_VERBS_NO_REGION);
}

RbpVerbsEntryState
rbp_wire_get_verbs_entry(const uint8_t *buf, uint32_t region,
						 uint64_t *address, uint32_t *key)
{
	uint32_t	check = get32(buf + RBP_OFF_VERBS_ENTRY_CHECK);

	*address = get64(buf);
	*key = get32(buf + RBP_OFF_VERBS_ENTRY_KEY);
	if (check == RBP_VERBS_NO_REGION || check == RBP_VERBS_PENDING)
	{
		if (*address != 0 || *key != 0)
			return RBP_VERBS_ENTRY_TORN;
		return check == RBP_VERBS_PENDING ? RBP_VERBS_ENTRY_WAIT : RBP_VERBS_ENTRY_NONE;
	}
	return check == rbp_wire_verbs_check(region, *address, *key)
		? RBP_VERBS_ENTRY_READY : RBP_VERBS_ENTRY_TORN;
}

size_t
rbp_wire_verbs_mac_input(uint8_t *buf, const uint8_t nonce[RBP_VERBS_NONCE_LEN],
						 const uint8_t digest[RBP_VERBS_DIGEST_LEN],
						 const uint8_t address[16], uint32_t qpn)
{
	uint8_t    *p = buf;

	memcpy(p, RBP_VERBS_MAC_MAGIC, RBP_VERBS_MAC_MAGIC_LEN);
	p += RBP_VERBS_MAC_MAGIC_LEN;
	memcpy(p, nonce, RBP_VERBS_NONCE_LEN);
	p += RBP_VERBS_NONCE_LEN;
	memcpy(p, digest, RBP_VERBS_DIGEST_LEN);
	p += RBP_VERBS_DIGEST_LEN;
	memcpy(p, address, 16);
	p += 16;
	put32(p, qpn);
	p += 4;
	return (size_t) (p - buf);
}
