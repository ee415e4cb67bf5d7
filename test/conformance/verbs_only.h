/*-------------------------------------------------------------------------
 *
 * verbs_only.h
 *	  Conformance tests of what only verbs has: keys, a handshake in private
 *	  data, memory that is registered with a device.
 *
 *-------------------------------------------------------------------------
 */
#ifndef VERBS_ONLY_H
#define VERBS_ONLY_H

/*
 * A client that keeps the keys that it once had, and uses them on queue pairs
 * that are as alive as ever.
 */
extern void test_keys(void);

/* Requests to connect that no client of ours makes. */
extern void test_handshakes(void);

/* Callers' registered memory, and giving up what is on the way to it. */
extern void test_registered_memory(void);

#endif							/* VERBS_ONLY_H */
