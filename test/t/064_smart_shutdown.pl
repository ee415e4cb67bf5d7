# A smart shutdown waits for the sessions, for as long as they go on: their
# spilled data stays, and its lease is renewed, also when the lease worker ends
# meanwhile, by a signal that is not the postmaster's.  When the last session has
# ended, the memory is given back.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use RemoteBP;
use RemoteBP::Spill;
use Test::More;
use Time::HiRes qw(sleep);

my $broker = start_broker();
my $donor = start_donor($broker, memory => '128MB', region_size => '4MB');
my %servers;

for my $transport ('tcp', 'shm')
{
	my $node = new_cluster(
		"smart_$transport",
		broker => $broker,
		transport => $transport,
		tier => '8MB',
		shared_buffers => '4MB',
		conf => "work_mem = '64kB'\nremote_bp.temp_tier_max_size = '32MB'\nremote_bp.temp_tier_size = '32MB'\n"
		  . "remote_bp.lease_ttl = '10s'\nremote_bp.temp_io_timeout = '60s'\n");
	$node->safe_psql('postgres',
		q{CREATE TABLE big AS SELECT i, md5(i::text) AS t, rpad('', 300, md5((-i)::text)) AS pad FROM generate_series(1, 30000) i});
	create_rows_of($node);
	ok(wait_temp_leased($node, 32), "$transport: memory is leased");
	my $session = $node->background_psql('postgres', on_error_stop => 0);
	$session->query('DECLARE c SCROLL CURSOR WITH HOLD FOR SELECT * FROM big ORDER BY t, i');
	my $expected = $session->query(q{SELECT rows_of('c')});
	like($expected, qr/^30000 -?\d+$/, "$transport: a query has spilled");
	cmp_ok(counter($node, 'spill.pages'), '>', 500, "$transport: its data is on the donor");
	$servers{$transport} = { node => $node, session => $session, expected => $expected };
}

# One after the other, and then they wait together.
for my $transport (sort keys %servers)
{
	my $s = $servers{$transport};
	my $node = $s->{node};
	($s->{postmaster}) = slurp_file($node->data_dir . '/postmaster.pid') =~ /^(\d+)/;
	my $offset = log_size($node);
	system_or_bail('pg_ctl', '-D', $node->data_dir, '-m', 'smart', '--no-wait', 'stop');
	log_tells($node, $offset, qr/received smart shutdown request/, "$transport: a smart shutdown begins");
	is(kill('TERM', server_process($node, 'remote_bp lease worker')), 1, "$transport: the lease worker is ended");
	$s->{offset} = $offset;
	$s->{expires} = $s->{session}->query(q{SELECT extract(epoch FROM clock_timestamp()) + 10});
}
for my $transport (sort keys %servers)
{
	my $s = $servers{$transport};
	my ($node, $session) = @$s{qw(node session)};
	log_tells($node, $s->{offset}, qr/going on with the lease for temporary data, 32 MB/, "$transport: another lease worker takes the lease over");
	ok( wait_for('the time of the lease to pass', sub { $session->query("SELECT extract(epoch FROM clock_timestamp()) > $s->{expires}") eq 't' }),
		"$transport: the lease would have expired");
	is($session->query(q{SELECT rows_of('c')}), $s->{expected}, "$transport: spilled data is whole in a smart shutdown");
	is($session->query('CLOSE c; SELECT 1'), '1', "$transport: the session goes on");
	$session->quit;
	ok(wait_for('the server to end', sub { !kill(0, $s->{postmaster}) }), "$transport: the server ends after its last session");
	$node->stop('fast', fail_ok => 1);
	my $log = log_since($node, $s->{offset});
	unlike($log, qr/are lost with|could not be renewed|could not read|ERROR:/, "$transport: the log reports no loss");
	like($log, qr/gave the leased memory for temporary data back/, "$transport: the memory is given back");
}
is(scalar @{ http_json($broker, 'GET', '/v1/leases')->{leases} }, 0, 'the broker has no lease left');

done_testing();
