# Temporary tables whose blocks go to donors (remote_bp.spill_temp_tables) are
# as those of a stock server: through rollback, truncation, vacuum, rewrites,
# moves between tablespaces and drops, with indexes and TOAST.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use RemoteBP;
use RemoteBP::Spill;
use Test::More;

# A stock server takes the settings of an extension that it does not know.
my $settings = <<'SQL';
SET remote_bp.spill_temp_tables = on;
SET temp_buffers = '800kB';
SQL

# All rows of a table, and its size.
sub all_of
{
	my ($table) = @_;
	return "SELECT count(*), sum(hashtextextended(s::text, 0)::numeric), pg_relation_size('$table') FROM $table s;\n";
}

my @cases;

sub add
{
	my ($name, $sql, %opt) = @_;
	push @cases, { name => $name, sql => $settings . $sql, %opt };
	return;
}

my $fill = "CREATE TEMP TABLE f AS SELECT id, k, t, pad FROM big;\n";

add('filled and changed', $fill . all_of('f') . <<'SQL' . all_of('f') . all_of('f'));
UPDATE f SET pad = pad || k WHERE id % 3 = 0;
DELETE FROM f WHERE id % 5 = 0;
INSERT INTO f SELECT id, -k, t, repeat(t, 3) FROM big WHERE id <= 9000;
SQL
add('indexes', $fill . <<'SQL' . all_of('f'));
CREATE INDEX f_t ON f (t);
CREATE INDEX f_id ON f USING hash (id);
CREATE INDEX f_w ON f USING gin (to_tsvector('simple', left(t, 3)));
CREATE INDEX f_b ON f USING brin (id);
UPDATE f SET t = md5(t) WHERE k = 4;
SELECT pg_relation_size('f_t'), pg_relation_size('f_id'), pg_relation_size('f_b');
SET enable_seqscan = off;
SELECT count(*), min(t), max(t) FROM f WHERE t > '5';
SELECT md5(string_agg(t, '')) FROM (SELECT t FROM f ORDER BY t OFFSET 0) s;
SELECT count(*), sum(k) FROM big b JOIN LATERAL (SELECT FROM f WHERE f.id = b.id OFFSET 0) x ON true WHERE b.id % 11 = 0;
SELECT count(*) FROM f WHERE to_tsvector('simple', left(t, 3)) @@ 'abc'::tsquery;
SELECT count(*), sum(k) FROM f WHERE id BETWEEN 30000 AND 39000;
REINDEX TABLE f;
SELECT count(*), min(t), max(t) FROM f WHERE t > '5';
SELECT bt_index_parent_check('f_t', true, true);
SQL
add('TOAST', <<'SQL' . all_of('f') . "SELECT sum(length(w)), md5(string_agg(left(w, 40), '' ORDER BY id)), pg_table_size('f') FROM f;\n");
CREATE TEMP TABLE f (id int, w text, x text);
ALTER TABLE f ALTER w SET STORAGE external;
INSERT INTO f SELECT id, repeat(t, 90 + id % 300), t FROM big WHERE id <= 900;
UPDATE f SET w = w || x WHERE id % 4 = 1;
DELETE FROM f WHERE id % 9 = 0;
SELECT md5(string_agg(substr(w, 3000, 50), '' ORDER BY id)) FROM f;
SQL
add('rollback', $fill . <<'SQL' . all_of('f') . all_of('f'));
BEGIN;
UPDATE f SET t = 'x' || t;
INSERT INTO f SELECT id, 0, t, pad FROM big WHERE id <= 20000;
SAVEPOINT a;
CREATE TEMP TABLE inner_one AS SELECT * FROM big WHERE k < 5;
SELECT count(*), min(t) FROM inner_one;
ROLLBACK TO a;
CREATE TEMP TABLE inner_one AS SELECT t FROM big WHERE k > 5;
SELECT count(*), min(t) FROM inner_one;
SAVEPOINT b;
TRUNCATE f;
INSERT INTO f SELECT id, 1, t, pad FROM big WHERE id <= 7000;
SELECT count(*), min(t), max(pad) FROM f;
ROLLBACK TO b;
SELECT count(*), min(t), max(t) FROM f;
TRUNCATE f;
ROLLBACK;
SQL
add('truncation', $fill . <<'SQL' . all_of('f') . all_of('f'));
TRUNCATE f;
SELECT count(*), pg_relation_size('f') FROM f;
INSERT INTO f SELECT id, k, pad, t FROM big WHERE id % 2 = 1;
SELECT count(*), min(t), max(pad), pg_relation_size('f') FROM f;
BEGIN;
TRUNCATE f;
INSERT INTO f SELECT id, k, t, t FROM big;
TRUNCATE f;
INSERT INTO f SELECT id, k, t, t FROM big WHERE id > 12345;
COMMIT;
CREATE TEMP TABLE g (LIKE f) ON COMMIT DELETE ROWS;
BEGIN;
INSERT INTO g SELECT * FROM f;
SELECT count(*), max(t), pg_relation_size('g') FROM g;
COMMIT;
SELECT count(*), pg_relation_size('g') FROM g;
BEGIN;
INSERT INTO g SELECT id, k, pad, pad FROM f WHERE k = 8;
SELECT count(*), max(t), pg_relation_size('g') FROM g;
COMMIT;
SQL
add('vacuum', $fill . <<'SQL' . all_of('f') . all_of('f'));
DELETE FROM f WHERE id > 20000;
VACUUM f;
SELECT pg_relation_size('f') < 3000000, pg_relation_size('f');
INSERT INTO f SELECT id, k, md5(t), pad FROM big WHERE id > 30000;
UPDATE f SET k = k + 1;
VACUUM f;
SELECT count(*), sum(k), min(t) FROM f;
VACUUM FULL f;
SELECT count(*), sum(k), min(t), pg_relation_size('f') FROM f;
DELETE FROM f;
VACUUM f;
SELECT pg_relation_size('f');
INSERT INTO f SELECT id, k, t, pad FROM big WHERE id <= 15000;
VACUUM (FREEZE, ANALYZE) f;
SELECT relpages, reltuples, relallvisible FROM pg_class WHERE oid = 'f'::regclass;
SQL
add('rewrites', $fill . <<'SQL' . all_of('f') . all_of('f'));
CREATE INDEX f_t ON f (t);
ALTER TABLE f ALTER k TYPE bigint;
SELECT count(*), sum(k), pg_relation_size('f') FROM f;
CLUSTER f USING f_t;
SELECT md5(string_agg(t, '' ORDER BY ctid)) FROM f;
ALTER TABLE f ADD COLUMN more text DEFAULT md5(random()::text);
SELECT count(*) FILTER (WHERE length(more) = 32) FROM f;
ALTER TABLE f DROP COLUMN more;
VACUUM FULL f;
SET enable_seqscan = off;
SELECT count(*), min(t), max(t) FROM f WHERE t > '7';
SQL
add('tablespaces', <<'SQL' . $fill . <<'SQL' . all_of('f'));
SET temp_tablespaces = 'elsewhere';
SQL
SELECT reltablespace <> 0, pg_relation_filepath('f') LIKE 'pg_tblspc/%' FROM pg_class WHERE oid = 'f'::regclass;
SELECT count(*), min(t), max(pad) FROM f;
ALTER TABLE f SET TABLESPACE pg_default;
SELECT count(*), min(t), max(pad), pg_relation_size('f') FROM f;
UPDATE f SET t = md5(t);
ALTER TABLE f SET TABLESPACE elsewhere;
SQL
add('drop, and again', <<'SQL' . all_of('f'));
DO $$
BEGIN
	FOR i IN 1 .. 6 LOOP
		CREATE TEMP TABLE f AS SELECT id, k + i AS k, t FROM big WHERE id % 6 = i - 1;
		RAISE NOTICE '% % %', (SELECT count(*) FROM f), (SELECT sum(k) FROM f), (SELECT min(t) FROM f);
		DROP TABLE f;
	END LOOP;
