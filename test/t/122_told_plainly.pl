# What the log and the views tell of ordinary events: the start, a drain, a dropped
# database, a shutdown; each once, and in words that fit.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use RemoteBP;
use Test::More;

#---- a server that is off says why -----------------------------------------------

my $node = new_cluster('told', extension => 0);
log_tells($node, 0, qr/LOG: .*remote_bp \d\S* is loaded, and off: remote_bp\.broker is not set$/m, 'without a broker, the start says so');
my $offset = log_size($node);
$node->append_conf('postgresql.conf', "remote_bp.enabled = off\n");
$node->restart;
log_tells($node, $offset, qr/LOG: .*remote_bp \d\S* is loaded, and off: remote_bp\.enabled is off$/m, 'switched off, the start says so');
$node->append_conf('postgresql.conf', "remote_bp.broker = 'HTTP://127.0.0.1:1'\nremote_bp.enabled = on\n");
$node->restart;
log_tells($node, $offset, qr/LOG: .*remote_bp \d\S* is loaded: broker "HTTP:\S+", 64 MB of memory wanted for the buffer tier, 0 MB/m,
	'the start says what is wanted; HTTP is a scheme');

#---- a device that there is not ------------------------------------------------------

$node->append_conf('postgresql.conf', "remote_bp.rdma_device = 'nothing0'\n");
$node->reload;
log_tells($node, $offset, qr/WARNING: .*there is no RDMA device "nothing0"/, 'an RDMA device that does not exist is told under auto, too');
$node->append_conf('postgresql.conf', "remote_bp.rdma_device = ''\n");
$node->stop;

#---- a drain ---------------------------------------------------------------------

my $broker = start_broker();
my @donors = map { start_donor($broker, memory => '64MB', region_size => '1MB', id => $_) } 'first', 'second';
$node->append_conf('postgresql.conf', "remote_bp.transport = tcp\nremote_bp.staging_size = '256kB'\nremote_bp.broker = '" . $broker->url . "'\n");
$node->start;
create_extension($node);
wait_leased($node, 64) or BAIL_OUT('no tier');
make_table($node, 't', 30);
warm($node, 't');
$offset = log_size($node);
ctl($broker, 'drain', 'first');
wait_for('the first donor to be drained',
	sub { my ($first) = grep { $_->{id} eq 'first' } @{ http_json($broker, 'GET', '/v1/donors')->{donors} }; $first->{leased} == 0 });
wait_leased($node, 64);
wait_renewed($node);
my $text = log_since($node, $offset);
my @lines = grep { /remote_bp: / } split /\n/, $text;
note(join "\n", @lines);
cmp_ok(scalar(@lines), '<=', 4, 'a drain of 32 regions is told in a few lines');
is(scalar(grep { /gave 32 regions of donor "first" back/ } @lines), 1, '... of which one tells how much was given back');
ctl($broker, 'undrain', 'first');

#---- a database that was dropped, and a shutdown ------------------------------------

$node->safe_psql('postgres', 'CREATE DATABASE gone');
$node->safe_psql('gone', "CREATE TABLE t AS SELECT repeat('x', 500) FROM generate_series(1, 20000)");
$node->safe_psql('gone', 'CREATE EXTENSION remote_bp; SELECT count(*) FROM t');
$node->safe_psql('postgres', 'DROP DATABASE gone');
$node->safe_psql('postgres', 'SELECT 1');
is($node->safe_psql('postgres', "SELECT count(*) FROM remote_bp_stat_database WHERE datid <> 0 AND database IS NULL"), '0', 'a database that was dropped has no row without a name');
$offset = log_size($node);
my $worker;
my $policy = 'keep';
wait_for(
	'a policy worker at work',
	sub {
		$node->safe_psql('postgres', "SELECT remote_bp_set_policy('t', '$policy')");
		$policy = $policy eq 'keep' ? 'default' : 'keep';
		for (1 .. 1000)
		{
			$worker = server_process($node, 'remote_bp policy worker') and return kill('STOP', $worker);
			select(undef, undef, undef, 0.001);
		}
		return 0;
	}) or BAIL_OUT('no policy worker');
PostgreSQL::Test::Utils::system_or_bail('pg_ctl', '-D', $node->data_dir, '-m', 'fast', '--no-wait', 'stop');
log_tells($node, $offset, qr/received fast shutdown request/, 'the server is told to stop');
kill 'CONT', $worker;
ok(wait_for('the server to end', sub { !-e $node->data_dir . '/postmaster.pid' }), 'it ends');
$node->stop('fast', fail_ok => 1);
unlike(log_since($node, $offset), qr/FATAL|CONTEXT/, 'nothing fails at a shutdown');

done_testing();
