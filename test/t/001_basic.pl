# Pages go to a donor when they are evicted and come back when they are read,
# over each transport; the tier comes back after a restart; a server without
# a broker has no tier and does not mind.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use RemoteBP;
use Test::More;

my $broker = start_broker();
my $donor1 = start_donor($broker, id => 'donor1', memory => '64MB');
my $donor2 = start_donor($broker, id => 'donor2', memory => '64MB');

for my $transport ('shm', 'tcp')
{
	my $node =
	  new_cluster("basic_$transport", broker => $broker, transport => $transport);
	ok(wait_leased($node, 64), "$transport: the tier gets its memory");

	my $rows = make_table($node, 'pages', 24);
	my $before = content($node, 'pages');
	like($before, qr/^$rows\|0\|-?\d+$/, "$transport: the table is read");
	ok(warm($node, 'pages'), "$transport: evicted pages are in the tier");

	# On a busy machine donors are late, and down, for a while.
	my ($c, $different) = (undef, 0);
	my $round = sub {
		my $start = counters($node);
		$different += content($node, 'pages') ne $before for 1 .. 3;
		$c = counters($node);
		$c->{$_} -= $start->{$_} for qw(hits staged_hits misses bytes_read);
	};
	ok( wait_for(
			'most reads to be hits',
			sub {
				$round->();
				return $different || $c->{hits} + $c->{staged_hits} > $c->{misses};
			},
			300),
		"$transport: most reads are hits")
	  or diag(explain($c));
	is($different, 0, "$transport: read again, the same");
	cmp_ok($c->{hits}, '>', 0, "$transport: donors served pages");
	cmp_ok($c->{bytes_read}, '>=', $c->{hits} * 8192,
		"$transport: the bytes came from donors");

	# Each donor has a share, by this way and no other.
	ok( wait_for(
			'both donors',
			sub {
				$round->();
				return $node->safe_psql(
					'postgres',
					'SELECT count(*), min(transport), max(transport), bool_and(reads > 0), bool_and(writes > 0)
					   FROM remote_bp_stat_donors') eq "2|$transport|$transport|t|t";
			},
			300),
		"$transport: both donors are read and written over it")
	  or diag($node->safe_psql('postgres', 'TABLE remote_bp_stat_donors'));
	is($node->safe_psql('postgres', 'SELECT sum(bytes), count(DISTINCT donor) FROM remote_bp_leases'),
		64 * 1024 * 1024 . '|2', "$transport: the lease is spread over both");
	cmp_ok(
		$node->safe_psql('postgres',
			q{SELECT count(*) FROM remote_bp_stat_latency WHERE operation = 'hit' AND calls > 0}),
		'>', 0, "$transport: hits have latencies");

	# The lease ends with the server; the next start has an empty tier.
	$node->restart;
	is(content($node, 'pages'), $before, "$transport: the same after a restart");
	ok(wait_leased($node, 64), "$transport: memory again after a restart");
	ok(warm($node, 'pages'), "$transport: pages again after a restart");
	reset_counters($node);
	ok( wait_for(
			'hits',
			sub {
				$different += content($node, 'pages') ne $before;
				return $different || counter($node, 'hits + staged_hits') > 0;
			},
			300),
		"$transport: there are hits");
	is($different, 0, "$transport: the same from the tier");
	is_clean($node, $transport);

	# Giving a relation's pages up empties the tier of them, and no more.
	# No buffer may hold one, which the next query's reads could put there again.
	evict_buffers($node);
	cmp_ok($node->safe_psql('postgres', q{SELECT remote_bp_evict('pages')}),
		'>', 0, "$transport: remote_bp_evict drops pages");
	is(tier_pages($node, 'pages'), 0, "$transport: the tier has none of them then");
	is(content($node, 'pages'), $before, "$transport: reads after remote_bp_evict are right");

	# Switched off and on while running.
	$node->safe_psql('postgres', 'ALTER SYSTEM SET remote_bp.enabled = off');
	$node->reload;
	$node->poll_query_until('postgres', 'SHOW remote_bp.enabled', 'off');
	evict_buffers($node);
	reset_counters($node);
	is(content($node, 'pages'), $before, "$transport: switched off, reads are right");
	is(counter($node, 'hits + staged_hits'), 0, "$transport: switched off, no hits");
	$node->safe_psql('postgres', 'UPDATE pages SET v = 1');
	$node->safe_psql('postgres', 'ALTER SYSTEM RESET remote_bp.enabled');
	$node->reload;
	$node->poll_query_until('postgres', 'SHOW remote_bp.enabled', 'on');
	my $after = $node->safe_psql('postgres', 'SELECT count(*), sum(v) FROM pages');
	is($after, "$rows|$rows", "$transport: writes made while switched off are read");
	ok(warm($node, 'pages', part => 0.3), "$transport: switched on, pages come again");
	is($node->safe_psql('postgres', 'SELECT count(*), sum(v) FROM pages'),
		"$rows|$rows", "$transport: pages from the tier are the new ones");
	is(counter($node, 'mismatches'), 0, "$transport: no page is different from the disk");

	$node->stop;
	ok( wait_for(
			'the memory to be given back',
			sub {
				my $leases = http_json($broker, 'GET', '/v1/leases');
				$leases = $leases->{leases} if ref $leases eq 'HASH';
				return $leases && !@$leases;
			},
			30),
		"$transport: a server that stops gives its memory back");
}

# No broker: no tier, no workers that complain, all else as ever.
my $plain = new_cluster('basic_off');
make_table($plain, 'pages', 4);
my $before = content($plain, 'pages');
evict_buffers($plain);
is(content($plain, 'pages'), $before, 'without a broker, reads are right');
my $c = counters($plain);
is($c->{hits} + $c->{staged_hits} + $c->{captures},
	0, 'without a broker, nothing is captured or served');
is(leased_bytes($plain), 0, 'without a broker, nothing is leased');
unlike(log_since($plain), qr/(WARNING|ERROR|FATAL):.*remote_bp/,
	'without a broker, nothing complains');

# A broker given later takes effect without a restart.
$plain->append_conf('postgresql.conf', "remote_bp.broker = '" . $broker->url . "'\n");
$plain->reload;
ok(wait_leased($plain, 64), 'a broker given later is used');
ok(warm($plain, 'pages', part => 0.3), 'pages go to the tier of that broker');
is(content($plain, 'pages'), $before, 'pages from the tier of that broker are right');
is_clean($plain, 'broker given later');

# Not for everyone.
$plain->safe_psql('postgres', 'CREATE ROLE nobody; CREATE ROLE watcher IN ROLE pg_monitor');
for my $view (qw(remote_bp_stat remote_bp_stat_spill remote_bp_stat_donors remote_bp_stat_latency remote_bp_leases remote_bp_relations
	remote_bp_temp_files))
{
	my ($ret, $out, $err) =
	  $plain->psql('postgres', "SET ROLE nobody; SELECT count(*) FROM $view");
	like($err, qr/permission denied/, "$view is not for PUBLIC");
	($ret, $out, $err) =
	  $plain->psql('postgres', "SET ROLE watcher; SELECT count(*) FROM $view");
	is($ret, 0, "$view is for pg_monitor") or diag($err);
}
$plain->stop;
is($donor1->stop, 0, 'a donor stops cleanly');
is($donor2->stop, 0, 'the other too');
is($broker->stop, 0, 'the broker stops cleanly');

done_testing();
