/*-------------------------------------------------------------------------
 *
 * broker.h
 *	  A broker as the lease worker knows it: requests, and which token they
 *	  use.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_LEASE_BROKER_H
#define RBP_LEASE_BROKER_H

#include "postgres.h"

#include "common/urls.h"
#include "lease/http.h"
#include "remote/remote.h"

/*
 * The brokers, as the settings named them, one of which is in use; all strings are
 * palloc'ed.  They are one to all but this file: a lease goes on at whichever knows it.
 */
typedef struct RbpBroker
{
	char	   *urls;			/* see common/urls.h */
	int			used;			/* of these: the one that has answered last */
	int64		earlier_due;	/* when to try those before it again */
	int64		logged_until;	/* that another one is used */
	char		url[RBP_URL_LEN];	/* the one that was asked last */
	char	   *token_file;
	char	   *token;			/* accepted last, "" for none; NULL: none yet */
	char	   *rejected_token; /* the file's token, which was not accepted */
	char	   *rejected_reason;	/* why; kept for as long */
	char	   *logged_reason;	/* why the file's token is not used, as it was
								 * logged */
	int			failures_logged;	/* FAILED_*, for the lease worker */
} RbpBroker;

/*
 * Kinds of failure, each logged once until the broker works again.  The first
 * three concern the broker, and are logged by the lease that meets them first;
 * the others concern one lease.  What has failed in this process counts as
 * FAILED_NETWORK.
 */
#define FAILED_TOKEN		0x01
#define FAILED_NETWORK		0x02
#define FAILED_AUTH			0x04
#define FAILED_STATUS		0x08
#define FAILED_ANSWER		0x10
#define FAILED_BROKER		(FAILED_TOKEN | FAILED_NETWORK | FAILED_AUTH)

#define RBP_BROKER_WHY_LEN		(MAXPGPATH + 100)

/* The broker lives until it is freed. */
extern RbpBroker *rbp_lease_broker_create(const char *urls, const char *token_file);
extern void rbp_lease_broker_free(RbpBroker *b);

/*
 * Have these URLs from now on.  Returns false, and changes nothing, if the one in use is not
 * among them.
 */
extern bool rbp_lease_broker_set_urls(RbpBroker *b, const char *urls);

/*
 * Save what another worker needs to use a broker that has answered, for shared
 * memory; nothing if its strings are too long.  And restore a broker from
 * that.
 */
extern void rbp_lease_broker_save(const RbpBroker *b, RbpBrokerAccess *access);
extern RbpBroker *rbp_lease_broker_restore(const RbpBrokerAccess *access);

/*
 * The token that was accepted last stays in use until the new file's is
 * accepted.
 */
extern void rbp_lease_broker_set_token_file(RbpBroker *b, const char *token_file);

/*
 * Send one request, see rbp_lease_http_request().  A broker that does not answer, or does not
 * know yet (503), is asked no longer while another one does; those that come first in the
 * list are tried again after some seconds.  When the server stops, only one is asked.
 *
 * The token is read from its file for each request, so that it can be replaced
 * at any time.  If the file cannot be read, or the broker does not accept its
 * token, the token that was accepted last is used, which is logged once.
 *
 * Returns 0 if there is a reply, and the token was accepted.  Otherwise the
 * FAILED_* that it is, with the reason in why; it is "" if the request was not
 * sent because the broker's name is being looked up, or if the worker has been
 * asked to end.
 */
extern int	rbp_lease_broker_request(RbpBroker *b, const RbpHttpRequest *request,
									 RbpHttpReply *reply,
									 char why[RBP_BROKER_WHY_LEN]);

#endif							/* RBP_LEASE_BROKER_H */
