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

# A donor without shared memory that is started again on the same port: the server
# knows that its memory is new, and does not look for its pages there.
{
	my $broker = start_broker(name => 'again');
	my @options = (id => 'again', memory => '64MB', args => [ '--transports', 'tcp' ]);
	my $donor = start_donor($broker, @options);
	my $node = new_cluster('again', broker => $broker, tier => '32MB', transport => 'tcp');
	wait_leased($node, 32) or BAIL_OUT('no memory');
	make_table($node, 't', 4);
	ok(warm($node, 't'), 'the same port: there are pages on the donor');
	$donor->kill9;
	start_donor($broker, @options);
	# those of the table: what asks for them reads pages of others, which may be captured
	ok(wait_for('the pages to be gone', sub { tier_pages($node, 't') == 0 }), 'the same port: the server knows that the memory is new');
	ok(wait_for('pages on the donor', sub { wait_donors_used($node) && warm($node, 't') }), 'the same port: the donor is used again');
	is(counter($node, 'hash_failures'), 0, 'the same port: no page was looked for in new memory');
	$node->stop;
}

done_testing();
