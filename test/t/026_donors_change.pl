# Donors come and go under load: one is added and used, one is drained by
# hand, one by SIGTERM, and none of it is felt.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use RemoteBP;
use Test::More;
use Time::HiRes qw(sleep);

my $broker = start_broker();
my $donor1 = start_donor($broker, id => 'one', memory => '64MB');
my $node = busy_cluster(
	'donors',
	broker => $broker,
	tier => '128MB',
	leased => '64MB',
	conf => "remote_bp.lease_ttl = '4s'\n");

sub donor_bytes
{
	my ($donor) = @_;
	return $node->safe_psql('postgres',
		"SELECT coalesce(sum(bytes), 0) FROM remote_bp_leases WHERE donor = '$donor'");
}

my $load = start_load($node, seconds => 25);
my $donor2 = start_donor($broker, id => 'two', memory => '64MB');
ok(wait_leased($node, 128), 'a donor that is added is used');
ok( wait_for(
		'pages on the new donor',
		sub {
			$node->safe_psql('postgres', q{SELECT used_bytes FROM remote_bp_stat_donors WHERE donor = 'two'}) > 0;
		}),
	'for pages, too');

# Drained: all its memory comes back, and none is leased from it.
my ($status) = ctl($broker, 'drain', 'one');
is($status, 0, 'a donor is drained');
ok(wait_for('the drained donor to be empty', sub { donor_bytes('one') == 0 }),
	'a drained donor gets its memory back');
is(donor_bytes('two'), 64 * 1024 * 1024, 'the other donor keeps on serving');
ok(wait_hits($node), 'there are hits while a donor is drained');
is($donor1->stop, 0, 'the drained donor stops cleanly');

# One more, then the other goes by SIGTERM, which drains by itself.
my $donor3 = start_donor($broker, id => 'three', memory => '64MB');
ok(wait_for('the third donor to be used', sub { donor_bytes('three') > 0 }), 'a third donor is used');
is($donor2->stop(120), 0, 'the second donor stops cleanly on SIGTERM');
is(donor_bytes('two'), 0, 'the second donor has its memory back when it stops');
$load->finish_ok('donors added and drained');
ok(serves_again($node), 'most pages come from the tier again');

($status) = ctl($broker, 'drain', 'nobody');
isnt($status, 0, 'an unknown donor cannot be drained');
is_clean($node);
$node->stop;

done_testing();
