# What the tier does for each relation fork and each database is counted to the
# page, whoever does it, while others read other relations; in bounded memory.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use RemoteBP;
use Test::More;

my $broker = start_broker();
my $donor = start_donor($broker, memory => '64MB');
# Donors on a busy machine are late, which is not what is tested.
my $node = new_cluster(
	'relations',
	broker => $broker,
	transport => 'tcp',
	shared_buffers => '2MB',
	tier => '16MB',
	conf => "remote_bp.io_timeout = '5s'\nmax_parallel_workers = 8\n");
ok(wait_leased($node, 16), 'memory is leased');
$node->safe_psql('postgres', 'CREATE DATABASE elsewhere');

my %megabytes = (a => 8, b => 8, c => 14);
make_table($node, $_, $megabytes{$_}) for sort keys %megabytes;
make_table($node, 'e', 8, db => 'elsewhere');
create_extension($node, 'elsewhere');
$node->safe_psql('postgres', 'ALTER TABLE c SET (parallel_workers = 2)');
warm($node, 'a', part => 0.3);

# Nobody who is not over
sub wait_alone
{
	ok( wait_for(
			'sessions to end',
			sub {
				$node->safe_psql('postgres',
					q{SELECT count(*) FROM pg_stat_activity WHERE backend_type IN ('client backend', 'parallel worker', 'remote_bp policy worker')
						AND pid <> pg_backend_pid()}) eq '0';
			}),
		'the sessions end');
	return;
}

# Relations of which the server has read another number of pages than is counted
# here.  Since 17 it counts pages that it is going to read, and need not come to that.
sub different
{
	my ($db, $interrupted) = @_;
	my $unlike = $interrupted && $node->pg_version >= 17 ? '<' : '<>';
	return $node->safe_psql($db, <<"SQL");
SELECT relname, blks_read, pages FROM (
	SELECT relid, relname, heap_blks_read AS blks_read FROM pg_statio_user_tables
	UNION ALL SELECT indexrelid, indexrelname, idx_blks_read FROM pg_statio_user_indexes) s
LEFT JOIN (SELECT relation, sum(hits + staged_hits + misses) AS pages FROM remote_bp_stat_relations GROUP BY 1) r ON relation = relid
WHERE coalesce(blks_read, 0) $unlike coalesce(pages, 0) ORDER BY 1
SQL
}

sub figure
{
	my ($relation, $figure, $db) = @_;
	return $node->safe_psql($db // 'postgres',
		"SELECT coalesce(sum($figure), 0) FROM remote_bp_stat_relations WHERE relation = '$relation'::regclass AND fork = 'main'");
}

my $sums = join(', ', map { "sum($_)" } my @counters = qw(hits staged_hits misses page_cache_reads disk_reads captures evictions));

# Does the sum of all databases become what the server counts?  A look reads, too, at first.
sub adds_up
{
	my ($name) = @_;
	my $all = join(', ', map { "t.$_" } @counters);
	my $session = $node->background_psql('postgres');
	ok( wait_for(
			'the sum',
			sub { $session->query("SELECT (SELECT ROW($sums)::text FROM remote_bp_stat_database) = ROW($all)::text FROM remote_bp_stat t") eq 't' },
			20),
		$name)
	  or diag($session->query("SELECT * FROM remote_bp_stat_database; SELECT ROW($all) FROM remote_bp_stat t"));
	$session->quit;
	return;
}

sub reset_all
{
	$node->safe_psql($_, 'SELECT pg_stat_reset()') for qw(elsewhere postgres);
	reset_counters($node);
	return;
}

# ---- several sessions at once, each with relations of its own ----

my %sql = (
	a => 'SET enable_seqscan = off; SET enable_bitmapscan = off; SELECT sum(hashtext(pad)) FROM a WHERE id > 0',
	b => 'SET remote_bp.page_cache_first = on; SET remote_bp.use_tier = read; SELECT sum(hashtext(pad)) FROM b',
	c => 'SET max_parallel_workers_per_gather = 2; SET parallel_setup_cost = 0; SET parallel_tuple_cost = 0; SELECT sum(hashtext(pad)) FROM c',
	e => 'SELECT sum(hashtext(pad)) FROM e');
