/* remote_bp 1.1 to 1.2 */

-- complain if script is sourced in psql, rather than via ALTER EXTENSION
\echo Use "ALTER EXTENSION remote_bp UPDATE TO '1.2'" to load this file. \quit

-- ---- what was done, and for whom ----

-- Columns at the end; in place, as in the step before.
UPDATE pg_catalog.pg_proc SET
    proallargtypes = proallargtypes || '{bigint}'::pg_catalog.regtype[]::pg_catalog.oid[],
    proargmodes = proargmodes || '{o}'::"char"[],
    proargnames = proargnames || '{seal_failures}'::pg_catalog.text[]
WHERE oid = 'remote_bp_stat()'::pg_catalog.regprocedure;
UPDATE pg_catalog.pg_proc SET
    proallargtypes = proallargtypes || '{bigint}'::pg_catalog.regtype[]::pg_catalog.oid[],
    proargmodes = proargmodes || '{o}'::"char"[],
    proargnames = proargnames || '{seal_failures}'::pg_catalog.text[]
WHERE oid = 'remote_bp_stat_spill()'::pg_catalog.regprocedure;
UPDATE pg_catalog.pg_proc SET
    proallargtypes = proallargtypes || '{text}'::pg_catalog.regtype[]::pg_catalog.oid[],
    proargmodes = proargmodes || '{o}'::"char"[],
    proargnames = proargnames || '{broker}'::pg_catalog.text[]
WHERE oid = 'remote_bp_leases()'::pg_catalog.regprocedure;

CREATE OR REPLACE VIEW remote_bp_stat AS
    SELECT * FROM remote_bp_stat();
CREATE OR REPLACE VIEW remote_bp_stat_spill AS
    SELECT * FROM remote_bp_stat_spill();
CREATE OR REPLACE VIEW remote_bp_leases AS
    SELECT * FROM remote_bp_leases();

COMMENT ON COLUMN remote_bp_stat.seal_failures IS
    'Hash failures of pages that were encrypted: the donor returned other bytes than were sent';
COMMENT ON COLUMN remote_bp_leases.broker IS
    'URL of the broker at which the lease is renewed';
COMMENT ON COLUMN remote_bp_stat_spill.seal_failures IS
    'Hash failures of blocks that were encrypted: the donor returned other bytes than were sent';

COMMENT ON COLUMN remote_bp_stat_donors.timeouts IS
    'Reads and writes that were not answered in time; they are not among failures';
COMMENT ON COLUMN remote_bp_stat.page_cache_fills IS
    'Misses read from the disk although a donor had the page, to see what the disk takes, or to bring the page into the page cache';
COMMENT ON COLUMN remote_bp_stat.below_threshold IS
    'Fallbacks because connecting was not worth it yet';
COMMENT ON COLUMN remote_bp_stat.skips_stale IS
    'Pages not captured: after they were read, they were written or dropped, or another page was that shares their write stamp';

CREATE FUNCTION remote_bp_stat_backend(
    pid integer DEFAULT pg_backend_pid(),
    OUT hits bigint,
    OUT staged_hits bigint,
    OUT misses bigint,
    OUT page_cache_reads bigint,
    OUT disk_reads bigint,
    OUT spill_reads bigint,
    OUT spill_staged_reads bigint,
    OUT spill_writes bigint,
    OUT hit_time double precision,
    OUT disk_time double precision,
    OUT file_time double precision,
    OUT spill_read_time double precision,
    OUT spill_write_time double precision)
RETURNS record
AS 'MODULE_PATHNAME', 'rbp_sql_stat_backend'
LANGUAGE C STRICT VOLATILE PARALLEL RESTRICTED;

REVOKE ALL ON FUNCTION remote_bp_stat_backend(integer) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION remote_bp_stat_backend(integer) TO pg_monitor;

COMMENT ON FUNCTION remote_bp_stat_backend(integer) IS
    'Activity of a server process and its parallel workers since it started; by default, of the own one';

CREATE FUNCTION remote_bp_stat_sources(
    OUT source text,
    OUT device text,
    OUT page_us double precision,
    OUT run_us double precision,
    OUT temp_write_us double precision,
    OUT temp_read_us double precision)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'rbp_sql_stat_sources'
