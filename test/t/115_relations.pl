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
	compare => 0,
	io_workers => 0,
	conf => "remote_bp.io_timeout = '5s'\nmax_parallel_workers = 8\nremote_bp.advice = on\nremote_bp.advice_max_size = '16MB'\n");
ok(wait_leased($node, 16), 'memory is leased');
$node->safe_psql('postgres', 'CREATE DATABASE elsewhere');

my %megabytes = (a => 4, b => 8, c => 10);
make_table($node, $_, $megabytes{$_}) for sort keys %megabytes;
make_table($node, 'e', 4, db => 'elsewhere');
create_extension($node, 'elsewhere');
$node->safe_psql('postgres', 'ALTER TABLE c SET (parallel_workers = 2)');
warm($node, 'a', part => 0.3);

# A session that is the only one: what others did is counted.  The policy worker is held.
sub alone
{
	my $session = $node->background_psql('postgres');
	ok( wait_for(
			'sessions to end',
			sub {
				$session->query(q{SELECT count(*) FROM pg_stat_activity WHERE backend_type IN ('client backend', 'parallel worker', 'remote_bp policy worker')
						AND pid <> pg_backend_pid()}) eq '0';
			}),
		'the sessions end');
	return $session;
}

sub wait_alone
{
	alone()->quit;
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

# after a reset there may be no row at all
my $sums = join(', ', map { "coalesce(sum($_), 0)" } my @counters = qw(hits staged_hits misses page_cache_reads disk_reads captures evictions));

my $all = join(', ', map { "t.$_" } @counters);

sub sums_equal
{
	my ($session) = @_;
	return $session->query("SELECT (SELECT ROW($sums)::text FROM remote_bp_stat_database) = ROW($all)::text FROM remote_bp_stat t") eq 't';
}

# Does the sum of all databases become what the server counts?  A look reads, too, at first.
sub adds_up
{
	my ($name) = @_;
	my $session = $node->background_psql('postgres');
	ok(wait_for('the sum', sub { sums_equal($session) }, 20), $name)
	  or diag($session->query("SELECT * FROM remote_bp_stat_database; SELECT ROW($all) FROM remote_bp_stat t"));
	$session->quit;
	return;
}

# A page counts for the server first, and then for its relation: a reset in between
# would leave them different.  So nobody else reads, and the pusher has nothing to do;
# if a page came in between nevertheless, the reset is repeated.
sub reset_alone
{
	alone()->quit;
	wait_still($node, qw(captures pushes evictions staged_pages));
	my $session = alone();
	ok( wait_for(
			'a reset with no page in between',
			sub {
				$session->query('SELECT remote_bp_stat_reset()');
				return wait_for('the sum', sub { sums_equal($session) }, 5);
			}),
		'the counts are reset');
	$session->quit;
	return;
}

# ---- several sessions at once, each with relations of its own ----

my %sql = (
	a => 'SET enable_seqscan = off; SET enable_bitmapscan = off; SELECT sum(hashtext(pad)) FROM a WHERE id > 0',
	b => 'SET remote_bp.read_from = cache; SET remote_bp.use_tier = read; SELECT sum(hashtext(pad)) FROM b',
	c => 'SET max_parallel_workers_per_gather = 2; SET parallel_setup_cost = 0; SET parallel_tuple_cost = 0; SELECT sum(hashtext(pad)) FROM c',
	e => 'SELECT sum(hashtext(pad)) FROM e');
my $go_on = hold_policy_worker($node);
wait_alone();
$node->safe_psql($_, 'SELECT pg_stat_reset()') for qw(elsewhere postgres);
reset_alone();
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
my $of_database = <<'SQL';
SELECT d.hits + d.staged_hits + d.misses - sum(r.hits + r.staged_hits + r.misses) FROM remote_bp_stat_database d, remote_bp_stat_relations r
	LEFT JOIN pg_class c ON c.oid = r.relation
WHERE d.database = current_database() AND NOT coalesce(c.relisshared, false) GROUP BY d.hits, d.staged_hits, d.misses
SQL
# A look reads, too, at first.
my $observer = $node->background_psql('postgres');
ok(wait_for('the sum of relations', sub { $observer->query($of_database) eq '0' }, 20), 'a database has what its relations have');
$observer->quit;

# ---- processes that end before they are done ----

for my $name (qw(b c))
{
	my $victim = $node->background_psql('postgres', on_error_stop => 0);
	my $pid = $victim->query('SELECT pg_backend_pid()');
	my $before = figure($name, 'hits + staged_hits + misses');
	$victim->query_until(qr/begun/, "\\echo begun\n$sql{$name};\nSELECT pg_sleep(600);\n");
	ok(wait_for('some of it to be seen', sub { figure($name, 'hits + staged_hits + misses') > $before }), "$name: what a query reads is seen before its session ends");
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
cmp_ok(figure('a', 'hits + staged_hits + misses'), '<=', 2 * 512, 'which begins anew');
reset_alone();
is($node->safe_psql('postgres', "SELECT count(*) FROM remote_bp_stat_relations WHERE relfilenode = $node_of_a OR relation = 'b'::regclass"), 0, 'a reset removes them');
adds_up('after a reset, too');

# What a transaction has read is reported when it ends, but not what was before a reset.
my $reader = $node->background_psql('postgres');
my $of_transaction = q{SELECT pg_stat_get_xact_blocks_fetched('b'::regclass) - pg_stat_get_xact_blocks_hit('b'::regclass)};
$reader->query(q{BEGIN; SELECT count(pad) FROM b WHERE ctid < '(100,0)'});
my $lost = $reader->query($of_transaction);
cmp_ok($lost, '>', 0, 'a transaction reads');
# a part, if it needed the room for what it counts of catalogs
note(figure('b', 'hits + staged_hits + misses') . ' of them are reported');
$node->safe_psql('postgres', 'SELECT remote_bp_stat_reset()');
$reader->query(q{SELECT count(pad) FROM b WHERE ctid >= '(200,0)' AND ctid < '(500,0)'});
my $kept = $reader->query($of_transaction) - $lost;
cmp_ok($kept, '>', 0, 'it reads more after a reset');
$reader->query('COMMIT');
$reader->quit;
wait_alone();
is(figure('b', 'hits + staged_hits + misses'), $kept, 'a reset discards what is not reported, and nothing that comes later');

# ---- sessions that end soon ----

# The advice counts all reads, but for less than 64 of the session that looks.
my $looker = alone();
my $look = q{SELECT (SELECT hits + staged_hits + misses FROM remote_bp_stat) - (SELECT max(reads) FROM remote_bp_advice)};
my $before = $looker->query($look);
$node->safe_psql('postgres', "SELECT count(pad) FROM b WHERE ctid < '($_,0)'") for map { 5 * $_ } 1 .. 15;
$looker->quit;
$looker = alone();
cmp_ok(abs($looker->query($look) - $before), '<', 64, 'reads of sessions that have ended are observed');
$looker->quit;
$go_on->();

# ---- bounds ----

$node->append_conf('postgresql.conf', "remote_bp.relations_max = 100\nremote_bp.policy_interval = '1h'\n");
# from here on, I/O workers read, where there are some
$node->append_conf('postgresql.conf', "io_method = worker\n") if $node->pg_version >= 18;
$node->restart;
ok(wait_leased($node, 16), 'memory is leased again');
$go_on = hold_policy_worker($node);
$node->safe_psql('postgres', join("\n", map { "CREATE TABLE s$_ AS SELECT repeat('x', 500) AS pad FROM generate_series(1, 20);" } 1 .. 150));
wait_alone();
$node->safe_psql('postgres', 'SELECT pg_stat_reset()');
reset_alone();
# What is used again and again stays: more than 1,024 pages are reported at once.  There is
# room for all catalogs, which may be reported together.
my $reads = join("\n", map { "SELECT count(pad) FROM s$_;" . ($_ % 6 ? '' : ' SELECT count(pad) FROM c;') } 1 .. 150);
$node->safe_psql('postgres', $reads);
wait_alone();
cmp_ok($node->safe_psql('postgres', 'SELECT count(*) FROM remote_bp_stat_relations'), '<=', 100, 'there are as many as are allowed');
my $c_read = $node->safe_psql('postgres', q{SELECT heap_blks_read FROM pg_statio_user_tables WHERE relname = 'c'});
ok(wait_for('what I/O workers have read', sub { figure('c', 'hits + staged_hits + misses') == $c_read }, 20), 'one that is used stays')
  or diag("$c_read pages; " . $node->safe_psql('postgres', q{SELECT relation::regclass, fork, hits + staged_hits + misses FROM remote_bp_stat_relations}));
adds_up('the databases have what was replaced');
$go_on->();
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