wait_alone();
reset_all();
# of what it has read so far, donors have a part
$node->safe_psql('postgres', $sql{a});
my %session = map { $_ => $node->background_psql($_ eq 'e' ? 'elsewhere' : 'postgres') } keys %sql;
$session{$_}->query_until(qr/begun/, "\\echo begun\n" . "$sql{$_};\n" x 2) for sort keys %sql;
$session{$_}->query('SELECT 1') for sort keys %sql;
$session{$_}->quit for sort keys %sql;
wait_alone();
is(different($_), '', "$_: all pages that the server read, and no others") for qw(postgres elsewhere);
cmp_ok(figure('a', 'hits'), '>', 0, 'donors served a table');
cmp_ok(figure('a', 'hit_time'), '>', 0, 'in a time');
cmp_ok(figure('a_id', 'hits + staged_hits + misses'), '>', 0, 'and its index is counted by itself');
cmp_ok(figure('b', 'page_cache_reads + disk_reads'), '>', 0, 'the file served another');
is(figure('b', 'page_cache_reads + disk_reads + hits + staged_hits'), figure('b', 'hits + staged_hits + misses'), 'and for each page it is known from where');
is(figure('b', 'captures'), 0, 'of which nothing was captured');
cmp_ok(figure('c', 'hits + staged_hits + misses'), '>=', 2 * ($megabytes{c} * 128 - 256), q{parallel workers' reads count});
cmp_ok(figure('c', 'captures'), '>', 0, 'and what they captured');
ok( wait_for(
		'pages to be evicted',
		sub {
			$node->safe_psql('postgres', 'SELECT count(pad) FROM c');
			return $node->safe_psql('postgres', 'SELECT sum(evictions) FROM remote_bp_stat_relations') > 0;
		}),
	'pages that had to make room for others are counted');
cmp_ok(figure('e', 'hits + staged_hits + misses', 'elsewhere'), '>', 0, 'a table of another database is counted there');
adds_up('all databases together have what the server has done');
my $of_database = $node->safe_psql('postgres', <<'SQL');
SELECT d.hits + d.staged_hits + d.misses - sum(r.hits + r.staged_hits + r.misses) FROM remote_bp_stat_database d, remote_bp_stat_relations r
	LEFT JOIN pg_class c ON c.oid = r.relation
WHERE d.database = current_database() AND NOT coalesce(c.relisshared, false) GROUP BY d.hits, d.staged_hits, d.misses
SQL
is($of_database, 0, 'a database has what its relations have');

# ---- processes that end before they are done ----

for my $name (qw(b c))
{
	my $victim = $node->background_psql('postgres', on_error_stop => 0);
	my $pid = $victim->query('SELECT pg_backend_pid()');
	$victim->query_until(qr/begun/, "\\echo begun\n$sql{$name};\nSELECT pg_sleep(600);\n");
	my $before = figure($name, 'hits + staged_hits + misses');
	ok(wait_for('some of it to be seen', sub { figure($name, 'hits + staged_hits + misses') > $before || figure($name, 'hits + staged_hits + misses') >= 3 * ($megabytes{$name} * 128 - 256) }),
		"$name: a query is seen while it runs");
	is($node->safe_psql('postgres', "SELECT pg_terminate_backend($pid)"), 't', "$name: its session is terminated");
	eval { $victim->quit };
	wait_alone();
	is(different('postgres', 1), '', "$name: what it read is counted");
}

# ---- new files, resets ----

my $node_of_a = $node->safe_psql('postgres', q{SELECT pg_relation_filenode('a')});
$node->safe_psql('postgres', 'VACUUM FULL a');
$node->safe_psql('postgres', 'SELECT count(pad) FROM a');
is($node->safe_psql('postgres', "SELECT count(*) FROM remote_bp_stat_relations WHERE relfilenode = $node_of_a AND relation IS NULL AND fork = 'main'"), 1,
	'what was read of the old file is not that of the relation any more');
cmp_ok(figure('a', 'hits + staged_hits + misses'), '<=', 2 * 1024, 'which begins anew');
reset_counters($node);
is($node->safe_psql('postgres', "SELECT count(*) FROM remote_bp_stat_relations WHERE relfilenode = $node_of_a OR relation = 'b'::regclass"), 0, 'a reset removes them');
adds_up('after a reset, too');

# ---- bounds ----

$node->append_conf('postgresql.conf', "remote_bp.relations_max = 40\nremote_bp.policy_interval = '1h'\n");
$node->restart;
ok(wait_leased($node, 16), 'memory is leased again');
$node->safe_psql('postgres', join("\n", map { "CREATE TABLE s$_ AS SELECT repeat('x', 500) AS pad FROM generate_series(1, 20);" } 1 .. 30));
wait_alone();
$node->safe_psql('postgres', 'SELECT pg_stat_reset()');
# What is used again and again stays: more than 1,024 pages are reported at once.
my $reads = join("\n", map { "SELECT count(pad) FROM s$_; SELECT count(pad) FROM c;" } 1 .. 30);
$node->safe_psql('postgres', $reads);
wait_alone();
cmp_ok($node->safe_psql('postgres', 'SELECT count(*) FROM remote_bp_stat_relations'), '<=', 40, 'there are as many as are allowed');
is(figure('c', 'hits + staged_hits + misses'), $node->safe_psql('postgres', q{SELECT heap_blks_read FROM pg_statio_user_tables WHERE relname = 'c'}),
	'one that is used stays');
adds_up('the databases have what was replaced');
$node->append_conf('postgresql.conf', "remote_bp.relations_max = 0\n");
$node->restart;
ok(wait_leased($node, 16), 'memory is leased once more');
$node->safe_psql('postgres', 'SELECT count(pad) FROM a');
is($node->safe_psql('postgres', 'SELECT (SELECT count(*) FROM remote_bp_stat_relations) + (SELECT count(*) FROM remote_bp_stat_database)'), 0,
	'switched off, nothing is counted');
cmp_ok(counter($node, 'hits + staged_hits + misses'), '>', 0, 'but the server still counts');
is_clean($node, '', no_compare => 1);
$node->stop;

done_testing();
