# A broker that hangs for longer than the lease lasts: the server stops using
# the memory at the deadline, and so does the donor, if it does not keep it; then there
# is a lease again.  A lease worker that hangs so long goes on with the lapsed lease.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use RemoteBP;
use Test::More;
use Time::HiRes qw(sleep);

# The lease of that purpose, as the broker shows it.
sub lease_of
{
	my ($broker, $purpose) = @_;
	my ($lease) = grep { $_->{purpose} eq $purpose } @{ http_json($broker, 'GET', '/v1/leases')->{leases} };
	return $lease // {};
}

my %keep = (tcp => "remote_bp.keep_time = 0\n", shm => '');
for my $transport ('tcp', 'shm')
{
	my $broker = start_broker(name => "broker_$transport");
	my $donor = start_donor($broker, id => "donor_$transport", memory => '128MB');
	my $node = busy_cluster(
		"expiry_$transport",
		broker => $broker,
		transport => $transport,
		conf => "remote_bp.lease_ttl = '3s'\n$keep{$transport}");

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

# Nobody renews the lease.
my $broker = start_broker();
my $donor = start_donor($broker, memory => '64MB');
my $node = new_cluster(
	'lapsed',
	broker => $broker,
	tier => '48MB',
	transport => 'tcp',
	conf => "remote_bp.lease_ttl = '3s'\nremote_bp.io_timeout = '2s'\nremote_bp.temp_tier_max_size = '8MB'\nremote_bp.temp_tier_size = '8MB'\n");
ok(wait_leased($node, 56), 'memory is leased');
make_table($node, 't', 16);
ok(warm($node, 't'), 'pages are in the tier');
my $content = content($node, 't');
is_deeply([ map { lease_of($broker, $_)->{keep_ms} } 'buffer', 'temp' ], [ 1800000, 0 ], 'the lease of the tier is kept, that of temporary data is not');
my $lease = lease_of($broker, 'buffer')->{lease};
my $worker = server_process($node, 'remote_bp lease worker');
is(kill('STOP', $worker), 1, 'the lease worker hangs');
ok(wait_for('the lease to lapse', sub { lease_of($broker, 'buffer')->{lapsed} }), 'the lease lapses');
ok(wait_for('the other lease to end', sub { !%{ lease_of($broker, 'temp') } }), 'that of temporary data ends');
is(lease_of($broker, 'buffer')->{bytes}, 48 * 1024 * 1024, 'the lapsed lease has its memory');
is(counter($node, 'usable'), 'f', 'the server does not use it');
is(content($node, 't'), $content, 'it reads from disk');
is(kill('CONT', $worker), 1, 'the lease worker goes on');
ok(wait_for('the tier to be used', sub { counter($node, 'usable') eq 't' }), 'the server uses the memory again');
is(lease_of($broker, 'buffer')->{lease}, $lease, 'by the same lease');
ok(warm($node, 't'), 'pages are in the tier again');
is(content($node, 't'), $content, 'and are right');
$node->safe_psql('postgres', q{ALTER SYSTEM SET remote_bp.keep_time = '90s'});
$node->reload;
ok(wait_for('the setting to be told', sub { lease_of($broker, 'buffer')->{keep_ms} == 90000 }), 'remote_bp.keep_time can be changed');
is_clean($node);
$node->stop;

done_testing();
