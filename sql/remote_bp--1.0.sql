/* remote_bp 1.0 */

-- complain if script is sourced in psql, rather than via CREATE EXTENSION
\echo Use "CREATE EXTENSION remote_bp" to load this file. \quit

-- One row: whether the buffer tier is usable, and why not; the most recent
-- error; counters since the last reset; and current contents, in pages of 8 kB.
CREATE FUNCTION remote_bp_stat(
    OUT usable boolean,
    OUT unusable_reason text,
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
    OUT skips_policy bigint,
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
    OUT donor_down bigint,
    OUT over_limit bigint,
    OUT below_threshold bigint,
    OUT compared bigint,
    OUT mismatches bigint,
    OUT bytes_read bigint,
    OUT bytes_written bigint,
    OUT disk_writes bigint,
    OUT prefetches_saved bigint,
    OUT remote_pages bigint,
    OUT kept_pages bigint,
    OUT staged_pages bigint,
    OUT free_pages bigint,
    OUT online_pages bigint,
    OUT max_pages bigint,
    OUT stats_reset timestamptz)
RETURNS record
AS 'MODULE_PATHNAME', 'rbp_sql_stat'
LANGUAGE C STRICT VOLATILE PARALLEL SAFE;

CREATE VIEW remote_bp_stat AS
    SELECT * FROM remote_bp_stat();

-- The same for temporary data.
CREATE FUNCTION remote_bp_stat_spill(
    OUT usable boolean,
    OUT unusable_reason text,
    OUT writes bigint,
    OUT reads bigint,
    OUT read_ahead bigint,
    OUT staged_reads bigint,
    OUT local bigint,
    OUT bypassed bigint,
    OUT rescued bigint,
    OUT evacuated bigint,
    OUT mirror_reads bigint,
    OUT hash_failures bigint,
    OUT lost bigint,
    OUT file_us double precision,
    OUT donor_us double precision,
    OUT pages bigint,
    OUT free_pages bigint,
    OUT online_pages bigint,
    OUT quarantined_pages bigint,
    OUT lost_pages bigint,
    OUT files bigint,
    OUT stats_reset timestamptz)
RETURNS record
AS 'MODULE_PATHNAME', 'rbp_sql_stat_spill'
LANGUAGE C STRICT VOLATILE PARALLEL SAFE;

CREATE VIEW remote_bp_stat_spill AS
    SELECT * FROM remote_bp_stat_spill();

-- One row for each donor that memory is or was leased from.
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
-- microseconds, and less than a quarter longer.  Buckets without calls are left
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

-- One row for each leased region.
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

-- Remote pages of each relation of this database, including shared catalogs.
-- relation is null if no relation with this file is visible.
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

-- Temporary files with blocks on donors or in staging.
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

-- Set counters, histograms and the donors' counters to zero.
CREATE FUNCTION remote_bp_stat_reset()
RETURNS void
AS 'MODULE_PATHNAME', 'rbp_sql_stat_reset'
LANGUAGE C STRICT VOLATILE PARALLEL SAFE;

-- Drop the remote pages of a relation, in all forks; return how many.
CREATE FUNCTION remote_bp_evict(relation regclass)
RETURNS bigint
AS 'MODULE_PATHNAME', 'rbp_sql_evict'
LANGUAGE C STRICT VOLATILE PARALLEL RESTRICTED;

-- Load missing blocks of a relation into the tier, or into shared buffers (from
-- donors that have them); return how many were loaded.  Requires the SELECT
-- privilege on the table.
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

-- Load the relations of the current database into the tier until it is full.
-- Relations with the most reads per page come first.  Return how many blocks
-- were loaded.
CREATE FUNCTION remote_bp_prewarm_database()
RETURNS bigint
AS 'MODULE_PATHNAME', 'rbp_sql_prewarm_database'
LANGUAGE C VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp;

-- Processes that prewarm now.  relation is null if it is in another database.
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

-- Policies of relations.  An index is stored by name, because a dump restores
-- indexes after the rows of tables.
CREATE TABLE remote_bp_policy (
    relation regclass NOT NULL,
    index_name name NOT NULL DEFAULT '',
    policy text NOT NULL CHECK (policy IN ('keep', 'none')),
    include_indexes boolean NOT NULL,
    PRIMARY KEY (relation, index_name));

