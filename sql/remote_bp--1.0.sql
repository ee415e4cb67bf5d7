/* remote_bp 1.0 */

-- complain if script is sourced in psql, rather than via CREATE EXTENSION
\echo Use "CREATE EXTENSION remote_bp" to load this file. \quit

-- One row: whether the buffer tier's leased memory can be used now, and if not
-- why (temp_: the memory for temporary data); what went wrong last; what was
-- done since the last reset (spill_: for temporary data), and what is held now,
-- in pages of 8 kB (temp_: temporary data).
CREATE FUNCTION remote_bp_stat(
    OUT usable boolean,
    OUT unusable_reason text,
    OUT temp_unusable_reason text,
    OUT last_error text,
    OUT last_error_at timestamptz,
    OUT page_cache_asked_by text,
    OUT hits bigint,
    OUT staged_hits bigint,
    OUT misses bigint,
    OUT page_cache_reads bigint,
    OUT disk_reads bigint,
    OUT page_cache_first bigint,
    OUT page_cache_fills bigint,
    OUT bypassed bigint,
    OUT captures bigint,
    OUT skips_remote bigint,
    OUT skips_unknown bigint,
    OUT skips_stale bigint,
    OUT skips_changed bigint,
    OUT skips_cached bigint,
    OUT skips_slow bigint,
    OUT drops_full bigint,
    OUT pushes bigint,
    OUT pushes_stale bigint,
    OUT pushes_failed bigint,
    OUT pushes_no_slot bigint,
    OUT evictions bigint,
    OUT invalidations bigint,
    OUT generations bigint,
    OUT races bigint,
    OUT hash_failures bigint,
    OUT timeouts bigint,
    OUT io_errors bigint,
    OUT fallbacks bigint,
    OUT avoided bigint,
    OUT over_limit bigint,
    OUT below_threshold bigint,
    OUT compared bigint,
    OUT mismatches bigint,
    OUT bytes_read bigint,
    OUT bytes_written bigint,
    OUT disk_writes bigint,
    OUT prefetches_saved bigint,
    OUT spill_writes bigint,
    OUT spill_reads bigint,
    OUT spill_read_ahead bigint,
    OUT spill_staged_reads bigint,
    OUT spill_local bigint,
    OUT spill_bypassed bigint,
    OUT spill_rescued bigint,
    OUT spill_evacuated bigint,
    OUT spill_mirror_reads bigint,
    OUT spill_hash_failures bigint,
    OUT spill_lost bigint,
    OUT spill_file_us double precision,
    OUT spill_donor_us double precision,
    OUT remote_pages bigint,
    OUT staged_pages bigint,
    OUT free_pages bigint,
    OUT online_pages bigint,
    OUT max_pages bigint,
    OUT temp_pages bigint,
    OUT temp_free_pages bigint,
    OUT temp_online_pages bigint,
    OUT temp_quarantined_pages bigint,
    OUT temp_lost_pages bigint,
    OUT temp_files bigint,
    OUT stats_reset timestamptz)
RETURNS record
AS 'MODULE_PATHNAME', 'rbp_sql_stat'
LANGUAGE C STRICT VOLATILE PARALLEL SAFE;

CREATE VIEW remote_bp_stat AS
    SELECT * FROM remote_bp_stat();

-- Each donor that the lease has, or had, memory on.
CREATE FUNCTION remote_bp_stat_donors(
    OUT donor text,
    OUT host text,
    OUT port integer,
    OUT state text,
    OUT state_since timestamptz,
    OUT last_error text,
    OUT last_error_at timestamptz,
    OUT transport text,
    OUT connections integer,
    OUT leased_bytes bigint,
    OUT used_bytes bigint,
    OUT reads bigint,
    OUT writes bigint,
    OUT failures bigint,
    OUT timeouts bigint,
    OUT bypassed bigint,
    OUT saved_us bigint,
    OUT read_p50_us double precision,
    OUT read_p99_us double precision)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'rbp_sql_stat_donors'
LANGUAGE C STRICT VOLATILE PARALLEL SAFE;

CREATE VIEW remote_bp_stat_donors AS
    SELECT * FROM remote_bp_stat_donors();

-- A histogram for each operation: counts[i] calls took at least buckets_us[i]
-- microseconds, and less than a quarter more; buckets without calls are left
-- out.
CREATE FUNCTION remote_bp_stat_latency(
    OUT operation text,
    OUT calls bigint,
    OUT mean_us double precision,
    OUT p50_us double precision,
    OUT p90_us double precision,
    OUT p99_us double precision,
    OUT buckets_us double precision[],
    OUT counts bigint[])
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'rbp_sql_stat_latency'
LANGUAGE C STRICT VOLATILE PARALLEL SAFE;

CREATE VIEW remote_bp_stat_latency AS
    SELECT * FROM remote_bp_stat_latency();

-- Each leased region.
CREATE FUNCTION remote_bp_leases(
    OUT lease text,
    OUT purpose text,
    OUT donor text,
    OUT region bigint,
    OUT bytes bigint,
    OUT used_bytes bigint,
    OUT heat bigint,
    OUT expires_in interval)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'rbp_sql_leases'
LANGUAGE C STRICT VOLATILE PARALLEL SAFE;

CREATE VIEW remote_bp_leases AS
    SELECT * FROM remote_bp_leases();

