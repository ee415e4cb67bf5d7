# A lease worker that is started again goes on with the broker and the token
# that the lease was had with, whatever the settings have come to say: spilled
# data stays, also while its lease is being emptied for another broker.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use RemoteBP;
use RemoteBP::Spill;
use Test::More;

my $dir = PostgreSQL::Test::Utils::tempdir();

my $broker = start_broker(args => [ '--credentials', write_credentials("$dir/first", 'correct-horse') ], token => 'correct-horse');
my $donor = start_donor($broker, id => 'one', memory => '16MB', region_size => '4MB', args => [ '--token-file', write_token("$dir/donor", 'correct-horse', 'donor') ]);
my $broker2 = start_broker(name => 'broker2');
my $donor2 = start_donor($broker2, id => 'two', memory => '16MB', region_size => '4MB');
my $used = write_token("$dir/used", 'correct-horse', 'server');
my $node = spill_cluster(
	'restarts',
	broker => $broker,
	transport => 'tcp',
	temp => '16MB',
	conf => "remote_bp.buffer_tier_size = 0\nremote_bp.lease_ttl = '30s'\nremote_bp.token_file = '$used'\n");
spill_data($node);
create_rows_of($node);
my $offset;

sub leases
{
	return $node->safe_psql('postgres', q{SELECT string_agg(DISTINCT lease, ' ') FROM remote_bp_leases});
}

sub set
{
	my ($name, $value) = @_;
	$node->safe_psql('postgres', "ALTER SYSTEM SET remote_bp.$name = '$value'");
	$node->reload;
	return;
}

sub log_has
{
	my ($pattern, $name) = @_;
	return ok(wait_for("$pattern", sub { log_since($node, $offset) =~ /$pattern/ }, 60), $name);
}

sub restart_worker
{
	my ($name) = @_;
	$offset = log_size($node);
	is(kill('TERM', server_process($node, 'remote_bp lease worker')), 1, "$name: the lease worker is ended");
	log_has('going on with the lease for temporary data', "$name: the next one takes the lease over");
	return;
}

my $session = $node->background_psql('postgres', on_error_stop => 0);
$session->query('BEGIN; DECLARE c SCROLL CURSOR FOR WITH w AS MATERIALIZED (SELECT id, t, pad FROM big) SELECT * FROM w');
my $expected = $session->query(q{SELECT rows_of('c')});
like($expected, qr/^40000 -?\d+$/, 'a query has spilled');
cmp_ok(counter($node, 'spill.pages'), '>', 100, 'the query has spilled to a donor');
my $lease = leases();

# Both settings mistyped; neither is taken.
my $nobody = 'http://127.0.0.1:' . PostgreSQL::Test::Cluster::get_free_port();
$offset = log_size($node);
write_token("$dir/used", 'guessed', 'server', '*', '-');
set('broker', $nobody);
log_has(qr/could not switch to broker "\Q$nobody\E"/, 'mistyped: the worker does not change to the broker');
restart_worker('mistyped');
log_has(qr/could not switch to broker "\Q$nobody\E"/, 'mistyped: the next worker tries the other broker as well');
ok(wait_renewed($node), 'mistyped: the lease is renewed');
is(leases(), $lease, 'mistyped: the lease is the same');
is($session->query(q{SELECT rows_of('c')}), $expected, 'mistyped: spilled data is whole');

# Another broker; but the data cannot be moved, nor can the file be written.
my $pid = $session->query('SELECT pg_backend_pid()');
my @files = map { $node->data_dir . "/$_" } grep { /pgsql_tmp$pid\./ } temp_paths($node);
is(chmod(0400, @files), scalar @files, 'another broker: the real file cannot be opened for writing');
$offset = log_size($node);
set('broker', $broker2->url);
log_has('switching from broker', 'another broker: the worker changes to the broker');
restart_worker('another broker');
log_has('switching from broker', 'another broker: the next worker changes to the broker as well');
is(leases(), $lease, 'another broker: the lease is kept at the old one meanwhile');
is(chmod(0600, @files), scalar @files, 'another broker: the file can be written');
ok(wait_for('another lease', sub { leases() !~ /\Q$lease\E/ }), 'another broker: the old lease ends when its data was moved');
ok(wait_temp_leased($node, 16), 'another broker: the new broker grants a lease');
is($session->query(q{SELECT rows_of('c')}), $expected, 'another broker: spilled data is whole');
is($session->{stderr}, '', 'no error');
is(scalar @{ http_json($broker, 'GET', '/v1/leases')->{leases} }, 0, 'the first broker has no lease left');
my @secrets = map { secret($_) } qw(guessed correct-horse);
unlike(log_since($node), qr/are lost with|could not be renewed in time|$secrets[0]|$secrets[1]/, 'the log reports no loss, and shows no secret');
$session->quit;
spill_is_clean($node, 'in the end');
$node->stop;

done_testing();
