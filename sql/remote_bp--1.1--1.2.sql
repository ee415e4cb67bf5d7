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
