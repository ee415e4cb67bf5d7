# A donor hangs under load (SIGSTOP): each process waits a bounded time at
# most, then the donor is down; when it goes on, it is used again.

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
	# The broker shall not give the donor up, however long this takes.
	my $broker = start_broker(name => "broker_$transport", args => [ '--donor-timeout', '600' ]);
	my $donor1 = start_donor($broker, id => "one_$transport", memory => '64MB');
	my $donor2 = start_donor($broker, id => "two_$transport", memory => '64MB');
	my $node = busy_cluster(
		"hang_$transport",
		broker => $broker,
		transport => $transport,
		conf => "remote_bp.io_timeout = '100ms'\n");

	my $load = start_load($node, seconds => 15);
	wait_hits($node);
	my $before = counters($node);
	$donor1->freeze;
	$load->goes_on_ok("$transport: each client goes on while the donor hangs");
	if ($transport eq 'tcp')
	{
		# Over shm, memory does not hang with the process.
		my $moved = sub { my $c = counters($node); return map { $c->{$_} - $before->{$_} } @_ };
		ok(wait_for('a timeout', sub { ($moved->('timeouts'))[0] > 0 }), "$transport: waits have ended by timeout");
		ok( wait_for(
				'the donor to be down',
				sub {
					$node->safe_psql('postgres', "SELECT state FROM remote_bp_stat_donors WHERE donor = 'one_tcp'") eq 'down';
				}),
			"$transport: the donor is down, and the view shows it");
		ok(wait_for('reads that do not wait', sub { my ($t, $a) = $moved->(qw(timeouts donor_down)); return $a > $t; }),
			"$transport: few wait, most do not");
	}
	ok(wait_hits($node), "$transport: pages are served all the while");
	$load->goes_on_ok("$transport: each client still goes on");
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
