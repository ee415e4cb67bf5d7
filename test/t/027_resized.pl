# The tier is resized every second under load.

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
my $donor2 = start_donor($broker, id => 'two', memory => '64MB');
my $node = busy_cluster('resized', broker => $broker);

my $load = start_load($node, seconds => 18);
for my $size (64, 128, 16, 96, 0, 128, 32, 112, 8, 128)
{
	$node->safe_psql('postgres', "ALTER SYSTEM SET remote_bp.buffer_tier_size = '${size}MB'");
	$node->reload;
	sleep 1;
	$load->goes_on_ok("each client goes on at $size MB");
}
$load->finish_ok('resized every second');
ok(wait_leased($node, 128), 'all memory is leased in the end');
ok(serves_again($node, factor => 2), 'most pages come from the tier after resizing');

# And step by step: the lease is what was asked for.
for my $size (32, 96, 0, 64)
{
	$node->safe_psql('postgres', "ALTER SYSTEM SET remote_bp.buffer_tier_size = '${size}MB'");
	$node->reload;
	ok(wait_for("$size MB", sub { leased_bytes($node) == $size * 1024 * 1024 }), "resized to $size MB");
	$node->safe_psql('postgres', 'SELECT count(*) FROM pgbench_accounts');
}
is_clean($node);
$node->stop;

done_testing();
