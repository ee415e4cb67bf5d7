/* remote_bp 1.1 to 1.2 */

-- complain if script is sourced in psql, rather than via ALTER EXTENSION
\echo Use "ALTER EXTENSION remote_bp UPDATE TO '1.2'" to load this file. \quit

--
-- How large the tier should be
--
CREATE FUNCTION remote_bp_advice(
    OUT tier_size bigint,
    OUT hits bigint,
    OUT page_cache_hits bigint,
    OUT hit_ratio double precision,
    OUT disk_reads bigint,
    OUT saved_ms_per_s double precision,
    OUT reads bigint,
    OUT page_cache_reads bigint,
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
    'Estimates for tiers of ten sizes, up to remote_bp.advice_max_size, while remote_bp.advice is on';
COMMENT ON COLUMN remote_bp_advice.tier_size IS
    'Size of the simulated tier, in bytes';
COMMENT ON COLUMN remote_bp_advice.hits IS
    'Estimated number of reads that a tier of this size would have served';
COMMENT ON COLUMN remote_bp_advice.page_cache_hits IS
    'Hits that the page cache has served anyway, so that they save nothing';
COMMENT ON COLUMN remote_bp_advice.hit_ratio IS
    'Hits as a share of all reads; null if there was no read';
COMMENT ON COLUMN remote_bp_advice.disk_reads IS
    'Estimated number of reads that would still have gone to the disk';
COMMENT ON COLUMN remote_bp_advice.saved_ms_per_s IS
    'Estimated time that reads would have saved, in milliseconds for each second of observation, summed up over all processes; null if disk_read_us is null';
COMMENT ON COLUMN remote_bp_advice.reads IS
    'Estimated number of reads of pages into shared buffers';
COMMENT ON COLUMN remote_bp_advice.page_cache_reads IS
    'Estimated number of reads that the page cache has served';
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
    'When the observation began, or was reset';