END
$$;
CREATE TEMP TABLE g ON COMMIT DROP AS SELECT * FROM big;
BEGIN;
CREATE TEMP TABLE g ON COMMIT DROP AS SELECT t, id FROM big;
SELECT count(*), max(t) FROM g;
COMMIT;
CREATE TEMP TABLE h AS SELECT pad, t FROM big;
DISCARD TEMP;
SELECT to_regclass('h');
CREATE TEMP TABLE f AS SELECT t, k FROM big;
SQL
add('cursors and errors', $fill . <<'SQL' . all_of('f'));
BEGIN;
DECLARE c SCROLL CURSOR WITH HOLD FOR SELECT id, t FROM f;
FETCH 3 FROM c;
MOVE 20000 FROM c;
UPDATE f SET t = 'new';
FETCH 3 FROM c;
FETCH BACKWARD 3 FROM c;
COMMIT;
FETCH ABSOLUTE 39999 FROM c;
FETCH ABSOLUTE 5 FROM c;
DO $$
BEGIN
	FOR i IN 1 .. 4 LOOP
		BEGIN
			UPDATE f SET pad = pad || i;
			INSERT INTO f SELECT id, 1 / (id - 9000 - i), t, pad FROM big;
		EXCEPTION WHEN division_by_zero THEN
			RAISE NOTICE 'round %: %', i, (SELECT count(*) || max(pad) FROM f);
		END;
	END LOOP;
