# A query that waits for a donor can be cancelled, times out and can be
# terminated, however long it may wait: for temporary data that it reads back,
# for its own writes, for a connection and for a page of the buffer tier.  It
# gets the error that it would get on a stock server, nothing is reported as
# lost, and when the donor goes on, all is there.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use RemoteBP;
use RemoteBP::Spill;
use Test::More;

# A donor that hangs stays in the lease: the broker and it are patient.
my $broker = start_broker(args => [ '--donor-timeout', '600' ]);
my $donor = start_donor($broker, memory => '64MB', region_size => '4MB');
my $node = spill_cluster('cancel');
spill_data($node);

# Both waits at their maxima, ten minutes and ten seconds, so that whoever ends
# while the donor hangs was not waiting to the end.
my $longest = "remote_bp.temp_io_timeout = '600s'\nremote_bp.io_timeout = '10s'\nremote_bp.lease_ttl = '600s'\n"
  . "remote_bp.buffer_tier_size = 0\n";
my $all = q{SELECT count(*), md5(string_agg(t, '')) FROM (SELECT t, pad FROM big ORDER BY t OFFSET 0) s};
my $sorted = 'SELECT id, t, pad FROM big ORDER BY t';
my $right = $node->safe_psql('postgres', $all);
my $rows = $node->safe_psql('postgres', 'SELECT count(*) FROM big');

sub session
{
	my (@statements) = @_;
	my $session = $node->background_psql('postgres', on_error_stop => 0);
	$session->query($_) for '\set VERBOSITY sqlstate', @statements;
	my $pid = $session->query('SELECT pg_backend_pid()');
	return ($session, $pid);
}

# One that has run these, the last of which has put blocks on the donor, and its
# process id; donors that have hung just now are used again after a while.
sub spilled
{
	my ($name, @statements) = @_;
	my ($session, $pid);
	ok( wait_for(
			'blocks on the donor',
			sub {
				($session, $pid) = session(@statements);
				return 1 if $session->query("SELECT coalesce(sum(remote_bytes), 0) FROM remote_bp_temp_files WHERE owner = $pid") > 3000000;
				$session->quit;
				return 0;
			}),
		"$name: blocks are on the donor");
	return ($session, $pid);
}

# What these waits are called: before PostgreSQL 17, all extensions share one
# name.
my $named = $node->safe_psql('postgres', 'SHOW server_version_num') >= 170000;
my ($spill_wait, $connect_wait) = map { 'Extension|' . ($named ? $_ : 'Extension') } qw(RemoteBpSpill RemoteBpConnect);

# Since 18, blocks of temporary tables are read in a critical section, which
# nothing can be raised in.  So such a read fails: "Interrupted system call".
my $read_fails = $node->safe_psql('postgres', 'SHOW server_version_num') >= 180000;

# The session waits for that; so it goes on to do, if nobody ends it.
sub waits
{
	my ($pid, $event, $name) = @_;
	my $seen = 0;
	my %others;
	return 1 if ok(
		wait_for(
			"a wait in $event",
			sub {
				my $is = $node->safe_psql('postgres',
					"SELECT state || '|' || coalesce(wait_event_type || '|' || wait_event, '') FROM pg_stat_activity WHERE pid = $pid");
				my $there = $is eq "active|$event";
				$others{$is}++ unless $there;
				$seen = $there ? $seen + 1 : 0;
				return $seen == 10;
			}),
		"$name: the query waits");
	diag("seen instead: $_, $others{$_} times") for sort keys %others;
	return 0;
}

# It is not, any more; the donor hangs as before.
sub ends
{
	my ($pid, $name) = @_;
	return ok(
		wait_for(
			'the query to end',
			sub { $node->safe_psql('postgres', "SELECT count(*) FROM pg_stat_activity WHERE pid = $pid AND state = 'active'") == 0 },
			40),
		"$name: the query ends while the donor hangs");
}