SELECT pg_catalog.pg_extension_config_dump('remote_bp_policy',
    'WHERE EXISTS (SELECT FROM pg_catalog.pg_class c WHERE c.oid = relation)');

-- keep: load the relation into the tier now, and do not evict it for other
-- pages.  none: never store it in the tier.  default: remove the policy.  For
-- the owner of the relation.
CREATE FUNCTION remote_bp_set_policy(
    relation regclass,
    policy text,
    include_indexes boolean DEFAULT true)
RETURNS void
AS 'MODULE_PATHNAME', 'rbp_sql_set_policy'
LANGUAGE C VOLATILE PARALLEL UNSAFE;

-- Relations with a policy.  The policy was set on the relation itself, or on the
-- table of which it is a partition, an index or the TOAST table (set_on).
CREATE FUNCTION remote_bp_policies(
    OUT relation regclass,
    OUT policy text,
    OUT set_on regclass,
    OUT pages_wanted bigint,
    OUT pages_held bigint,
    OUT reason text)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'rbp_sql_policies'
LANGUAGE C STRICT VOLATILE PARALLEL RESTRICTED;

CREATE VIEW remote_bp_policies AS
    SELECT * FROM remote_bp_policies();

-- Limit the memory of the tier that a database can use; null removes the limit.
CREATE FUNCTION remote_bp_set_database_limit(
    database name,
    max_bytes bigint)
RETURNS void
AS 'MODULE_PATHNAME', 'rbp_sql_set_database_limit'
LANGUAGE C VOLATILE PARALLEL UNSAFE;

-- Pages of each database in the tier; datid is 0 for shared relations.
CREATE FUNCTION remote_bp_databases(
    OUT datid oid,
    OUT database name,
    OUT pages bigint,
    OUT bytes bigint,
    OUT max_bytes bigint)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'rbp_sql_databases'
LANGUAGE C STRICT VOLATILE PARALLEL SAFE;

CREATE VIEW remote_bp_databases AS
    SELECT * FROM remote_bp_databases();

-- Views are for pg_monitor.  Functions that change something are for superusers
-- and roles that they grant EXECUTE to.
REVOKE ALL ON FUNCTION remote_bp_stat() FROM PUBLIC;
REVOKE ALL ON FUNCTION remote_bp_stat_spill() FROM PUBLIC;
REVOKE ALL ON FUNCTION remote_bp_stat_donors() FROM PUBLIC;
REVOKE ALL ON FUNCTION remote_bp_stat_latency() FROM PUBLIC;
REVOKE ALL ON FUNCTION remote_bp_leases() FROM PUBLIC;
REVOKE ALL ON FUNCTION remote_bp_relations() FROM PUBLIC;
REVOKE ALL ON FUNCTION remote_bp_temp_files() FROM PUBLIC;
REVOKE ALL ON FUNCTION remote_bp_stat_reset() FROM PUBLIC;
REVOKE ALL ON FUNCTION remote_bp_evict(regclass) FROM PUBLIC;
REVOKE ALL ON FUNCTION remote_bp_prewarm_progress() FROM PUBLIC;
REVOKE ALL ON FUNCTION remote_bp_set_database_limit(name, bigint) FROM PUBLIC;
REVOKE ALL ON FUNCTION remote_bp_databases() FROM PUBLIC;

REVOKE ALL ON remote_bp_stat, remote_bp_stat_spill, remote_bp_stat_donors,
    remote_bp_stat_latency, remote_bp_leases, remote_bp_relations, remote_bp_temp_files,
    remote_bp_prewarm_progress, remote_bp_databases FROM PUBLIC;

GRANT EXECUTE ON FUNCTION remote_bp_stat() TO pg_monitor;
GRANT EXECUTE ON FUNCTION remote_bp_stat_spill() TO pg_monitor;
GRANT EXECUTE ON FUNCTION remote_bp_stat_donors() TO pg_monitor;
GRANT EXECUTE ON FUNCTION remote_bp_stat_latency() TO pg_monitor;
GRANT EXECUTE ON FUNCTION remote_bp_leases() TO pg_monitor;
GRANT EXECUTE ON FUNCTION remote_bp_relations() TO pg_monitor;
GRANT EXECUTE ON FUNCTION remote_bp_temp_files() TO pg_monitor;
GRANT EXECUTE ON FUNCTION remote_bp_prewarm_progress() TO pg_monitor;
GRANT EXECUTE ON FUNCTION remote_bp_databases() TO pg_monitor;

