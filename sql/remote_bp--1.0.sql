/* remote_bp 1.0 */

-- complain if script is sourced in psql, rather than via CREATE EXTENSION
\echo Use "CREATE EXTENSION remote_bp" to load this file. \quit

-- One row: whether the buffer tier's leased memory can be used now, and if not
-- why; what went wrong last; what was done since the last reset, and what is
-- held now, in pages of 8 kB.
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
    OUT avoided bigint,
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
LANGUAGE C VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp;

-- Who is prewarming now.  relation is null in another database.
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

-- What somebody has said of relations.  An index is named, since a dump restores it after
-- the rows of tables.
CREATE TABLE remote_bp_policy (
    relation regclass NOT NULL,
    index_name name NOT NULL DEFAULT '',
    policy text NOT NULL CHECK (policy IN ('keep', 'none')),
    include_indexes boolean NOT NULL,
    PRIMARY KEY (relation, index_name));

SELECT pg_catalog.pg_extension_config_dump('remote_bp_policy',
    'WHERE EXISTS (SELECT FROM pg_catalog.pg_class c WHERE c.oid = relation)');

-- keep: in the tier at once, and not given up for other pages; none: never there; default:
-- as if nothing had been said.  For the relation's owner.
CREATE FUNCTION remote_bp_set_policy(
    relation regclass,
    policy text,
    include_indexes boolean DEFAULT true)
RETURNS void
AS 'MODULE_PATHNAME', 'rbp_sql_set_policy'
LANGUAGE C VOLATILE PARALLEL UNSAFE;

-- Each relation that a policy is about, by itself, or as a partition, an index or a TOAST
-- table of another one, set_on; reason tells what is missing.
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

-- The most memory of the tier that a database may have; null: as much as it can get.
CREATE FUNCTION remote_bp_set_database_limit(
    database name,
    max_bytes bigint)
RETURNS void
AS 'MODULE_PATHNAME', 'rbp_sql_set_database_limit'
LANGUAGE C VOLATILE PARALLEL UNSAFE;

-- What each database has in the tier; datid is 0 for what all share.
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

-- Not for everybody; what changes something is for superusers, and for whom
-- they grant it.
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

-- Owners of relations see to their policies, and dump them.
GRANT SELECT ON remote_bp_policy, remote_bp_policies TO PUBLIC;

GRANT SELECT ON remote_bp_stat, remote_bp_stat_spill, remote_bp_stat_donors,
    remote_bp_stat_latency, remote_bp_leases, remote_bp_relations, remote_bp_temp_files,
    remote_bp_prewarm_progress, remote_bp_databases TO pg_monitor;

-- What each is; docs/reference.md says the same.
COMMENT ON FUNCTION remote_bp_stat_reset() IS
    'Sets all counters and histograms to zero; for superusers, and whom they grant it';
COMMENT ON FUNCTION remote_bp_evict(regclass) IS
    'Forgets the pages of a relation, all forks, and returns how many; for superusers, and whom they grant it';
COMMENT ON FUNCTION remote_bp_prewarm(regclass, text, text, bigint, bigint, boolean) IS
    'Brings blocks of a relation into the tier or into shared buffers, and returns how many came; for whoever may read it';
COMMENT ON FUNCTION remote_bp_prewarm_database() IS
    'Brings what is read most of the current database into the tier until it is full, and returns how many blocks came';
COMMENT ON FUNCTION remote_bp_stat() IS 'The rows of view remote_bp_stat';
COMMENT ON VIEW remote_bp_stat IS
    'What the tier did since the last reset, and what it holds, in one row';
COMMENT ON COLUMN remote_bp_stat.usable IS
    'Whether pages can be served and captured now';
COMMENT ON COLUMN remote_bp_stat.unusable_reason IS
    'Why not, if usable is false';
COMMENT ON COLUMN remote_bp_stat.last_error IS
    'What went wrong last, even if it is over';
COMMENT ON COLUMN remote_bp_stat.last_error_at IS
    'When that was';
COMMENT ON COLUMN remote_bp_stat.page_cache_asked_by IS
    'How the page cache is asked: cachestat, mincore or none';
COMMENT ON COLUMN remote_bp_stat.hits IS
    'Pages read from donors';
COMMENT ON COLUMN remote_bp_stat.staged_hits IS
    'Pages read from the staging region';
COMMENT ON COLUMN remote_bp_stat.misses IS
    'Pages read from the file while the tier was in use';
COMMENT ON COLUMN remote_bp_stat.page_cache_reads IS
    'Of misses, from the page cache';
