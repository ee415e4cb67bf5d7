/* remote_bp 1.0 to 1.1 */

-- complain if script is sourced in psql, rather than via ALTER EXTENSION
\echo Use "ALTER EXTENSION remote_bp UPDATE TO '1.1'" to load this file. \quit

-- remote_bp_stat gets columns about pages that are read ahead, at its end.  The
-- view is replaced, not dropped, so that privileges and other views that users
-- have made of it remain: for a moment it does without the function.
CREATE OR REPLACE VIEW remote_bp_stat AS SELECT
    NULL::boolean AS usable, NULL::text AS unusable_reason, NULL::text AS last_error,
    NULL::timestamptz AS last_error_at, NULL::text AS page_cache_asked_by, NULL::bigint AS hits,
    NULL::bigint AS staged_hits, NULL::bigint AS misses, NULL::bigint AS page_cache_reads,
    NULL::bigint AS disk_reads, NULL::bigint AS page_cache_first, NULL::bigint AS page_cache_fills,
    NULL::bigint AS bypassed, NULL::bigint AS captures, NULL::bigint AS skips_remote,
    NULL::bigint AS skips_unknown, NULL::bigint AS skips_stale, NULL::bigint AS skips_changed,
    NULL::bigint AS skips_cached, NULL::bigint AS skips_slow, NULL::bigint AS skips_policy,
    NULL::bigint AS drops_full, NULL::bigint AS pushes, NULL::bigint AS pushes_stale,
    NULL::bigint AS pushes_failed, NULL::bigint AS pushes_no_slot, NULL::bigint AS evictions,
    NULL::bigint AS invalidations, NULL::bigint AS generations, NULL::bigint AS races,
    NULL::bigint AS hash_failures, NULL::bigint AS timeouts, NULL::bigint AS io_errors,
    NULL::bigint AS fallbacks, NULL::bigint AS donor_down, NULL::bigint AS over_limit,
    NULL::bigint AS below_threshold, NULL::bigint AS compared, NULL::bigint AS mismatches,
    NULL::bigint AS bytes_read, NULL::bigint AS bytes_written, NULL::bigint AS disk_writes,
    NULL::bigint AS prefetches_saved, NULL::bigint AS remote_pages, NULL::bigint AS kept_pages,
    NULL::bigint AS staged_pages, NULL::bigint AS free_pages, NULL::bigint AS online_pages,
    NULL::bigint AS max_pages, NULL::timestamptz AS stats_reset;

DROP FUNCTION remote_bp_stat();

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
    OUT stats_reset timestamptz,
    OUT read_ahead bigint,
    OUT read_ahead_used bigint)
RETURNS record
AS 'MODULE_PATHNAME', 'rbp_sql_stat'
LANGUAGE C STRICT VOLATILE PARALLEL SAFE;

CREATE OR REPLACE VIEW remote_bp_stat AS
    SELECT * FROM remote_bp_stat();

REVOKE ALL ON FUNCTION remote_bp_stat() FROM PUBLIC;
GRANT EXECUTE ON FUNCTION remote_bp_stat() TO pg_monitor;

COMMENT ON FUNCTION remote_bp_stat() IS 'The rows of view remote_bp_stat';
COMMENT ON COLUMN remote_bp_stat.read_ahead IS
    'Pages requested from donors before the server asked for them';
COMMENT ON COLUMN remote_bp_stat.read_ahead_used IS
    'Pages read ahead that were used; they count in hits, too';