LANGUAGE C STRICT VOLATILE PARALLEL SAFE ROWS 4;

CREATE VIEW remote_bp_stat_sources AS
    SELECT * FROM remote_bp_stat_sources();

REVOKE ALL ON FUNCTION remote_bp_stat_sources() FROM PUBLIC;
REVOKE ALL ON remote_bp_stat_sources FROM PUBLIC;
GRANT EXECUTE ON FUNCTION remote_bp_stat_sources() TO pg_monitor;
GRANT SELECT ON remote_bp_stat_sources TO pg_monitor;

COMMENT ON FUNCTION remote_bp_stat_sources() IS 'The rows of view remote_bp_stat_sources';
COMMENT ON VIEW remote_bp_stat_sources IS
    'What reads have cost lately, by which the server chooses between donors and files: one row for each file system and each transport';
COMMENT ON COLUMN remote_bp_stat_sources.source IS
    'file, or the transport to donors: shm, tcp or verbs';
COMMENT ON COLUMN remote_bp_stat_sources.device IS
    'Device of the file system, as major and minor number; others for those beyond seven; null for donors';
COMMENT ON COLUMN remote_bp_stat_sources.page_us IS
    'Mean time to read a page by itself that is not in the page cache, in microseconds; null if none was measured';
COMMENT ON COLUMN remote_bp_stat_sources.run_us IS
    'Mean time to read a page of a run that is not in the page cache, in microseconds; null if none was measured';
COMMENT ON COLUMN remote_bp_stat_sources.temp_write_us IS
    'Mean time to write a temporary block, in microseconds; null if none was measured';
COMMENT ON COLUMN remote_bp_stat_sources.temp_read_us IS
    'Mean time to read a temporary block, in microseconds; null if none was measured';

CREATE FUNCTION remote_bp_stat_statements(
    OUT userid oid,
    OUT dbid oid,
    OUT queryid bigint,
    OUT calls bigint,
    OUT hits bigint,
    OUT staged_hits bigint,
    OUT misses bigint,
    OUT page_cache_reads bigint,
    OUT disk_reads bigint,
    OUT spill_reads bigint,
    OUT spill_staged_reads bigint,
    OUT spill_writes bigint,
    OUT hit_time double precision,
    OUT disk_time double precision,
    OUT file_time double precision,
    OUT spill_read_time double precision,
    OUT spill_write_time double precision)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'rbp_sql_stat_statements'
LANGUAGE C STRICT VOLATILE PARALLEL SAFE;

CREATE VIEW remote_bp_stat_statements AS
    SELECT * FROM remote_bp_stat_statements();

CREATE FUNCTION remote_bp_stat_statements_reset()
RETURNS void
AS 'MODULE_PATHNAME', 'rbp_sql_stat_statements_reset'
LANGUAGE C STRICT VOLATILE PARALLEL SAFE;

-- As in pg_stat_statements, everybody sees the rows, but not which statements of others they are.
GRANT SELECT ON remote_bp_stat_statements TO PUBLIC;
REVOKE ALL ON FUNCTION remote_bp_stat_statements_reset() FROM PUBLIC;

COMMENT ON FUNCTION remote_bp_stat_statements() IS 'The rows of view remote_bp_stat_statements';
COMMENT ON FUNCTION remote_bp_stat_statements_reset() IS
    'Removes all rows of remote_bp_stat_statements; for superusers and roles that they grant EXECUTE to';
COMMENT ON VIEW remote_bp_stat_statements IS
    'What the statements of each kind used, one row for each user, database and query identifier';
COMMENT ON COLUMN remote_bp_stat_statements.userid IS
    'User who executed the statement';
COMMENT ON COLUMN remote_bp_stat_statements.dbid IS
    'Database in which it was executed';
COMMENT ON COLUMN remote_bp_stat_statements.queryid IS
    'Query identifier, as in pg_stat_statements; null if the statement is another user''s, unless one has the privileges of pg_read_all_stats';