COMMENT ON COLUMN remote_bp_stat.disk_reads IS
    'Of misses, from the disk; of the others it was not asked';
COMMENT ON COLUMN remote_bp_stat.page_cache_first IS
    'Of misses, from the page cache although a donor had the page';
COMMENT ON COLUMN remote_bp_stat.page_cache_fills IS
    'Of misses, from the disk, so that the page cache has the page from then on';
COMMENT ON COLUMN remote_bp_stat.bypassed IS
    'Of misses, from the disk although a donor had the page, since donors are slower';
COMMENT ON COLUMN remote_bp_stat.captures IS
    'Pages copied to staging when they left shared buffers, or were prewarmed';
COMMENT ON COLUMN remote_bp_stat.skips_remote IS
    'Pages not captured: the tier had them';
COMMENT ON COLUMN remote_bp_stat.skips_unknown IS
    'Pages not captured: it was not known what the disk has';
COMMENT ON COLUMN remote_bp_stat.skips_stale IS
    'Pages not captured: written or dropped since';
COMMENT ON COLUMN remote_bp_stat.skips_changed IS
    'Pages not captured: different from the disk, by hint bits for example';
COMMENT ON COLUMN remote_bp_stat.skips_cached IS
    'Pages not captured: the page cache has them, or is likely to';
COMMENT ON COLUMN remote_bp_stat.skips_slow IS
    'Pages not captured: donors are not enough quicker than the disk';
COMMENT ON COLUMN remote_bp_stat.skips_policy IS
    'Pages not captured: a policy, an excluded tablespace or remote_bp.use_tier says so';
COMMENT ON COLUMN remote_bp_stat.drops_full IS
    'Pages not captured: staging was full';
COMMENT ON COLUMN remote_bp_stat.pushes IS
    'Pages written to donors';
COMMENT ON COLUMN remote_bp_stat.pushes_stale IS
    'Pages not written to donors, or in vain: written or dropped meanwhile';
COMMENT ON COLUMN remote_bp_stat.pushes_failed IS
    'Pages lost, since writing to the donor failed';
COMMENT ON COLUMN remote_bp_stat.pushes_no_slot IS
    'Pages lost, since the tier had no slot for them';
COMMENT ON COLUMN remote_bp_stat.evictions IS
    'Pages given up for others';
COMMENT ON COLUMN remote_bp_stat.invalidations IS
    'Pages dropped from the tier, since they were written';
COMMENT ON COLUMN remote_bp_stat.generations IS
    'Relation forks truncated, dropped or replaced';
COMMENT ON COLUMN remote_bp_stat.races IS
    'Reads that met a page on the move, and went on elsewhere';
COMMENT ON COLUMN remote_bp_stat.hash_failures IS
    'Reads whose content did not match its hash';
COMMENT ON COLUMN remote_bp_stat.timeouts IS
    'Waits that reached remote_bp.io_timeout';
COMMENT ON COLUMN remote_bp_stat.io_errors IS
    'Reads from donors that failed in another way';
COMMENT ON COLUMN remote_bp_stat.fallbacks IS
    'Reads from the file, since the donor that had the page failed or could not be used';
COMMENT ON COLUMN remote_bp_stat.avoided IS
    'Of fallbacks, since the donor is avoided';
COMMENT ON COLUMN remote_bp_stat.over_limit IS
    'Of fallbacks, because of remote_bp.max_connections';
COMMENT ON COLUMN remote_bp_stat.below_threshold IS
    'Of fallbacks, because of remote_bp.connect_threshold';
COMMENT ON COLUMN remote_bp_stat.compared IS
    'Pages compared with the disk (remote_bp.compare_with_disk)';
COMMENT ON COLUMN remote_bp_stat.mismatches IS
    'Of compared, those that differed';
COMMENT ON COLUMN remote_bp_stat.bytes_read IS
    'Bytes read from donors';
COMMENT ON COLUMN remote_bp_stat.bytes_written IS
    'Bytes written to donors';
COMMENT ON COLUMN remote_bp_stat.disk_writes IS
    'Relation pages written to disk';
COMMENT ON COLUMN remote_bp_stat.prefetches_saved IS
    'Blocks not prefetched from disk, since the tier has them';
COMMENT ON COLUMN remote_bp_stat.remote_pages IS
    'Pages held by donors';
COMMENT ON COLUMN remote_bp_stat.kept_pages IS
    'Of remote_pages, those that are not given up for others';
