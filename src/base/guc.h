/*-------------------------------------------------------------------------
 *
 * guc.h
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
extern int	rbp_guc_staging_size;	/* kB; postmaster */
extern char *rbp_guc_transport; /* "auto", "shm", "verbs", "tcp" */
extern char *rbp_guc_token_file;	/* "" for no token */
extern char *rbp_guc_broker_ca_file;	/* "" for the system's */
extern char *rbp_guc_client_name;	/* "" for one made from the machine's */
extern int	rbp_guc_lease_ttl;	/* ms */
extern int	rbp_guc_keep_time;	/* s */
extern bool rbp_guc_compare_with_disk;

/* remote_bp.warm_restart: what the directory of the tier's pages outlives */
typedef enum RbpWarmRestart
{
	RBP_WARM_RESTART_OFF,
	RBP_WARM_RESTART_CRASH,		/* the crash of a backend */
	RBP_WARM_RESTART_ON			/* that, and a clean restart of the server */
} RbpWarmRestart;

extern int	rbp_guc_warm_restart;	/* postmaster */

/* remote_bp.encrypt: which pages are sealed before they leave the server */
typedef enum RbpEncrypt
{
	RBP_ENCRYPT_OFF,
	RBP_ENCRYPT_AUTO,			/* those for donors on other machines */
	RBP_ENCRYPT_ON
} RbpEncrypt;

extern int	rbp_guc_encrypt;	/* postmaster */

/* remote_bp.use_tier */
typedef enum RbpUseTier
{
	RBP_USE_TIER_ON,
	RBP_USE_TIER_READ,			/* pages that this session reads are not
								 * captured */
	RBP_USE_TIER_OFF
} RbpUseTier;

extern int	rbp_guc_use_tier;
extern int	rbp_guc_policy_interval;	/* s */
extern char *rbp_guc_exclude_tablespaces;	/* a list of names */

/* Following another server */
extern char *rbp_guc_follow;	/* connection string; "": none */
extern int	rbp_guc_follow_interval;	/* s */
extern int	rbp_guc_follow_rate;	/* kB in a second */

extern int	rbp_guc_read_ahead; /* pages; 0: none */
extern int	rbp_guc_max_connections;	/* to one donor */

extern bool rbp_guc_advice;
extern int	rbp_guc_advice_max_size;	/* MB */

/* Temporary data. */
extern int	rbp_guc_temp_tier_max_size; /* MB; postmaster */
extern int	rbp_guc_temp_tier_size; /* MB; sighup; at most the maximum */
extern int	rbp_guc_temp_staging_size;	/* kB; postmaster */
extern bool rbp_guc_temp_mirror;	/* these three: userset */
extern bool rbp_guc_spill_temp_files;
extern bool rbp_guc_spill_temp_tables;

/* Entries of remote_bp_stat_relations; 0: nothing is noted; postmaster */
#define RBP_RELATIONS_MAX		1000000
extern int	rbp_guc_relations_max;

/* Entries of remote_bp_stat_statements; 0: none are noted; postmaster */
#define RBP_STATEMENTS_MAX		100000
extern int	rbp_guc_statements_max;

/* Use of RDMA devices; see RbpDeviceConfig for the meaning of the values */
extern char *rbp_guc_rdma_device;
extern int	rbp_guc_rdma_port;
extern int	rbp_guc_rdma_gid_index;
extern int	rbp_guc_rdma_traffic_class;
extern int	rbp_guc_rdma_ack_timeout;
extern int	rbp_guc_rdma_retry_count;

/*
 * Incremented when a setting that connections depend on changes in this
 * process: remote_bp.transport and remote_bp.rdma_*.
 */
extern uint32 rbp_guc_connect_settings_version;

/*
 * Define the settings.  Call this in _PG_init.  known_transport returns
 * whether a transport of that name exists.
 */
extern void rbp_guc_init(bool (*known_transport) (const char *name));

/* MB of memory to lease for the buffer tier */
extern int	rbp_guc_tier_size_wanted(void);

/* MB that it may have beyond its maximum, while regions are being replaced */
extern int	rbp_guc_tier_size_ahead(void);

/* remote_bp.keep_max_size, for rbp_directory_set_keep_max(). */
extern uint64 rbp_guc_keep_max_pages(void);

/* remote_bp.io_timeout. */
extern int64 rbp_guc_io_timeout_ns(void);

/* remote_bp.temp_io_timeout. */
extern int64 rbp_guc_temp_io_timeout_ns(void);

/* remote_bp.idle_connection_timeout; 0: never. */
extern int64 rbp_guc_idle_timeout_ns(void);

#endif							/* RBP_GUC_H */
