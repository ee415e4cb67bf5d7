-- What does not fit in work_mem goes to leased memory, and comes back.
DO $$
BEGIN
    FOR i IN 1..600 LOOP
        EXIT WHEN (SELECT online_pages = 4096 FROM remote_bp_stat_spill);
        PERFORM pg_sleep(0.05);
    END LOOP;
END
$$;
SELECT online_pages, free_pages, pages, files, lost_pages FROM remote_bp_stat_spill;

CREATE TABLE rbp_rows AS
    SELECT i AS id, i * 7919 % 20000 AS key, repeat(md5(i::text), 4) AS pad FROM generate_series(1, 20000) i;
ANALYZE rbp_rows;

-- Do temporary blocks go there and come back when the query runs, and is its
-- result the one that it has with enough memory?
CREATE FUNCTION rbp_spills(query text, OUT result text, OUT same boolean, OUT writes boolean, OUT reads boolean,
    OUT mostly boolean, OUT wrong bigint)
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    before remote_bp_stat_spill;
    after remote_bp_stat_spill;
    in_memory text;
BEGIN
    before := (SELECT s FROM remote_bp_stat_spill s);
    PERFORM set_config('work_mem', '64kB', true);
    EXECUTE query INTO result;
    after := (SELECT s FROM remote_bp_stat_spill s);
    writes := after.writes - before.writes >= 100;
    reads := after.reads - before.reads >= 100;
    mostly := after.local + after.rescued - before.local - before.rescued
        < (after.writes - before.writes) / 10;
    wrong := after.lost + after.hash_failures - before.lost - before.hash_failures;
    PERFORM set_config('work_mem', '64MB', true);
    EXECUTE query INTO in_memory;
    PERFORM set_config('work_mem', '4MB', true);
    same := result = in_memory;
END
$$;
SET jit = off;
SET max_parallel_workers_per_gather = 0;