-- Remote pages of each relation of this database, shared catalogs included.
-- relation is null where the file belongs to no relation that can be seen.
CREATE FUNCTION remote_bp_relations(
    OUT relation regclass,
    OUT relfilenode oid,
    OUT fork text,
    OUT pages bigint,
    OUT bytes bigint,
    OUT staged_pages bigint)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'rbp_sql_relations'
LANGUAGE C STRICT VOLATILE PARALLEL SAFE;

CREATE VIEW remote_bp_relations AS
    SELECT * FROM remote_bp_relations();

-- Temporary files that have blocks on donors, or on the way there.
CREATE FUNCTION remote_bp_temp_files(
    OUT file text,
    OUT tablespace oid,
    OUT owner integer,
    OUT temp_relation boolean,
    OUT size bigint,
    OUT remote_bytes bigint,
    OUT staged_bytes bigint,
    OUT mirrored_bytes bigint)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'rbp_sql_temp_files'
LANGUAGE C STRICT VOLATILE PARALLEL SAFE;

CREATE VIEW remote_bp_temp_files AS
    SELECT * FROM remote_bp_temp_files();

-- Counters, histograms and the donors' counters to zero.
CREATE FUNCTION remote_bp_stat_reset()
RETURNS void
AS 'MODULE_PATHNAME', 'rbp_sql_stat_reset'
LANGUAGE C STRICT VOLATILE PARALLEL SAFE;

-- Forget the remote pages of a relation, all forks; returns how many.
CREATE FUNCTION remote_bp_evict(relation regclass)
RETURNS bigint
AS 'MODULE_PATHNAME', 'rbp_sql_evict'
LANGUAGE C STRICT VOLATILE PARALLEL RESTRICTED;

-- Bring blocks of a relation that are not there into the tier, or into shared buffers
-- (from donors, where they have them); returns how many came.  For whoever may
-- read the table.
CREATE FUNCTION remote_bp_prewarm(
    relation regclass,
    mode text DEFAULT 'tier',
    fork text DEFAULT 'main',
    first_block bigint DEFAULT NULL,
    last_block bigint DEFAULT NULL,
    include_indexes boolean DEFAULT false)
RETURNS bigint
AS 'MODULE_PATHNAME', 'rbp_sql_prewarm'
LANGUAGE C VOLATILE PARALLEL UNSAFE;

-- The current database into the tier, until that is full: what was read most often
-- for its size first; returns how many blocks came.
CREATE FUNCTION remote_bp_prewarm_database()
RETURNS bigint
AS 'MODULE_PATHNAME', 'rbp_sql_prewarm_database'
LANGUAGE C VOLATILE PARALLEL UNSAFE;

-- Those that are at it now.  relation is null in another database.
CREATE FUNCTION remote_bp_prewarm_progress(
    OUT pid integer,
    OUT datid oid,
    OUT relation regclass,
    OUT fork text,
    OUT mode text,
    OUT phase text,
    OUT blocks_done bigint,
    OUT blocks_total bigint)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'rbp_sql_prewarm_progress'
LANGUAGE C STRICT VOLATILE PARALLEL SAFE;

CREATE VIEW remote_bp_prewarm_progress AS
    SELECT * FROM remote_bp_prewarm_progress();

-- Not for everybody; what changes something is for superusers, and for whom
-- they grant it.
REVOKE ALL ON FUNCTION remote_bp_stat() FROM PUBLIC;
REVOKE ALL ON FUNCTION remote_bp_stat_donors() FROM PUBLIC;
REVOKE ALL ON FUNCTION remote_bp_stat_latency() FROM PUBLIC;
REVOKE ALL ON FUNCTION remote_bp_leases() FROM PUBLIC;
REVOKE ALL ON FUNCTION remote_bp_relations() FROM PUBLIC;
REVOKE ALL ON FUNCTION remote_bp_temp_files() FROM PUBLIC;
REVOKE ALL ON FUNCTION remote_bp_stat_reset() FROM PUBLIC;
REVOKE ALL ON FUNCTION remote_bp_evict(regclass) FROM PUBLIC;
REVOKE ALL ON FUNCTION remote_bp_prewarm_progress() FROM PUBLIC;

REVOKE ALL ON remote_bp_stat, remote_bp_stat_donors, remote_bp_stat_latency,
    remote_bp_leases, remote_bp_relations, remote_bp_temp_files,
    remote_bp_prewarm_progress FROM PUBLIC;

GRANT EXECUTE ON FUNCTION remote_bp_stat() TO pg_monitor;
GRANT EXECUTE ON FUNCTION remote_bp_stat_donors() TO pg_monitor;
GRANT EXECUTE ON FUNCTION remote_bp_stat_latency() TO pg_monitor;
GRANT EXECUTE ON FUNCTION remote_bp_leases() TO pg_monitor;
GRANT EXECUTE ON FUNCTION remote_bp_relations() TO pg_monitor;
GRANT EXECUTE ON FUNCTION remote_bp_temp_files() TO pg_monitor;
GRANT EXECUTE ON FUNCTION remote_bp_prewarm_progress() TO pg_monitor;

GRANT SELECT ON remote_bp_stat, remote_bp_stat_donors, remote_bp_stat_latency,
    remote_bp_leases, remote_bp_relations, remote_bp_temp_files,
    remote_bp_prewarm_progress TO pg_monitor;
