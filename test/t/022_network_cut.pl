# The network between the server and a donor is cut under load, in both ways:
# packets vanish, and connections are refused.

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
my $proxy = start_proxy();
my $donor1 = start_donor($broker, id => 'far', memory => '64MB', advertise => $proxy->address);
$proxy->lead_to($donor1->address);
my $donor2 = start_donor($broker, id => 'near', memory => '64MB');
my $node = busy_cluster(
	'network',
	broker => $broker,
	transport => 'tcp',
	conf => "remote_bp.io_timeout = '100ms'\n");
cmp_ok($node->safe_psql('postgres', q{SELECT reads FROM remote_bp_stat_donors WHERE donor = 'far'}),
	'>', 0, 'the far donor is read');

for my $cut ('silence', 'refuse')
{
	my $before = counters($node);
	my $load = start_load($node, seconds => 14);
	wait_hits($node);
	$proxy->$cut;
	ok( wait_for(
			'the far donor to be down',
			sub {
				$node->safe_psql('postgres', q{SELECT state FROM remote_bp_stat_donors WHERE donor = 'far'}) ne 'ok';
			}),
		"$cut: the far donor is down");
	$load->goes_on_ok("$cut: each client goes on");
	ok(wait_hits($node), "$cut: the near donor serves");
	$proxy->mend;
	$load->finish_ok("$cut");
	my $after = counters($node);
	cmp_ok($after->{fallbacks}, '>', $before->{fallbacks}, "$cut: pages of the far donor were read from disk");
	ok( wait_for(
			'the far donor to be used again',
			sub {
				$node->safe_psql('postgres', 'SELECT count(*) FROM pgbench_accounts');
				return $node->safe_psql('postgres',
					q{SELECT state FROM remote_bp_stat_donors WHERE donor = 'far'}) eq 'ok';
			}),
		"$cut: the far donor is used again");
	my $reads = $node->safe_psql('postgres', q{SELECT reads FROM remote_bp_stat_donors WHERE donor = 'far'});
	ok( wait_for(
			'reads of the far donor',
			sub { serves_again($node) && $node->safe_psql('postgres', "SELECT reads > $reads FROM remote_bp_stat_donors WHERE donor = 'far'") eq 't' }),
		"$cut: most pages come from the tier again, some from the far donor");
}
# As in 021: what was held up on the way may be written late.
is_clean($node, undef, hash_failures => 1);
$node->stop;

done_testing();
