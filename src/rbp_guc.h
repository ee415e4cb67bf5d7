/*-------------------------------------------------------------------------
 *
 * rbp_guc.h
 *	  The settings, remote_bp.*
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_GUC_H
#define RBP_GUC_H

#include "postgres.h"

extern char *rbp_guc_broker;	/* URL, "" for tier off */
extern bool rbp_guc_enabled;
extern int	rbp_guc_buffer_tier_max_size;	/* MB; postmaster */
extern int	rbp_guc_buffer_tier_size;	/* MB; sighup; 0 gives all back, -1: the
										 * maximum; see
										 * rbp_guc_tier_size_wanted() */
extern int	rbp_guc_staging_size;	/* kB; postmaster */
extern char *rbp_guc_transport; /* "auto", "shm", "tcp" */
extern char *rbp_guc_token_file;	/* "" for no token */
extern int	rbp_guc_lease_ttl;	/* ms */
extern bool rbp_guc_compare_with_disk;

extern void rbp_guc_init(void);

/* MB that the lease should have now. */
extern int	rbp_guc_tier_size_wanted(void);

/* remote_bp.io_timeout. */
extern int64 rbp_guc_io_timeout_ns(void);

#endif							/* RBP_GUC_H */
