/*-------------------------------------------------------------------------
 *
 * test_seal.c
 *	  Sealed pages: what opens and what does not; nonces.
 *
 * libcrypto's function that takes the nonces is replaced by one that notes them.
 *
 *-------------------------------------------------------------------------
 */
#include <openssl/evp.h>
#include <openssl/rand.h>
#include <pthread.h>
#include <stdlib.h>

#define EVP_EncryptInit_ex noting_init
static int	noting_init(EVP_CIPHER_CTX * ctx, const EVP_CIPHER * type, ENGINE * impl,
						const unsigned char *key, const unsigned char *nonce);

#include "remote/seal.c"

#undef EVP_EncryptInit_ex

#include "random.h"
#include "tap.h"

#define SLOTS		1000
#define SEALINGS	10000000
#define THREADS		4

static RbpSealer sealer;
static RbpSealVersions versions;
static uint64_t seed = 1;

/* The nonces of a count of sealings, as 64-bit words: the rest is zeros. */
static uint64_t *nonces = NULL;
static uint64_t nnonces = 0;
static uint64_t not_zero = 0;

static int
noting_init(EVP_CIPHER_CTX * ctx, const EVP_CIPHER * type, ENGINE * impl,
			const unsigned char *key, const unsigned char *nonce)
{
	if (nonces != NULL && nonce != NULL)
	{
		uint32_t	rest;

		memcpy(&nonces[__atomic_fetch_add(&nnonces, 1, __ATOMIC_RELAXED)], nonce, 8);
		memcpy(&rest, nonce + 8, 4);
		not_zero += rest != 0;
		/* nothing is sealed: only nonces count */
		return 0;
	}
	return EVP_EncryptInit_ex(ctx, type, impl, key, nonce);
}

static void
fill(uint8_t *page)
{
	for (int i = 0; i < RBP_PAGE_SIZE; i++)
		page[i] = (uint8_t) next_random(&seed);
}

/* Does the text open as that page? */
static bool
opens(const RbpSealed *sealed, uint32_t slot, const uint8_t *text, const uint8_t *page)
{
	static uint8_t copy[RBP_PAGE_SIZE];

	memcpy(copy, text, sizeof(copy));
	return rbp_unseal(&sealer, sealed, slot, copy) && memcmp(copy, page, sizeof(copy)) == 0;
}

/* How many texts open of which a bit was flipped, or one of the tag? */
static int
forged(const RbpSealed *sealed, uint32_t slot, uint8_t *text)
{
	static uint8_t copy[RBP_PAGE_SIZE];
	int			n = 0;

	for (int bit = 0; bit < RBP_PAGE_SIZE * 8; bit += 61)
	{
		memcpy(copy, text, sizeof(copy));
		copy[bit / 8] ^= (uint8_t) (1 << bit % 8);
		n += rbp_unseal(&sealer, sealed, slot, copy);
	}
	for (int bit = 0; bit < RBP_SEAL_TAG_LEN * 8; bit++)
	{
		RbpSealed	other = *sealed;

		other.tag[bit / 8] ^= (uint8_t) (1 << bit % 8);
		memcpy(copy, text, sizeof(copy));
		n += rbp_unseal(&sealer, &other, slot, copy);
	}
	return n;
}

