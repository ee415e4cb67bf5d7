# Regions that are given back and granted anew, to the same lease: processes
# that stayed connected all the while use them as if they were new.
# Alone

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
my $donor = start_donor($broker, memory => '64MB');

sub resize
{
	my ($node, $megabytes) = @_;
	$node->safe_psql('postgres', "ALTER SYSTEM SET remote_bp.buffer_tier_size = '${megabytes}MB'");
	$node->reload;
	return wait_for("$megabytes MB", sub { leased_bytes($node) == $megabytes * 1024 * 1024 }, 30);
}

for my $transport ('shm', 'tcp')
{
	my $node = new_cluster("anew_$transport", broker => $broker, transport => $transport);
	wait_leased($node, 64);
	make_table($node, 'pages', 48);
	ok(warm($node, 'pages'), "$transport: pages are in the tier");
	my $lease = $node->safe_psql('postgres', 'SELECT min(lease) FROM remote_bp_leases');

	# It has been at all regions, and so has the pusher.
	my $session = $node->background_psql('postgres');
	my $read = 'SET enable_seqscan = off; SET enable_bitmapscan = off; SELECT sum(v), count(*) FROM pages WHERE id > 0';
	is($session->query_safe($read), '0|' . 48 * 1024, "$transport: a session has read the table");

	for my $round (1 .. 3)
	{
		ok(resize($node, 8), "$transport: most regions are given back");
		ok(resize($node, 64), "$transport: and granted anew");
		is($node->safe_psql('postgres', 'SELECT min(lease) FROM remote_bp_leases'),
			$lease, "$transport: to the same lease");
		ok(warm($node, 'pages'), "$transport: pages are in the tier again");
		my $before = counters($node);
		is($session->query_safe($read), '0|' . 48 * 1024, "$transport: the session reads them again");
		my $after = counters($node);
		cmp_ok($after->{hits} - $before->{hits}, '>', 1000, "$transport: from the tier");
		is($after->{io_errors}, 0, "$transport: and nothing was denied");
	}
	is($node->safe_psql('postgres', 'SELECT sum(failures) FROM remote_bp_stat_donors'), 0, "$transport: no failure");
	$session->quit;
	is_clean($node, $transport);
	$node->stop;
	wait_for('the memory to be free', sub { !@{ http_json($broker, 'GET', '/v1/leases')->{leases} } }, 30);
}

done_testing();