COMMENT ON COLUMN remote_bp_stat.staged_pages IS
    'Pages in staging, on the way to donors';
COMMENT ON COLUMN remote_bp_stat.free_pages IS
    'Pages for which there is room';
COMMENT ON COLUMN remote_bp_stat.online_pages IS
    'Pages for which memory is leased';
COMMENT ON COLUMN remote_bp_stat.max_pages IS
    'Pages that the tier can grow to (remote_bp.buffer_tier_max_size)';
COMMENT ON COLUMN remote_bp_stat.stats_reset IS
    'When the counters were reset';
COMMENT ON FUNCTION remote_bp_stat_spill() IS 'The rows of view remote_bp_stat_spill';
COMMENT ON VIEW remote_bp_stat_spill IS
    'What was done with temporary data since the last reset, and what donors hold of it, in one row';
COMMENT ON COLUMN remote_bp_stat_spill.usable IS
    'Whether temporary data can go to donors now';
COMMENT ON COLUMN remote_bp_stat_spill.unusable_reason IS
    'Why not, if usable is false';
COMMENT ON COLUMN remote_bp_stat_spill.writes IS
    'Temporary blocks written to donors';
COMMENT ON COLUMN remote_bp_stat_spill.reads IS
    'Temporary blocks read from donors';
COMMENT ON COLUMN remote_bp_stat_spill.read_ahead IS
    'Of reads, before they were asked for';
COMMENT ON COLUMN remote_bp_stat_spill.staged_reads IS
    'Temporary blocks read from staging';
COMMENT ON COLUMN remote_bp_stat_spill.local IS
    'Temporary blocks written to the file, for want of memory';
COMMENT ON COLUMN remote_bp_stat_spill.bypassed IS
    'Temporary blocks written to the file, since that costs less';
COMMENT ON COLUMN remote_bp_stat_spill.rescued IS
    'Temporary blocks written to the file, since a donor failed';
COMMENT ON COLUMN remote_bp_stat_spill.evacuated IS
    'Temporary blocks moved, to give memory back';
COMMENT ON COLUMN remote_bp_stat_spill.mirror_reads IS
    'Temporary blocks had from the second copy';
COMMENT ON COLUMN remote_bp_stat_spill.hash_failures IS
    'Copies of temporary blocks that did not match their hash';
COMMENT ON COLUMN remote_bp_stat_spill.lost IS
    'Reads of temporary blocks that failed, and with them the query';
COMMENT ON COLUMN remote_bp_stat_spill.file_us IS
    'What writing and reading a temporary block takes in files, in microseconds; null if not known';
COMMENT ON COLUMN remote_bp_stat_spill.donor_us IS
    'The same on donors';
COMMENT ON COLUMN remote_bp_stat_spill.pages IS
    'Temporary blocks held by donors, both copies counted';
COMMENT ON COLUMN remote_bp_stat_spill.free_pages IS
    'Temporary blocks for which there is room';
COMMENT ON COLUMN remote_bp_stat_spill.online_pages IS
    'Temporary blocks for which memory is leased';
COMMENT ON COLUMN remote_bp_stat_spill.quarantined_pages IS
    'Slots of temporary blocks that wait until no late write can reach them';
COMMENT ON COLUMN remote_bp_stat_spill.lost_pages IS
    'Slots of temporary blocks whose donor is gone';
COMMENT ON COLUMN remote_bp_stat_spill.files IS
    'Temporary files with blocks on donors, or on the way there';
COMMENT ON COLUMN remote_bp_stat_spill.stats_reset IS
    'When the counters were reset';
COMMENT ON FUNCTION remote_bp_stat_donors() IS 'The rows of view remote_bp_stat_donors';
COMMENT ON VIEW remote_bp_stat_donors IS
    'Each donor of which memory is leased, or was';
COMMENT ON COLUMN remote_bp_stat_donors.donor IS
    'Its name';
COMMENT ON COLUMN remote_bp_stat_donors.host IS
    'Where it is reached';
COMMENT ON COLUMN remote_bp_stat_donors.port IS
    'Where it is reached';
COMMENT ON COLUMN remote_bp_stat_donors.state IS
    'ok, down, gone or unresolved';
COMMENT ON COLUMN remote_bp_stat_donors.state_since IS
    'Since when';
COMMENT ON COLUMN remote_bp_stat_donors.last_error IS
    'What went wrong last there';
COMMENT ON COLUMN remote_bp_stat_donors.last_error_at IS
    'When that was';