END
$$;
INSERT INTO f SELECT id, 1 / (id - 39000), t, pad FROM big;
SQL
add('switched off and on', $fill . <<'SQL' . all_of('f') . all_of('f'));
SET remote_bp.spill_temp_tables = off;
UPDATE f SET pad = 'off' || id WHERE id % 2 = 0;
INSERT INTO f SELECT id, -1, t, pad FROM big WHERE id <= 10000;
SELECT count(*), sum(k), sum(length(pad)), min(t) FROM f;
SET remote_bp.spill_temp_tables = on;
UPDATE f SET pad = 'on' || id WHERE id % 3 = 0;
INSERT INTO f SELECT id, -2, t, pad FROM big WHERE id <= 10000;
SET remote_bp.spill_temp_tables = off;
SELECT count(*), sum(k), sum(length(pad)), min(t) FROM f;
VACUUM f;
SQL
add('materialised view refreshed by a temporary table', <<'SQL' . all_of('mv') . "DROP MATERIALIZED VIEW mv; DROP TABLE base;\n");
CREATE TABLE base AS SELECT id, t FROM big WHERE id <= 12000;
CREATE MATERIALIZED VIEW mv AS SELECT id, t FROM base;
CREATE UNIQUE INDEX ON mv (id);
UPDATE base SET t = upper(t || 'x') WHERE id % 4 < 3;
REFRESH MATERIALIZED VIEW CONCURRENTLY mv;
SELECT count(*) FILTER (WHERE t = upper(t)) FROM mv;
SQL
add('sorts and joins of them', $fill . <<'SQL');
CREATE TEMP TABLE g AS SELECT id, repeat(t, 3) AS t FROM f ORDER BY t;
SELECT md5(string_agg(t, '')) FROM (SELECT t FROM g ORDER BY t DESC) s;
SET enable_mergejoin = off;
SELECT count(*), sum(hashtext(f.pad || g.t)::bigint) FROM f JOIN g USING (id);
SET effective_io_concurrency = 16;
SET enable_seqscan = off;
CREATE INDEX g_id ON g (id);
SET enable_indexscan = off;
SELECT count(*), sum(length(t)) FROM g WHERE id < 9000;
SQL

my $node = spill_cluster('temp_tables');
$node->safe_psql('postgres', "SET allow_in_place_tablespaces = on; CREATE TABLESPACE elsewhere LOCATION ''");
spill_data($node);
my $stock = run_cases($node, 'stock', @cases);
for my $case (@cases)
{
	unlike($stock->{ $case->{name} }{err}, qr/syntax error|does not exist/, "stock, $case->{name}: the statements are right");
}

my $broker = start_broker();
my $donor = start_donor($broker, memory => '128MB');
for my $transport ('shm', 'tcp')
{
	# For a donor that is late, blocks would go to the real file.
	ok(spill_mode($node, broker => $broker, transport => $transport, conf => "remote_bp.io_timeout = '10s'\n"),
		"$transport: memory is leased");
	my $now = run_cases($node, $transport, @cases);
	compare_modes($stock, $now, $transport, @cases);
	my $c = counters($node);
	cmp_ok($c->{'spill.local'} + $c->{'spill.rescued'}, '<', $c->{'spill.writes'} / 50, "$transport: hardly a whole block went to the real file");

	# Off by default, and then nothing of a temporary table goes away.
	my $before = counter($node, 'spill.writes');
	my $r = run_session($node, "SET temp_buffers = '800kB';\n$fill" . all_of('f'));
	like($r->{out}, qr/^40000\|/, "$transport: a table of the default settings");
	is(counter($node, 'spill.writes'), $before, "$transport: its blocks stay on disk");
	spill_is_clean($node, $transport);
}
$node->stop;

done_testing();
