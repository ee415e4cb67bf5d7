/*-------------------------------------------------------------------------
 *
 * wire.h
 *	  The messages between a client of leased memory and a donor.
 *
 * The same messages travel over TCP and over the donor's UNIX socket; see
 * "Data plane" in docs/protocol.md.  Over verbs, only PING is used of these;
 * its handshake and its table of keys are at the end of this file.  Every
 * message has a fixed size and starts with the same eight bytes: the
 * operation, flags, a status, and the number of bytes that follow these eight.
 * Numbers are little-endian on all machines.
 *
 * The structs below are the layouts.  All fields are aligned, so there is no
 * padding; the sizes are checked at compile time.  Encoders and decoders copy
 * structs to and from bytes.  Nothing is cast onto a buffer, which may have
 * any alignment.
 *
 * libc only, no allocation, no state: any thread may call anything.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_WIRE_H
#define RBP_WIRE_H

#include "common/hmac.h"
#include "common/limits.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define RBP_WIRE_VERSION	2
#define RBP_WIRE_MAGIC		"remote_bp" /* nine bytes, no zero */
#define RBP_WIRE_MAGIC_LEN	9

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
			   "numbers are sent as they are in memory");

#define RBP_NONCE_LEN		32

#define RBP_PREFIX_SIZE		8
#define RBP_HELLO_SIZE		64
#define RBP_CHALLENGE_SIZE	40
#define RBP_AUTH_SIZE		72
#define RBP_WELCOME_SIZE	56
#define RBP_REFUSAL_SIZE	24	/* a WELCOME that refuses */
#define RBP_REQUEST_SIZE	32
#define RBP_ANSWER_SIZE		16

/*
 * The answer to MAP has the region's size as payload, and the memfd as
 * ancillary data
 */
#define RBP_MAP_PAYLOAD_SIZE	8

/* The largest handshake message, for buffers */
#define RBP_HANDSHAKE_MAX	RBP_AUTH_SIZE

/*
 * Maximum number of bytes that one request moves, so that lengths never
 * overflow
 */
#define RBP_WIRE_MAX_IO		(1u << 30)

typedef enum RbpWireOp
{
	RBP_OP_HELLO = 1,
	RBP_OP_CHALLENGE = 2,
	RBP_OP_AUTH = 3,
	RBP_OP_WELCOME = 4,
	RBP_OP_READ = 16,
	RBP_OP_WRITE = 17,
	RBP_OP_PING = 18,
	RBP_OP_MAP = 19,
	RBP_OP_ANSWER = 0x80		/* set in the answer to a request */
} RbpWireOp;

typedef enum RbpWireStatus
{
	RBP_WIRE_OK = 0,
	RBP_WIRE_DENIED = 1,		/* no such lease, lease ended, wrong proof, or
								 * region not part of the lease */
	RBP_WIRE_INVALID = 2,		/* outside of the region */
	RBP_WIRE_VERSION_MISMATCH = 3,
	RBP_WIRE_BUSY = 4,			/* the donor takes no more connections */
	RBP_WIRE_NOT_ADMITTED = 5	/* not by the UNIX socket */
} RbpWireStatus;

/* Every message starts with this. */
typedef struct RbpWirePrefix
{
	uint8_t		op;				/* RbpWireOp */
	uint8_t		flags;			/* 0 for now */
	uint16_t	status;			/* RbpWireStatus in WELCOME and answers, 0
								 * elsewhere */
	uint32_t	length;			/* bytes that follow the prefix, payload
								 * included */
} RbpWirePrefix;

/* HELLO, CHALLENGE and a refusal are alike in all versions. */
typedef struct RbpWireHello
{
	RbpWirePrefix prefix;
	char		magic[RBP_WIRE_MAGIC_LEN];
	uint8_t		reserved8;		/* 0 */
	uint16_t	version;
	uint32_t	reserved32;		/* 0 */
	char		lease[RBP_LEASE_ID_LEN];	/* text, padded with zero bytes,
											 * the last one always zero */
} RbpWireHello;

typedef struct RbpWireChallenge
{
	RbpWirePrefix prefix;
	uint8_t		nonce[RBP_NONCE_LEN];
} RbpWireChallenge;

typedef struct RbpWireAuth
{
	RbpWirePrefix prefix;
	uint8_t		nonce[RBP_NONCE_LEN];
	uint8_t		mac[RBP_MAC_LEN];
} RbpWireAuth;

typedef struct RbpWireWelcome
{
	RbpWirePrefix prefix;
	uint32_t	regions;		/* region numbers are below this */
	uint32_t	reserved32;		/* 0 */
	uint64_t	region_size;
	uint8_t		mac[RBP_MAC_LEN];
} RbpWireWelcome;

/*
 * What the MACs of AUTH and WELCOME are computed over, as it is here.  Text is
 * padded with zero bytes.
 */
