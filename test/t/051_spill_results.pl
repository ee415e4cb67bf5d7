# Queries that spill give the results of a stock server, and the same books of
# temporary files and bytes: the same cluster is started stock, and then with
# the extension over shm and over tcp.  After each query the memory has come
# back and no file is left.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use RemoteBP;
use RemoteBP::Spill;
use Test::More;

# The rows' order, and all that is in them.
sub in_order
{
	my ($column, $query) = @_;
	return "SELECT count(*), md5(string_agg($column, ',')) FROM ($query) s;\n";
}

# Where the order is not determined.
sub in_any_order
{
	my ($query) = @_;
	return "SELECT count(*), sum(hashtextextended(s::text, 0)::numeric) FROM ($query) s;\n";
}

my $parallel = <<'SQL';
SET max_parallel_workers_per_gather = 2;
SET max_parallel_maintenance_workers = 2;
SET min_parallel_table_scan_size = 0;
SET min_parallel_index_scan_size = 0;
SET parallel_setup_cost = 0;
SET parallel_tuple_cost = 0;
SQL

my @cases;

sub add
{
	my ($name, $sql, %opt) = @_;
	push @cases, { name => $name, sql => $sql, %opt };
	return;
}

#---- sorts ----------------------------------------------------------------

add("sort, work_mem $_", "SET work_mem = '$_';\n" . in_order('id || t', 'SELECT id, t, pad FROM big ORDER BY t, pad'))
  for '64kB', '200kB', '1MB', '4MB';
add('sort with ties', in_order('k || t', 'SELECT k, t FROM big ORDER BY k / 3 DESC')
	  . in_order('skew::text', 'SELECT skew FROM big ORDER BY skew'));
add('sort of wide rows', in_order('md5(w)',
		q{SELECT id, repeat(t, 100 + id % 150) AS w FROM big WHERE id <= 1500 ORDER BY repeat(t, 100 + id % 150) DESC, id}));
add('sort of very wide rows', in_order('md5(w)',
		q{SELECT id, repeat(t, 2000 + id % 3000) AS w FROM big WHERE id <= 60 ORDER BY t}));
add('DISTINCT, ordered-set aggregates', <<'SQL');
SELECT count(DISTINCT t), count(DISTINCT skew), percentile_disc(0.3) WITHIN GROUP (ORDER BY t),
	mode() WITHIN GROUP (ORDER BY pad), rank('a000') WITHIN GROUP (ORDER BY t) FROM big;
SQL
add('aggregate in order', "SELECT k, md5(string_agg(t, '' ORDER BY t DESC)) FROM big GROUP BY k ORDER BY k;\n");
add('incremental sort', "SET enable_seqscan = off;\n"
	  . in_order('k || t', 'SELECT k, t FROM big ORDER BY k, t'));
add('merge join that goes back', <<'SQL' . in_order('ids', "SELECT concat(a.id, ' ', b.id) AS ids FROM big a JOIN small b ON a.skew = b.skew AND a.id > b.id * 9 AND a.id % 5 = 0 ORDER BY a.skew, a.id, b.id"));
SET enable_hashjoin = off;
SET enable_nestloop = off;
SET enable_material = off;
SQL

#---- hashes ---------------------------------------------------------------

add('hash join with many batches',
	"SET enable_mergejoin = off;\n" . in_any_order('SELECT a.id, a.t, b.t AS u FROM big a JOIN big b ON a.id = b.id')
	  . in_any_order('SELECT a.id, b.w FROM big a LEFT JOIN small b USING (id)')
	  . in_any_order('SELECT a.id, b.t FROM small a RIGHT JOIN big b USING (id)'));
add('hash join, full and anti',
	"SET enable_mergejoin = off;\n" . in_any_order('SELECT a.t, b.t AS u FROM big a FULL JOIN (SELECT id + 700 AS id, t FROM big) b ON a.id = b.id')
	  . in_any_order('SELECT id FROM big a WHERE NOT EXISTS (SELECT FROM big b WHERE b.t = md5(a.t))'));
