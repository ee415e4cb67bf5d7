# Relation forks that shrink or go away take their pages out of the tier, and
# no other's: truncation by VACUUM, TRUNCATE, DROP, rewrites, REINDEX.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use RemoteBP;
use Test::More;

my $broker = start_broker();
my $donor = start_donor($broker, memory => '128MB');
my $node = new_cluster('truncation', broker => $broker, conf => "shared_buffers = '512kB'\nremote_bp.policy_interval = '1s'\n");
ok(wait_leased($node, 64), 'memory is leased');

my $sums = 'SELECT count(*), sum(v) FROM t WHERE id > 0';

# Read in all ways, with everything evicted in between.
sub reads_are
{
	my ($what, $expected) = @_;
	for my $round (1 .. 2)
	{
		is($node->safe_psql('postgres', $sums), $expected, "$what: reads are right");
		is($node->safe_psql('postgres', "SET enable_seqscan = off; SET enable_bitmapscan = off; $sums"),
			$expected, "$what: index scans are right");
		evict_buffers($node);
	}
	return;
}

# The file grows again over blocks that the tier had: VACUUM truncates, new
# rows take the same block numbers with other content.
my $rows = make_table($node, 't', 8);
cmp_ok(warm($node, 't'), '>', 0, 'truncation by VACUUM: the tier has pages');
my $generations = counter($node, 'generations');
$node->safe_psql('postgres', "DELETE FROM t WHERE id > $rows / 8");
evict_buffers($node);
$node->safe_psql('postgres', "SELECT remote_bp_prewarm('t')");
$node->safe_psql('postgres', 'VACUUM (TRUNCATE on) t');
cmp_ok($node->safe_psql('postgres', q{SELECT pg_relation_size('t') / 1048576}),
	'<', 4, 'truncation by VACUUM: the file shrank');
cmp_ok(counter($node, 'generations'), '>', $generations, 'truncation by VACUUM: it was noticed');
wait_for('the pusher', sub { counter($node, 'staged_pages') == 0 }, 20);
cmp_ok(tier_pages($node, 't'), '>=', $rows / 64 * 0.9, 'truncation by VACUUM: what is left of the table is in the tier');
reads_are('truncation by VACUUM', $rows / 8 . '|0');
$node->safe_psql('postgres',
	"INSERT INTO t SELECT i, 3, rpad(i::text, 980, 'n') FROM generate_series($rows / 8 + 1, $rows) i");
reads_are('grown again', "$rows|" . 3 * ($rows - $rows / 8));

# TRUNCATE gives new files; rolled back, the old ones stay.
cmp_ok(warm($node, 't'), '>', 0, 'TRUNCATE: the tier has pages');
$node->safe_psql('postgres', 'BEGIN; TRUNCATE t; INSERT INTO t VALUES (1, 1); ROLLBACK');
reads_are('TRUNCATE rolled back', "$rows|" . 3 * ($rows - $rows / 8));
$node->safe_psql('postgres', 'TRUNCATE t');
reads_are('TRUNCATE', '0|');
is(tier_pages($node, 't'), 0, 'TRUNCATE: the tier has no page of the new file');
$node->safe_psql('postgres',
	"INSERT INTO t SELECT i, 4, rpad(i::text, 980, 'm') FROM generate_series(1, $rows) i");
reads_are('filled again', "$rows|" . 4 * $rows);

# In one transaction, the file just made is truncated in place.
$node->safe_psql('postgres', <<"SQL");
CREATE TABLE s (id int, v int, pad text);
BEGIN;
TRUNCATE s;
INSERT INTO s SELECT i, 1, repeat('a', 900) FROM generate_series(1, 4000) i;
SELECT count(*), sum(v) FROM s;
SELECT count(pad) FROM rbp_ballast;
TRUNCATE s;
INSERT INTO s SELECT i, 2, repeat('b', 900) FROM generate_series(1, 4000) i;
COMMIT;
SQL
is($node->safe_psql('postgres', 'SELECT count(*), sum(v) FROM s'),
	'4000|8000', 'truncated in place: reads are right');
evict_buffers($node);
is($node->safe_psql('postgres', 'SELECT count(*), sum(v) FROM s'),
	'4000|8000', 'truncated in place: again');

