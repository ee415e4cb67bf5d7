# Whose lease it is when a server is started again: of two copies of a server one goes on
# with what donors have, whichever is first; a lease worker that ends before its request is
# answered does not lose the lease, and one that finds a lease of another broker leaves it.
# Timeout: 1800

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use RemoteBP;
use RemoteBP::Kept;
use RemoteBP::Preload;
use RemoteBP::Spill;
use Test::More;

my $broker = start_broker(noted => 1);
my $donor = start_donor($broker, memory => '256MB');
my $node = kept_cluster('original', broker => $broker, transport => 'shm', tier => '64MB');
my $image = 'pgsql_tmp_remote_bp.image';
my $dir = PostgreSQL::Test::Utils::tempdir();

sub restart_worker
{
	my ($name, $server) = @_;
	my $pid = server_process($server, 'remote_bp lease worker');
	is(kill('TERM', $pid), 1, "$name: the lease worker is ended");
	return ok(wait_for('another lease worker', sub { (server_process($server, 'remote_bp lease worker') // $pid) != $pid }), "$name: there is another one");
}

#---- a worker that ends before it has an answer ------------------------------------

# The broker takes the request, and reads it later.
my $before = state_of($node);
$node->stop;
$broker->freeze;
$node->start;
log_tells($node, $before->{offset}, qr/could not renew the lease at broker/, 'no answer: the worker gives up its request');
restart_worker('no answer', $node);
$broker->thaw;
is_kept($node, $before, 'no answer');

# Likewise, with a crash in between
$before = state_of($node);
$node->stop;
$broker->freeze;
$node->start;
log_tells($node, $before->{offset}, qr/could not renew the lease at broker/, 'no answer, and a crash: the worker gives up its request');
ok(wait_for('all to be loaded', sub { !-e $node->data_dir . "/$image.used" }), 'no answer, and a crash: all is loaded');
my $offset = log_size($node);
ok(crash($node, 'checkpointer'), 'no answer, and a crash: a process is killed');
recovered($node, $offset, 'no answer, and a crash');
$broker->thaw;
is_kept($node, $before, 'no answer, and a crash');

#---- stops after which nobody goes on --------------------------------------------------

# A lease that would not be kept, and one that there is not
$before = state_of($node);
set_and_wait($node, 'remote_bp.keep_time' => '0');
ok(wait_for('the setting to be told', sub { (broker_lease($broker)->{keep_ms} // 1) == 0 }, 60), 'keep_time = 0: the lease worker has the setting');
$node->stop;
log_tells($node, $before->{offset}, qr/gave the leased memory back|could not tell the broker that the lease is given back/, 'keep_time = 0: the lease is given back, unless the broker is slow');
log_tells($node, $before->{offset}, qr/the next start begins with an empty tier: there is no lease/, 'keep_time = 0: so there is no image');
ok(!-e $node->data_dir . "/$image", 'keep_time = 0: nor one on disk');
$node->start;
is_forgotten($node, $before, 'keep_time = 0');
set_and_wait($node, 'remote_bp.keep_time' => '30min', 'remote_bp.buffer_tier_size' => '0');
ok(wait_for('the lease to end', sub { !broker_lease($broker)->{lease} }), 'no lease: the server has given it back');
$before = { %$before, offset => log_size($node) };
$node->stop;
log_tells($node, $before->{offset}, qr/the next start begins with an empty tier: there is no lease/, 'no lease: there is no image');
is(scalar(log_troubles($node, $before->{offset})), 0, 'no lease: the stop is quiet otherwise');
$node->append_conf('postgresql.auto.conf', "remote_bp.buffer_tier_size = '64MB'\n");
$node->start;
ok(wait_leased($node, 64, 120) && warm($node, 'pages', part => 0.8), 'no lease: there is another one');

#---- a clone of the volume -----------------------------------------------------------

# The files of the copy have the inodes and change times that those of the original had when
# it was stopped.
for my $first ('original', 'copy')
{
	my $name = "the $first first";
	$before = state_of($node);
	$node->stop;
	ok(-e $node->data_dir . "/$image", "$name: there is an image");
	my $copy = PostgreSQL::Test::Cluster->new("copy_$first");
	my $files = "$dir/files_$first";
	is(system('find ' . $node->data_dir . " -type f -printf '%i %C\@ %P\\n' >$files"), 0, "$name: inodes and change times are noted");
	is(system('cp', '-a', $node->data_dir, $copy->data_dir), 0, "$name: the volume is copied");
	$copy->append_conf('postgresql.conf', 'port = ' . $copy->port . "\n");
	my %start = (
		original => sub { $node->start; return $node; },
		copy => sub { start_preloaded($copy, 'volume', RBP_VOLUME => $files); return $copy; });
	my %offset = (original => $before->{offset}, copy => 0);
	my ($second) = grep { $_ ne $first } sort keys %start;

	my $winner = $start{$first}->();
	my $kept = { %$before, offset => $offset{$first} };
	is_kept($winner, $kept, "$name, the first");
	my $secret = lease_secret($broker, $before->{lease});
	my $loser = $start{$second}->();
	my $lost = { %$before, offset => $offset{$second} };
	log_tells($loser, $lost->{offset}, qr/remote_bp: going on with what donors have/, "$name: the second has the image");
	log_tells($loser, $lost->{offset}, qr/remote_bp: the lease has ended.*HTTP status 403/s, "$name: but not the lease");
	is_empty($loser, $lost, "$name, the second");

	is(lease_id($winner), $before->{lease}, "$name: the first has its lease still");
	is(lease_secret($broker, $before->{lease}), $secret, "$name: by the same secret");
	cmp_ok(tier_pages($winner, 'pages'), '>=', 0.9 * $before->{pages}, "$name: and its pages");
	is_right($winner, $before, "$name, the first, in the end");
	is(counter($winner, 'hash_failures'), 0, "$name: nobody has written there");
	is_clean($_, $name) for $winner, $loser;
	$copy->stop;
}
$node->stop;

#---- a lease of another broker ---------------------------------------------------------

# Temporary data that cannot be moved stays with the broker of before, so there are leases of
# two brokers.  The next worker begins with the one that has temporary data.
my $broker1 = start_broker(name => 'broker1');
my $donor1 = start_donor($broker1, id => 'one', memory => '32MB', region_size => '4MB');
my $broker2 = start_broker(name => 'broker2');
my $donor2 = start_donor($broker2, id => 'two', memory => '64MB', region_size => '4MB');
my $spilling = spill_cluster(
	'two_brokers',
	broker => $broker1,
	transport => 'tcp',
	temp => '16MB',
	conf => "remote_bp.lease_ttl = '30s'\n");
spill_data($spilling);
create_rows_of($spilling);
my $session = $spilling->background_psql('postgres', on_error_stop => 0);
$session->query('BEGIN; DECLARE c SCROLL CURSOR FOR WITH w AS MATERIALIZED (SELECT id, t, pad FROM big) SELECT * FROM w');
my $rows = $session->query(q{SELECT rows_of('c')});
like($rows, qr/^40000 -?\d+$/, 'two brokers: a query has spilled');
my $pid = $session->query('SELECT pg_backend_pid()');
my @files = map { $spilling->data_dir . "/$_" } grep { /pgsql_tmp$pid\./ } temp_paths($spilling);
is(chmod(0400, @files), scalar @files, 'two brokers: the real file cannot be written');
$spilling->safe_psql('postgres', "ALTER SYSTEM SET remote_bp.broker = '" . $broker2->url . "'");
$spilling->reload;
ok(wait_for('a lease of the other broker', sub { broker_lease($broker2)->{lease} }), 'two brokers: the buffer tier has a lease of the second');
is(broker_lease($broker1)->{lease}, undef, 'two brokers: and none of the first');
ok(broker_lease($broker1, 'temp')->{lease}, 'two brokers: temporary data has one of the first still');
my $lease = broker_lease($broker2)->{lease};
$offset = log_size($spilling);
restart_worker('two brokers', $spilling);
log_tells($spilling, $offset, qr/going on with the lease for temporary data/, 'two brokers: the worker goes on with the lease for temporary data');
ok(wait_for('another lease', sub { (broker_lease($broker2)->{lease} // $lease) ne $lease }), 'two brokers: the buffer tier gets another one of the second');
unlike(log_since($spilling, $offset), qr/going on with the lease, /, 'two brokers: nobody has gone on with the one before');
unlike(log_since($spilling, $offset), qr/the lease has ended/, 'two brokers: nor asked the first broker for it');
is(scalar(grep { $_->{purpose} eq 'buffer' } @{ http_json($broker2, 'GET', '/v1/leases')->{leases} }), 1, 'two brokers: which has no other one');
is(chmod(0600, @files), scalar @files, 'two brokers: the file can be written');
is($session->query(q{SELECT rows_of('c')}), $rows, 'two brokers: temporary data is whole');
is($session->{stderr}, '', 'two brokers: without an error');
$session->quit;
spill_is_clean($spilling, 'two brokers');
$spilling->stop;

done_testing();