add('hash join with skew', <<'SQL' . in_any_order('SELECT a.id, b.id AS b FROM big a JOIN small b USING (skew) WHERE a.id % 5 = 0') . in_any_order('SELECT a.t, b.w FROM pg_temp.more_than_told() a JOIN small b USING (skew) WHERE b.id <= 700'));
SET enable_mergejoin = off;
SET enable_nestloop = off;
-- Inner side of a join, with many more rows than planned for: batches split
-- again and again, and half of the rows never can.
CREATE FUNCTION pg_temp.more_than_told() RETURNS SETOF big LANGUAGE plpgsql ROWS 100 AS
	'BEGIN RETURN QUERY SELECT * FROM big; END';
SQL
add('hash join that is rescanned', <<'SQL' . "SELECT n, count(*), sum(length(x)) FROM generate_series(1, 4) n, LATERAL (SELECT a.t || b.t AS x FROM big a JOIN big b USING (id) WHERE a.k <> n OFFSET 0) s GROUP BY n ORDER BY n;\n");
SET enable_mergejoin = off;
SET enable_material = off;
SQL
add('hash aggregate', "SET enable_sort = off;\n"
	  . in_any_order('SELECT t, count(*), min(id), max(pad) FROM big GROUP BY t')
	  . in_any_order('SELECT DISTINCT skew, id / 3, pad FROM big'));
add('grouping sets', in_any_order('SELECT k, skew, left(t, 3) AS l, count(*), sum(id) FROM big GROUP BY GROUPING SETS ((k, skew), (skew, left(t, 3)), (left(t, 4)), ())'));
add('set operations', in_any_order('SELECT t FROM big INTERSECT SELECT md5(id::text) FROM small')
	  . in_any_order('SELECT t FROM big EXCEPT ALL SELECT md5(id::text) FROM small')
	  . in_any_order('SELECT t, pad FROM big UNION SELECT w, w FROM small'));

#---- tuplestores ----------------------------------------------------------

add('window functions', in_order('md5(s::text)', <<'SQL'));
SELECT id, sum(id) OVER w, lag(t, 4000) OVER w, lead(pad, 17) OVER w, ntile(7) OVER w,
	first_value(t) OVER (PARTITION BY k ORDER BY t ROWS BETWEEN 2500 PRECEDING AND 10 PRECEDING),
	nth_value(t, 3) OVER (PARTITION BY k ORDER BY t ROWS BETWEEN 3 PRECEDING AND UNBOUNDED FOLLOWING)
FROM big WINDOW w AS (ORDER BY t, id) ORDER BY id
SQL
add('window over all', in_order('md5(s::text)', <<'SQL'));
SELECT id, count(*) OVER (), max(t) OVER (PARTITION BY skew),
	last_value(t) OVER (ORDER BY k RANGE BETWEEN 1 PRECEDING AND 1 FOLLOWING EXCLUDE TIES)
FROM big WHERE id <= 6000 ORDER BY id
SQL
add('recursive CTE', <<'SQL');
WITH RECURSIVE r(n, id, w) AS (
	SELECT 1, id, repeat(t, 5) FROM big WHERE id <= 2500
	UNION ALL
	SELECT n + 1, id + n, left(md5(w) || w, 170 + (id + n) % 90) FROM r WHERE n < 8)
SELECT n, count(*), sum(hashtext(w)::bigint), sum(id) FROM r GROUP BY n ORDER BY n;
WITH RECURSIVE r(id) AS (
	SELECT id FROM small UNION SELECT id * 2 FROM r WHERE id < 30000)