-- Sorts
SELECT * FROM rbp_spills('SELECT sum(place * key) FROM (SELECT key, row_number() OVER (ORDER BY pad) AS place FROM rbp_rows) s');
SELECT * FROM rbp_spills('SELECT md5(string_agg(pad, '''' ORDER BY key % 7, id DESC)) FROM rbp_rows');
SELECT * FROM rbp_spills('SELECT count(DISTINCT pad) FROM rbp_rows');

-- Hash joins and aggregates
SET enable_mergejoin = off;
SET enable_nestloop = off;
SET enable_sort = off;
SELECT * FROM rbp_spills('SELECT count(*), sum(a.id - b.key) FROM rbp_rows a JOIN rbp_rows b ON a.pad = b.pad');
SELECT * FROM rbp_spills('SELECT sum(n * length(pad)) FROM (SELECT pad, count(*) AS n FROM rbp_rows GROUP BY pad) s');
RESET enable_sort;
RESET enable_nestloop;
RESET enable_mergejoin;

-- Tuplestores
SELECT * FROM rbp_spills('WITH m AS MATERIALIZED (SELECT * FROM rbp_rows) SELECT (SELECT sum(id) FROM m) + (SELECT sum(key) FROM m)');
SELECT * FROM rbp_spills('WITH RECURSIVE r AS (SELECT id, pad, 0 AS depth FROM rbp_rows UNION ALL SELECT id, pad, depth + 1 FROM r WHERE depth < 2) SELECT sum(id * depth) FROM r');

-- A cursor's sort is there to be seen as long as it lives.
SET work_mem = '64kB';
SELECT count(*) FROM remote_bp_temp_files;
BEGIN;
DECLARE rbp_cursor SCROLL CURSOR FOR SELECT id, key FROM rbp_rows ORDER BY pad;
FETCH 2 FROM rbp_cursor;
SELECT tablespace, owner = pg_backend_pid() AS mine, temp_relation, size > 1000000 AS size,
    remote_bytes > 1000000 AS remote, remote_bytes + staged_bytes <= size + 8191 AS possible, mirrored_bytes,
    file = 'base/pgsql_tmp/' || name AS named, f.size = l.size AS listed
    FROM remote_bp_temp_files f FULL JOIN pg_ls_tmpdir() l USING (size);
SELECT files, pages * 8192 >= (SELECT sum(remote_bytes) FROM remote_bp_temp_files) AS adds_up,
    pages + free_pages + quarantined_pages = online_pages AS balanced FROM remote_bp_stat_spill;
FETCH LAST FROM rbp_cursor;
FETCH PRIOR FROM rbp_cursor;
FETCH ABSOLUTE 10000 FROM rbp_cursor;
FETCH BACKWARD 2 FROM rbp_cursor;
CLOSE rbp_cursor;
SELECT count(*) FROM remote_bp_temp_files;
COMMIT;

-- One that is held outlives its transaction.
BEGIN;
DECLARE rbp_cursor SCROLL CURSOR WITH HOLD FOR SELECT id, key, pad FROM rbp_rows ORDER BY pad DESC;
COMMIT;
SELECT count(*) > 0 AS held, bool_and(owner = pg_backend_pid()) AS mine FROM remote_bp_temp_files;
MOVE ALL IN rbp_cursor;
FETCH RELATIVE -3 FROM rbp_cursor;
FETCH FIRST FROM rbp_cursor;
CLOSE rbp_cursor;
SELECT count(*) FROM remote_bp_temp_files;

-- An index is built from sorted files.
SET maintenance_work_mem = '1MB';
SELECT writes FROM remote_bp_stat_spill \gset before_
CREATE INDEX rbp_rows_pad ON rbp_rows (pad);
SELECT writes > :before_writes AS spilled FROM remote_bp_stat_spill;
RESET maintenance_work_mem;
SET enable_seqscan = off;
SELECT count(*) FROM rbp_rows WHERE pad = repeat(md5('77'), 4);
RESET enable_seqscan;

-- What fails leaves nothing behind.
SELECT sum(1 / (place - 15000)) FROM (SELECT row_number() OVER (ORDER BY pad || id) AS place FROM rbp_rows) s;
BEGIN;
SAVEPOINT one;
DECLARE rbp_cursor CURSOR FOR SELECT id, key FROM rbp_rows ORDER BY pad || id;
FETCH 1 FROM rbp_cursor;
SELECT count(*) FROM remote_bp_temp_files;
ROLLBACK TO one;
SELECT count(*) FROM remote_bp_temp_files;
COMMIT;

-- A session can do without.
SET remote_bp.spill_temp_files = off;
SELECT writes FROM remote_bp_stat_spill \gset before_
SELECT count(*) FROM (SELECT FROM rbp_rows ORDER BY pad || id OFFSET 0) s;
SELECT writes = :before_writes AS none FROM remote_bp_stat_spill;
RESET remote_bp.spill_temp_files;

-- Temporary tables, if wanted.
SET temp_buffers = '800kB';
SELECT writes FROM remote_bp_stat_spill \gset before_
CREATE TEMP TABLE rbp_local AS SELECT * FROM rbp_rows;
SELECT count(*), sum(key) FROM rbp_local;
SELECT writes = :before_writes AS none FROM remote_bp_stat_spill;
DROP TABLE rbp_local;

SET remote_bp.spill_temp_tables = on;
CREATE TEMP TABLE rbp_local AS SELECT * FROM rbp_rows;
SELECT writes > :before_writes + 100 AS some FROM remote_bp_stat_spill;
SELECT count(*), sum(key), sum(hashtext(pad)) = (SELECT sum(hashtext(pad)) FROM rbp_rows) AS same FROM rbp_local;
SELECT tablespace, owner = pg_backend_pid() AS mine, temp_relation, file = pg_relation_filepath('rbp_local') AS named,
    size = pg_relation_size('rbp_local') AS size, remote_bytes > 1000000 AS remote
    FROM remote_bp_temp_files WHERE file = pg_relation_filepath('rbp_local');
CREATE INDEX ON rbp_local (id);
UPDATE rbp_local SET pad = pad || '!' WHERE id % 3 = 0;
DELETE FROM rbp_local WHERE id > 15000;
SELECT count(*), sum(key), count(*) FILTER (WHERE pad LIKE '%!') AS changed FROM rbp_local;
VACUUM rbp_local;
SET enable_seqscan = off;
SELECT id, key, length(pad) FROM rbp_local WHERE id IN (1, 3, 15000, 15001) ORDER BY id;
RESET enable_seqscan;
BEGIN;
TRUNCATE rbp_local;
INSERT INTO rbp_local SELECT * FROM rbp_rows WHERE id <= 5000;
SELECT count(*), sum(key) FROM rbp_local;
ROLLBACK;
SELECT count(*), sum(key), count(*) FILTER (WHERE pad LIKE '%!') AS changed FROM rbp_local;
TRUNCATE rbp_local;
SELECT count(*) FROM rbp_local;
DROP TABLE rbp_local;
RESET remote_bp.spill_temp_tables;

-- All that was taken is free again, and nothing went wrong.
SELECT pages, files, free_pages + quarantined_pages = online_pages AS free, lost_pages,
    lost, hash_failures FROM remote_bp_stat_spill;
SELECT operation, calls > 0 AS calls FROM remote_bp_stat_latency WHERE operation LIKE 'spill%' ORDER BY operation;
SELECT purpose, count(DISTINCT lease) AS leases, sum(used_bytes) AS used FROM remote_bp_leases
    WHERE purpose = 'temp' GROUP BY purpose;
DROP FUNCTION rbp_spills(text);
DROP TABLE rbp_rows;
