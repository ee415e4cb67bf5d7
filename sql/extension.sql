-- The extension's objects, and who may use them.
CREATE EXTENSION remote_bp;

\d remote_bp_health
\d remote_bp_stat
\d remote_bp_stat_spill
\d remote_bp_stat_donors
\d remote_bp_stat_latency
\d remote_bp_stat_statements
\d remote_bp_stat_relations
\d remote_bp_stat_database
\d remote_bp_stat_follow
\d remote_bp_leases
\d remote_bp_relations
\d remote_bp_temp_files
\d remote_bp_prewarm_progress
-- Members, but for row types, which are members since 17.
SELECT pg_describe_object(classid, objid, 0) AS member FROM pg_depend
    WHERE refclassid = 'pg_extension'::regclass AND deptype = 'e' AND classid <> 'pg_type'::regclass
        AND refobjid = (SELECT oid FROM pg_extension WHERE extname = 'remote_bp')
    ORDER BY 1;

-- Everything has a comment.
SELECT pg_describe_object(d.classid, d.objid, coalesce(a.attnum, 0)) AS uncommented
    FROM pg_depend d LEFT JOIN pg_attribute a ON d.classid = 'pg_class'::regclass AND a.attrelid = d.objid AND a.attnum > 0
    WHERE d.refclassid = 'pg_extension'::regclass AND d.deptype = 'e' AND d.classid <> 'pg_type'::regclass
        AND d.refobjid = (SELECT oid FROM pg_extension WHERE extname = 'remote_bp')
        AND (obj_description(d.objid, d.classid::regclass::name) IS NULL
            OR a.attnum IS NOT NULL AND col_description(d.objid, a.attnum) IS NULL)
    ORDER BY 1;

-- Every column that is not about trouble, nor measured, has a value.
SELECT key AS missing FROM remote_bp_stat s, jsonb_each_text(to_jsonb(s)) WHERE value IS NULL
    AND key NOT IN ('unusable_reason', 'last_error', 'last_error_at');
SELECT key AS missing FROM remote_bp_stat_spill s, jsonb_each_text(to_jsonb(s)) WHERE value IS NULL
    AND key NOT IN ('unusable_reason', 'file_us', 'donor_us');

