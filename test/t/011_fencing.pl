# A lease that is revoked ends at once for its holder, and its memory serves
# another cluster, which sees nothing of what was there.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use RemoteBP;
use Test::More;

for my $transport ('shm', 'tcp')
{
	my $broker = start_broker(name => "broker_$transport");
	my $donor = start_donor($broker, id => "donor_$transport", memory => '64MB');

	# One server has it all.
	my $first = new_cluster("first_$transport", broker => $broker, transport => $transport);
	ok(wait_leased($first, 64), "$transport: one server has all the memory");
	make_table($first, 't', 16);
	my $first_content = content($first, 't');
	ok(warm($first, 't'), "$transport: the first server uses its memory");
	my $leases = $first->safe_psql('postgres', 'SELECT DISTINCT lease FROM remote_bp_leases');
	like($leases, qr/^[-0-9a-f]{36}$/, "$transport: the first server has one lease");

	# Another one asks for none yet; then the first may no longer ask for memory.
	my $second = new_cluster("second_$transport", transport => $transport);
	make_table($second, 't', 16);
	$second->safe_psql('postgres', 'UPDATE t SET v = 5; VACUUM t');
	my $second_content = content($second, 't');
	is(leased_bytes($second), 0, "$transport: another server has none");

	# The first keeps on reading while its lease is taken away.
	RemoteBP::Load->prepare($first, 1);
	my $load = start_load($first, seconds => 12, clients => 2);

	# It asks for a new lease at once; take its wish away first, with a lease
	# as it is (the size applies at the next renewal, revoking comes before).
	my ($status) = ctl($broker, 'revoke', $leases);
	is($status, 0, "$transport: the lease is revoked");
	$first->append_conf('postgresql.conf', "remote_bp.broker = ''\n");
	$first->reload;
	ok(wait_for('the first server to have no memory', sub { leased_bytes($first) == 0 }),
		"$transport: the holder of the revoked lease has no memory");
	# What was under way at that moment has ended when each client has gone on.
	$load->goes_on_ok("$transport: each client goes on");
	wait_still($first, 'hits', 'bytes_written');
	my $c = counters($first);
	$load->finish_ok("$transport: while a lease is revoked");
	my $later = counters($first);
	is($later->{hits}, $c->{hits}, "$transport: nothing is read from there afterwards");
	is($later->{bytes_written}, $c->{bytes_written}, "$transport: nothing is written there afterwards");
	is(content($first, 't'), $first_content, "$transport: reads of the first server are right");
	is($later->{mismatches}, 0, "$transport: no page was different");

	$second->append_conf('postgresql.conf', "remote_bp.broker = '" . $broker->url . "'\n");
	$second->reload;
	ok(wait_leased($second, 64), "$transport: the other server gets the memory");
	ok(warm($second, 't'), "$transport: the other server uses the memory");
	is(content($second, 't'), $second_content, "$transport: reads of the other server are right");
	is(content($first, 't'), $first_content, "$transport: reads of the first server are still right");
	is_clean($second, "$transport, the other server");
	is(scalar log_troubles($first), 0, "$transport: the first one's log is quiet");

	# An id that is no lease, and a lease that is no more.
	($status) = ctl($broker, 'revoke', '00000000-0000-4000-8000-000000000000');
	isnt($status, 0, "$transport: an unknown lease cannot be revoked");

	# Revoked while the holder may ask again: it has memory again soon.
	my $old = $second->safe_psql('postgres', 'SELECT DISTINCT lease FROM remote_bp_leases');
	($status) = ctl($broker, 'revoke', $old);
	is($status, 0, "$transport: the second lease is revoked");
	ok( wait_for(
			'a new lease',
			sub {
				my $now = $second->safe_psql('postgres', 'SELECT DISTINCT lease FROM remote_bp_leases');
				return $now ne '' && $now ne $old && leased_bytes($second) >= 60 * 1024 * 1024;
			}),
		"$transport: it gets a new one");
	is(content($second, 't'), $second_content, "$transport: reads are right");
	ok(warm($second, 't'), "$transport: the tier is in use again after the second lease was revoked");
	is(content($second, 't'), $second_content, "$transport: reads are right again");
	is_clean($second, "$transport, the new lease");
	$first->stop;
	$second->stop;
	is($donor->stop, 0, "$transport: the donor stops");
	$broker->stop;
}

done_testing();