# What it ended with.
sub ended_with
{
	my ($session, $state, $name) = @_;
	$session->query('SELECT 1');
	like($session->{stderr}, qr/ERROR:\s+$state\b/, "$name: the query fails with $state");
	$session->{stderr} = '';
	return;
}

# Once the donor goes on, the session and others work, and blocks go there.
sub goes_on
{
	my ($session, $name) = @_;
	$donor->thaw;
	if ($session)
	{
		$session->query('ROLLBACK');
		is($session->query($all), $right, "$name: the session goes on");
		$session->quit;
	}
	ok( wait_for(
			'the donor to be used again',
			sub {
				my $before = counter($node, 'spill.reads');
				return '' if $node->safe_psql('postgres', $all) ne $right;
				return counter($node, 'spill.reads') > $before;
			}),
		"$name: the donor is used again");
	return;
}

sub nothing_lost
{
	my ($offset, $name, $may_fail) = @_;
	my $log = log_since($node, $offset);
	is(counter($node, 'spill.lost'), 0, "$name: no block counts as lost");
	unlike($log, qr/could not read block \d+ of temporary file/, "$name: the log reports no lost block");
	unlike($log, qr/could not (?:read|write)/, "$name: the log reports no file that could not be read")
	  unless $may_fail;
	return;
}

# How a query is ended, what it says, and what is to be set before.
my @ways = (
	{
		name => 'cancelled',
		state => '57014',
		end => sub { $node->safe_psql('postgres', "SELECT pg_cancel_backend($_[0])") }
	},
	{
		name => 'timed out',
		state => '57014',
		before => "SET statement_timeout = '3s'",
		after => 'RESET statement_timeout',
		end => sub { }
	},
	{
		name => 'terminated',
		state => '57P01',
		end => sub { $node->safe_psql('postgres', "SELECT pg_terminate_backend($_[0])") }
	});

# The query waits, is ended, and all goes on.
sub end_it
{
	my ($way, $session, $pid, $query, $event, $name) = @_;
	my $offset = log_size($node);
	$session->{stderr} = '';
	$session->query_until(qr/begins/, "\\echo begins\n$query;\n");
	waits($pid, $event, $name) unless $way->{before};
	$way->{end}->($pid);
	my $ended = ends($pid, $name);
	$donor->thaw unless $ended;
	if ($way->{state} eq '57P01')
	{
		my $fatal = qr/FATAL:  terminating connection due to administrator command/;
		ok(wait_for('the message', sub { log_since($node, $offset) =~ $fatal }), "$name: the session ends with 57P01");
		$session = undef;
	}
	else
	{
		ended_with($session, $way->{state}, $name);
		$session->query("ROLLBACK; $way->{after}") if $way->{after};
	}
	goes_on($session, $name);
	nothing_lost($offset, $name);
	return;
}

#---- temporary data that is read back ---------------------------------------

ok(spill_mode($node, broker => $broker, transport => 'tcp', temp => '32MB', conf => $longest), 'tcp: memory is leased');
for my $way (@ways)
{
	my $name = "reading, $way->{name}";
	my ($session, $pid) = spilled($name, 'BEGIN', "DECLARE c CURSOR FOR $sorted", 'FETCH 1 FROM c');
	$donor->freeze;
	$session->query($way->{before}) if $way->{before};
	end_it($way, $session, $pid, 'MOVE ALL FROM c', $spill_wait, $name);
}

# Blocks that outlive the transaction whose query was cancelled are as they
# were.
{
	my $name = 'temporary table';
	my ($session, $pid) = spilled(
		$name, 'SET remote_bp.spill_temp_tables = on', "SET temp_buffers = '800kB'",
		'CREATE TEMP TABLE f AS SELECT * FROM big', 'SELECT count(*) FROM f');
	my $sum = $session->query('SELECT count(*), sum(hashtextextended(f::text, 0)::numeric) FROM f');
	my $offset = log_size($node);
	$donor->freeze;
	$session->{stderr} = '';
	$session->query_until(qr/begins/, "\\echo begins\nSELECT count(*), max(t) FROM f;\n");
	waits($pid, $spill_wait, $name);
	$node->safe_psql('postgres', "SELECT pg_cancel_backend($pid)");
	ends($pid, $name);
	$donor->thaw;
	ended_with($session, $read_fails ? 'XX000' : '57014', $name);
	is($session->query('SELECT count(*), sum(hashtextextended(f::text, 0)::numeric) FROM f'), $sum, "$name: all rows of the table are there");
	$session->quit;
	nothing_lost($offset, $name, $read_fails);
}