-- Owners of relations can look at policies and dump them.
GRANT SELECT ON remote_bp_policy, remote_bp_policies TO PUBLIC;

GRANT SELECT ON remote_bp_stat, remote_bp_stat_spill, remote_bp_stat_donors,
    remote_bp_stat_latency, remote_bp_leases, remote_bp_relations, remote_bp_temp_files,
    remote_bp_prewarm_progress, remote_bp_databases TO pg_monitor;

-- Comments; docs/reference.md has the same texts.
COMMENT ON FUNCTION remote_bp_stat_reset() IS
    'Sets all counters and histograms to zero; for superusers and roles that they grant EXECUTE to';
COMMENT ON FUNCTION remote_bp_evict(regclass) IS
    'Drops all pages of a relation, in all forks, from the tier, and returns how many; for superusers and roles that they grant EXECUTE to';
COMMENT ON FUNCTION remote_bp_prewarm(regclass, text, text, bigint, bigint, boolean) IS
    'Loads blocks of a relation into the tier or into shared buffers, and returns how many were loaded; requires the SELECT privilege on the table';
COMMENT ON FUNCTION remote_bp_prewarm_database() IS
    'Loads the relations of the current database into the tier until it is full, those with the most reads per page first, and returns how many blocks were loaded';
COMMENT ON FUNCTION remote_bp_stat() IS 'The rows of view remote_bp_stat';
COMMENT ON VIEW remote_bp_stat IS
    'Activity of the tier since the last reset, and its current contents, in one row';
COMMENT ON COLUMN remote_bp_stat.usable IS
    'Whether the tier can serve and capture pages now';
COMMENT ON COLUMN remote_bp_stat.unusable_reason IS
    'Why the tier is not usable; null if it is usable';
COMMENT ON COLUMN remote_bp_stat.last_error IS
    'The most recent error, even if it is over';
COMMENT ON COLUMN remote_bp_stat.last_error_at IS
    'Time of the most recent error';
COMMENT ON COLUMN remote_bp_stat.page_cache_asked_by IS
    'How the server asks whether a page is in the page cache: cachestat, mincore or none';
COMMENT ON COLUMN remote_bp_stat.hits IS
    'Pages read from donors';
COMMENT ON COLUMN remote_bp_stat.staged_hits IS
    'Pages read from the staging region';
COMMENT ON COLUMN remote_bp_stat.misses IS
    'Pages read from the file while the tier was in use';
COMMENT ON COLUMN remote_bp_stat.page_cache_reads IS
    'Misses that the page cache served';
COMMENT ON COLUMN remote_bp_stat.disk_reads IS
    'Misses that the disk served; for the remaining misses the server did not ask the page cache';
COMMENT ON COLUMN remote_bp_stat.page_cache_first IS
    'Misses that the page cache served although a donor had the page';
COMMENT ON COLUMN remote_bp_stat.page_cache_fills IS
    'Misses read from the disk although a donor had the page, to bring the page into the page cache';
COMMENT ON COLUMN remote_bp_stat.bypassed IS
    'Misses read from the disk although a donor had the page, because donors are slower';
COMMENT ON COLUMN remote_bp_stat.captures IS
    'Pages copied to staging when they left shared buffers or were prewarmed';
COMMENT ON COLUMN remote_bp_stat.skips_remote IS
    'Pages not captured: the tier already has them';
COMMENT ON COLUMN remote_bp_stat.skips_unknown IS
    'Pages not captured: their content on disk is not known';
COMMENT ON COLUMN remote_bp_stat.skips_stale IS
    'Pages not captured: written or dropped after they were read';
COMMENT ON COLUMN remote_bp_stat.skips_changed IS
    'Pages not captured: different from the disk, for example by hint bits';
COMMENT ON COLUMN remote_bp_stat.skips_cached IS
    'Pages not captured: the page cache has them, or probably has them';
COMMENT ON COLUMN remote_bp_stat.skips_slow IS
    'Pages not captured: donors are not enough faster than the disk';
COMMENT ON COLUMN remote_bp_stat.skips_policy IS
    'Pages not captured: excluded by a policy, a tablespace or remote_bp.use_tier';
COMMENT ON COLUMN remote_bp_stat.drops_full IS
    'Attempts to capture a page that found staging full; a page may be tried when it is written, and when its buffer is reused';
