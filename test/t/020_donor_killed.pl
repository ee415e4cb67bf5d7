# A donor is killed under load: its pages are read from disk, the other
# donor's go on being served, a new donor in its place is used.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use RemoteBP;
use Test::More;
use Time::HiRes qw(sleep);

for my $transport ('shm', 'tcp')
{
	my $broker = start_broker(name => "broker_$transport", args => [ '--donor-timeout', '2' ]);
	my $donor1 = start_donor($broker, id => "one_$transport", memory => '64MB');
	my $donor2 = start_donor($broker, id => "two_$transport", memory => '64MB');
	my $node = busy_cluster("kill_$transport", broker => $broker, transport => $transport);

	my $load = start_load($node, seconds => 15);
	wait_hits($node, "one_$transport", "two_$transport");
	$donor1->kill9;
	$load->goes_on_ok("$transport: the load goes on without a donor");
	ok(wait_hits($node), "$transport: the other donor serves");

	# In its place, the same name: all that it had is lost.
	$donor1 = start_donor($broker, id => "one_$transport", memory => '64MB');
	$load->finish_ok("$transport, donor killed");
	ok(wait_leased($node, 128), "$transport: the new donor's memory is leased");
	ok(serves_again($node, factor => 2), "$transport: most pages come from the tier again");
	is( $node->safe_psql('postgres', 'SELECT count(*) FROM remote_bp_stat_donors WHERE state = \'ok\' AND reads > 0'),
		2, "$transport: both donors are in use");
	is_clean($node, $transport);

	# Both at once: no memory at all, no harm.
	$load = start_load($node, seconds => 8);
	$donor1->kill9;
	$donor2->kill9;
	$load->finish_ok("$transport, all donors killed");
	is_clean($node, "$transport, all donors killed");
	$node->stop;
	$broker->stop;
}

done_testing();
