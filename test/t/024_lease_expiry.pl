# A broker that hangs for longer than the lease lasts: the server stops using
# the memory at the deadline, and so does the donor; then there is a new lease.

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
	my $donor = start_donor($broker, id => "donor_$transport", memory => '128MB');
	my $node = busy_cluster(
		"expiry_$transport",
		broker => $broker,
		transport => $transport,
		conf => "remote_bp.lease_ttl = '3s'\n");

	my $load = start_load($node, seconds => 16);
	wait_hits($node);
	$broker->freeze;
	ok( wait_for(
			'the deadline',
			sub { $node->safe_psql('postgres', q{SELECT count(*) FROM remote_bp_leases WHERE expires_in > interval '0'}) == 0 }),
		"$transport: an expired lease is not shown as valid");
	# What was under way then has ended when each client has gone on.
	$load->goes_on_ok("$transport: each client goes on");
	wait_still($node, 'hits', 'bytes_written');
	my $c = counters($node);
	sleep 2;
	my $later = counters($node);
	is($later->{hits} - $c->{hits}, 0, "$transport: nothing is read past the deadline");
	is($later->{bytes_written} - $c->{bytes_written}, 0, "$transport: nothing is written past the deadline");
	$broker->thaw;
	ok( wait_for(
			'a new lease',
			sub {
				$node->safe_psql('postgres',
					q{SELECT coalesce(sum(bytes), 0) FROM remote_bp_leases WHERE expires_in > interval '0'})
				  >= 128 * 1024 * 1024;
			}),
		"$transport: memory is leased again");
	$load->finish_ok("$transport, lease expired");
	ok(serves_again($node, factor => 2), "$transport: most pages come from the tier again");
	is_clean($node, $transport);
	$node->stop;
	$donor->stop;
	$broker->stop;
}

done_testing();