# Rewrites.
my $expected = "$rows|" . 4 * $rows;
for my $rewrite ('VACUUM FULL t', 'CLUSTER t USING t_id', 'REINDEX TABLE t',
	'REINDEX INDEX CONCURRENTLY t_id', 'ALTER TABLE t ALTER v TYPE bigint')
{
	cmp_ok(warm($node, 't'), '>', 0, "$rewrite: the tier has pages");
	$node->safe_psql('postgres', $rewrite);
	reads_are($rewrite, $expected);
}

# DROP: nothing of it stays reachable.
cmp_ok(warm($node, 't'), '>', 0, 'DROP: the tier has pages');
my $files = $node->safe_psql('postgres', q{SELECT pg_relation_filepath('t')});
$generations = counter($node, 'generations');
$node->safe_psql('postgres', 'DROP TABLE t; CHECKPOINT');
cmp_ok(counter($node, 'generations'), '>', $generations, 'DROP: it was noticed');
ok(!-e $node->data_dir . "/$files", 'DROP: the file is gone');
is($node->safe_psql('postgres', 'SELECT count(*) FROM remote_bp_relations WHERE relation IS NULL'),
	0, 'DROP: the tier lists no page of it');
make_table($node, 't', 4);
reads_are('made again', '4096|0');

# A temporary table lives in local buffers and stays out of the tier.
is( $node->safe_psql(
		'postgres',
		q{CREATE TEMP TABLE tmp AS SELECT i AS id, repeat('t', 500) AS pad FROM generate_series(1, 20000) i;
		  SELECT count(*), sum(length(pad)) FROM tmp;
		  SELECT count(*), sum(length(pad)) FROM tmp}),
	"20000|10000000\n20000|10000000",
	'a temporary table is right');

# Tables come and go, and others' pages stay.  There are many of these, since each has a
# chance to suffer: where one of 65,536 generations was bumped for each fork of a table that
# had gone, with a file or without, a fifth of them were lost.  Some are kept by policy:
# they stay without being loaded again.
$node->safe_psql('postgres', <<'SQL');
SET client_min_messages = error;
SELECT format('CREATE TABLE other%s WITH (autovacuum_enabled = off) AS SELECT generate_series(1, 1000)', i) FROM generate_series(1, 100) i \gexec
SQL
my $others = q{(SELECT format('other%s', i)::regclass AS relation FROM generate_series(1, 100) i) o};
my $held = "SELECT sum(pages) FROM remote_bp_relations JOIN $others USING (relation)";
my $captured = "SELECT sum(captures) FROM remote_bp_stat_relations JOIN $others USING (relation)";
$node->safe_psql('postgres', "CHECKPOINT; SELECT remote_bp_prewarm(relation) FROM $others");
$node->safe_psql('postgres', q{SELECT remote_bp_set_policy(format('other%s', i)::regclass, 'keep') FROM generate_series(1, 10) i});
ok(wait_for('the policy', sub { $node->safe_psql('postgres', q{SELECT count(*) FROM remote_bp_policies WHERE policy = 'keep' AND pages_held = pages_wanted AND pages_held > 0}) == 10 }, 60),
	'tables come and go: some others are kept') or diag($node->safe_psql('postgres', 'TABLE remote_bp_policies'));
wait_for('the pusher', sub { counter($node, 'staged_pages') == 0 }, 20);
my @before = map { $node->safe_psql('postgres', $_) } $held, $captured;
cmp_ok($before[0], '>=', 100, 'tables come and go: the tier has pages of others');
$generations = counter($node, 'generations');
# This session captures nothing, so that it takes the place of nothing.
$node->safe_psql('postgres', <<'SQL');
SET remote_bp.use_tier = off;
DO $$
BEGIN
	FOR i IN 1 .. 1000 LOOP
		CREATE TABLE passing (id int PRIMARY KEY, x text);
		IF i % 2 = 0 THEN
			INSERT INTO passing SELECT 1, 'x';
		END IF;
		DROP TABLE passing;
		COMMIT;
	END LOOP;
END
$$;
SQL
cmp_ok(counter($node, 'generations'), '>=', $generations + 1000, 'tables come and go: it was noticed');
is_deeply([map { $node->safe_psql('postgres', $_) } $held, $captured], \@before,
	'tables come and go: pages of others are all there, and were not loaded again');
is_clean($node);
$node->stop;

done_testing();
