-- A table that is larger than shared buffers is read from leased memory.
DO $$
BEGIN
    FOR i IN 1..600 LOOP
        EXIT WHEN (SELECT usable AND online_pages > 0 FROM remote_bp_stat);
        PERFORM pg_sleep(0.05);
    END LOOP;
END
$$;
SELECT usable, online_pages > 0 AS online, max_pages >= online_pages AS fits FROM remote_bp_stat;

SELECT captures, pushes, bytes_written FROM remote_bp_stat \gset before_
CREATE TABLE rbp_table (id int PRIMARY KEY, filler text) WITH (autovacuum_enabled = off);
INSERT INTO rbp_table SELECT i, repeat(md5(i::text), 15) FROM generate_series(1, 20000) i;
VACUUM (FREEZE, ANALYZE) rbp_table;
CHECKPOINT;
SELECT pg_relation_size('rbp_table') >
    2 * setting::bigint * current_setting('block_size')::bigint AS larger
    FROM pg_settings WHERE name = 'shared_buffers';

SELECT sum(hashtext(filler)) AS content FROM rbp_table \gset
SELECT hits, bytes_read FROM remote_bp_stat \gset before_

-- Pushing is asynchronous: read until it shows.
DO $$
DECLARE
    enough bigint := (SELECT hits + 500 FROM remote_bp_stat);
BEGIN
    FOR i IN 1..300 LOOP
        PERFORM sum(length(filler)) FROM rbp_table;
        EXIT WHEN (SELECT hits >= enough FROM remote_bp_stat);
        PERFORM pg_sleep(0.05);
    END LOOP;
END
$$;
SELECT hits >= :before_hits + 500 AS hits,
    captures >= :before_captures + 500 AS captures,
    pushes >= :before_pushes + 500 AS pushes,
    bytes_read >= :before_bytes_read + 500 * 8192 AS bytes_read,
    bytes_written >= :before_bytes_written + 500 * 8192 AS bytes_written,
    remote_pages >= 500 AS remote_pages,
    remote_pages + free_pages <= online_pages AS adds_up,
    hash_failures, mismatches
    FROM remote_bp_stat;
SELECT sum(hashtext(filler)) = :content AS same FROM rbp_table;

SELECT relation, fork, pages >= 500 AS pages, bytes = pages * 8192 AS bytes,
    pages + staged_pages <= pg_relation_size(relation, fork) / 8192 AS possible,
    relfilenode = pg_relation_filenode(relation) AS file
    FROM remote_bp_relations WHERE relation = 'rbp_table'::regclass AND fork = 'main';

-- What is written is not read from donors again as it was.
SELECT invalidations, disk_writes FROM remote_bp_stat \gset before_
UPDATE rbp_table SET filler = filler || '!' WHERE id % 50 = 0;
CHECKPOINT;
SELECT invalidations > :before_invalidations AS invalidations,
    disk_writes > :before_disk_writes AS disk_writes FROM remote_bp_stat;
SELECT count(*) FILTER (WHERE filler LIKE '%!') AS changed,
    count(*) FILTER (WHERE rtrim(filler, '!') <> repeat(md5(id::text), 15)) AS wrong,
    count(*) FROM rbp_table;

-- Evicting: pages that leave shared buffers meanwhile may follow, so until
-- none are left.
SELECT remote_bp_evict('rbp_table') > 0 AS evicted;
CREATE FUNCTION rbp_pages(regclass) RETURNS bigint LANGUAGE sql VOLATILE AS
    'SELECT coalesce(sum(pages + staged_pages), 0)::bigint FROM remote_bp_relations WHERE relation = $1';
DO $$
DECLARE
    left_over bigint;
BEGIN
    FOR i IN 1..300 LOOP
        PERFORM remote_bp_evict('rbp_table');
        left_over := rbp_pages('rbp_table');
        EXIT WHEN left_over = 0;
        PERFORM pg_sleep(0.05);
    END LOOP;
    RAISE NOTICE 'pages left: %', left_over;
END
$$;
SELECT count(*) FROM rbp_table;

-- Truncated and dropped relations leave nothing behind.
DO $$
BEGIN
    FOR i IN 1..300 LOOP
        PERFORM sum(length(filler)) FROM rbp_table;
        EXIT WHEN rbp_pages('rbp_table') >= 500;
        PERFORM pg_sleep(0.05);
    END LOOP;
END
$$;
SELECT rbp_pages('rbp_table') >= 500 AS pages;
SELECT pg_relation_filenode('rbp_table') AS file, generations FROM remote_bp_stat \gset before_
TRUNCATE rbp_table;
SELECT count(*) FROM remote_bp_relations WHERE relfilenode = :before_file;
SELECT generations > :before_generations AS generations FROM remote_bp_stat;
SELECT count(*) FROM rbp_table;
DROP TABLE rbp_table;

-- A shared catalog is found in its database-less place.
SELECT remote_bp_evict('pg_database') >= 0 AS evicted;
SELECT remote_bp_evict(NULL);

-- What has no pages of its own, or none that could be remote.
CREATE VIEW rbp_view AS SELECT 1;
SELECT remote_bp_evict('rbp_view');
CREATE TABLE rbp_parted (id int) PARTITION BY LIST (id);
CREATE INDEX rbp_parted_index ON rbp_parted (id);
SELECT remote_bp_evict('rbp_parted');
SELECT remote_bp_evict('rbp_parted_index');
CREATE TYPE rbp_type AS (id int);
SELECT remote_bp_evict('rbp_type');
CREATE TEMP TABLE rbp_temp (id int);
SELECT remote_bp_evict('rbp_temp');
SELECT remote_bp_evict(0);

-- What has.
CREATE TABLE rbp_part PARTITION OF rbp_parted DEFAULT;
SELECT remote_bp_evict('rbp_part');
CREATE SEQUENCE rbp_sequence;
SELECT remote_bp_evict('rbp_sequence') >= 0 AS evicted;
CREATE MATERIALIZED VIEW rbp_matview AS SELECT 1 AS one;
SELECT remote_bp_evict('rbp_matview') >= 0 AS evicted;

DROP MATERIALIZED VIEW rbp_matview;
DROP SEQUENCE rbp_sequence;
DROP TABLE rbp_temp;
DROP TABLE rbp_parted;
DROP TYPE rbp_type;
DROP VIEW rbp_view;
DROP FUNCTION rbp_pages(regclass);