SELECT count(*), sum(id) FROM r;
SQL
add('CTE, read twice', <<'SQL');
WITH c AS MATERIALIZED (SELECT id, t, pad FROM big)
SELECT count(*), sum(hashtext(a.t || b.pad)::bigint) FROM c a JOIN c b ON a.id = b.id + 1;
WITH c AS MATERIALIZED (SELECT * FROM big)
SELECT (SELECT count(*) FROM c), (SELECT max(t) FROM (SELECT t FROM c LIMIT 20000) x), (SELECT md5(string_agg(t, '')) FROM c);
SQL
add('materialised inner side', <<'SQL');
SET enable_hashjoin = off; SET enable_mergejoin = off; SET enable_seqscan = on; SET enable_memoize = off;
SELECT count(*), sum(hashtext(a.w || b.t)::bigint)
	FROM (SELECT * FROM small WHERE id <= 12) a LEFT JOIN (SELECT id, t, pad FROM big WHERE k < 4) b ON a.id % 3 <> b.id % 3;
SQL
add('set-returning functions', <<'SQL');
SELECT count(*), sum(i), sum(o) FROM generate_series(1, 150000) WITH ORDINALITY g(i, o);
SELECT count(*), sum(length(x::text)), sum(y) FROM ROWS FROM (generate_series(1, 60000, 2), generate_series(5, 45000)) r(x, y);
CREATE FUNCTION pg_temp.some(n int) RETURNS TABLE (i int, w text) LANGUAGE plpgsql AS $$
BEGIN
	FOR i IN 1 .. n LOOP
		RETURN QUERY SELECT i, repeat(md5(i::text), i % 5);
	END LOOP;
	RETURN QUERY SELECT id, t FROM big ORDER BY t LIMIT 5000;
END
$$;
SELECT count(*), sum(hashtext(s::text)::bigint) FROM pg_temp.some(12000) s;
SQL

#---- cursors --------------------------------------------------------------

my $fetches = <<'SQL';
FETCH FORWARD 3 FROM c;
MOVE FORWARD 17000 FROM c;
FETCH BACKWARD 4 FROM c;
FETCH ABSOLUTE 39990 FROM c;
FETCH FORWARD 20 FROM c;
FETCH BACKWARD 5 FROM c;
MOVE ABSOLUTE 20000 FROM c;
FETCH PRIOR FROM c;
FETCH RELATIVE -9000 FROM c;
FETCH RELATIVE 12345 FROM c;
FETCH ABSOLUTE -5 FROM c;
FETCH LAST FROM c;
FETCH NEXT FROM c;
MOVE BACKWARD 39000 FROM c;
FETCH 700 FROM c;
FETCH BACKWARD 700 FROM c;
FETCH FIRST FROM c;
FETCH ABSOLUTE 0 FROM c;
FETCH ALL FROM c;
FETCH BACKWARD ALL FROM c;
SQL
add('scrollable cursor over a sort',
	"BEGIN;\nDECLARE c SCROLL CURSOR FOR SELECT id, t FROM big ORDER BY t;\n${fetches}CLOSE c;\nCOMMIT;\n");
add('scrollable cursor over a function',
	"BEGIN;\nDECLARE c SCROLL CURSOR FOR SELECT g, md5(g::text) FROM generate_series(1, 40000) g;\n${fetches}COMMIT;\n");
add('scrollable cursor, materialised',
	"BEGIN;\nDECLARE c SCROLL CURSOR FOR SELECT a.id, b.id FROM big a LEFT JOIN small b USING (id) WHERE a.pad <> '' ORDER BY a.id OFFSET 0;\n${fetches}COMMIT;\n");
add('held cursor',
	"BEGIN;\nDECLARE c SCROLL CURSOR WITH HOLD FOR SELECT id, t FROM big ORDER BY t DESC;\nFETCH 10000 FROM c;\nCOMMIT;\n"
	  . "BEGIN;\nMOVE ABSOLUTE 0 FROM c;\nCREATE TABLE gone (i int);\nCOMMIT;\nDROP TABLE gone;\n$fetches");
