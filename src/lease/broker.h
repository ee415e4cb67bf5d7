/*-------------------------------------------------------------------------
 *
 * broker.h
 *	  A broker as the lease worker knows it: requests, and with which token.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_LEASE_BROKER_H
#define RBP_LEASE_BROKER_H

#include "postgres.h"

#include "lease/http.h"
#include "remote/remote.h"

/* A broker, as the settings named it; all texts are palloc'ed. */
typedef struct RbpBroker
{
	char	   *url;			/* without slashes at its end */
	char	   *token_file;
	char	   *token;			/* accepted last, "" for none; NULL: not yet */
	char	   *rejected_token; /* what the file holds and is not accepted */
	char	   *logged_reason;	/* why that is not used, as it was logged */
	int			failures_logged;	/* for the lease worker */
} RbpBroker;

#define RBP_BROKER_WHY_LEN		(MAXPGPATH + 100)

/* Lives until it is freed. */
extern RbpBroker *rbp_lease_broker_create(const char *url, const char *token_file);
extern void rbp_lease_broker_free(RbpBroker *b);

/*
 * What is to be kept in shared memory of a broker that has answered; nothing if
 * there is no room for its texts.  And the broker made of that.
 */
extern void rbp_lease_broker_save(const RbpBroker *b, RbpBrokerAccess *access);
extern RbpBroker *rbp_lease_broker_restore(const RbpBrokerAccess *access);

/* The token that is accepted now stays in use until the file's is. */
extern void rbp_lease_broker_set_token_file(RbpBroker *b, const char *token_file);

/*
 * One request, see rbp_lease_http_request().
 * It goes with the token of the file, which is read anew for each request so
 * that it can be replaced at any time; or, if the broker does not accept that or
 * it cannot be read, with the one that was accepted last, which is logged once.
 * False if there is no token to ask with.  why gets the reason for that, or for
 * an answer of status 401.
 */
extern bool rbp_lease_broker_request(RbpBroker *b, const RbpHttpRequest *request,
									 RbpHttpReply *reply,
									 char why[RBP_BROKER_WHY_LEN]);

#endif							/* RBP_LEASE_BROKER_H */
