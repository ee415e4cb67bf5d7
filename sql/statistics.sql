-- Donors, leases, latencies and the reset.
DO $$
BEGIN
    FOR i IN 1..600 LOOP
        EXIT WHEN (SELECT usable AND online_pages > 0 FROM remote_bp_stat);
        PERFORM pg_sleep(0.05);
    END LOOP;
END
$$;
CREATE TABLE rbp_table WITH (autovacuum_enabled = off) AS
    SELECT i AS id, repeat(md5(i::text), 15) AS filler FROM generate_series(1, 20000) i;
VACUUM FREEZE rbp_table;
CHECKPOINT;
DO $$
DECLARE
    enough bigint := (SELECT hits + 1000 FROM remote_bp_stat);
BEGIN
    FOR i IN 1..300 LOOP
        PERFORM sum(length(filler)) FROM rbp_table;
        EXIT WHEN (SELECT hits >= enough FROM remote_bp_stat);
        PERFORM pg_sleep(0.05);
    END LOOP;
END
$$;

SELECT count(*) > 0 AS donors, count(DISTINCT donor) = count(*) AS distinct_donors,
    bool_and(state = 'ok') AS ok, bool_and(transport IN ('shm', 'tcp')) AS transport,
    bool_and(host <> '' AND port > 0) AS address,
    bool_and(leased_bytes > 0) AS leased, bool_and(used_bytes BETWEEN 1 AND leased_bytes) AS used,
    sum(reads) >= 1000 AS reads, sum(writes) >= 1000 AS writes,
    bool_and(read_p50_us > 0 AND read_p50_us <= read_p99_us) AS latency
    FROM remote_bp_stat_donors;

SELECT count(*) > 0 AS regions, count(DISTINCT lease) AS leases,
    string_agg(DISTINCT purpose, ' ' ORDER BY purpose) AS purposes,
    bool_and(bytes > 0 AND used_bytes BETWEEN 0 AND bytes) AS used,
    sum(heat) > 0 AS heat,
    bool_and(expires_in > '0' AND expires_in <= current_setting('remote_bp.lease_ttl')::interval) AS live,
    sum(bytes) = (SELECT sum(leased_bytes) FROM remote_bp_stat_donors) AS as_donors
    FROM remote_bp_leases;

-- One lease is renewed, not many taken.
SELECT min(lease) AS lease FROM remote_bp_leases WHERE purpose = 'buffer' \gset
SELECT pg_sleep(1.5);
SELECT DISTINCT lease = :'lease' AS same_lease FROM remote_bp_leases WHERE purpose = 'buffer';

SELECT operation, calls > 0 AS calls, mean_us > 0 AS mean,
    p50_us <= p90_us AND p90_us <= p99_us AS ordered,
    mean_us >= buckets_us[1] AS above_least,
    p99_us >= buckets_us[1] AND p99_us <= buckets_us[cardinality(buckets_us)] * 1.25 AS in_range,
    calls = (SELECT sum(c) FROM unnest(counts) c) AS adds_up,
    cardinality(buckets_us) = cardinality(counts) AS paired
    FROM remote_bp_stat_latency WHERE operation IN ('hit', 'file_read', 'capture', 'push')
    ORDER BY operation;
SELECT string_agg(operation, ' ') AS operations FROM remote_bp_stat_latency;

-- A reset starts all of it again from zero.
SELECT hits, pushes, captures, bytes_read, stats_reset,
    (SELECT calls FROM remote_bp_stat_latency WHERE operation = 'hit') AS calls,
    (SELECT sum(reads) FROM remote_bp_stat_donors) AS reads
    FROM remote_bp_stat \gset before_
SELECT remote_bp_stat_reset();
SELECT hits < 500 AND hits < :before_hits AS hits, pushes < :before_pushes AS pushes,
    captures < :before_captures AS captures,
    bytes_read < :before_bytes_read AS bytes_read,
    stats_reset > :'before_stats_reset' AND stats_reset <= clock_timestamp() AS stats_reset,
    (SELECT calls FROM remote_bp_stat_latency WHERE operation = 'hit') < :before_calls AS calls,
    (SELECT sum(reads) FROM remote_bp_stat_donors) < :before_reads AS reads,
    remote_pages > 0 AS pages_stay
    FROM remote_bp_stat;

-- And counting goes on.
DO $$
BEGIN
    FOR i IN 1..300 LOOP
        PERFORM sum(length(filler)) FROM rbp_table;
        EXIT WHEN (SELECT hits >= 500 FROM remote_bp_stat);
        PERFORM pg_sleep(0.05);
    END LOOP;
END
$$;
SELECT hits >= 500 AS hits FROM remote_bp_stat;
-- All is well.
SELECT * FROM remote_bp_health;
DROP TABLE rbp_table;

-- One process: by default the own one; null if there is none of that pid.
SELECT hits + staged_hits > 0 AS hits, hit_time > 0 AS hit_time, misses >= page_cache_reads + disk_reads AS parts,
    spill_reads AS spill_reads, spill_writes AS spill_writes, spill_read_time AS spill_read_time, disk_time >= 0 AS disk_time, file_time >= 0 AS file_time
    FROM remote_bp_stat_backend();
SELECT b.hits >= 0 AS known FROM pg_stat_activity a, remote_bp_stat_backend(a.pid) b WHERE backend_type = 'checkpointer';
SELECT * FROM remote_bp_stat_backend(0);
SELECT * FROM remote_bp_stat_backend(NULL);