COMMENT ON COLUMN remote_bp_stat_statements.calls IS
    'Number of executions that used something of what the other columns count';
COMMENT ON COLUMN remote_bp_stat_statements.hits IS
    'Pages read from donors';
COMMENT ON COLUMN remote_bp_stat_statements.staged_hits IS
    'Pages read from the staging region';
COMMENT ON COLUMN remote_bp_stat_statements.misses IS
    'Pages read from the file while the tier was in use';
COMMENT ON COLUMN remote_bp_stat_statements.page_cache_reads IS
    'Misses that the page cache served';
COMMENT ON COLUMN remote_bp_stat_statements.disk_reads IS
    'Misses that the disk served; for the remaining misses the server did not ask the page cache';
COMMENT ON COLUMN remote_bp_stat_statements.spill_reads IS
    'Temporary blocks read from donors';
COMMENT ON COLUMN remote_bp_stat_statements.spill_staged_reads IS
    'Temporary blocks read from staging';
COMMENT ON COLUMN remote_bp_stat_statements.spill_writes IS
    'Temporary blocks written to donors';
COMMENT ON COLUMN remote_bp_stat_statements.hit_time IS
    'Time of reads from donors, in milliseconds';
COMMENT ON COLUMN remote_bp_stat_statements.disk_time IS
    'Time of reads from the disk, in milliseconds';
COMMENT ON COLUMN remote_bp_stat_statements.file_time IS
    'Time of reads of files for which the server did not ask the page cache, in milliseconds';
COMMENT ON COLUMN remote_bp_stat_statements.spill_read_time IS
    'Time of reads of temporary blocks, in milliseconds';
COMMENT ON COLUMN remote_bp_stat_statements.spill_write_time IS
    'Time of writes of temporary blocks, in milliseconds';

CREATE FUNCTION remote_bp_stat_relations(
    OUT relation regclass,
    OUT relfilenode oid,
    OUT fork text,
    OUT hits bigint,
    OUT staged_hits bigint,
    OUT misses bigint,
    OUT page_cache_reads bigint,
    OUT disk_reads bigint,
    OUT captures bigint,
    OUT evictions bigint,
    OUT hit_time double precision,
    OUT disk_time double precision,
    OUT file_time double precision)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'rbp_sql_stat_relations'
LANGUAGE C STRICT VOLATILE PARALLEL RESTRICTED;

CREATE VIEW remote_bp_stat_relations AS
    SELECT * FROM remote_bp_stat_relations();

CREATE FUNCTION remote_bp_stat_database(
    OUT datid oid,
    OUT database name,
    OUT hits bigint,
    OUT staged_hits bigint,
    OUT misses bigint,
    OUT page_cache_reads bigint,
    OUT disk_reads bigint,
    OUT captures bigint,
    OUT evictions bigint,
    OUT hit_time double precision,
    OUT disk_time double precision,
    OUT file_time double precision)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'rbp_sql_stat_database'
LANGUAGE C STRICT VOLATILE PARALLEL RESTRICTED;

CREATE VIEW remote_bp_stat_database AS
    SELECT * FROM remote_bp_stat_database();

REVOKE ALL ON FUNCTION remote_bp_stat_relations() FROM PUBLIC;
REVOKE ALL ON FUNCTION remote_bp_stat_database() FROM PUBLIC;
REVOKE ALL ON remote_bp_stat_relations, remote_bp_stat_database FROM PUBLIC;
GRANT EXECUTE ON FUNCTION remote_bp_stat_relations() TO pg_monitor;
GRANT EXECUTE ON FUNCTION remote_bp_stat_database() TO pg_monitor;
GRANT SELECT ON remote_bp_stat_relations, remote_bp_stat_database TO pg_monitor;

COMMENT ON FUNCTION remote_bp_stat_relations() IS 'The rows of view remote_bp_stat_relations';
COMMENT ON FUNCTION remote_bp_stat_database() IS 'The rows of view remote_bp_stat_database';
COMMENT ON VIEW remote_bp_stat_relations IS
    'Activity of the tier since the last reset, for each relation fork of the current database';
