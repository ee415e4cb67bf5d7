#!/usr/bin/env perl
#
# Three brokers, four donors and eight clients, in a network that is cut, amid kills and stops: what they
# did keeps the promises of docs/protocol.md, as test/history/Checker.pm reads it.
#
# Timeout: 14000
#
# RBP_HISTORY_EVENTS events, 500, or 10,000 in a soak; each begins or ends a fault.  RBP_HISTORY_SEED is the
# seed that another run has printed: the schedule is the same then.

use strict;
use warnings;

use FindBin;
use File::Temp;
use IO::Select;
use List::Util qw(shuffle);
use POSIX ();
use Test::More;
use Time::HiRes qw(clock_gettime CLOCK_MONOTONIC CLOCK_REALTIME sleep);
use Time::Local qw(timegm);

use lib "$FindBin::Bin/../../history";
use Checker;
use Proxy;

use constant { TTL => 4, GAP => 0.16, DONOR_TIMEOUT => 5 };

my $root = $ENV{RBP_ROOT} // "$FindBin::Bin/../../..";
my $dir = $ENV{TESTDIR} // File::Temp::tempdir(CLEANUP => 1);
my $events = $ENV{RBP_HISTORY_EVENTS} // ($ENV{RBP_SOAK} ? 10000 : 500);
my $seed = $ENV{RBP_HISTORY_SEED} // int(rand(2**31));
my %program = (b => $ENV{RBP_BROKER} // "$root/build/remote_bp_broker", d => $ENV{RBP_DONOR} // "$root/build/remote_bp_donor");
my @brokers = map { "b$_" } 0 .. 2;
my @donors = map { "d$_" } 0 .. 3;
my @clients = map { "c$_" } 0 .. 7;
my (%pid, %pair_port, %from, %said, $network, $proxy_pid);
my $output = IO::Select->new;
my @noted;    # lines of the history

$SIG{PIPE} = 'IGNORE';
diag_seed();
sub diag_seed { note("RBP_HISTORY_SEED=$seed RBP_HISTORY_EVENTS=$events") }

sub now { return clock_gettime(CLOCK_MONOTONIC) }

sub remember
{
	my ($t0, $t1, $who, $what) = @_;
	push @noted, sprintf('%.6f %.6f %s %s', $t0, $t1, $who, $what);
}

# What to add to the wall clock for the other one; both are read at once, or once more.
sub wall_offset
{
	for (;;)
	{
		my $before = now();
		my $wall = clock_gettime(CLOCK_REALTIME);
		return $before - $wall if now() - $before < 0.001;
	}
}

# ---- daemons ----

sub start
{
	my ($name) = @_;
	my @brokers_of = map { 'http://127.0.0.1:' . ($pair_port{"$name>$_"} // 0) } @brokers;
	my @arguments = $name =~ /^b/ ? ('--donor-timeout', DONOR_TIMEOUT) :
		('--broker', join(',', @brokers_of), '--id', $name, '--memory', '6MB', '--region-size', '1MB', '--min-free', 0, '--transports', 'tcp',
			'--reclaim-grace', 3, '--advertise', '127.0.0.1:' . (7000 + substr($name, 1)));

	pipe(my $read, my $write) or die $!;
	$pid{$name} = fork() // die $!;
	if ($pid{$name} == 0)
	{
		open(STDERR, '>&', $write) && open(STDOUT, '>', '/dev/null') or POSIX::_exit(1);
		exec($program{ substr($name, 0, 1) }, '--listen', '127.0.0.1:0', @arguments) or POSIX::_exit(1);
	}
	close $write;
	$from{ fileno($read) } = [$name, $read];
	$said{ fileno($read) } = '';
	$output->add($read);
}

# What daemons log in this time goes into the history.
sub hear
{
	my ($seconds) = @_;
	my $until = now() + $seconds;

	do
	{
		for my $pipe ($output->can_read($until > now() ? $until - now() : 0))
		{
			my $name = $from{ fileno($pipe) }[0];
			my $n = sysread($pipe, $said{ fileno($pipe) }, 65536, length($said{ fileno($pipe) }));
			hear_line($name, $1) while $said{ fileno($pipe) } =~ s/^(.*)\n//;
			if (!$n)
			{
				$output->remove($pipe);
				close $pipe;
			}
		}
	} while now() < $until;
}

open(my $daemon_log, '>', "$dir/daemons.log") or die $!;
$daemon_log->autoflush(1);
my %logged;

sub hear_line
{
	my ($name, $line) = @_;
	# when it was written, in milliseconds
	my $t = $line =~ /^(\d+)-(\d+)-(\d+)T(\d+):(\d+):([\d.]+)Z/ ? timegm($6, $5, $4, $3, $2 - 1, $1) + wall_offset() : now();
	my $note = sub { remember($t - 0.003, $t + 0.003, $name, $_[0]) };

	printf $daemon_log "%.3f %s %s\n", $t, $name, $line;
	print $network "$name port $1\n" if $line =~ /listening on 127\.0\.0\.1:(\d+)/;
	$note->("ended lease=$1") if $line =~ /lease (\S+) ended: not renewed in time/;
	$note->("expired lease=$1") if $line =~ /lease (\S+) of \S+ \(\d+ regions\) has expired/;
	$note->("granted lease=$1 client=$2") if $line =~ /lease (\S+) \(\w+\) for (\S+): \d+ regions granted/;
	$note->("taken_over lease=$1") if $line =~ /lease (\S+) .*ends: another instance takes over/;
	$note->("taken lease=$1") if $line =~ /lease (\S+): \d+ regions of donor \S+ are taken, /;
	$note->('started') if $line =~ /info: listening on/ && $name =~ /^b/;
	$note->("joined donor=$1") if $line =~ /donor (\S+) has joined/;
	$note->("gave_up donor=$1") if $line =~ /donor (\S+) has been silent for \d+ s: \d+ regions leave/;
	$logged{adoptions}++ if $line =~ /goes on here/;
	$logged{'donors move'}++ if $line =~ /registered with the broker as/;
	$logged{'brokers forget'}++ if $line =~ /did not run for .* and forgets/;
	$logged{broken}++ if $line =~ /broken invariant|is refused by the broker|does not take \d+ leases/;
}

# ---- faults ----

sub send_signal
{
	my ($signal, $name) = @_;
	kill($signal, $pid{$name}) or die "$name has ended by itself";
}

sub kill_daemon
{
	my ($name) = @_;
	my $t0 = now();

	send_signal('KILL', $name);
	waitpid($pid{$name}, 0);
	remember($t0, now(), $name, 'killed') if $name =~ /^d/;
	delete $pid{$name};
}

# Between parties of the one list and of the other, in the direction out, in, or both, as seen by who connects
my %cuts;
sub cut
{
	my ($on, $sides, $ways) = @_;
	for my $pair (keys %pair_port)
	{
		my ($near, $far) = split />/, $pair;
		next unless ($sides->[0]{$near} && $sides->[1]{$far}) || ($sides->[1]{$near} && $sides->[0]{$far});
		for my $way (@$ways)
		{
			$cuts{"$pair $way"} += $on ? 1 : -1;
			print $network "$pair $way " . ($cuts{"$pair $way"} > 0 ? 1 : 0) . "\n";
		}
	}
}

# The schedule: [seconds, name, what to do], by the seed alone
sub schedule
{
	my ($n) = @_;
	my (@list, %busy);
	my $t = 0;
	my $any = sub { $_[rand @_] };
	my $some = sub { my ($p, @of) = @_; map { ($_ => 1) } grep { rand() < $p } @of };
	my @everybody = (@brokers, @donors, @clients);

	while (@list < $n)
	{
		my $what = rand(100);
		my $end = sub { $t + $_[rand @_] * (0.8 + rand(0.4)) };
		my ($name, $until, $begin, $after);

		$t += 2 * GAP;
		if ($what < 14 || ($what >= 20 && $what < 27))
		{
			$name = $what < 14 ? $any->(@brokers) : $any->(@donors);
			$until = $end->(0.1, 0.5, 2);
			($begin, $after) = (sub { kill_daemon($name) }, sub { start($name) });
		}
		elsif ($what < 20 || $what < 36)
		{
			$name = $what < 20 ? $any->(@brokers) : $what < 31 ? $any->(@donors) : $any->(@clients);
			$until = $end->(1, TTL, 3 * TTL);
			($begin, $after) = (sub { send_signal('STOP', $name) }, sub { send_signal('CONT', $name) });
		}
		else
		{
			my @sides = $what < 54 ? ({ $any->(@clients) => 1 }, { $any->(@brokers) => 1 }) :
				$what < 70 ? ({ $any->(@clients) => 1 }, { $any->(@donors) => 1 }) :
				$what < 86 ? ({ $any->(@donors) => 1 }, { $any->(@brokers) => 1 }) :
				$what < 93 ? do { my $one = $any->(@brokers, @donors); ({ $one => 1 }, { map { ($_ => 1) } grep { $_ ne $one } @everybody }) } :
				do { my %one = $some->(0.5, @everybody); (\%one, { map { ($_ => 1) } grep { !$one{$_} } @everybody }) };
			my $ways = $any->(['out', 'in'], ['out', 'in'], ['out'], ['in']);

			$name = 'cut ' . @list;
			$until = $end->(1, 2, TTL, 2 * TTL);
			($begin, $after) = (sub { cut(1, \@sides, $ways) }, sub { cut(0, \@sides, $ways) });
		}
		next if ($busy{$name} // 0) > $t;
		$busy{$name} = $until;
		push @list, [$t, $begin], [$until, $after];
	}
	return sort { $a->[0] <=> $b->[0] } @list;
}

# ---- the run ----

sub clients_lines
{
	my @lines;
	for my $client (@clients)
	{
		open(my $file, '<', "$dir/$client.log") or next;
		push @lines, <$file>;
	}
	return @lines;
}

# Which clients have had a lease renewed, with regions, by a request after that time?
sub renewed_since
{
	my ($t) = @_;
	my %renewed;
	for (clients_lines())
	{
		$renewed{$2} = 1 if /^(\S+) \S+ (\S+) renew .*regions=d.* status=200/ && $1 > $t;
	}
	return scalar keys %renewed;
}

sub all_go_on
{
	my ($name) = @_;
	my $since = now();

	hear(0.5) until renewed_since($since) == @clients || now() > $since + 300;
	is(renewed_since($since), scalar @clients, $name);
}

srand($seed);
my @schedule = schedule($events);
my %client_seed = map { ($_ => int(rand(2**31))) } @clients;

local $ENV{REMOTE_BP_BROKER_CHECK} = do { local (@ARGV, $/) = "$root/test/broker/invariants.sql"; <> };
($proxy_pid, $network, %pair_port) = Proxy::start(
	(map { my $b = $_; map { "$_>$b" } @donors, @clients } @brokers),
	(map { my $d = $_; map { "$_>$d" } @clients } @donors));
start($_) for @brokers, @donors;
for my $client (@clients)
{
	$pid{$client} = fork() // die $!;
	next if $pid{$client};
	open(STDERR, '>', "$dir/$client.err");
	exec("$root/test/history/client", $client, $dir, $client_seed{$client}, TTL * 1000, join(',', map { $pair_port{"$client>$_"} } @brokers),
		join(',', map { "$_=" . $pair_port{"$client>$_"} } @donors)) or POSIX::_exit(1);
}
all_go_on('all clients have leases');

my $begin = now();
my $done = 0;
for my $event (@schedule)
{
	my ($at, $do) = @$event;
	my $left = $begin + $at - now();
	hear($left > 0 ? $left : 0);
	$do->();
	$done++;
}
all_go_on("after $done events, all have leases");
kill_daemon($_) for @brokers;
start($_) for @brokers;
all_go_on('and when all brokers have been killed at once');

open(my $stop, '>', "$dir/stop") or die $!;
for my $client (@clients)
{
	waitpid($pid{$client}, 0);
	is($?, 0, "$client ends") or diag(`cat $dir/$client.err`);
	delete $pid{$client};
}
hear(0.2);
for my $name (grep { $pid{$_} } @brokers, @donors)
{
	is(waitpid($pid{$name}, POSIX::WNOHANG), 0, "$name runs");
}
open(my $history, '>', "$dir/history") or die $!;
my @lines = sort { (split ' ', $a)[0] <=> (split ' ', $b)[0] } map { chomp; $_ } @noted, clients_lines();
print $history "$_\n" for @lines;
close $history;

my ($bad, $counts) = Checker::check(@lines);
is(scalar @$bad, 0, 'the history keeps what was promised');
diag("RBP_HISTORY_SEED=$seed RBP_HISTORY_EVENTS=$events") if @$bad;
diag($_) for splice(@$bad, 0, 10);
is($logged{broken} // 0, 0, 'no broker broke an invariant, or refused what a donor told');

/ renew .*broker=[12] .*status=200/ && $counts->{'renewals elsewhere'}++ for @lines;
$counts->{$_} = $logged{$_} for keys %logged;
note("$_: $counts->{$_}") for sort keys %$counts;
for my $what ('get 201', 'renew 200', 'renew 0', 'write ok', 'read ok', 'read denied', 'write denied', 'read failed', 'drop ends', 'ended', 'killed',
	'changes of holder', 'renewals elsewhere', 'adoptions', 'donors move')
{
	cmp_ok($counts->{$what} // 0, '>', 0, "there was: $what");
}
done_testing();

END
{
	my $status = $?;
	for my $name (keys %pid)
	{
		kill('CONT', $pid{$name});
		kill('KILL', $pid{$name});
		waitpid($pid{$name}, 0);
	}
	close $network if $network;
	waitpid($proxy_pid, 0) if $proxy_pid;
	$? = $status;
}
