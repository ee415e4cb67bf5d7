# The broker is killed under load and started again: leases go on meanwhile,
# and no lease is lost.

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
my $donor = start_donor($broker, memory => '128MB');
my $node = busy_cluster('broker', broker => $broker, conf => "remote_bp.lease_ttl = '60s'\n");
my $lease = $node->safe_psql('postgres', 'SELECT DISTINCT lease FROM remote_bp_leases');

my $load = start_load($node, seconds => 20);
for my $round (1 .. 2)
{
	wait_hits($node);
	# a broker that nobody has found again cannot be missed again
	wait_renewed($node, 1);
	my $size = log_size($node);
	$broker->kill9;
	log_tells($node, $size, qr/could not renew the lease/, "round $round: the log says that the broker does not answer");
	$load->goes_on_ok("round $round: each client goes on without a broker");
	ok(wait_hits($node), "round $round: pages are served without a broker");
	$broker = restart_broker($broker);
}
# (what was asked for before may have been renewed until now)
my $expires = 'SELECT extract(epoch FROM clock_timestamp() + min(expires_in)) FROM remote_bp_leases';
my $until = $node->safe_psql('postgres', $expires);
ok(wait_for('the lease to be renewed', sub { $node->safe_psql('postgres', $expires) > $until + 1 }),
	'the broker that came back renews the lease');
$load->finish_ok('broker killed twice');
is($node->safe_psql('postgres', 'SELECT DISTINCT lease FROM remote_bp_leases'), $lease, 'the lease is the same after two kills of the broker');
is(leased_bytes($node), 128 * 1024 * 1024, 'the lease has all its memory');
reset_counters($node);
$node->safe_psql('postgres', 'SELECT count(*) FROM pgbench_accounts');
cmp_ok(counter($node, 'hits'), '>', 0, 'pages in the tier are still there');
is_clean($node);

# Stopped in the usual way, too.
$load = start_load($node, seconds => 8);
my $size = log_size($node);
is($broker->stop, 0, 'the broker stops cleanly');
log_tells($node, $size, qr/could not renew the lease/, 'the log says that the broker does not answer');
$broker = restart_broker($broker);
$load->finish_ok('broker restarted');
is($node->safe_psql('postgres', 'SELECT DISTINCT lease FROM remote_bp_leases'), $lease, 'the lease is the same after a restart of the broker');
is_clean($node, 'broker restarted');
$node->stop;

done_testing();
