# Regions that are given back and granted anew, to the same lease: processes
# that stayed connected all the while use them as if they were new.

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
	return wait_for("$megabytes MB", sub { leased_bytes($node) == $megabytes * 1024 * 1024 }, 120);
}

sub failures
{
	my ($node) = @_;
	return counter($node, 'io_errors') + $node->safe_psql('postgres', 'SELECT sum(failures) FROM remote_bp_stat_donors');
}

for my $transport ('shm', 'tcp')
{
	my $node = new_cluster("anew_$transport", broker => $broker, transport => $transport, conf => "remote_bp.io_timeout = '2s'\n");
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
		# Nobody waits for a request that is on its way to a region when that
		# is given back: it may be denied, and its page comes from the disk.
		my $failures = failures($node);
		ok(resize($node, 8), "$transport: most regions are given back");
		cmp_ok(failures($node) - $failures, '<', 5, "$transport: hardly any read is denied when regions are given back");
		ok(resize($node, 64), "$transport: the regions are granted again");
		$failures = failures($node);
		is($node->safe_psql('postgres', 'SELECT min(lease) FROM remote_bp_leases'),
			$lease, "$transport: the same lease gets the regions");
		ok(warm($node, 'pages'), "$transport: pages are in the tier again");
		my $before = counters($node);
		is($session->query_safe($read), '0|' . 48 * 1024, "$transport: the session reads them again");
		my $after = counters($node);
		cmp_ok($after->{hits} - $before->{hits}, '>', 1000, "$transport: the session reads from the tier");
		is(failures($node), $failures, "$transport: no read was denied after the new grant");
	}
	$session->quit;
	is_clean($node, $transport);
	$node->stop;
	wait_for('the memory to be free', sub { !@{ http_json($broker, 'GET', '/v1/leases')->{leases} } }, 120);
}

done_testing();