COMMENT ON COLUMN remote_bp_stat_relations.relation IS
    'Relation; null if the file is not that of a relation any more, or not yet';
COMMENT ON COLUMN remote_bp_stat_relations.relfilenode IS
    'File number of the relation';
COMMENT ON COLUMN remote_bp_stat_relations.fork IS
    'Fork: main, fsm, vm or init';
COMMENT ON COLUMN remote_bp_stat_relations.hits IS
    'Pages read from donors';
COMMENT ON COLUMN remote_bp_stat_relations.staged_hits IS
    'Pages read from the staging region';
COMMENT ON COLUMN remote_bp_stat_relations.misses IS
    'Pages read from the file while the tier was in use';
COMMENT ON COLUMN remote_bp_stat_relations.page_cache_reads IS
    'Misses that the page cache served';
COMMENT ON COLUMN remote_bp_stat_relations.disk_reads IS
    'Misses that the disk served; for the remaining misses the server did not ask the page cache';
COMMENT ON COLUMN remote_bp_stat_relations.captures IS
    'Pages copied to staging when they left shared buffers or were prewarmed';
COMMENT ON COLUMN remote_bp_stat_relations.evictions IS
    'Pages evicted from the tier to make room for others';
COMMENT ON COLUMN remote_bp_stat_relations.hit_time IS
    'Time of reads from donors, in milliseconds';
COMMENT ON COLUMN remote_bp_stat_relations.disk_time IS
    'Time of reads from the disk, in milliseconds';
COMMENT ON COLUMN remote_bp_stat_relations.file_time IS
    'Time of reads of files for which the server did not ask the page cache, in milliseconds';
COMMENT ON VIEW remote_bp_stat_database IS
    'Activity of the tier since the last reset, for each database';
COMMENT ON COLUMN remote_bp_stat_database.datid IS
    'OID of the database; 0 for relations that all databases share';
COMMENT ON COLUMN remote_bp_stat_database.database IS
    'Name of the database; null for relations that all databases share';
COMMENT ON COLUMN remote_bp_stat_database.hits IS
    'Pages read from donors';
COMMENT ON COLUMN remote_bp_stat_database.staged_hits IS
    'Pages read from the staging region';
COMMENT ON COLUMN remote_bp_stat_database.misses IS
    'Pages read from the file while the tier was in use';
COMMENT ON COLUMN remote_bp_stat_database.page_cache_reads IS
    'Misses that the page cache served';
COMMENT ON COLUMN remote_bp_stat_database.disk_reads IS
    'Misses that the disk served; for the remaining misses the server did not ask the page cache';
COMMENT ON COLUMN remote_bp_stat_database.captures IS
    'Pages copied to staging when they left shared buffers or were prewarmed';
COMMENT ON COLUMN remote_bp_stat_database.evictions IS
    'Pages evicted from the tier to make room for others';
COMMENT ON COLUMN remote_bp_stat_database.hit_time IS
    'Time of reads from donors, in milliseconds';
COMMENT ON COLUMN remote_bp_stat_database.disk_time IS
    'Time of reads from the disk, in milliseconds';
COMMENT ON COLUMN remote_bp_stat_database.file_time IS
    'Time of reads of files for which the server did not ask the page cache, in milliseconds';

COMMENT ON COLUMN remote_bp_stat_latency.operation IS
    'Operation: hit, staged_hit, page_cache_read, disk_read, file_read, capture, push, connect, spill_read or spill_write';

-- ---- how large the tier should be ----

CREATE FUNCTION remote_bp_advice(
    OUT tier_size bigint,
    OUT hit_ratio double precision,
    OUT hit_ratio_error double precision,
    OUT reads bigint,
    OUT hits bigint,
    OUT first_reads bigint,
    OUT page_cache_reads bigint,
    OUT disk_reads bigint,
    OUT page_cache_hits bigint,
    OUT saved_ms_per_s double precision,
    OUT disk_read_us double precision,
    OUT donor_read_us double precision,
    OUT donor_measured boolean,
    OUT sample_rate double precision,
    OUT events bigint,
    OUT lost_events bigint,
    OUT observed_since timestamptz)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'rbp_sql_advice'
