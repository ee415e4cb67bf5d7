# Replies that are wrong, short, late, or do not come, and connections that
# break, under load: the disk is read instead, and no page is wrong.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use RemoteBP;
use Test::More;
use Time::HiRes qw(sleep);

need_test_build();
set_faults();
my $broker = start_broker();
my $donor = start_donor($broker, memory => '128MB');

for my $transport ('tcp', 'shm')
{
	# compare_with_disk off: a wrong page would reach the queries.
	my $node = busy_cluster(
		"faults_$transport",
		broker => $broker,
		transport => $transport,
		test_build => 1,
		compare => 0,
		checksums => 1,
		conf => "remote_bp.io_timeout = '100ms'\n");

	my @cases = (
		[ 'corrupted replies', 'hash_failures', 'read corrupt 0.2' ],
		[ 'short replies', 'hash_failures', 'read truncate 0.2' ],
		[ 'corrupted pushes', 'hash_failures', 'write corrupt 0.2' ],
		[ 'lost replies', 'timeouts', 'read drop 0.05' ]);
	push @cases,
	  ( [ 'late replies', 'timeouts', 'read delay_us 300000 0.05' ],
		[ 'lost pushes', 'pushes_failed', 'write drop 0.2' ],
		[ 'cut connections', 'io_errors', 'read cut 0.01', 'write cut 0.05' ],
		[ 'refused connections', 'fallbacks', 'connect refuse', 'read cut 0.01' ])
	  if $transport eq 'tcp';
	for my $case (@cases)
	{
		my ($what, $counter, @faults) = @$case;
		ok(serves_again($node), "$transport, $what: the tier is in use before");
		my $before = counters($node);
		my $load = start_load($node, seconds => 3, clients => 3);
		set_faults(@faults);
		ok(wait_for("$counter to grow", sub { counter($node, $counter) > $before->{$counter} }, 300), "$transport, $what: the faults happen");
		# It ends with faults in force
		$load->finish_ok("$transport, $what");
		set_faults();
		# The next case would find what was corrupted: each time, the donor is down for twice as long.
		$node->safe_psql('postgres', q{SELECT remote_bp_evict(oid) FROM pg_class WHERE relname LIKE 'pgbench%' AND relkind IN ('r', 'i')})
		  if "@faults" =~ /write corrupt/;
		ok(serves_again($node), "$transport, $what: the tier is in use afterwards");
	}
	is($node->safe_psql('postgres', 'SELECT count(*), count(DISTINCT aid) FROM pgbench_accounts WHERE aid > 0'),
		'400000|400000', "$transport: all accounts are there");
	is($node->safe_psql('postgres', 'SELECT coalesce(sum(checksum_failures), 0) FROM pg_stat_database'),
		0, "$transport: no checksum failed");

	# With the faults of all kinds at once, everything compared.
	$node->safe_psql('postgres', 'ALTER SYSTEM SET remote_bp.compare_with_disk = on');
	$node->reload;
	$node->poll_query_until('postgres', 'SHOW remote_bp.compare_with_disk', 'on');
	my $load = start_load($node, seconds => 5, clients => 3);
	set_faults('read corrupt 0.05', 'read truncate 0.05', 'write corrupt 0.05', 'write truncate 0.05', 'read delay_us 500 0.05');
	$load->finish_ok("$transport, all at once");
	set_faults();
	is_clean($node, "$transport, all at once", hash_failures => 1);
	$node->stop;
}

done_testing();
