# A donor hangs while the pusher has no connection to it, and a wait is longer
# than a connection may be in the making: it is down all the same, and used
# again when it goes on.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use RemoteBP;
use Test::More;

sub wait_state
{
	my ($node, $state, $name) = @_;
	return ok(
		wait_for(
			"the donor to be $state",
			sub {
				content($node, 't');
				evict_buffers($node);
				return $node->safe_psql('postgres', 'SELECT state FROM remote_bp_stat_donors') eq $state;
			},
			120),
		$name);
}

# The broker shall not give the donor up, however long this takes.
my $broker = start_broker(args => [ '--donor-timeout', '600' ]);
my $donor = start_donor($broker, memory => '32MB');
my $node = new_cluster('hangs', broker => $broker, tier => '32MB', transport => 'tcp',
	conf => "remote_bp.io_timeout = '1s'\n");
wait_leased($node, 32);
make_table($node, 't', 6);
ok(warm($node, 't'), 'pages come from the donor');

# Another setting of how to connect: whoever is connected connects anew.
$donor->freeze;
$node->safe_psql('postgres', 'ALTER SYSTEM SET remote_bp.rdma_retry_count = 5');
$node->reload;
wait_state($node, 'down', 'a stopped donor is down if no process can connect to it');

$donor->thaw;
wait_state($node, 'ok', 'the donor goes on, and is used again');
ok(warm($node, 't'), 'pages come from it');

# With longer waits still, a query waits for it once, and not at each page.
set_and_wait($node, 'remote_bp.io_timeout' => '2500ms');
$node->safe_psql('postgres', 'ALTER SYSTEM SET remote_bp.rdma_retry_count = 4');
$donor->freeze;
$node->reload;
my $before = counters($node);
$node->safe_psql('postgres', "SELECT count(pad) FROM t WHERE ctid < '(20,0)'");
my $after = counters($node);
cmp_ok($after->{timeouts}, '>', $before->{timeouts}, 'a query waits for a donor that it cannot connect to');
cmp_ok($after->{donor_down}, '>', $before->{donor_down}, 'a query leaves that donor alone after one wait');
$donor->thaw;
# What was sent to a stopped donor may be written when it goes on, into a slot
# that is another page's by then.
is_clean($node, '', hash_failures => 1);
$node->stop;

done_testing();