COMMENT ON COLUMN remote_bp_stat.pushes IS
    'Pages written to donors';
COMMENT ON COLUMN remote_bp_stat.pushes_stale IS
    'Pages not sent to donors, or discarded after they were sent, because they were written or dropped in the meantime';
COMMENT ON COLUMN remote_bp_stat.pushes_failed IS
    'Pages lost from the tier because the write to the donor failed';
COMMENT ON COLUMN remote_bp_stat.pushes_no_slot IS
    'Pages lost from the tier because it had no slot for them';
COMMENT ON COLUMN remote_bp_stat.evictions IS
    'Pages evicted from the tier to make room for others';
COMMENT ON COLUMN remote_bp_stat.invalidations IS
    'Pages dropped from the tier because they were written';
COMMENT ON COLUMN remote_bp_stat.generations IS
    'Relation forks truncated, dropped or replaced';
COMMENT ON COLUMN remote_bp_stat.races IS
    'Reads of a page that was moved or replaced at the same time; they were repeated or served by the file';
COMMENT ON COLUMN remote_bp_stat.hash_failures IS
    'Reads whose content did not match its hash';
COMMENT ON COLUMN remote_bp_stat.timeouts IS
    'Waits that reached remote_bp.io_timeout';
COMMENT ON COLUMN remote_bp_stat.io_errors IS
    'Reads from donors that failed for another reason than a timeout';
COMMENT ON COLUMN remote_bp_stat.fallbacks IS
    'Reads from the file because the donor with the page failed or could not be used';
COMMENT ON COLUMN remote_bp_stat.donor_down IS
    'Fallbacks because the donor is down';
COMMENT ON COLUMN remote_bp_stat.over_limit IS
    'Fallbacks because of remote_bp.max_connections';
COMMENT ON COLUMN remote_bp_stat.below_threshold IS
    'Fallbacks because of remote_bp.connect_threshold';
COMMENT ON COLUMN remote_bp_stat.compared IS
    'Pages compared with the disk (remote_bp.compare_with_disk)';
COMMENT ON COLUMN remote_bp_stat.mismatches IS
    'Compared pages that differed from the disk';
COMMENT ON COLUMN remote_bp_stat.bytes_read IS
    'Bytes read from donors';
COMMENT ON COLUMN remote_bp_stat.bytes_written IS
    'Bytes written to donors';
COMMENT ON COLUMN remote_bp_stat.disk_writes IS
    'Relation pages written to disk';
COMMENT ON COLUMN remote_bp_stat.prefetches_saved IS
    'Blocks not prefetched from disk because the tier has them';
COMMENT ON COLUMN remote_bp_stat.remote_pages IS
    'Pages held by donors';
COMMENT ON COLUMN remote_bp_stat.kept_pages IS
    'Pages held by donors that are not evicted for others, because of a policy';
COMMENT ON COLUMN remote_bp_stat.staged_pages IS
    'Pages in staging, on their way to donors';
COMMENT ON COLUMN remote_bp_stat.free_pages IS
    'Pages for which the leased memory has room';
COMMENT ON COLUMN remote_bp_stat.online_pages IS
    'Pages for which memory is leased';
COMMENT ON COLUMN remote_bp_stat.max_pages IS
    'Pages that the tier can grow to (remote_bp.buffer_tier_max_size)';
COMMENT ON COLUMN remote_bp_stat.stats_reset IS
    'Time of the last reset of the counters';
COMMENT ON FUNCTION remote_bp_stat_spill() IS 'The rows of view remote_bp_stat_spill';
COMMENT ON VIEW remote_bp_stat_spill IS
    'Activity of temporary data since the last reset, and its current blocks on donors, in one row';
COMMENT ON COLUMN remote_bp_stat_spill.usable IS
    'Whether temporary data can go to donors now';
COMMENT ON COLUMN remote_bp_stat_spill.unusable_reason IS
    'Why temporary data cannot go to donors; null if it can';
COMMENT ON COLUMN remote_bp_stat_spill.writes IS
    'Temporary blocks written to donors';
COMMENT ON COLUMN remote_bp_stat_spill.reads IS
    'Temporary blocks read from donors';
COMMENT ON COLUMN remote_bp_stat_spill.read_ahead IS
    'Temporary blocks read from donors before a query asked for them';