LANGUAGE C STRICT VOLATILE PARALLEL SAFE ROWS 10;

CREATE VIEW remote_bp_advice AS
    SELECT * FROM remote_bp_advice();

CREATE FUNCTION remote_bp_advice_reset()
RETURNS void
AS 'MODULE_PATHNAME', 'rbp_sql_advice_reset'
LANGUAGE C STRICT VOLATILE PARALLEL SAFE;

CREATE FUNCTION remote_bp_working_set(within interval)
RETURNS bigint
AS 'MODULE_PATHNAME', 'rbp_sql_working_set'
LANGUAGE C STRICT VOLATILE PARALLEL SAFE;

REVOKE ALL ON FUNCTION remote_bp_advice() FROM PUBLIC;
REVOKE ALL ON FUNCTION remote_bp_advice_reset() FROM PUBLIC;
REVOKE ALL ON FUNCTION remote_bp_working_set(interval) FROM PUBLIC;
REVOKE ALL ON remote_bp_advice FROM PUBLIC;
GRANT EXECUTE ON FUNCTION remote_bp_advice() TO pg_monitor;
GRANT EXECUTE ON FUNCTION remote_bp_working_set(interval) TO pg_monitor;
GRANT SELECT ON remote_bp_advice TO pg_monitor;

COMMENT ON FUNCTION remote_bp_advice() IS 'The rows of view remote_bp_advice';
COMMENT ON FUNCTION remote_bp_advice_reset() IS
    'Sets the counts of remote_bp_advice to zero, but keeps the contents of the simulated tiers; for superusers and roles that they grant EXECUTE to';
COMMENT ON FUNCTION remote_bp_working_set(interval) IS
    'Estimates how much was read into shared buffers within the last interval, in bytes of different pages; null while remote_bp.advice is off, or if it was more than the sample can tell; for members of pg_monitor';
COMMENT ON VIEW remote_bp_advice IS
    'Estimates for tiers of ten sizes, up to one that has all that was read, and to remote_bp.advice_max_size, while remote_bp.advice is on; estimates are null while too little was observed';
COMMENT ON COLUMN remote_bp_advice.tier_size IS
    'Size of the simulated tier, in bytes';
COMMENT ON COLUMN remote_bp_advice.hit_ratio IS
    'Hits as a share of all reads';
COMMENT ON COLUMN remote_bp_advice.hit_ratio_error IS
    'Standard error of hit_ratio, which comes from observing a sample only';
COMMENT ON COLUMN remote_bp_advice.reads IS
    'Number of reads of pages into shared buffers: the sum of hits, first_reads, page_cache_reads and disk_reads';
COMMENT ON COLUMN remote_bp_advice.hits IS
    'Estimated number of reads that a tier of this size would have served';
COMMENT ON COLUMN remote_bp_advice.first_reads IS
    'Estimated number of reads that a tier of no size would have served: of pages not read before, or read from the disk but not captured since they were written or the page cache had them';
COMMENT ON COLUMN remote_bp_advice.page_cache_reads IS
    'Estimated number of other reads that the page cache would still have served';
COMMENT ON COLUMN remote_bp_advice.disk_reads IS
    'Estimated number of other reads that would still have gone to the disk, and that a larger tier would have served';
COMMENT ON COLUMN remote_bp_advice.page_cache_hits IS
    'Hits that the page cache has served anyway, so that they save nothing';
COMMENT ON COLUMN remote_bp_advice.saved_ms_per_s IS
    'Estimated time that reads would have saved, in milliseconds for each second of observation, summed up over all processes; null if disk_read_us is null';
COMMENT ON COLUMN remote_bp_advice.disk_read_us IS
    'Mean time of a read from the disk, in microseconds; null if none was measured';
COMMENT ON COLUMN remote_bp_advice.donor_read_us IS
    'Mean time of a read from a donor, in microseconds; 20 is assumed until one was measured';
COMMENT ON COLUMN remote_bp_advice.donor_measured IS
    'Whether donor_read_us was measured';
COMMENT ON COLUMN remote_bp_advice.sample_rate IS
    'Share of all pages that is observed';