#---- writes that wait ---------------------------------------------------------

for my $way (@ways)
{
	my $name = "writing, $way->{name}";
	my ($session, $pid) = session($all);
	$donor->freeze;
	$session->query($way->{before}) if $way->{before};
	end_it($way, $session, $pid, $all, $spill_wait, $name);
}

# So does an error that has nothing to do with it, while blocks are on their
# way.
{
	my $name = 'writing, failed';
	my ($session, $pid) = session($all);
	my $offset = log_size($node);
	$donor->freeze;
	$session->{stderr} = '';
	$session->query_until(qr/begins/,
		"\\echo begins\nSELECT count(t || pad) FROM (SELECT t, pad FROM big WHERE 1 / (3000 - id) > -2 ORDER BY t OFFSET 0) s;\n");
	ends($pid, $name);
	$donor->thaw;
	ended_with($session, '22012', $name);
	goes_on($session, $name);
	nothing_lost($offset, $name);
}
spill_is_clean($node, 'tcp', interrupted => $read_fails);

#---- a connection that does not come about -------------------------------------

ok( spill_mode(
		$node,
		broker => $broker,
		transport => 'shm',
		temp => '32MB',
		conf => $longest . "remote_bp.idle_connection_timeout = '1s'\n"),
	'shm: memory is leased');
for my $way (@ways)
{
	my $name = "connecting, $way->{name}";
	my ($session, $pid) = spilled($name, "DECLARE h CURSOR WITH HOLD FOR $sorted", 'FETCH 1 FROM h');
	ok(wait_for('idle connections to be closed', sub { connections($node) == 0 }), "$name: the connection is closed when it is idle");
	$donor->freeze;
	$session->query($way->{before}) if $way->{before};
	end_it($way, $session, $pid, 'MOVE ALL FROM h', $connect_wait, $name);
}
spill_is_clean($node, 'shm', interrupted => $read_fails);
$node->stop;

#---- pages of the buffer tier ---------------------------------------------------

# One wait is ten seconds here.  Whoever waited for all of it would have counted
# a timeout.
my $buffered = new_cluster(
	'buffered',
	broker => $broker,
	transport => 'tcp',
	tier => '16MB',
	shared_buffers => '4MB',
	conf => "remote_bp.io_timeout = '10s'\nremote_bp.lease_ttl = '600s'\n");
ok(wait_leased($buffered, 16), 'buffer tier: memory is leased');
make_table($buffered, 't', 8);
my $content = content($buffered, 't');
cmp_ok(warm($buffered, 't'), '>', 0, 'buffer tier: the tier has the table');
{
	my $name = 'buffer tier';
	my $session = $buffered->background_psql('postgres', on_error_stop => 0);
	my $query = 'SELECT count(*), sum(v), sum(hashtext(t::text)::bigint) FROM t';
	$session->query('\set VERBOSITY sqlstate');
	is($session->query($query) =~ s/\s+//r, $content, "$name: a query is right");
	my $timeouts = counter($buffered, 'timeouts');
	$session->query("SET statement_timeout = '1s'");
	$donor->freeze;
	$session->{stderr} = '';
	$session->query($query);
	like($session->{stderr}, qr/ERROR:\s+57014/, "$name: the query times out");
	$session->query('RESET statement_timeout');
	is($session->query('SELECT timeouts FROM remote_bp_stat'), $timeouts, "$name: the query has not waited to the end");
	$donor->thaw;
	is($session->query($query), $content, "$name: the next query is right");
	$session->quit;
	is_clean($buffered, $name);
}

done_testing();
