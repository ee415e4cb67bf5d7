-- What somebody says of relations.
CREATE FUNCTION rbp_wait(condition text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    met boolean;
BEGIN
    FOR i IN 1 .. 1200 LOOP
        EXECUTE 'SELECT ' || condition INTO met;
        IF met THEN
            RETURN 'yes';
        END IF;
        PERFORM pg_sleep(0.1);
    END LOOP;
    RETURN 'in vain';
END
$$;
CREATE TABLE rbp_kept (id int PRIMARY KEY, filler text) WITH (autovacuum_enabled = off);
INSERT INTO rbp_kept SELECT i, repeat(md5(i::text), 15) FROM generate_series(1, 5000) i;
CREATE MATERIALIZED VIEW rbp_view AS SELECT id, filler FROM rbp_kept WHERE id % 10 = 0;
CREATE TABLE rbp_parted (id int) PARTITION BY RANGE (id);
CREATE TABLE rbp_part PARTITION OF rbp_parted FOR VALUES FROM (1) TO (10000);
INSERT INTO rbp_parted SELECT generate_series(1, 9999);
CREATE INDEX rbp_part_id ON rbp_part (id);
VACUUM (FREEZE, ANALYZE) rbp_kept, rbp_view, rbp_part;
CHECKPOINT;

SELECT remote_bp_set_policy('rbp_kept', 'keep');
SELECT remote_bp_set_policy('rbp_view', 'keep', include_indexes => false);
SELECT remote_bp_set_policy('rbp_parted', 'none');
SELECT remote_bp_set_policy('rbp_part_id', 'keep');
SELECT rbp_wait('NOT EXISTS (SELECT FROM remote_bp_policies WHERE reason IS NOT NULL)');
SELECT relation, policy, set_on, pages_wanted > 0 AS wanted, pages_held = pages_wanted AS held, reason
    FROM remote_bp_policies WHERE relation::text NOT LIKE 'pg_toast%' ORDER BY relation::text COLLATE "C";
TABLE remote_bp_policy ORDER BY relation::text COLLATE "C", index_name;
SELECT kept_pages >= pg_relation_size('rbp_kept') / 8192 AS counted FROM remote_bp_stat;

-- New files, the same policy.
VACUUM FULL rbp_kept;
REFRESH MATERIALIZED VIEW rbp_view;
CHECKPOINT;
SELECT rbp_wait('(SELECT sum(pages_held) >= sum(pages_wanted) FROM remote_bp_policies WHERE policy = ''keep'')');

-- What is not wanted is not brought in either.
SELECT rbp_wait('NOT EXISTS (SELECT FROM remote_bp_policies WHERE reason IS NOT NULL)');
SELECT remote_bp_prewarm('rbp_part');

-- The default leaves nothing.
SELECT remote_bp_set_policy(r, 'default') FROM unnest('{rbp_kept,rbp_view,rbp_parted,rbp_part_id}'::regclass[]) r;
SELECT * FROM remote_bp_policies;
TABLE remote_bp_policy;
SELECT rbp_wait('(SELECT kept_pages = 0 FROM remote_bp_stat)');

-- What is not possible is refused.
SELECT remote_bp_set_policy('rbp_kept', 'always');
SELECT remote_bp_set_policy('rbp_kept', NULL);
SELECT remote_bp_set_policy('pg_database', 'keep');
SELECT remote_bp_set_policy('remote_bp_stat', 'keep');
SELECT remote_bp_set_database_limit('rbp_nowhere', 1);
SELECT remote_bp_set_database_limit(current_database(), -1);

-- A database's limit is a setting of it.
SELECT remote_bp_set_database_limit(current_database(), 100000000000);
SELECT setting FROM pg_db_role_setting JOIN pg_database d ON d.oid = setdatabase, unnest(setconfig) setting
    WHERE datname = current_database() AND setting LIKE 'remote_bp%';
SELECT rbp_wait('EXISTS (SELECT FROM remote_bp_databases WHERE database = current_database() AND max_bytes >= 100000000000)');
SELECT remote_bp_set_database_limit(current_database(), NULL);
SELECT rbp_wait('EXISTS (SELECT FROM remote_bp_databases WHERE database = current_database() AND max_bytes IS NULL)');
DROP MATERIALIZED VIEW rbp_view;
DROP TABLE rbp_kept, rbp_parted;
DROP FUNCTION rbp_wait;
