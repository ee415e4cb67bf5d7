# A streaming standby with the extension on both sides and memory from the
# same broker: reads there while the primary writes, replay of everything that
# makes pages stale, promotion.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use RemoteBP;
use Test::More;

my $broker = start_broker();
my $donor1 = start_donor($broker, id => 'donor1', memory => '128MB');
my $donor2 = start_donor($broker, id => 'donor2', memory => '128MB');
my $primary = new_cluster(
	'primary',
	broker => $broker,
	streaming => 1,
	shared_buffers => '1MB',
	tier => '96MB');
ok(wait_leased($primary, 96), 'the primary has memory');
RemoteBP::Load->prepare($primary, 3);
my $rows = make_table($primary, 't', 8);

$primary->backup('base');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($primary, 'base', has_streaming => 1);
# Small enough that replay evicts pages all the time
$standby->append_conf('postgresql.conf', "shared_buffers = '1MB'\nhot_standby_feedback = on\n");
$standby->start;
ok(wait_leased($standby, 96), 'the standby has memory, too');

sub same_on_both
{
	my ($what, $query, $db) = @_;
	$primary->wait_for_catchup($standby, 'replay', $primary->lsn('insert'));
	my $wanted = $primary->safe_psql($db // 'postgres', $query);
	is($standby->safe_psql($db // 'postgres', $query), $wanted, "$what: the same on both");
	return;
}

my $sums = q{SELECT (SELECT sum(abalance) FROM pgbench_accounts), (SELECT sum(tbalance) FROM pgbench_tellers),
	(SELECT sum(bbalance) FROM pgbench_branches), (SELECT coalesce(sum(delta), 0) FROM pgbench_history)};
my $hashes = 'SELECT count(*), sum(v), sum(hashtext(t::text)::bigint) FROM t';

# Reads on the standby while the primary writes.
my $load = start_load($primary, seconds => 12, clients => 3, scripts => [ '-b', 'tpcb-like' ]);
my $reads = start_load($standby, seconds => 10, clients => 3, scripts => [ '-b', 'select-only' ]);
$load->finish_ok('writes on the primary');
$reads->finish_ok('reads on the standby');
same_on_both('after the load', $sums);
same_on_both('after the load, again', $sums);

# A table that the standby has in its tier, changed in every way on the primary.
for my $change (
	[ 'update', 'UPDATE t SET v = v + 1 WHERE id % 3 = 0' ],
	[ 'delete and truncating vacuum', "DELETE FROM t WHERE id > $rows / 2", 'VACUUM (TRUNCATE on) t' ],
	[ 'grown again', "INSERT INTO t SELECT i, 6, rpad(i::text, 980, 'g') FROM generate_series($rows / 2 + 1, $rows) i" ],
	[ 'vacuum full', 'VACUUM FULL t' ],
	[ 'truncate', 'TRUNCATE t', "INSERT INTO t SELECT i, 8, rpad(i::text, 980, 'h') FROM generate_series(1, $rows) i" ],
	[ 'reindex', 'REINDEX TABLE t' ],
	[ 'cluster', 'CLUSTER t USING t_id' ])
{
	my ($what, @sql) = @$change;
	$primary->wait_for_catchup($standby, 'replay', $primary->lsn('insert'));
	cmp_ok(standby_warm(), '>', 0, "$what: the standby's tier has pages");
	$primary->safe_psql('postgres', $_) for @sql;
	same_on_both($what, $hashes);
	flush_standby();
	same_on_both("$what, evicted", $hashes);
	same_on_both("$what, by index",
		"SET enable_seqscan = off; SET enable_bitmapscan = off; $hashes WHERE id > 0");
}

# Databases come and go, by the same object id.
$primary->safe_psql('postgres', 'CREATE DATABASE one');
$primary->safe_psql('one', 'CREATE TABLE t AS SELECT i AS id, 1 AS v, repeat(\'1\', 500) AS pad FROM generate_series(1, 4000) i');
$primary->safe_psql('postgres', 'CREATE DATABASE two TEMPLATE one');
$primary->safe_psql('two', 'UPDATE t SET v = 2; VACUUM FULL t; UPDATE t SET v = 3');
for my $strategy ('file_copy', 'wal_log')
{
	$primary->safe_psql('postgres', "CREATE DATABASE again TEMPLATE one STRATEGY $strategy OID 71000");
	same_on_both("$strategy", $hashes, 'again');
	flush_standby();
	same_on_both("$strategy, again", $hashes, 'again');
	$primary->safe_psql('postgres', 'DROP DATABASE again');
	$primary->safe_psql('postgres', "CREATE DATABASE again TEMPLATE two STRATEGY $strategy OID 71000");
	same_on_both("$strategy, the same object id", $hashes, 'again');
	flush_standby();
	same_on_both("$strategy, the same object id, again", $hashes, 'again');
	$primary->safe_psql('postgres', 'DROP DATABASE again');
}

my $c = counters($standby);
cmp_ok($c->{hits}, '>', 0, 'the standby reads from donors');
cmp_ok($c->{pushes}, '>', 0, 'the standby writes to donors');
is($c->{mismatches}, 0, 'no page was different');

# The end of the primary.
$primary->wait_for_catchup($standby, 'replay', $primary->lsn('insert'));
my $last = $primary->safe_psql('postgres', $sums);
is_clean($primary, 'primary');
$primary->stop('immediate');
$standby->promote;
$standby->poll_query_until('postgres', 'SELECT NOT pg_is_in_recovery()');
is($standby->safe_psql('postgres', $sums), $last, 'promoted: all is there');
my $pushes = counter($standby, 'pushes');
$load = start_load($standby, seconds => 8, clients => 3);
$load->finish_ok('writes after the promotion');
is( $standby->safe_psql(
		'postgres', q{SELECT (SELECT sum(tbalance) FROM pgbench_tellers) = (SELECT sum(bbalance) FROM pgbench_branches)}),
	't', 'promoted: balances agree');
cmp_ok(counter($standby, 'pushes'), '>', $pushes, 'promoted: the tier is in use');
is_clean($standby, 'standby');
$standby->stop;

done_testing();

# The standby cannot make a table to flush its buffers with: accounts do.
sub flush_standby
{
	$standby->safe_psql('postgres',
		'SET enable_seqscan = off; SET enable_bitmapscan = off; SELECT count(filler) FROM pgbench_accounts WHERE aid < 20000');
	return;
}

sub standby_warm
{
	my $held = 0;
	wait_for(
		'pages in the standby\'s tier',
		sub {
			$standby->safe_psql('postgres', $hashes);
			flush_standby();
			$held = tier_pages($standby, 't');
			return $held > 200;
		},
		120);
	return $held;
}