COMMENT ON COLUMN remote_bp_stat_spill.staged_reads IS
    'Temporary blocks read from staging';
COMMENT ON COLUMN remote_bp_stat_spill.local IS
    'Temporary blocks written to the file because leased memory was full';
COMMENT ON COLUMN remote_bp_stat_spill.bypassed IS
    'Temporary blocks written to the file because that costs less';
COMMENT ON COLUMN remote_bp_stat_spill.rescued IS
    'Temporary blocks written to the file because a donor failed';
COMMENT ON COLUMN remote_bp_stat_spill.evacuated IS
    'Temporary blocks moved in order to give memory back';
COMMENT ON COLUMN remote_bp_stat_spill.mirror_reads IS
    'Temporary blocks read from the second copy';
COMMENT ON COLUMN remote_bp_stat_spill.hash_failures IS
    'Copies of temporary blocks that did not match their hash';
COMMENT ON COLUMN remote_bp_stat_spill.lost IS
    'Reads of temporary blocks that failed, and made the query fail';
COMMENT ON COLUMN remote_bp_stat_spill.file_us IS
    'Time to write and read a temporary block in files, in microseconds; null if not known';
COMMENT ON COLUMN remote_bp_stat_spill.donor_us IS
    'Time to write and read a temporary block on donors, in microseconds; null if not known';
COMMENT ON COLUMN remote_bp_stat_spill.pages IS
    'Temporary blocks held by donors; a block with two copies counts twice';
COMMENT ON COLUMN remote_bp_stat_spill.free_pages IS
    'Temporary blocks for which the leased memory has room';
COMMENT ON COLUMN remote_bp_stat_spill.online_pages IS
    'Temporary blocks for which memory is leased';
COMMENT ON COLUMN remote_bp_stat_spill.quarantined_pages IS
    'Slots of temporary blocks that are not used again until no late write can reach them';
COMMENT ON COLUMN remote_bp_stat_spill.lost_pages IS
    'Slots of temporary blocks whose donor is gone';
COMMENT ON COLUMN remote_bp_stat_spill.files IS
    'Temporary files with blocks on donors or in staging';
COMMENT ON COLUMN remote_bp_stat_spill.stats_reset IS
    'Time of the last reset of the counters';
COMMENT ON FUNCTION remote_bp_stat_donors() IS 'The rows of view remote_bp_stat_donors';
COMMENT ON VIEW remote_bp_stat_donors IS
    'One row for each donor that memory is or was leased from';
COMMENT ON COLUMN remote_bp_stat_donors.donor IS
    'Name of the donor';
COMMENT ON COLUMN remote_bp_stat_donors.host IS
    'Host where the donor accepts TCP connections';
COMMENT ON COLUMN remote_bp_stat_donors.port IS
    'TCP port of the donor; 0 if it does not accept TCP';
COMMENT ON COLUMN remote_bp_stat_donors.state IS
    'State of the donor: ok, down, gone or unresolved';
COMMENT ON COLUMN remote_bp_stat_donors.state_since IS
    'Time of the last change of state';
COMMENT ON COLUMN remote_bp_stat_donors.last_error IS
    'The most recent error of this donor';
COMMENT ON COLUMN remote_bp_stat_donors.last_error_at IS
    'Time of the most recent error of this donor';
COMMENT ON COLUMN remote_bp_stat_donors.transport IS
    'Transport of the last connection: shm, verbs, tcp or none';
COMMENT ON COLUMN remote_bp_stat_donors.connections IS
    'Connections of the backends of this server to the donor';
COMMENT ON COLUMN remote_bp_stat_donors.leased_bytes IS
    'Memory leased from the donor';
COMMENT ON COLUMN remote_bp_stat_donors.used_bytes IS
    'Leased memory that is in use';
COMMENT ON COLUMN remote_bp_stat_donors.reads IS
    'Pages read from the donor';
COMMENT ON COLUMN remote_bp_stat_donors.writes IS
    'Pages written to the donor';
COMMENT ON COLUMN remote_bp_stat_donors.failures IS
    'Reads and writes that failed';
COMMENT ON COLUMN remote_bp_stat_donors.timeouts IS
    'Failures that were timeouts';
COMMENT ON COLUMN remote_bp_stat_donors.bypassed IS
    'Pages on the donor that were read from disk because the donor is slower';
