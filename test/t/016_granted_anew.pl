# Regions that are given back and granted anew, to the same lease: processes
# that stayed connected all the while use them as if they were new; so does a server that
# has not noticed.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use RemoteBP;
use Test::More;
use Time::HiRes qw(sleep);

my $broker = start_broker(noted => 1);
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

sub the_lease { return http_json($broker, 'GET', '/v1/leases')->{leases}[0]; }

# Wait until the lease was renewed twice: what the first answer said is in use.
sub wait_renewed_twice
{
	my ($left, $renewals) = (0, 0);
	return wait_for(
		'two renewals',
		sub {
			my $now = the_lease()->{remaining_ms};
			$renewals++ if $now > $left && $left > 0;
			$left = $now;
			return $renewals == 2;
		});
}

# Its lease worker hangs, and nobody reads.  The regions are given back in its name, cleaned,
# and granted again to the lease.
my $node = new_cluster('behind', broker => $broker, transport => 'tcp',
	conf => "remote_bp.lease_ttl = '600s'\nremote_bp.io_timeout = '2s'\nremote_bp.temp_tier_max_size = 0\n");
wait_leased($node, 64);
make_table($node, 'pages', 48);
my $held = warm($node, 'pages');
cmp_ok($held, '>', 0, 'pages are in the tier');
my $let_go = hold_policy_worker($node);
wait_still($node, 'captures', 'bytes_written');
my $worker = server_process($node, 'remote_bp lease worker');
is(kill('STOP', $worker), 1, 'the lease worker hangs');
my $id = the_lease()->{lease};
my $renew = { secret => lease_secret($broker, $id) };
my $answer = http_json($broker, 'POST', "/v1/leases/$id/renew", $renew);
my @before = sort { $a->{region} <=> $b->{region} } @{ $answer->{regions} };
is(scalar(@before), 8, 'the lease has regions');
http_json($broker, 'POST', "/v1/leases/$id/renew", { %$renew, bytes => 0, release => \@before });
ok(wait_for('the regions to be clean', sub { http_json($broker, 'GET', '/v1/donors')->{donors}[0]{free} == 8 }), 'they are given back');
ok( wait_for('all to be granted', sub {
		$answer = http_json($broker, 'POST', "/v1/leases/$id/renew", { %$renew, bytes => 64 * 1024 * 1024 });
		return @{ $answer->{regions} } == 8;
	}),
	'and granted again');
my @after = sort { $a->{region} <=> $b->{region} } @{ $answer->{regions} };
is(join(' ', map { $_->{region} } @after), join(' ', map { $_->{region} } @before), 'under the same numbers');
is(scalar(grep { $after[$_]->{rev} > $before[$_]->{rev} } 0 .. 7), 8, 'each of them as another grant');
is(kill('CONT', $worker), 1, 'the lease worker goes on');
ok(wait_renewed_twice(), 'and renews the lease');
$let_go->();
ok(wait_for('the pages to be dropped', sub { tier_pages($node, 'pages') < $held / 10 }, 60), 'the pages that were in the regions are dropped');
ok(warm($node, 'pages'), 'others come into the tier');
is_clean($node, 'regions that were granted again');
$node->stop;

done_testing();
