-- Relations are brought into the tier on demand.
CREATE TABLE rbp_prewarmed (id int PRIMARY KEY, filler text) WITH (autovacuum_enabled = off);
INSERT INTO rbp_prewarmed SELECT i, repeat(md5(i::text), 15) FROM generate_series(1, 5000) i;
VACUUM (FREEZE, ANALYZE) rbp_prewarmed;
CHECKPOINT;
SELECT remote_bp_evict('rbp_prewarmed') >= 0 AND remote_bp_evict('rbp_prewarmed_pkey') >= 0 AS evicted;
SELECT drops_full FROM remote_bp_stat \gset before_

SELECT remote_bp_prewarm('rbp_prewarmed', include_indexes => true) > 0 AS prewarmed;
SELECT relation, pages + staged_pages = pg_relation_size(relation) / 8192 AS all_pages
    FROM remote_bp_relations
    WHERE relation IN ('rbp_prewarmed'::regclass, 'rbp_prewarmed_pkey'::regclass) AND fork = 'main'
    ORDER BY relation::text;
SELECT drops_full - :before_drops_full AS dropped FROM remote_bp_stat;
SELECT remote_bp_prewarm('rbp_prewarmed') AS again;
SELECT remote_bp_prewarm('rbp_prewarmed', 'buffers') >= 0 AS buffers;
SELECT * FROM remote_bp_prewarm_progress;

-- What is not possible is refused.
SELECT remote_bp_prewarm('rbp_prewarmed', 'cache');
SELECT remote_bp_prewarm('rbp_prewarmed', fork => 'init');
SELECT remote_bp_prewarm('rbp_prewarmed', last_block => -1);
SELECT remote_bp_prewarm('rbp_prewarmed', first_block => 10, last_block => 9);
SELECT remote_bp_prewarm('rbp_prewarmed', NULL);
CREATE VIEW rbp_view AS SELECT 1 AS one;
SELECT remote_bp_prewarm('rbp_view');
DROP VIEW rbp_view;
DROP TABLE rbp_prewarmed;