static void
test_texts(void)
{
	static uint8_t page[RBP_PAGE_SIZE];
	static uint8_t was[RBP_PAGE_SIZE];
	static uint8_t texts[3][RBP_PAGE_SIZE];
	RbpSealed	sealed[2] = {{0}, {0}};
	RbpSealed	older;
	int			alike = 0;

	fill(page);
	memcpy(was, page, sizeof(was));
	ok(!rbp_is_sealed(&sealed[0]), "a slot is not sealed at first");
	ok(rbp_seal(&sealer, &versions, &sealed[0], 7, page, texts[0]) && rbp_is_sealed(&sealed[0]), "a page is sealed");
	ok(memcmp(page, was, sizeof(page)) == 0, "it is not changed by that");
	for (int i = 0; i < RBP_PAGE_SIZE; i++)
		alike += texts[0][i] == page[i];
	ok(alike < RBP_PAGE_SIZE / 64, "the text is another one: %d bytes are alike", alike);
	ok(opens(&sealed[0], 7, texts[0], page), "it opens as the page");
	ok(!opens(&sealed[0], 8, texts[0], page), "not as that of another slot");
	ok(rbp_seal(&sealer, &versions, &sealed[1], 8, page, texts[1]) && memcmp(texts[0], texts[1], RBP_PAGE_SIZE) != 0,
	   "the same page in another slot is another text");
	ok(!opens(&sealed[0], 7, texts[1], page), "text of another slot does not open");

	older = sealed[0];
	ok(rbp_seal(&sealer, &versions, &sealed[0], 7, page, texts[2]) && memcmp(texts[0], texts[2], RBP_PAGE_SIZE) != 0,
	   "the same page again is another text");
	ok(!opens(&sealed[0], 7, texts[0], page), "the older one does not open any more");
	ok(opens(&sealed[0], 7, texts[2], page), "the new one does");
	ok(!opens(&older, 7, texts[2], page), "but not by what was kept of the older one");
	older = sealed[0];
	older.version++;
	ok(!opens(&older, 7, texts[2], page), "nor by another version alone");

	is_u64((uint64_t) forged(&sealed[0], 7, texts[2]), 0, "with any bit flipped nothing opens");
	rbp_injection_point = "no-seal-check";
	ok(forged(&sealed[0], 7, texts[2]) > 0, "without the check of the tag it would");
	rbp_injection_point = "";
	ok(opens(&sealed[0], 7, texts[2], page), "failures do no harm to what is right");
	rbp_forget_seal(&sealed[0]);
	ok(!rbp_is_sealed(&sealed[0]) && sealed[0].version == 2, "a seal is forgotten, and its version is not");
}

static void
test_keys(void)
{
	static uint8_t page[RBP_PAGE_SIZE];
	static uint8_t text[RBP_PAGE_SIZE];
	uint8_t		keys[2][RBP_SEAL_KEY_LEN];
	uint8_t		none[RBP_SEAL_KEY_LEN] = {0};
	RbpSealed	sealed = {0};

	fill(page);
	if (RAND_bytes(keys[0], sizeof(keys)) != 1)
		abort();
	ok(!rbp_sealer_set_key(&sealer, none, 1) && sealer.serial == 0, "zeros are no key");
	ok(rbp_sealer_set_key(&sealer, keys[0], 1) && sealer.serial == 1, "a key");
	ok(rbp_seal(&sealer, &versions, &sealed, 1, page, text) && opens(&sealed, 1, text, page), "is used");
	ok(rbp_sealer_set_key(&sealer, keys[1], 2) && !opens(&sealed, 1, text, page), "with another one that does not open");
	ok(rbp_sealer_set_key(&sealer, keys[0], 3) && opens(&sealed, 1, text, page), "with the first it does");
}