COMMENT ON COLUMN remote_bp_stat_donors.transport IS
    'How it was reached last: shm, verbs or tcp';
COMMENT ON COLUMN remote_bp_stat_donors.connections IS
    'Connections of this server''s backends to it';
COMMENT ON COLUMN remote_bp_stat_donors.leased_bytes IS
    'Memory leased there';
COMMENT ON COLUMN remote_bp_stat_donors.used_bytes IS
    'Of this, in use';
COMMENT ON COLUMN remote_bp_stat_donors.reads IS
    'Pages read from it';
COMMENT ON COLUMN remote_bp_stat_donors.writes IS
    'Pages written to it';
COMMENT ON COLUMN remote_bp_stat_donors.failures IS
    'Reads and writes that failed';
COMMENT ON COLUMN remote_bp_stat_donors.timeouts IS
    'Of these, waits that reached their bound';
COMMENT ON COLUMN remote_bp_stat_donors.bypassed IS
    'Pages that it had and that were read from disk, since it is slower';
COMMENT ON COLUMN remote_bp_stat_donors.saved_us IS
    'Microseconds that reads from it have saved, against the disk; negative if they cost more';
COMMENT ON COLUMN remote_bp_stat_donors.read_p50_us IS
    'Half of its reads took less, in microseconds';
COMMENT ON COLUMN remote_bp_stat_donors.read_p99_us IS
    '99 of 100 of its reads took less';
COMMENT ON FUNCTION remote_bp_stat_latency() IS 'The rows of view remote_bp_stat_latency';
COMMENT ON VIEW remote_bp_stat_latency IS
    'What operations took since the last reset';
COMMENT ON COLUMN remote_bp_stat_latency.operation IS
    'hit, staged_hit, disk_read, capture, push, connect, spill_read or spill_write';
COMMENT ON COLUMN remote_bp_stat_latency.calls IS
    'How many there were';
COMMENT ON COLUMN remote_bp_stat_latency.mean_us IS
    'What they took on average, in microseconds';
COMMENT ON COLUMN remote_bp_stat_latency.p50_us IS
    'Half of them took less';
COMMENT ON COLUMN remote_bp_stat_latency.p90_us IS
    '9 of 10 of them took less';
COMMENT ON COLUMN remote_bp_stat_latency.p99_us IS
    '99 of 100 of them took less';
COMMENT ON COLUMN remote_bp_stat_latency.buckets_us IS
    'Lower bounds of the buckets of the histogram';
COMMENT ON COLUMN remote_bp_stat_latency.counts IS
    'Operations in each bucket';
COMMENT ON FUNCTION remote_bp_leases() IS 'The rows of view remote_bp_leases';
COMMENT ON VIEW remote_bp_leases IS
    'The memory that is leased, by region';
COMMENT ON COLUMN remote_bp_leases.lease IS
    'The lease''s id';
COMMENT ON COLUMN remote_bp_leases.purpose IS
    'buffer or temp';
COMMENT ON COLUMN remote_bp_leases.donor IS
    'Whose memory it is';
COMMENT ON COLUMN remote_bp_leases.region IS
    'The donor''s number of the region';
COMMENT ON COLUMN remote_bp_leases.bytes IS
    'Its size';
COMMENT ON COLUMN remote_bp_leases.used_bytes IS
    'Of this, in use';
COMMENT ON COLUMN remote_bp_leases.heat IS
    'Reads of its pages lately; the coldest region is given back first';
COMMENT ON COLUMN remote_bp_leases.expires_in IS
    'How long it may be used without a renewal';
COMMENT ON FUNCTION remote_bp_relations() IS 'The rows of view remote_bp_relations';
COMMENT ON VIEW remote_bp_relations IS
    'Pages in the tier, by relation of this database and fork';
COMMENT ON COLUMN remote_bp_relations.relation IS
    'The relation; null if its file belongs to none that can be seen';
COMMENT ON COLUMN remote_bp_relations.relfilenode IS
    'The name of its files';
COMMENT ON COLUMN remote_bp_relations.fork IS
    'main, fsm, vm or init';
COMMENT ON COLUMN remote_bp_relations.pages IS
    'Pages held by donors';
COMMENT ON COLUMN remote_bp_relations.bytes IS
    'The same in bytes';
COMMENT ON COLUMN remote_bp_relations.staged_pages IS
    'Pages in staging, on the way to donors';
COMMENT ON FUNCTION remote_bp_temp_files() IS 'The rows of view remote_bp_temp_files';
COMMENT ON VIEW remote_bp_temp_files IS
    'Temporary files that have blocks on donors, or on the way there';
