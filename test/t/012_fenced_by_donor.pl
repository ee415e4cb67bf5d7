# A server that does not know that its lease has ended, and does not look at
# the time either: the donor alone keeps it from the memory, also on
# connections and mappings that it has had for long, and gives that memory
# to another server.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use RemoteBP;
use Test::More;

need_test_build();

for my $transport ('shm', 'tcp')
{
	my $broker = start_broker(name => "broker_$transport");
	my $donor = start_donor($broker, id => "donor_$transport", memory => '32MB');
	my $mad = new_cluster(
		"mad_$transport",
		broker => $broker,
		transport => $transport,
		test_build => 1,
		shared_buffers => '512kB',
		tier => '32MB',
		conf => "remote_bp.injection_point = 'no-lease-check'\nremote_bp.io_timeout = '1s'\n");
	my $heir = new_cluster("heir_$transport", transport => $transport, tier => '32MB');
	make_table($heir, 't', 8);
	my $heirs = content($heir, 't');

	ok(wait_leased($mad, 32), "$transport: memory is leased");
	make_table($mad, 't', 8);
	$mad->safe_psql('postgres', 'UPDATE t SET v = 3; VACUUM t');
	my $expected = content($mad, 't');
	ok(warm($mad, 't'), "$transport: pages are in the tier");

	# A session that has its connection and has mapped every region.
	my $session = $mad->background_psql('postgres');
	my $read = 'SET enable_seqscan = off; SET enable_bitmapscan = off; SELECT count(*), sum(v) FROM t WHERE id > 0';
	$session->query($read) for 1 .. 3;
	my $hits = 'SELECT hits FROM remote_bp_stat';
	my $before = $session->query($hits);
	is($session->query($read), '8192|24576', "$transport: read");
	cmp_ok($session->query($hits), '>', $before, "$transport: the first server reads from the donor");

	# The lease worker would hear of it within a second.
	my $worker = server_process($mad, 'remote_bp lease worker');
	is(kill('STOP', $worker), 1, "$transport: the lease worker hangs");
	my $lease = $session->query('SELECT DISTINCT lease FROM remote_bp_leases');
	my ($status) = ctl($broker, 'revoke', $lease);
	is($status, 0, "$transport: the lease is revoked");

	# When another one has it all, it must be out of the first one's reach.
	$heir->append_conf('postgresql.conf', "remote_bp.broker = '" . $broker->url . "'\n");
	$heir->reload;
	ok(wait_leased($heir, 32), "$transport: another server has the memory");
	is($session->query('SELECT usable FROM remote_bp_stat'), 't', "$transport: the first one believes that it has it, too");
	$before = $session->query($hits);
	is($session->query($read), '8192|24576', "$transport: reads of the first server are right");
	is($session->query($hits) - $before, 0, "$transport: reads of the first server do not come from the donor");

	# What it pushes does not arrive; what the other one has stays right.
	ok(warm($heir, 't'), "$transport: the other server uses the memory");
	$session->query($read) for 1 .. 3;
	is($session->query($hits) - $before, 0, "$transport: nothing comes from the donor");
	is(content($heir, 't'), $heirs, "$transport: the other server's reads are right");
	cmp_ok(counter($heir, 'hits + staged_hits'), '>', 0, "$transport: the other server has hits");
	is_clean($heir, "$transport, the other server");

	# Back to its senses.
	is(kill('CONT', $worker), 1, "$transport: the lease worker goes on");
	$session->quit;
	ok(wait_for('the lease to be gone', sub { leased_bytes($mad) == 0 }, 30), "$transport: the first server has nothing leased");
	is(content($mad, 't'), $expected, "$transport: all is there");
	is(counter($mad, 'mismatches'), 0, "$transport: no page was different");
	is(scalar log_troubles($mad), 0, "$transport: the log is quiet");
	$mad->stop;
	$heir->stop;
	$donor->stop;
	$broker->stop;
}

done_testing();