static void
test_wrap(void)
{
	static uint8_t page[RBP_PAGE_SIZE];
	static uint8_t text[RBP_PAGE_SIZE];
	static uint8_t other[RBP_PAGE_SIZE];
	RbpSealed	sealed = {.version = UINT32_MAX / 2 - 1};
	RbpSealed	low = {.version = 3};
	RbpSealVersions of = {.highest = 9};

	fill(page);
	ok(rbp_seal(&sealer, &of, &low, 2, page, text) && low.version == 4 && of.highest == 9, "the highest version is not lowered");
	of.floor = 7;
	ok(rbp_seal(&sealer, &of, &low, 2, page, text) && low.version == 8 && of.highest == 9, "the next one is above the floor");
	ok(rbp_seal(&sealer, &of, &low, 2, page, text) && low.version == 9 && of.highest == 9, "and above the slot's own");
	ok(opens(&low, 2, text, page), "it opens");
	ok(rbp_seal(&sealer, &of, &sealed, 3, page, text) && !rbp_versions_run_out(&of), "a half of a slot's versions");
	ok(rbp_seal(&sealer, &of, &sealed, 3, page, text) && rbp_versions_run_out(&of), "and one more");
	sealed.version = UINT32_MAX - 1;
	ok(rbp_seal(&sealer, &of, &sealed, 3, page, text) && of.highest == UINT32_MAX, "the last version of a slot");
	ok(opens(&sealed, 3, text, page), "it is readable then");
	memset(other, 1, sizeof(other));
	ok(!rbp_seal(&sealer, &of, &sealed, 3, page, other) && sealed.version == UINT32_MAX, "it is sealed no more");
	of.floor = UINT32_MAX;
	ok(!rbp_seal(&sealer, &of, &low, 2, page, other) && low.version == 9, "nor is any, if that is the floor");
	ok(other[0] == 1 && other[RBP_PAGE_SIZE - 1] == 1, "nothing was made of the page");
	ok(opens(&sealed, 3, text, page), "and what was there is");
}

static RbpSealed many[SLOTS];
static int	sealings;			/* of a thread */

static void *
seal_many(void *arg)
{
	static uint8_t page[RBP_PAGE_SIZE];
	static uint8_t text[RBP_PAGE_SIZE];
	uint64_t	my_seed = (uintptr_t) arg;

	for (int i = 0; i < sealings; i++)
	{
		uint32_t	slot = (uint32_t) (next_random(&my_seed) % SLOTS);

		(void) rbp_seal(&sealer, &versions, &many[slot], slot, page, text);
	}
	return NULL;
}

static int
by_value(const void *a, const void *b)
{
	uint64_t	x = *(const uint64_t *) a;
	uint64_t	y = *(const uint64_t *) b;

	return (x > y) - (x < y);
}

/*
 * How many nonces of so many sealings are those of others?  Also by writers that should not be
 * at work on a slot at the same time.
 */
static uint64_t
repeated_nonces(int n)
{
	pthread_t	threads[THREADS];
	uint64_t	same = 0;

	nonces = malloc((size_t) n * sizeof(*nonces));
	if (nonces == NULL)
		abort();
	nnonces = 0;
	sealings = n / THREADS;
	for (uintptr_t t = 0; t < THREADS; t++)
		if (pthread_create(&threads[t], NULL, seal_many, (void *) (t + 1)) != 0)
			abort();
	for (int t = 0; t < THREADS; t++)
		(void) pthread_join(threads[t], NULL);
	is_u64(nnonces, (uint64_t) n, "each sealing has a nonce");
	qsort(nonces, (size_t) n, sizeof(*nonces), by_value);
	for (int i = 1; i < n; i++)
		same += nonces[i] == nonces[i - 1];
	free(nonces);
	nonces = NULL;
	return same;
}

static void
test_nonces(void)
{
	uint32_t	highest = 0;

	is_u64(repeated_nonces(SEALINGS), 0, "no two are the same");
	is_u64(not_zero, 0, "they differ in the slot and the version");
	for (int i = 0; i < SLOTS; i++)
		if (many[i].version > highest)
			highest = many[i].version;
	is_u64(versions.highest, highest, "the highest version is noted");
	rbp_injection_point = "reuse-nonce";
	ok(repeated_nonces(2 * SLOTS) > 0, "without raised versions some would be");
	rbp_injection_point = "";
}

int
main(void)
{
	uint8_t		key[RBP_SEAL_KEY_LEN];

	if (RAND_bytes(key, sizeof(key)) != 1)
		abort();
	ok(rbp_sealer_init(&sealer) && rbp_sealer_init(&sealer), "contexts are made");
	ok(rbp_sealer_set_key(&sealer, key, 1), "a key is set");
	test_texts();
	test_keys();
	test_wrap();
	test_nonces();
	return done_testing();
}