COMMENT ON COLUMN remote_bp_advice.events IS
    'Observed reads, writes and evictions of pages in the sample';
COMMENT ON COLUMN remote_bp_advice.lost_events IS
    'Events of pages in the sample that were not observed, because another process was busy with one';
COMMENT ON COLUMN remote_bp_advice.observed_since IS
    'When the observation began, with this largest size, or was reset';

-- ---- servers that follow this one, and the one that this one follows ----

CREATE FUNCTION remote_bp_hot_pages(
    OUT tablespace oid,
    OUT database oid,
    OUT relfilenode oid,
    OUT fork text,
    OUT part integer,
    OUT class integer,
    OUT bitmap bytea)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'rbp_sql_hot_pages'
LANGUAGE C STRICT VOLATILE PARALLEL RESTRICTED;

CREATE FUNCTION remote_bp_hot_pages_info(
    OUT system_identifier bigint,
    OUT timeline integer,
    OUT format integer,
    OUT age_ms bigint,
    OUT complete boolean)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'rbp_sql_hot_pages_info'
LANGUAGE C STRICT VOLATILE PARALLEL RESTRICTED ROWS 1;

REVOKE ALL ON FUNCTION remote_bp_hot_pages() FROM PUBLIC;
REVOKE ALL ON FUNCTION remote_bp_hot_pages_info() FROM PUBLIC;
GRANT EXECUTE ON FUNCTION remote_bp_hot_pages() TO pg_monitor;
GRANT EXECUTE ON FUNCTION remote_bp_hot_pages_info() TO pg_monitor;

COMMENT ON FUNCTION remote_bp_hot_pages() IS
    'Names of the pages that shared buffers use and the tier has, one row for up to 8,192 blocks of a fork, the hottest class first; for members of pg_monitor';
COMMENT ON FUNCTION remote_bp_hot_pages_info() IS
    'Identifier and timeline of the server, format and age of what remote_bp_hot_pages() returns in the same transaction, and whether it has all such pages; for members of pg_monitor';

CREATE FUNCTION remote_bp_stat_follow(
    OUT state text,
    OUT reason text,
    OUT server text,
    OUT list_taken_at timestamptz,
    OUT names_buffers bigint,
    OUT names_main bigint,
    OUT names_small bigint,
    OUT present_buffers bigint,
    OUT present_main bigint,
    OUT present_small bigint,
    OUT pages_read bigint,
    OUT skipped_unknown bigint,
    OUT skipped_busy bigint,
    OUT skipped_excluded bigint,
    OUT skipped_full bigint,
    OUT skipped_beyond bigint,
    OUT skipped_error bigint,
    OUT last_error text,
    OUT last_error_at timestamptz)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'rbp_sql_stat_follow'
LANGUAGE C STRICT VOLATILE PARALLEL SAFE ROWS 1;

CREATE VIEW remote_bp_stat_follow AS
    SELECT * FROM remote_bp_stat_follow();

REVOKE ALL ON FUNCTION remote_bp_stat_follow() FROM PUBLIC;
REVOKE ALL ON remote_bp_stat_follow FROM PUBLIC;
GRANT EXECUTE ON FUNCTION remote_bp_stat_follow() TO pg_monitor;
GRANT SELECT ON remote_bp_stat_follow TO pg_monitor;

COMMENT ON FUNCTION remote_bp_stat_follow() IS 'The rows of view remote_bp_stat_follow';
COMMENT ON VIEW remote_bp_stat_follow IS
    'How a standby warms its tier by what is hot on the server that it follows, in one row';
COMMENT ON COLUMN remote_bp_stat_follow.state IS
    'off, primary (nothing is followed while the server is not in recovery), connecting (there is no list yet), warming, waiting or up to date';
COMMENT ON COLUMN remote_bp_stat_follow.reason IS
    'What is waited for; null if state is not waiting';
COMMENT ON COLUMN remote_bp_stat_follow.server IS
    'Host and port of the server that the list is from';
COMMENT ON COLUMN remote_bp_stat_follow.list_taken_at IS
    'When the list was taken; null if there is none';