add('held cursors that are left open', <<'SQL');
BEGIN;
DECLARE c1 CURSOR WITH HOLD FOR SELECT id, t FROM big;
DECLARE c2 SCROLL CURSOR WITH HOLD FOR SELECT t || pad FROM big ORDER BY pad, t;
DECLARE c3 CURSOR WITH HOLD FOR SELECT a.id, b.w FROM big a LEFT JOIN small b USING (id) ORDER BY b.w, a.id;
COMMIT;
FETCH 15 FROM c1; FETCH 15 FROM c2; FETCH 15 FROM c3;
MOVE 20000 FROM c1; MOVE 30000 FROM c2; MOVE 25000 FROM c3;
FETCH 15 FROM c1; FETCH BACKWARD 15 FROM c2; FETCH 15 FROM c3;
BEGIN; FETCH 5 FROM c1; ROLLBACK;
FETCH 5 FROM c1; MOVE ALL FROM c3; FETCH BACKWARD 15 FROM c2;
SQL

#---- index builds, COPY, procedures ---------------------------------------

add('index builds', <<'SQL');
SET maintenance_work_mem = '1MB';
CREATE INDEX big_t ON big (t);
CREATE UNIQUE INDEX big_id ON big (id DESC) INCLUDE (pad);
CREATE INDEX big_hash ON big USING hash (t);
SELECT bt_index_parent_check(c, true, true) FROM unnest('{big_t,big_id}'::regclass[]) c;
SELECT pg_relation_size('big_t'), pg_relation_size('big_id'), pg_relation_size('big_hash');
SET enable_seqscan = off;
SELECT count(*) FROM big a JOIN LATERAL (SELECT FROM big b WHERE b.t = a.t OFFSET 0) x ON true WHERE a.id % 7 = 0;
CREATE TABLE clustered AS SELECT * FROM big ORDER BY md5(t);
CREATE INDEX clustered_t ON clustered (t);
RESET enable_seqscan;
SET enable_indexscan = off;
CLUSTER clustered USING clustered_t;
SELECT md5(string_agg(t, '' ORDER BY ctid)) FROM clustered;
DROP INDEX big_t, big_id, big_hash;
DROP TABLE clustered;
SQL
add('GiST and BRIN', <<'SQL', any => 1);
-- Buffers of the build go to a file; less memory than this, and it has none.
SET maintenance_work_mem = '32MB';
CREATE INDEX points_box ON points USING gist (box(p, p)) WITH (buffering = on);
SET maintenance_work_mem = '1MB';
CREATE INDEX points_p ON points USING gist (p);
CREATE INDEX points_brin ON points USING brin (id);
SELECT pg_relation_size('points_p') > 1000000;
SET enable_seqscan = off;
SELECT count(*), sum(id) FROM points WHERE p <@ box '((100,100),(3000,4000))';
SELECT id FROM points WHERE p <@ box '((0,0),(10007,9973))' ORDER BY p <-> point '(5000,5000)' LIMIT 20;
SELECT count(*), sum(id) FROM points WHERE id BETWEEN 777 AND 9999;
SELECT count(*), sum(id) FROM points WHERE box(p, p) <@ box '((100,100),(3000,4000))';
DROP INDEX points_p, points_box, points_brin;
SQL
add('parallel hash join, sort and index', <<"SQL", any => 1);
$parallel
SET enable_mergejoin = off;
SELECT count(*), sum(hashtext(a.t || b.t)::bigint) FROM big a JOIN big b ON a.id = b.id;
SELECT count(*), sum(hashtext(a.t || b.t)::bigint) FROM big a FULL JOIN (SELECT id + 5 AS id, t FROM big) b USING (id);
SELECT count(*), sum(b.id) FROM big a JOIN small b USING (skew) WHERE a.id % 4 = 0;
SELECT count(*), md5(string_agg(t, '')) FROM (SELECT t FROM big ORDER BY t) s;
SET maintenance_work_mem = '1MB';
SET min_parallel_table_scan_size = '64kB';
ALTER TABLE big SET (parallel_workers = 2);
CREATE INDEX big_par ON big (t, id);
ALTER TABLE big RESET (parallel_workers);
SELECT bt_index_parent_check('big_par', true, true), pg_relation_size('big_par');
DROP INDEX big_par;
SQL
add('parallel plans', "$parallel\nEXPLAIN (COSTS OFF) SELECT count(*) FROM big a JOIN big b ON a.id = b.id;\n", any => 1, dry => 1, plan => 1);
add('COPY', <<'SQL');
COPY (SELECT id, t FROM big WHERE k = 3 ORDER BY t) TO STDOUT;
CREATE TABLE copied (id int, t text, pad text);
CREATE TABLE seen (n bigint, h numeric);
CREATE FUNCTION copied_trigger() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO seen SELECT count(*), sum(hashtext(n.t)::bigint) FROM rows n;
	INSERT INTO seen SELECT count(*), sum(hashtext(a.t || b.pad)::bigint) FROM rows a JOIN rows b USING (id);
	RETURN NULL;