COMMENT ON COLUMN remote_bp_stat_donors.saved_us IS
    'Time saved by reads from the donor, compared with reads from disk, in microseconds; negative if they took longer';
COMMENT ON COLUMN remote_bp_stat_donors.read_p50_us IS
    'Median time of a read from the donor, in microseconds';
COMMENT ON COLUMN remote_bp_stat_donors.read_p99_us IS
    '99th percentile of the time of a read from the donor, in microseconds';
COMMENT ON FUNCTION remote_bp_stat_latency() IS 'The rows of view remote_bp_stat_latency';
COMMENT ON VIEW remote_bp_stat_latency IS
    'Durations of operations since the last reset, one row for each operation';
COMMENT ON COLUMN remote_bp_stat_latency.operation IS
    'Operation: hit, staged_hit, disk_read, capture, push, connect, spill_read or spill_write';
COMMENT ON COLUMN remote_bp_stat_latency.calls IS
    'Number of calls';
COMMENT ON COLUMN remote_bp_stat_latency.mean_us IS
    'Mean duration, in microseconds';
COMMENT ON COLUMN remote_bp_stat_latency.p50_us IS
    'Median duration, in microseconds';
COMMENT ON COLUMN remote_bp_stat_latency.p90_us IS
    '90th percentile of the duration, in microseconds';
COMMENT ON COLUMN remote_bp_stat_latency.p99_us IS
    '99th percentile of the duration, in microseconds';
COMMENT ON COLUMN remote_bp_stat_latency.buckets_us IS
    'Lower bounds of the histogram buckets that have calls, in microseconds';
COMMENT ON COLUMN remote_bp_stat_latency.counts IS
    'Number of calls in each bucket';
COMMENT ON FUNCTION remote_bp_leases() IS 'The rows of view remote_bp_leases';
COMMENT ON VIEW remote_bp_leases IS
    'Leased memory, one row for each region';
COMMENT ON COLUMN remote_bp_leases.lease IS
    'Identifier of the lease';
COMMENT ON COLUMN remote_bp_leases.purpose IS
    'Purpose of the lease: buffer or temp';
COMMENT ON COLUMN remote_bp_leases.donor IS
    'Name of the donor that lends the region';
COMMENT ON COLUMN remote_bp_leases.region IS
    'Number of the region on the donor';
COMMENT ON COLUMN remote_bp_leases.bytes IS
    'Size of the region';
COMMENT ON COLUMN remote_bp_leases.used_bytes IS
    'Memory of the region that is in use';
COMMENT ON COLUMN remote_bp_leases.heat IS
    'Pages in the region plus an estimate of their reads; the coldest region is given back first';
COMMENT ON COLUMN remote_bp_leases.expires_in IS
    'Time until the lease expires if it is not renewed';
COMMENT ON FUNCTION remote_bp_relations() IS 'The rows of view remote_bp_relations';
COMMENT ON VIEW remote_bp_relations IS
    'Pages in the tier, by fork, for each relation of this database';
COMMENT ON COLUMN remote_bp_relations.relation IS
    'Relation; null if no relation with this file is visible';
COMMENT ON COLUMN remote_bp_relations.relfilenode IS
    'File node number of the relation';
COMMENT ON COLUMN remote_bp_relations.fork IS
    'Fork: main, fsm, vm or init';
COMMENT ON COLUMN remote_bp_relations.pages IS
    'Pages held by donors';
COMMENT ON COLUMN remote_bp_relations.bytes IS
    'Size of the pages held by donors, in bytes';
COMMENT ON COLUMN remote_bp_relations.staged_pages IS
    'Pages in staging, on their way to donors';
COMMENT ON FUNCTION remote_bp_temp_files() IS 'The rows of view remote_bp_temp_files';
COMMENT ON VIEW remote_bp_temp_files IS
    'Temporary files with blocks on donors or in staging';
COMMENT ON COLUMN remote_bp_temp_files.file IS
    'Path of the file below the data directory';
COMMENT ON COLUMN remote_bp_temp_files.tablespace IS
    'OID of the tablespace of the file';
COMMENT ON COLUMN remote_bp_temp_files.owner IS
    'Process ID of the process that created the file';
COMMENT ON COLUMN remote_bp_temp_files.temp_relation IS
    'Whether the file belongs to a temporary relation';
COMMENT ON COLUMN remote_bp_temp_files.size IS
    'Size of the file, in bytes';