typedef struct RbpWireTranscript
{
	char		label[22];		/* RBP_LABEL_* */
	uint16_t	version;
	uint8_t		client_nonce[RBP_NONCE_LEN];
	uint8_t		donor_nonce[RBP_NONCE_LEN];
	char		lease[RBP_LEASE_ID_LEN];

	/* as in WELCOME; 0 for AUTH's MAC */
	uint32_t	regions;
	uint32_t	reserved32;
	uint64_t	region_size;
} RbpWireTranscript;

#define RBP_LABEL_AUTH		"remote_bp AUTH"
#define RBP_LABEL_WELCOME	"remote_bp WELCOME"

/* The payload of a WRITE follows. */
typedef struct RbpWireRequest
{
	RbpWirePrefix prefix;
	uint64_t	id;
	uint32_t	region;
	uint32_t	len;
	uint64_t	offset;
} RbpWireRequest;

/* An answer is the prefix, the id, and the payload; here it is decoded. */
typedef struct RbpWireAnswer
{
	uint8_t		op;				/* of the request, without RBP_OP_ANSWER */
	uint16_t	status;
	uint32_t	payload;		/* bytes that follow the answer */
	uint64_t	id;
} RbpWireAnswer;

_Static_assert(sizeof(RbpWirePrefix) == RBP_PREFIX_SIZE, "no padding");
_Static_assert(sizeof(RbpWireHello) == RBP_HELLO_SIZE, "no padding");
_Static_assert(sizeof(RbpWireChallenge) == RBP_CHALLENGE_SIZE, "no padding");
_Static_assert(sizeof(RbpWireAuth) == RBP_AUTH_SIZE, "no padding");
_Static_assert(sizeof(RbpWireWelcome) == RBP_WELCOME_SIZE, "no padding");
_Static_assert(sizeof(RbpWireTranscript) == 144, "no padding");
_Static_assert(sizeof(RbpWireRequest) == RBP_REQUEST_SIZE, "no padding");

/*
 * Encoders fill exactly the message's size.  They set the prefix; of its
 * fields they take only the op of a request and the status of a WELCOME.
 * The encoders of a WELCOME return its size; a refusal has nothing but its
 * status.
 * Decoders read at most len bytes.  They return false, with *out undefined,
 * if len is less than the message's size or if any field has an invalid
 * value.
 */
extern void rbp_wire_put_hello(uint8_t *buf, const char *lease);
extern bool rbp_wire_get_hello(const uint8_t *buf, size_t len,
							   RbpWireHello *out);

extern void rbp_wire_put_challenge(uint8_t *buf, const uint8_t nonce[RBP_NONCE_LEN]);
extern bool rbp_wire_get_challenge(const uint8_t *buf, size_t len,
								   uint8_t nonce[RBP_NONCE_LEN]);

extern void rbp_wire_put_auth(uint8_t *buf, const RbpWireAuth *auth);
extern bool rbp_wire_get_auth(const uint8_t *buf, size_t len,
							  RbpWireAuth *out);

extern size_t rbp_wire_put_welcome(uint8_t *buf, const RbpWireWelcome *welcome);
extern bool rbp_wire_get_welcome(const uint8_t *buf, size_t len,
								 RbpWireWelcome *out);

/* The payload of a WRITE, len bytes, follows what this fills. */
extern void rbp_wire_put_request(uint8_t *buf, const RbpWireRequest *req);
extern bool rbp_wire_get_request(const uint8_t *buf, size_t len,
								 RbpWireRequest *out);

extern void rbp_wire_put_answer(uint8_t *buf, const RbpWireAnswer *ans);
extern bool rbp_wire_get_answer(const uint8_t *buf, size_t len,
								RbpWireAnswer *out);

extern void rbp_wire_put_map(uint8_t *buf, uint64_t region_size);
extern bool rbp_wire_get_map(const uint8_t *buf, size_t len,
							 uint64_t *region_size);

/*
 * ---- over verbs ---------------------------------------------------------
 *
 * Over verbs, the handshake is in the private data of rdma_cm's messages,
 * which is short: 56 bytes in a REQ.  A lease is identified by the first
 * bytes of the SHA-256 of its id.
 *
 * Each lease has a table in the donor's memory, which only this lease can read
 * by RDMA.  It has an RbpWireVerbsEntry for each of the donor's regions, with
 * the address and the key for reading and writing the region.  Its field check
 * is RBP_VERBS_CHECK_NONE if the region is not part of the lease, and
 * RBP_VERBS_CHECK_PENDING if it has no key yet; then address and key are 0.
 * Otherwise it is rbp_wire_verbs_check() of the two: if not, the entry was
 * read while it changed.
 */
#define RBP_VERBS_MAGIC			"rb"	/* two bytes, no zero */
#define RBP_VERBS_MAGIC_LEN		2

#define RBP_VERBS_DIGEST_LEN	16
#define RBP_VERBS_NONCE_LEN		16
#define RBP_VERBS_MAC_LEN		20	/* of a REQ */

