/*-------------------------------------------------------------------------
 *
 * fuzz.h
 *	  Fuzz targets: what is done with bytes that a hostile peer sends.
 *
 * Each returns normally, or aborts when a promise is broken.  They are run
 * with random bytes by test/unit/test_fuzz.c, for a fixed number of rounds,
 * and, for as long as one likes, by libFuzzer:
 *
 *	 clang -g -O1 -fsanitize=fuzzer,address,undefined -D_GNU_SOURCE -DRBP_VERSION='""' -Isrc \
 *	   -DFUZZ_TARGET=fuzz_wire test/fuzz/fuzz_*.c \
 *	   $(find src/common src/wire src/transport -name '*.c') \
 *	   -lcrypto -lrdmacm -libverbs
 *
 *-------------------------------------------------------------------------
 */
#ifndef FUZZ_H
#define FUZZ_H

#include <stddef.h>
#include <stdint.h>

/* All decoders of src/wire/wire.h. */
extern void fuzz_wire(const uint8_t *data, size_t size);

/* A connected client whose donor sends these answers; tcp, then shm. */
extern void fuzz_client_tcp(const uint8_t *data, size_t size);
extern void fuzz_client_shm(const uint8_t *data, size_t size);

#endif							/* FUZZ_H */