COMMENT ON COLUMN remote_bp_stat_follow.names_buffers IS
    'Pages in the list that are in use in shared buffers there';
COMMENT ON COLUMN remote_bp_stat_follow.names_main IS
    'Pages in the list that are kept in the tier there, or were read from it';
COMMENT ON COLUMN remote_bp_stat_follow.names_small IS
    'Other pages in the list, which the tier has there';
COMMENT ON COLUMN remote_bp_stat_follow.present_buffers IS
    'Pages of names_buffers that were found in the tier of this server since the last time that the server was asked, or were read into it';
COMMENT ON COLUMN remote_bp_stat_follow.present_main IS
    'Likewise, of names_main';
COMMENT ON COLUMN remote_bp_stat_follow.present_small IS
    'Likewise, of names_small';
COMMENT ON COLUMN remote_bp_stat_follow.pages_read IS
    'Pages read into the tier since the server was started';
COMMENT ON COLUMN remote_bp_stat_follow.skipped_unknown IS
    'Pages skipped since then: there is no such relation, by now or yet';
COMMENT ON COLUMN remote_bp_stat_follow.skipped_busy IS
    'Pages skipped: the relation is locked, or an index that is being built';
COMMENT ON COLUMN remote_bp_stat_follow.skipped_excluded IS
    'Pages skipped: excluded by a policy, a tablespace or a limit of the database';
COMMENT ON COLUMN remote_bp_stat_follow.skipped_full IS
    'Pages skipped: the tier has no room for them';
COMMENT ON COLUMN remote_bp_stat_follow.skipped_beyond IS
    'Pages skipped: the file does not have them';
COMMENT ON COLUMN remote_bp_stat_follow.skipped_error IS
    'Pages skipped: they could not be read, or were written at the same time';
COMMENT ON COLUMN remote_bp_stat_follow.last_error IS
    'Why the server could not be asked, the last time that it could not; even if that is over';
COMMENT ON COLUMN remote_bp_stat_follow.last_error_at IS
    'Time of that error';

-- ---- is all well? ----

-- A reason that begins with a setting's name is one that somebody has chosen.
CREATE VIEW remote_bp_health (ok, problem, since) AS
    SELECT count(*) = 0, string_agg(p.problem, '; '), min(p.since)
    FROM (
        SELECT f.* FROM remote_bp_stat s, LATERAL (VALUES
            ('the tier is not usable: ' || s.unusable_reason, NULL::timestamptz, NOT s.usable AND s.unusable_reason NOT LIKE 'remote\_bp.%'),
            (s.hash_failures || ' reads from donors whose content did not match its hash', NULL, s.hash_failures > 0),
            (s.mismatches || ' pages that differed from the disk', NULL, s.mismatches > 0)) f (problem, since, applies)
        UNION ALL
        SELECT f.* FROM remote_bp_stat_spill s, LATERAL (VALUES
            ('temporary data cannot go to donors: ' || s.unusable_reason, NULL::timestamptz, NOT s.usable AND s.unusable_reason NOT LIKE 'remote\_bp.%'),
            (s.hash_failures || ' copies of temporary blocks that did not match their hash', NULL, s.hash_failures > 0),
            (s.lost || ' reads of temporary blocks that failed, and made the query fail', NULL, s.lost > 0)) f (problem, since, applies)
        UNION ALL
        SELECT concat_ws(': ', format('donor %s is %s', donor, state), last_error), state_since, state IN ('down', 'unresolved')
        FROM remote_bp_stat_donors) p
    WHERE p.applies;

REVOKE ALL ON remote_bp_health FROM PUBLIC;
GRANT SELECT ON remote_bp_health TO pg_monitor;

COMMENT ON VIEW remote_bp_health IS
    'Whether the tier is as it should be, in one row';
COMMENT ON COLUMN remote_bp_health.ok IS
    'Whether there is no problem; what a setting switches off is none';
COMMENT ON COLUMN remote_bp_health.problem IS
    'All problems; null if there is none';
COMMENT ON COLUMN remote_bp_health.since IS
    'When the first of the problems began, as far as known, which it is of donors that are down; else null';
