/* remote_bp 1.0 to 1.1 */

-- complain if script is sourced in psql, rather than via ALTER EXTENSION
\echo Use "ALTER EXTENSION remote_bp UPDATE TO '1.1'" to load this file. \quit

-- remote_bp_stat gets columns about pages that are read ahead, at its end.  The
-- function is changed in place, since CREATE OR REPLACE cannot add columns, and
-- a function that is dropped and created again would lose the privileges that
-- users have granted on it, and the views that they have made of it.
UPDATE pg_catalog.pg_proc SET
    proallargtypes = proallargtypes || '{bigint,bigint}'::pg_catalog.regtype[]::pg_catalog.oid[],
    proargmodes = proargmodes || '{o,o}'::"char"[],
    proargnames = proargnames || '{read_ahead,read_ahead_used}'::pg_catalog.text[]
WHERE oid = 'remote_bp_stat()'::pg_catalog.regprocedure;

CREATE OR REPLACE VIEW remote_bp_stat AS
    SELECT * FROM remote_bp_stat();

COMMENT ON COLUMN remote_bp_stat.read_ahead IS
    'Pages requested from donors before the server asked for them';
COMMENT ON COLUMN remote_bp_stat.read_ahead_used IS
    'Pages read ahead that were used; they count in hits, too';