#define RBP_VERBS_HELLO_SIZE	56
#define RBP_VERBS_WELCOME_SIZE	64
#define RBP_VERBS_REFUSAL_SIZE	32
#define RBP_VERBS_ENTRY_SIZE	16

#define RBP_VERBS_CHECK_NONE		0
#define RBP_VERBS_CHECK_PENDING		1

/* REQ */
typedef struct RbpWireVerbsHello
{
	char		magic[RBP_VERBS_MAGIC_LEN];
	uint16_t	version;
	uint8_t		digest[RBP_VERBS_DIGEST_LEN];
	uint8_t		nonce[RBP_VERBS_NONCE_LEN];
	uint8_t		mac[RBP_VERBS_MAC_LEN];
} RbpWireVerbsHello;

/* REP, and the first part of it REJ, which has zeroes from regions on */
typedef struct RbpWireVerbsWelcome
{
	char		magic[RBP_VERBS_MAGIC_LEN];
	uint16_t	version;
	uint16_t	status;
	uint16_t	reserved16;		/* 0 */
	uint32_t	regions;		/* entries of the table */
	uint32_t	table_key;
	uint64_t	region_size;
	uint64_t	table_address;
	uint8_t		mac[RBP_MAC_LEN];
} RbpWireVerbsWelcome;

/*
 * What the MACs of REQ and REP are computed over.  The address is the client's,
 * one of IPv4 mapped into IPv6, and the number that of its queue pair.
 */
typedef struct RbpWireVerbsTranscript
{
	char		label[14];		/* RBP_LABEL_* */
	uint16_t	version;
	uint8_t		nonce[RBP_VERBS_NONCE_LEN];
	uint8_t		digest[RBP_VERBS_DIGEST_LEN];
	uint8_t		address[16];
	uint32_t	qpn;

	/* as in REP; 0 for REQ's MAC */
	uint32_t	regions;
	uint32_t	table_key;
	uint32_t	reserved32;		/* 0 */
	uint64_t	region_size;
	uint64_t	table_address;
} RbpWireVerbsTranscript;

#define RBP_LABEL_REQ		"remote_bp REQ"
#define RBP_LABEL_REP		"remote_bp REP"

/* An entry of the table */
typedef struct RbpWireVerbsEntry
{
	uint64_t	address;
	uint32_t	key;
	uint32_t	check;
} RbpWireVerbsEntry;

_Static_assert(sizeof(RbpWireVerbsHello) == RBP_VERBS_HELLO_SIZE, "no padding");
_Static_assert(sizeof(RbpWireVerbsWelcome) == RBP_VERBS_WELCOME_SIZE, "no padding");
_Static_assert(sizeof(RbpWireVerbsTranscript) == 96, "no padding");
_Static_assert(sizeof(RbpWireVerbsEntry) == RBP_VERBS_ENTRY_SIZE, "no padding");

typedef enum RbpVerbsEntryState
{
	RBP_VERBS_ENTRY_NONE,		/* region is not part of the lease */
	RBP_VERBS_ENTRY_PENDING,	/* region is part of the lease, but has no key
								 * yet */
	RBP_VERBS_ENTRY_READY,
	RBP_VERBS_ENTRY_TORN		/* entry was read while it changed: read it
								 * again */
} RbpVerbsEntryState;

/*
 * Encoders and decoders as above.  Encoders set magic, and a WELCOME's
 * version.
 * Private data may arrive with trailing zeroes, so decoders accept a len that
 * is larger than the message.  A HELLO of any version is accepted, so that it
 * can be answered; a WELCOME of another version is accepted only if its status
 * is RBP_WIRE_VERSION_MISMATCH.
 */
extern void rbp_wire_put_verbs_hello(uint8_t *buf, const RbpWireVerbsHello *hello);
extern bool rbp_wire_get_verbs_hello(const uint8_t *buf, size_t len,
									 RbpWireVerbsHello *out);
extern size_t rbp_wire_put_verbs_welcome(uint8_t *buf,
										 const RbpWireVerbsWelcome *welcome);
extern bool rbp_wire_get_verbs_welcome(const uint8_t *buf, size_t len,
									   RbpWireVerbsWelcome *out);

/*
 * Check value of an entry; never RBP_VERBS_CHECK_NONE or
 * RBP_VERBS_CHECK_PENDING.
 */
extern uint32_t rbp_wire_verbs_check(uint32_t region, uint64_t address,
									 uint32_t key);

/* state: RBP_VERBS_ENTRY_NONE, _PENDING (address and key ignored) or _READY. */
extern void rbp_wire_put_verbs_entry(uint8_t *buf, RbpVerbsEntryState state,
									 uint32_t region, uint64_t address,
									 uint32_t key);
extern RbpVerbsEntryState rbp_wire_get_verbs_entry(const uint8_t *buf,
												   uint32_t region,
												   uint64_t *address,
												   uint32_t *key);

#endif							/* RBP_WIRE_H */