-- An older version, with fewer columns, gets those; one with more, or with others, is refused.
CREATE FUNCTION rbp_stat_like(name text, most int, old text, new text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    columns text := (SELECT string_agg(format('OUT %I %s', c.name, c.type::regtype), ', ' ORDER BY c.i)
        FROM pg_proc, unnest(proargnames, proallargtypes) WITH ORDINALITY AS c (name, type, i)
        WHERE proname = 'remote_bp_stat_spill' AND c.i <= most);
BEGIN
    EXECUTE format('CREATE FUNCTION %I(%s) RETURNS record AS %L, %L LANGUAGE C', name, replace(columns, old, new),
        (SELECT probin FROM pg_proc WHERE proname = 'remote_bp_stat_spill'), 'rbp_sql_stat_spill');
END
$$;
SELECT rbp_stat_like('rbp_older', 5, '', ''), rbp_stat_like('rbp_newer', 100, 'stats_reset', 'more bigint, OUT stats_reset'),
    rbp_stat_like('rbp_other', 100, 'writes', 'wrote');
SELECT reads >= 0 AS served FROM rbp_older();
SELECT rbp_newer();
SELECT rbp_other();
DROP FUNCTION rbp_stat_like, rbp_older, rbp_newer, rbp_other;

-- Not for everybody ...
CREATE ROLE regress_remote_bp;
SET ROLE regress_remote_bp;
SELECT count(*) FROM remote_bp_health;
SELECT count(*) FROM remote_bp_stat;
SELECT count(*) FROM remote_bp_stat_spill;
SELECT count(*) FROM remote_bp_stat_donors;
SELECT count(*) FROM remote_bp_stat_latency;
SELECT count(*) FROM remote_bp_leases;
SELECT count(*) FROM remote_bp_relations;
SELECT count(*) FROM remote_bp_temp_files;
SELECT remote_bp_stat();
SELECT remote_bp_stat_spill();
SELECT count(*) FROM remote_bp_stat_donors();
SELECT count(*) FROM remote_bp_stat_latency();
SELECT count(*) FROM remote_bp_leases();
SELECT count(*) FROM remote_bp_relations();
SELECT count(*) FROM remote_bp_temp_files();
SELECT count(*) FROM remote_bp_stat_backend();
SELECT count(*) FROM remote_bp_stat_sources;
SELECT count(*) FROM remote_bp_stat_sources();
SELECT count(*) FROM remote_bp_stat_relations;
SELECT count(*) FROM remote_bp_stat_relations();
SELECT count(*) FROM remote_bp_stat_database;
SELECT count(*) FROM remote_bp_stat_database();
SELECT count(*) >= 0 AS allowed FROM remote_bp_stat_statements;
SELECT count(*) FROM remote_bp_stat_follow;
SELECT count(*) FROM remote_bp_stat_follow();
SELECT count(*) FROM remote_bp_hot_pages();
SELECT count(*) FROM remote_bp_hot_pages_info();
SELECT remote_bp_stat_statements_reset();
SELECT remote_bp_stat_reset();
SELECT remote_bp_evict('pg_class');
RESET ROLE;

-- ... but for pg_monitor, as far as looking goes.
GRANT pg_monitor TO regress_remote_bp;
SET ROLE regress_remote_bp;
SELECT ok IS NOT NULL AS allowed FROM remote_bp_health;
SELECT count(*) FROM remote_bp_stat;
SELECT count(*) FROM remote_bp_stat_spill;
SELECT count(*) >= 0 AS allowed FROM remote_bp_stat_donors;
SELECT count(*) > 0 AS allowed FROM remote_bp_stat_latency;
SELECT count(*) >= 0 AS allowed FROM remote_bp_leases;
SELECT count(*) >= 0 AS allowed FROM remote_bp_relations;
SELECT count(*) >= 0 AS allowed FROM remote_bp_temp_files;
SELECT usable IS NOT NULL AS allowed FROM remote_bp_stat();
SELECT hits >= 0 AS allowed FROM remote_bp_stat_backend();
SELECT count(*) >= 0 AS allowed FROM remote_bp_stat_sources;
SELECT count(*) >= 0 AS allowed FROM remote_bp_stat_relations;
SELECT count(*) >= 0 AS allowed FROM remote_bp_stat_database;
SELECT count(*) >= 0 AS allowed FROM remote_bp_stat_statements;
SELECT state AS allowed FROM remote_bp_stat_follow;
SELECT count(*) >= 0 AS allowed FROM remote_bp_hot_pages();
SELECT count(*) AS allowed FROM remote_bp_hot_pages_info();
SELECT remote_bp_stat_statements_reset();
SELECT remote_bp_stat_reset();
SELECT remote_bp_evict('pg_class');
RESET ROLE;

-- What changes something can be granted.
GRANT EXECUTE ON FUNCTION remote_bp_stat_reset(), remote_bp_evict(regclass) TO regress_remote_bp;
SET ROLE regress_remote_bp;
SELECT remote_bp_stat_reset();
SELECT remote_bp_evict('pg_class') >= 0 AS allowed;
RESET ROLE;

-- It can be moved, dropped and created again.
CREATE SCHEMA remote_bp_elsewhere;
ALTER EXTENSION remote_bp SET SCHEMA remote_bp_elsewhere;
SELECT count(*) FROM remote_bp_elsewhere.remote_bp_stat;
DROP EXTENSION remote_bp;
DROP SCHEMA remote_bp_elsewhere;
DROP ROLE regress_remote_bp;
CREATE EXTENSION remote_bp;
SELECT extversion, extrelocatable FROM pg_extension WHERE extname = 'remote_bp';

-- An installation of 1.0 works with this library, and can be upgraded: then it
-- is like a new one, and what users have made of its views and functions is
-- still there, with the privileges that they have granted.
CREATE VIEW remote_bp_members AS
    SELECT pg_describe_object(d.classid, d.objid, d.objsubid) AS member,
        obj_description(d.objid, d.classid::regclass::name) AS comment,
        coalesce(p.proacl, c.relacl) AS privileges,
        pg_get_function_result(p.oid) AS result,
        CASE c.relkind WHEN 'v' THEN pg_get_viewdef(c.oid) END AS definition,
        (SELECT array_agg(concat_ws(' ', attname, atttypid::regtype, col_description(attrelid, attnum)) ORDER BY attnum)
         FROM pg_attribute WHERE attrelid = c.oid AND attnum > 0) AS columns
    FROM pg_depend d
        LEFT JOIN pg_proc p ON d.classid = 'pg_proc'::regclass AND p.oid = d.objid
        LEFT JOIN pg_class c ON d.classid = 'pg_class'::regclass AND c.oid = d.objid
    WHERE d.deptype = 'e' AND d.refclassid = 'pg_extension'::regclass
        AND d.refobjid = (SELECT oid FROM pg_extension WHERE extname = 'remote_bp');
CREATE TABLE remote_bp_new AS SELECT * FROM remote_bp_members;
DROP EXTENSION remote_bp;
CREATE EXTENSION remote_bp VERSION '1.0';
SELECT usable IS NOT NULL AS works, stats_reset IS NOT NULL AS to_the_end FROM remote_bp_stat;
CREATE VIEW of_a_user AS SELECT hits, stats_reset FROM remote_bp_stat;
CREATE VIEW of_the_function AS SELECT * FROM remote_bp_stat();
CREATE ROLE regress_remote_bp_user;
CREATE ROLE regress_remote_bp_other;
GRANT SELECT ON remote_bp_stat TO regress_remote_bp_user;
GRANT EXECUTE ON FUNCTION remote_bp_stat() TO regress_remote_bp_user WITH GRANT OPTION;
SET ROLE regress_remote_bp_user;
GRANT EXECUTE ON FUNCTION remote_bp_stat() TO regress_remote_bp_other;
RESET ROLE;
ALTER EXTENSION remote_bp UPDATE TO '1.2';
SELECT read_ahead >= 0 AS read_ahead, read_ahead_used >= 0 AS read_ahead_used, hits >= 0 AS hits FROM remote_bp_stat;
SELECT hits >= 0 AS hits FROM of_a_user;
SELECT hits >= 0 AS hits, stats_reset IS NOT NULL AS to_the_end FROM of_the_function;
SELECT has_table_privilege('regress_remote_bp_user', 'remote_bp_stat', 'SELECT') AS granted;
SELECT has_function_privilege('regress_remote_bp_other', 'remote_bp_stat()', 'EXECUTE') AS passed_on;
SET ROLE regress_remote_bp_user;
SELECT hits >= 0 AS hits, read_ahead >= 0 AS read_ahead FROM remote_bp_stat;
RESET ROLE;
REVOKE SELECT ON remote_bp_stat FROM regress_remote_bp_user;
REVOKE EXECUTE ON FUNCTION remote_bp_stat() FROM regress_remote_bp_user CASCADE;
DROP VIEW of_a_user, of_the_function;
SELECT count(*) > 0 AS members FROM remote_bp_members;
(SELECT 'only new', * FROM remote_bp_new EXCEPT SELECT 'only new', * FROM remote_bp_members)
UNION ALL
(SELECT 'only upgraded', * FROM remote_bp_members EXCEPT SELECT 'only upgraded', * FROM remote_bp_new);
DROP ROLE regress_remote_bp_user, regress_remote_bp_other;
DROP TABLE remote_bp_new;
DROP VIEW remote_bp_members;
