# Processes of the server are killed, by SIGKILL or otherwise.  The tier keeps its pages
# and its lease over that, unless memory may have been damaged, what was written may be
# lost, or the settings say so.  What died with the postmaster is gone.
# Timeout: 1800

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use RemoteBP;
use RemoteBP::Kept;
use Test::More;

my $broker = start_broker();
my $donor = start_donor($broker, memory => '128MB');
my $before;

# What a crash must not change, with nothing else going on.
sub keeps
{
	my ($node, $name, $crash) = @_;
	$before = state_of($node);
	ok($crash->(), "$name: a process is killed") or return;
	recovered($node, $before->{offset}, $name);
	is_kept($node, $before, $name);
	return;
}

my $node = kept_cluster('kept', broker => $broker, transport => 'shm', tier => '96MB',
	conf => "remote_bp.temp_tier_max_size = 16MB\nremote_bp.temp_tier_size = 16MB\n");
isnt($node->safe_psql('postgres', 'SHOW remote_bp.warm_restart'), 'off', 'pages are kept by default');

# Whoever is killed.  Temporary data is gone with its queries, and so is its lease.
for my $victim ('client backend', 'remote_bp pusher', 'remote_bp lease worker', 'remote_bp policy launcher', 'checkpointer', 'background writer', 'walwriter')
{
	my $temp = broker_lease($broker, 'temp')->{lease} // 'none';
	keeps($node, $victim, sub { crash($node, $victim) });
	ok(wait_for('memory for temporary data', sub { (broker_lease($broker, 'temp')->{lease} // $temp) ne $temp }), "$victim: temporary data has another lease");
	is(scalar @{ http_json($broker, 'GET', '/v1/leases')->{leases} }, 2, "$victim: there are two leases");
	is(broker_lease($broker)->{lease}, $before->{lease}, "$victim: one of them is the tier's of before");
}
ok( wait_for(
		'temporary data on donors',
		sub {
			$node->safe_psql('postgres', q{SET work_mem = '64kB'; SELECT count(*) FROM (SELECT pad FROM pages ORDER BY pad OFFSET 0) s});
			return counter($node, 'spill.writes') > 0;
		}),
	'temporary data goes to donors after all that');

# A backend that ends with a status that tells of a crash, and no signal
keeps($node, 'exit', sub { crash($node, 'client backend', signal => 'QUIT') });

# In a row.  Nobody has looked at most of what was kept when the second comes.
$before = state_of($node);
ok(crash($node, 'client backend'), 'two in a row: a backend is killed');
recovered($node, $before->{offset}, 'two in a row');
$before->{offset} = log_size($node);
ok(crash($node, 'checkpointer'), 'two in a row: the checkpointer is killed');
recovered($node, $before->{offset}, 'two in a row, again');
is_kept($node, $before, 'two in a row');

# During redo.  Before it, the postmaster does not start over for another one.
$before = state_of($node);
my ($twice, $startup, $offset);
for my $try (1 .. 5)
{
	($startup, $offset) = crash_held($node, redo => 1) or last;
	ok(crash($node, 'checkpointer'), "during redo: the checkpointer is killed, too");
	go_on($node, $startup, $offset, 'during redo');
	$twice = 2 == (() = log_since($node, $offset) =~ /all server processes terminated; reinitializing/g);
	last if $twice;
}
ok($twice, 'during redo: the server has started over twice');
is_kept($node, $before, 'during redo');

# Only the lease worker starts anew.
$before = state_of($node);
is(kill('TERM', server_process($node, 'remote_bp lease worker')), 1, 'the lease worker is ended');
is_kept($node, $before, 'another lease worker');
unlike(log_since($node, $before->{offset}), qr/reinitializing/, 'the server has not started over for that');

# Redo reads what is on disk, though the tier has most of these pages; what it does not
# change stays there.
make_table($node, 'changed', 16);
ok(warm($node, 'changed', part => 0.8), 'redo: a table is in the tier');
set_and_wait($node, full_page_writes => 'off');
$node->safe_psql('postgres', 'CHECKPOINT');
$node->safe_psql('postgres', 'UPDATE changed SET v = v + 1');
my $changed = content($node, 'changed');
evict_buffers($node);
wait_still($node, qw(captures pushes staged_pages));
cmp_ok(tier_pages($node, 'changed'), '>', 2000, 'redo: so it is after a change');
$before = { %$before, pages => tier_pages($node, 'pages'), offset => log_size($node) };
ok(crash($node, 'client backend', whole => 1), 'redo: a backend is killed');
recovered($node, $before->{offset}, 'redo');
my $c = counters($node);
cmp_ok($c->{hits} + $c->{staged_hits}, '<', 1000, 'redo: it was not served from donors');
cmp_ok($c->{captures}, '<', 1000, 'redo: nothing of what it read or wrote was captured');
is_kept($node, $before, 'redo');
is(content($node, 'changed'), $changed, 'redo: all changes are there');
set_and_wait($node, full_page_writes => 'on');

# A signal that tells of damaged memory; t/127_sync_failures.pl has the others.
$before = state_of($node);
ok(crash($node, 'background writer', signal => 'SEGV'), 'SIGSEGV: a process gets it');
recovered($node, $before->{offset}, 'SIGSEGV');
is_discarded($node, $before, 'SIGSEGV');
keeps($node, 'after that', sub { crash($node, 'client backend') });

# What was written while the server did not care whether it comes to the disk
set_and_wait($node, fsync => 'off');
make_table($node, 'careless', 4);
set_and_wait($node, fsync => 'on');
$before = state_of($node);
ok(crash($node, 'client backend'), 'fsync off: a process is killed later');
recovered($node, $before->{offset}, 'fsync off');
is_discarded($node, $before, 'fsync off');
keeps($node, 'fsync on again', sub { crash($node, 'client backend') });

# The postmaster itself
$before = state_of($node);
my ($postmaster) = slurp_file($node->data_dir . '/postmaster.pid') =~ /^(\d+)/;
my @processes = ($postmaster, map { $_->{pid} } server_processes($node));
$node->kill9;
ok(wait_for('all processes to end', sub { !grep { kill(0, $_) } @processes }), 'postmaster: all processes have ended');
$node->start;
is_forgotten($node, $before, 'postmaster');
keeps($node, 'after another start', sub { crash($node, 'client backend') });

# As the settings say
for my $value ('off', 'crash')
{
	$node->append_conf('postgresql.conf', "remote_bp.warm_restart = $value");
	$node->restart;
	ok(wait_leased($node, 64, 120) && warm($node, 'pages', part => 0.8), "warm_restart = $value: pages are in the tier");
	if ($value eq 'crash')
	{
		keeps($node, 'warm_restart = crash', sub { crash($node, 'client backend') });
		next;
	}
	$before = state_of($node);
	ok(crash($node, 'client backend'), 'warm_restart = off: a process is killed');
	recovered($node, $before->{offset}, 'warm_restart = off');
	is_forgotten($node, $before, 'warm_restart = off');
	unlike(log_since($node, $before->{offset}), qr/is discarded/, 'warm_restart = off: there is nothing to discard');
}
is(scalar grep({ !/terminated by signal/ } log_troubles($node)), 0, 'the log is quiet otherwise');
$node->stop;

# Over a network, in which a killed process leaves connections behind
$node = kept_cluster('kept_tcp', broker => $broker, transport => 'tcp');
for my $victim ('remote_bp pusher', 'client backend')
{
	keeps($node, "tcp, $victim", sub { crash($node, $victim) });
}
is_clean($node, 'tcp');
$node->stop;

# The lease worker is killed in the middle of a change of its regions, of which nobody
# knows then what they are.
need_test_build();
$node = kept_cluster('changing', broker => $broker, test_build => 1);
$before = state_of($node);
($startup, $offset) = crash_held(
	$node,
	crash => sub {
		$node->append_conf('postgresql.conf', "remote_bp.injection_point = 'kill-changing'\nremote_bp.buffer_tier_size = 32MB\n");
		$node->reload;
		return 1;
	});
ok($startup, 'changing: the lease worker is killed');
$node->append_conf('postgresql.conf', "remote_bp.injection_point = ''\nremote_bp.buffer_tier_size = 64MB\n");
$node->reload;
go_on($node, $startup, $offset, 'changing');
is_discarded($node, $before, 'changing');
$node->stop;

done_testing();
