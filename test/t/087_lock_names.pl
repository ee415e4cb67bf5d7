# The names of our locks, as pg_stat_activity shows them, are right, and no
# other extension's lock is called by them: at the start, and after a crash of
# a backend, when shared memory, and with it the count of tranches, begins anew
# (see test/modules/lock_names).

use strict;
use warnings;

use Cwd ();
use FindBin;
use lib "$FindBin::RealBin/lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use RemoteBP;
use Test::More;

my $module = build_module('lock_names', 'RBP_SRC=' . Cwd::abs_path("$FindBin::RealBin/../../src"));
my $node = new_cluster(
	'locks',
	start => 0,
	conf => "remote_bp.temp_tier_max_size = '16MB'\n"
	  . "shared_preload_libraries = 'remote_bp, pg_stat_statements, $module'\n");
$node->start;
$node->safe_psql('postgres', <<"SQL");
CREATE FUNCTION lock_names(OUT id int, OUT name text) RETURNS SETOF record LANGUAGE C AS '$module';
CREATE FUNCTION lock_names_of_statements() RETURNS text LANGUAGE C AS '$module';
CREATE FUNCTION lock_names_hold(text) RETURNS void LANGUAGE C AS '$module';
CREATE FUNCTION lock_names_release(bool) RETURNS void LANGUAGE C AS '$module';
SQL

my @ours = qw(RemoteBpAdvice RemoteBpDatabases RemoteBpPartition RemoteBpRelations RemoteBpRemote RemoteBpSpillFile RemoteBpSpillNames RemoteBpSpillSlots RemoteBpStatements remote_bp_stats);
my @others = qw(LockNamesProbe pg_stat_statements);

sub run_hold
{
	my ($which) = @_;
	my $run = { out => '', err => '' };
	$run->{harness} = IPC::Run::start(
		[ 'psql', '-XAtq', '-d', $node->connstr('postgres'), '-c', "SELECT lock_names_hold('$which')" ],
		'<', \'', '>', \$run->{out}, '2>', \$run->{err}, IPC::Run::timeout(300));
	return $run;
}

# Does somebody who waits for the lock come to be seen by that name?
sub seen_as
{
	my ($which, $name) = @_;
	$node->safe_psql('postgres', 'SELECT lock_names_release(false)');
	my @runs = map { run_hold($which) } 1 .. 2;
	my $seen = wait_for(
		"somebody to wait for the lock $which",
		sub {
			my $event = $node->safe_psql('postgres',
				q{SELECT wait_event FROM pg_stat_activity WHERE wait_event_type = 'LWLock' AND query ~ '^SELECT lock_names_hold'});
			note("waits for $event");
			return $event eq $name;
		});
	$node->safe_psql('postgres', 'SELECT lock_names_release(true)');
	for (@runs)
	{
		IPC::Run::finish($_->{harness}) or diag($_->{err});
	}
	return $seen;
}

sub check_names
{
	my ($when) = @_;
	my $names = $node->safe_psql('postgres', 'SELECT name FROM lock_names() ORDER BY name COLLATE "C"');
	my %count;
	$count{$_}++ for split /\n/, $names;
	is($count{$_} // 0, 1, "$when: one tranche is called $_") for @ours, @others;
	is($node->safe_psql('postgres', 'SELECT lock_names_of_statements()'),
		'pg_stat_statements', "$when: the lock of pg_stat_statements");
	return;
}

sub check_waits
{
	my ($when) = @_;
	ok(seen_as('remote', 'RemoteBpRemote'), "$when: the lock of leases and donors");
	ok(seen_as('partition', 'RemoteBpPartition'), "$when: a lock of the directory");
	ok(seen_as('probe', 'LockNamesProbe'), "$when: a lock of an extension that is loaded later");
	return;
}

check_names('at the start');
check_waits('at the start');
for my $n (1 .. 2)
{
	my $offset = log_size($node);
	my $session = $node->background_psql('postgres', on_error_stop => 0);
	my $pid = $session->query('SELECT pg_backend_pid()');
	is(kill('KILL', $pid), 1, "a backend is killed, $n");
	$session->quit;
	ok( wait_for(
			'recovery',
			sub { log_since($node, $offset) =~ /database system is ready to accept connections/ }),
		"the server recovers, $n");
	check_names("after crash $n");
}
check_waits('in the end');
$node->stop;

done_testing();
