-- How large the tier should be: the view, and who may look at it.
\d remote_bp_advice

-- While nothing is observed, there is no advice.
SELECT count(*) FROM remote_bp_advice;
SELECT remote_bp_working_set('1 hour') IS NULL AS unknown;

-- The versions tell a range with units in different words.
\set VERBOSITY sqlstate
ALTER SYSTEM SET remote_bp.advice_max_size = '15MB';
\set VERBOSITY default
ALTER SYSTEM SET remote_bp.advice_max_size = '160MB';
ALTER SYSTEM SET remote_bp.advice = on;
SELECT pg_reload_conf();
DO $$
BEGIN
    FOR i IN 1..600 LOOP
        EXIT WHEN EXISTS (SELECT FROM remote_bp_advice);
        PERFORM pg_sleep(0.05);
    END LOOP;
END
$$;
SELECT tier_size / 1024 / 1024 AS megabytes, round(sample_rate::numeric, 4) AS sample_rate,
    lost_events BETWEEN 0 AND events AS events, observed_since <= clock_timestamp() AS since
    FROM remote_bp_advice;

-- A table that is read is in the working set, and counted until a reset.
CREATE TABLE rbp_table WITH (autovacuum_enabled = off) AS
    SELECT i AS id, repeat(md5(i::text), 15) AS filler FROM generate_series(1, 20000) i;
DO $$
BEGIN
    FOR i IN 1..300 LOOP
        PERFORM sum(length(filler)) FROM rbp_table;
        EXIT WHEN (SELECT max(reads) > 2000 AND count(hit_ratio) = 10 FROM remote_bp_advice);
    END LOOP;
END
$$;
SELECT bool_and(reads > 2000) AS reads, bool_and(hits + first_reads + page_cache_reads + disk_reads = reads) AS adds_up,
    bool_and(hits >= page_cache_hits AND page_cache_hits >= 0) AS hits, bool_and(hit_ratio BETWEEN 0 AND 1) AS hit_ratio,
    bool_and(hit_ratio_error >= 0) AS error, bool_and(least(first_reads, page_cache_reads, disk_reads) >= 0) AS parts,
    bool_and(saved_ms_per_s IS NULL OR saved_ms_per_s >= 0) AS saved
    FROM remote_bp_advice;
SELECT remote_bp_working_set('1 hour') BETWEEN 1 AND 3 * pg_database_size(current_database()) AS known,
    remote_bp_working_set('1 hour') % 8192 AS pages, remote_bp_working_set('0') AS within_no_time,
    remote_bp_working_set('-1 hour') AS in_future, remote_bp_working_set('1000 years') > 0 AS ever,
    remote_bp_working_set(NULL) IS NULL AS null;
SELECT max(observed_since) AS since FROM remote_bp_advice \gset
SELECT remote_bp_advice_reset();
SELECT max(reads) < 2000 AS reset, count(hit_ratio) AS known, max(observed_since) > :'since' AS since FROM remote_bp_advice;
DROP TABLE rbp_table;

-- Not for everybody, but for pg_monitor; a reset can be granted.
CREATE ROLE regress_remote_bp;
SET ROLE regress_remote_bp;
SELECT count(*) FROM remote_bp_advice;
SELECT count(*) FROM remote_bp_advice();
SELECT remote_bp_working_set('1 hour');
SELECT remote_bp_advice_reset();
RESET ROLE;
GRANT pg_monitor TO regress_remote_bp;
SET ROLE regress_remote_bp;
SELECT count(*) FROM remote_bp_advice;
SELECT count(*) FROM remote_bp_advice();
SELECT remote_bp_working_set('1 hour') IS NOT NULL AS allowed;
SELECT remote_bp_advice_reset();
RESET ROLE;
GRANT EXECUTE ON FUNCTION remote_bp_advice_reset() TO regress_remote_bp;
SET ROLE regress_remote_bp;
SELECT remote_bp_advice_reset();
RESET ROLE;
REVOKE EXECUTE ON FUNCTION remote_bp_advice_reset() FROM regress_remote_bp;
DROP ROLE regress_remote_bp;

ALTER SYSTEM RESET remote_bp.advice;
ALTER SYSTEM RESET remote_bp.advice_max_size;
SELECT pg_reload_conf();
DO $$
BEGIN
    FOR i IN 1..600 LOOP
        EXIT WHEN NOT EXISTS (SELECT FROM remote_bp_advice);
        PERFORM pg_sleep(0.05);
    END LOOP;
END
$$;
SELECT count(*) FROM remote_bp_advice;
