# Pages of a tier that shrinks are moved although backends have all connections
# that there may be, and although they come later than a query would wait; and
# they need neither the pusher nor staging.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use RemoteBP;
use Test::More;

need_test_build();
set_faults();

my $MB = 1024 * 1024;
my $broker = start_broker();
my $donor = start_donor($broker, memory => '64MB', region_size => '4MB');

sub shrink_ok
{
	my ($node, $name) = @_;
	$node->safe_psql('postgres', "ALTER SYSTEM SET remote_bp.buffer_tier_size = '32MB'");
	$node->reload;
	return ok(wait_for('32 MB', sub { leased_bytes($node) == 32 * $MB }, 120), "$name: shrunk to a half");
}

# A machine that is busy shall not be the ground that a page is not moved.
my $node = new_cluster('places', broker => $broker, conf => "remote_bp.io_timeout = '2s'\n");
ok(wait_leased($node, 64), 'memory is leased');
make_table($node, 't', 8);
ok(warm($node, 't', part => 0.9), 'the tier holds the table');
my $session = $node->background_psql('postgres');
$node->safe_psql('postgres', 'ALTER SYSTEM SET remote_bp.max_connections = 1');
$node->reload;
my $hits = sub { $session->query_safe('SELECT hits FROM remote_bp_stat') };
ok( wait_for(
		'a connection',
		sub {
			evict_buffers($node);
			my $had = $hits->();
			$session->query_safe('SELECT sum(v) FROM t');
			return $hits->() > $had + 500;
		}),
	'a session has the only place');
my $before = tier_pages($node, 't');
shrink_ok($node, 'no place');
cmp_ok(tier_pages($node, 't'), '>=', $before * 0.97, 'no place: pages that fit are kept');
is(connections($node), 1, 'no place: the session still has its connection');
$session->quit;
is_clean($node);
$node->stop;

# By memory of this host, so that nothing but a machine that is very busy makes
# a page later than it is meant to be.
$node = new_cluster('slow', broker => $broker, test_build => 1, transport => 'shm', compare => 0);
ok(wait_leased($node, 64), 'memory is leased');
make_table($node, 't', 8);
ok(warm($node, 't', part => 0.9), 'the tier holds the table');
reset_counters($node);
set_faults('shm read delay_us 20000');
shrink_ok($node, 'slow');
cmp_ok($node->safe_psql('postgres', 'SELECT reads FROM remote_bp_stat_donors'), '>', 0, 'slow: pages have been moved');
set_faults();
$node->stop;

# The pusher does not come to write anything.
my $second = start_donor($broker, id => 'second', memory => '64MB', region_size => '4MB', args => [ '--reclaim-grace', '20' ]);
$node = new_cluster('staging', broker => $broker, tier => '128MB', conf => "remote_bp.io_timeout = '2s'\n");
ok(wait_leased($node, 128), 'memory is leased');
make_table($node, 't', 16);
ok(warm($node, 't', part => 0.9), 'the tier holds the table');
my $staged = 'SELECT staged_pages FROM remote_bp_stat';
$session = $node->background_psql('postgres');
ok(wait_for('all to be written', sub { $session->query_safe($staged) == 0 }), 'nothing is staged');
$before = tier_pages($node, 't');
# From here on this session, and no other, is asked, which reads nothing more.
my $pusher = server_process($node, 'remote_bp pusher');
kill('STOP', $pusher);
is((ctl($broker, 'drain', 'second'))[0], 0, 'a donor wants its memory back');
ok(wait_for('64 MB', sub { log_since($node) =~ /the lease now has 64 MB of 128 MB/ }), 'the donor gets its memory back');
# A few pages of catalogs may be captured meanwhile, by the server itself.
cmp_ok($session->query_safe($staged), '<', 96, 'staging is left to queries');
kill('CONT', $pusher);
cmp_ok(tier_pages($node, 't'), '>=', $before * 0.97, 'pages that fit are kept');
$session->quit;
is_clean($node);
$node->stop;

done_testing();