END
$$;
CREATE TRIGGER copied AFTER INSERT ON copied REFERENCING NEW TABLE AS rows FOR EACH STATEMENT EXECUTE FUNCTION copied_trigger();
COPY copied FROM PROGRAM 'seq 1 20000 | sed "s/.*/&\tt&\tpadpadpadpadpadpad&/"';
INSERT INTO copied SELECT id, t, pad FROM big ORDER BY pad, t;
SELECT * FROM seen ORDER BY n, h;
SELECT count(*), sum(hashtext(c::text)::bigint) FROM copied c;
DROP TABLE copied, seen;
DROP FUNCTION copied_trigger();
SQL
add('PL/pgSQL loops', <<'SQL');
CREATE TABLE looped (n int, t text);
CREATE PROCEDURE loop_over() LANGUAGE plpgsql AS $$
DECLARE
	r record;
	q record;
	n int := 0;
	h bigint := 0;
	c SCROLL CURSOR FOR SELECT t FROM big ORDER BY t DESC;
BEGIN
	FOR r IN SELECT id, t, pad FROM big ORDER BY t LOOP
		n := n + 1;
		h := (h * 31 + hashtext(r.t)) % 1000000007;
		IF n % 8000 = 0 THEN
			FOR q IN SELECT w FROM small JOIN big USING (id) ORDER BY w LOOP
				h := (h * 31 + hashtext(q.w)) % 1000000007;
			END LOOP;
			INSERT INTO looped VALUES (n, r.t || h);
			COMMIT;
		ELSIF n % 9000 = 0 THEN
			INSERT INTO looped VALUES (n, r.t);
			ROLLBACK;
		END IF;
	END LOOP;
	OPEN c;
	FETCH ABSOLUTE 30000 FROM c INTO r;
	INSERT INTO looped VALUES (-1, r.t);
	FETCH RELATIVE -15000 FROM c INTO r;
	INSERT INTO looped VALUES (-2, r.t || h);
	MOVE LAST FROM c;
	FETCH PRIOR FROM c INTO r;
	INSERT INTO looped VALUES (-3, r.t);
	CLOSE c;
END
$$;
CALL loop_over();
SELECT * FROM looped ORDER BY n;
DROP TABLE looped;
DROP PROCEDURE loop_over();
SQL

my $node = spill_cluster('results');
spill_data($node);
my $stock = run_cases($node, 'stock', @cases);
for my $case (@cases)
{
	cmp_ok($stock->{ $case->{name} }{files}, '>', 0, "stock, $case->{name}: spills") unless $case->{dry};
	is($stock->{ $case->{name} }{err}, '', "stock, $case->{name}: no error");
	like($stock->{ $case->{name} }{out}, qr/Parallel Hash\b/, 'stock, parallel hash join is what it is') if $case->{plan};
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
	spill_is_clean($node, $transport);
}
$node->stop;

done_testing();
