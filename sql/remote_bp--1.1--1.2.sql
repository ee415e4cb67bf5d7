/* remote_bp 1.1 to 1.2 */

-- complain if script is sourced in psql, rather than via ALTER EXTENSION
\echo Use "ALTER EXTENSION remote_bp UPDATE TO '1.2'" to load this file. \quit

-- ---- what was done, and for whom ----

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
    OUT spill_read_time double precision,
    OUT spill_write_time double precision)
RETURNS record
AS 'MODULE_PATHNAME', 'rbp_sql_stat_backend'
LANGUAGE C STRICT VOLATILE PARALLEL RESTRICTED;

REVOKE ALL ON FUNCTION remote_bp_stat_backend(integer) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION remote_bp_stat_backend(integer) TO pg_monitor;

COMMENT ON FUNCTION remote_bp_stat_backend(integer) IS
    'Activity of a server process and its parallel workers since it started; by default, of the own one';

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

REVOKE ALL ON FUNCTION remote_bp_stat_statements() FROM PUBLIC;
REVOKE ALL ON FUNCTION remote_bp_stat_statements_reset() FROM PUBLIC;
REVOKE ALL ON remote_bp_stat_statements FROM PUBLIC;
GRANT EXECUTE ON FUNCTION remote_bp_stat_statements() TO pg_monitor;
GRANT SELECT ON remote_bp_stat_statements TO pg_monitor;

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
    'Query identifier, as in pg_stat_statements';
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
    'Time of reads of files, unless the page cache had all pages, in milliseconds';
COMMENT ON COLUMN remote_bp_stat_statements.spill_read_time IS
    'Time of reads of temporary blocks, in milliseconds';
COMMENT ON COLUMN remote_bp_stat_statements.spill_write_time IS
    'Time of writes of temporary blocks, in milliseconds';