COMMENT ON COLUMN remote_bp_temp_files.remote_bytes IS
    'Bytes of the file on donors';
COMMENT ON COLUMN remote_bp_temp_files.staged_bytes IS
    'Bytes of the file in staging';
COMMENT ON COLUMN remote_bp_temp_files.mirrored_bytes IS
    'Bytes of the file that have copies on two donors';
COMMENT ON FUNCTION remote_bp_prewarm_progress() IS 'The rows of view remote_bp_prewarm_progress';
COMMENT ON VIEW remote_bp_prewarm_progress IS
    'Progress of running prewarm operations, one row for each process';
COMMENT ON COLUMN remote_bp_prewarm_progress.pid IS
    'Process ID';
COMMENT ON COLUMN remote_bp_prewarm_progress.datid IS
    'OID of the database';
COMMENT ON COLUMN remote_bp_prewarm_progress.relation IS
    'Relation that is being loaded; null if it belongs to another database';
COMMENT ON COLUMN remote_bp_prewarm_progress.fork IS
    'Fork that is being loaded';
COMMENT ON COLUMN remote_bp_prewarm_progress.mode IS
    'Target: tier or buffers';
COMMENT ON COLUMN remote_bp_prewarm_progress.phase IS
    'Phase: reading, or waiting for donors because staging is full';
COMMENT ON COLUMN remote_bp_prewarm_progress.blocks_done IS
    'Blocks of the fork that are done';
COMMENT ON COLUMN remote_bp_prewarm_progress.blocks_total IS
    'Blocks of the fork that are to be loaded';
COMMENT ON TABLE remote_bp_policy IS
    'Policies set by remote_bp_set_policy(); remote_bp_policies shows their effect';
COMMENT ON COLUMN remote_bp_policy.relation IS
    'Table or materialized view';
COMMENT ON COLUMN remote_bp_policy.index_name IS
    'Index that the policy was set on; empty if it was set on the relation itself';
COMMENT ON COLUMN remote_bp_policy.policy IS
    'Policy: keep or none';
COMMENT ON COLUMN remote_bp_policy.include_indexes IS
    'Whether the policy includes the indexes';
COMMENT ON FUNCTION remote_bp_set_policy(regclass, text, boolean) IS
    'Keeps a relation in the tier (keep), keeps it out of the tier (none), or removes its policy (default); for the owner of the relation';
COMMENT ON FUNCTION remote_bp_policies() IS 'The rows of view remote_bp_policies';
COMMENT ON VIEW remote_bp_policies IS
    'Relations with a policy, either set on them or inherited from another relation';
COMMENT ON COLUMN remote_bp_policies.relation IS
    'Table, partition, materialized view, index or TOAST table; null if the policy names an index that does not exist';
COMMENT ON COLUMN remote_bp_policies.policy IS
    'Policy of the relation: keep or none';
COMMENT ON COLUMN remote_bp_policies.set_on IS
    'Relation that the policy was set on';
COMMENT ON COLUMN remote_bp_policies.pages_wanted IS
    'Pages to keep in the tier: those of the main fork, except new ones, which contain only zeros';
COMMENT ON COLUMN remote_bp_policies.pages_held IS
    'Pages that are kept in the tier';
COMMENT ON COLUMN remote_bp_policies.reason IS
    'Why fewer pages are kept than wanted, or why the policy has no effect yet';
COMMENT ON FUNCTION remote_bp_set_database_limit(name, bigint) IS
    'Limits the memory of the tier that a database can use, in bytes; null removes the limit; for superusers';
COMMENT ON FUNCTION remote_bp_databases() IS 'The rows of view remote_bp_databases';
COMMENT ON VIEW remote_bp_databases IS
    'Pages in the tier, and their limit, for each database';
COMMENT ON COLUMN remote_bp_databases.datid IS
    'OID of the database; 0 for relations that all databases share';
COMMENT ON COLUMN remote_bp_databases.database IS
    'Name of the database; null for relations that all databases share';
COMMENT ON COLUMN remote_bp_databases.pages IS
    'Pages of the database held by donors';
COMMENT ON COLUMN remote_bp_databases.bytes IS
    'Size of these pages, in bytes';
COMMENT ON COLUMN remote_bp_databases.max_bytes IS
    'Limit of the database, in bytes; null if it has no limit';
