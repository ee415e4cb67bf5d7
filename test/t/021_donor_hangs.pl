# A donor hangs under load (SIGSTOP): each process waits a bounded time at
# most, then the donor is avoided; when it goes on, it is used again.
# Alone

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use RemoteBP;
use Test::More;
use Time::HiRes qw(sleep);

for my $transport ('tcp', 'shm')
{
	my $broker = start_broker(name => "broker_$transport");
	my $donor1 = start_donor($broker, id => "one_$transport", memory => '64MB');
	my $donor2 = start_donor($broker, id => "two_$transport", memory => '64MB');
	my $node = busy_cluster("hang_$transport", broker => $broker, transport => $transport);

	my $load = start_load($node, seconds => 15);
	sleep 2;
	$donor1->freeze;
	sleep 5;
	my $c = counters($node);
	if ($transport eq 'tcp')
	{
		# Over shm, memory does not hang with the process.
		cmp_ok($c->{timeouts}, '>', 0, "$transport: waits have ended by timeout");
		cmp_ok($c->{avoided}, '>', 0, "$transport: and the donor is avoided");
		is( $node->safe_psql('postgres', "SELECT state FROM remote_bp_stat_donors WHERE donor = 'one_tcp'"),
			'avoided', "$transport: and is shown so");
		cmp_ok($c->{timeouts}, '<', $c->{avoided}, "$transport: few wait, most do not");
	}
	my $hits = counter($node, 'hits');
	sleep 1;
	cmp_ok(counter($node, 'hits'), '>', $hits, "$transport: pages are served all the while");
	ok($load->running, "$transport: the load goes on");
	$donor1->thaw;
	$load->finish_ok("$transport, donor hanging");
	ok( wait_for(
			'the donor to be used again',
			sub {
				$node->safe_psql('postgres', 'SELECT count(*) FROM pgbench_accounts');
				return $node->safe_psql('postgres',
					"SELECT state FROM remote_bp_stat_donors WHERE donor = 'one_$transport'") eq 'ok';
			}),
		"$transport: the donor is used again");
	ok(serves_again($node, factor => 2), "$transport: most pages come from the tier again");
	# What was sent before the donor hung may be written when it goes on, into
	# a slot that is another page's by then: its hash tells, which is enough.
	is_clean($node, $transport, hash_failures => 1);
	$node->stop;
	$broker->stop;
}

done_testing();
