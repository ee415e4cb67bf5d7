/*-------------------------------------------------------------------------
 *
 * show.h
 *	  Answers of the broker as text: of GET /v1/donors and so on.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_CTL_SHOW_H
#define RBP_CTL_SHOW_H

#include <jansson.h>
#include <stdio.h>

extern void ctl_show_donors(FILE *out, const json_t *answer);
extern void ctl_show_leases(FILE *out, const json_t *answer);
extern void ctl_show_drain(FILE *out, const json_t *answer);
extern void ctl_show_undrain(FILE *out, const json_t *answer);
extern void ctl_show_forget(FILE *out, const json_t *answer);
extern void ctl_show_revoke(FILE *out, const json_t *answer);

#endif							/* RBP_CTL_SHOW_H */