COMMENT ON COLUMN remote_bp_temp_files.file IS
    'Its path below the data directory';
COMMENT ON COLUMN remote_bp_temp_files.tablespace IS
    'Its tablespace';
COMMENT ON COLUMN remote_bp_temp_files.owner IS
    'The process that made it';
COMMENT ON COLUMN remote_bp_temp_files.temp_relation IS
    'Whether it belongs to a temporary relation';
COMMENT ON COLUMN remote_bp_temp_files.size IS
    'Its size in bytes';
COMMENT ON COLUMN remote_bp_temp_files.remote_bytes IS
    'Of this, on donors';
COMMENT ON COLUMN remote_bp_temp_files.staged_bytes IS
    'Of this, in staging';
COMMENT ON COLUMN remote_bp_temp_files.mirrored_bytes IS
    'Of remote_bytes, on two donors';
COMMENT ON FUNCTION remote_bp_prewarm_progress() IS 'The rows of view remote_bp_prewarm_progress';
COMMENT ON VIEW remote_bp_prewarm_progress IS
    'Processes that prewarm now';
COMMENT ON COLUMN remote_bp_prewarm_progress.pid IS
    'The process';
COMMENT ON COLUMN remote_bp_prewarm_progress.datid IS
    'Its database';
COMMENT ON COLUMN remote_bp_prewarm_progress.relation IS
    'The relation that it is at; null in another database';
COMMENT ON COLUMN remote_bp_prewarm_progress.fork IS
    'The fork that it is at';
COMMENT ON COLUMN remote_bp_prewarm_progress.mode IS
    'tier or buffers';
COMMENT ON COLUMN remote_bp_prewarm_progress.phase IS
    'reading, or waiting for donors: staging is full';
COMMENT ON COLUMN remote_bp_prewarm_progress.blocks_done IS
    'Blocks of the fork that are done';
COMMENT ON COLUMN remote_bp_prewarm_progress.blocks_total IS
    'Blocks of the fork to be done';
COMMENT ON TABLE remote_bp_policy IS
    'The policies that were set, for remote_bp_policies';
COMMENT ON COLUMN remote_bp_policy.relation IS
    'The table or materialized view';
COMMENT ON COLUMN remote_bp_policy.index_name IS
    'Its index that the policy is about; empty for the relation itself';
COMMENT ON COLUMN remote_bp_policy.policy IS
    'keep or none';
COMMENT ON COLUMN remote_bp_policy.include_indexes IS
    'Whether it is about the indexes, too';
COMMENT ON FUNCTION remote_bp_set_policy(regclass, text, boolean) IS
    'Has a relation kept in the tier (keep), kept out of it (none), or treated as all (default); for its owner';
COMMENT ON FUNCTION remote_bp_policies() IS 'The rows of view remote_bp_policies';
COMMENT ON VIEW remote_bp_policies IS
    'Relations that a policy is about, by themselves or as a part of another one';
COMMENT ON COLUMN remote_bp_policies.relation IS
    'A table, partition, materialized view, index or TOAST table; null if there is no such index';
COMMENT ON COLUMN remote_bp_policies.policy IS
    'keep or none';
COMMENT ON COLUMN remote_bp_policies.set_on IS
    'The relation that it was set on';
COMMENT ON COLUMN remote_bp_policies.pages_wanted IS
    'Pages that are to be kept: those of the main fork';
COMMENT ON COLUMN remote_bp_policies.pages_held IS
    'Pages that are kept';
COMMENT ON COLUMN remote_bp_policies.reason IS
    'Why these are less, or the policy has no effect yet';
COMMENT ON FUNCTION remote_bp_set_database_limit(name, bigint) IS
    'Sets the most memory of the tier that a database may have; null takes the limit away; for superusers';
COMMENT ON FUNCTION remote_bp_databases() IS 'The rows of view remote_bp_databases';
COMMENT ON VIEW remote_bp_databases IS
    'What each database has in the tier, and may have';
COMMENT ON COLUMN remote_bp_databases.datid IS
    'The database; 0 for what all databases share';
COMMENT ON COLUMN remote_bp_databases.database IS
    'Its name; null for these';
COMMENT ON COLUMN remote_bp_databases.pages IS
    'Pages that donors hold of it';
COMMENT ON COLUMN remote_bp_databases.bytes IS
    'The same in bytes';
COMMENT ON COLUMN remote_bp_databases.max_bytes IS
    'The most that it may have; null if there is no limit';
