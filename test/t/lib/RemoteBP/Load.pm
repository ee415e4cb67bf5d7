# pgbench in the background while something fails, and what must be true of
# it: no query fails, and each client goes on while what fails still does.
#
# How long a client may take depends on the machine, so it is held against an
# observer who works beside it: a session that computes a little, commits (on
# a primary), and reads no table, so that it waits for processors and disk as
# the clients do, but never for a donor.

package RemoteBP::Load;

use strict;
use warnings;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep time);

use RemoteBP::Daemon;

my $count = 0;

# So many looks of the observer, 0.05 s apart at least, without a statement
# from its beginning to its end: such a client hangs.
my $looks = 100;

# The node must have pgbench's tables (prepare).  seconds (it runs at least as
# long, and until finish_ok), clients, scripts, args.
sub start
{
	my ($class, $node, %opt) = @_;
	my ($test) = $0 =~ m{([^/]*?)(\.[^./]*)?$};
	my $n = ++$count;
	my $self = bless {
		node => $node,
		name => "pgbench$n",
		offset => -s $node->logfile,
		clients => $opt{clients} // 4,
		seconds => $opt{seconds} // 15
	  },
	  $class;

	# A mix of short reads, TPC-B writes and range scans.
	my @scripts = $opt{scripts}
	  ? @{ $opt{scripts} }
	  : ('-b', 'select-only@6', '-b', 'simple-update@3', '-b', 'tpcb-like@1');
	$self->{observer} = $node->background_psql('postgres');
	$self->look;
	# It ends by SIGALRM, with which pgbench ends after its time (-T), too.
	$self->{daemon} = RemoteBP::Daemon->start(
		name => $self->{name},
		log => "$PostgreSQL::Test::Utils::log_path/${test}_pgbench$n.log",
		listens => 0,
		command => [
			'pgbench', '-n', '-M', 'prepared', '-P', '1', '-T', 86400,
			'-c', $self->{clients}, '-j', '1', @scripts,
			@{ $opt{args} // [] }, $node->connstr('postgres') . " application_name=$self->{name}"
		]);
	# It is under way when all clients are.
	my $end = time + 120;
	while ($self->{daemon}->alive && time < $end)
	{
		last if keys %{ $self->look } == $self->{clients};
		sleep 0.05;
	}
	$self->{began} = time;
	return $self;
}

# One look of the observer: a hash of the clients' process ids with when each
# began its last statement.
sub look
{
	my ($self) = @_;
	my $answer = $self->{observer}->query_safe(<<"SQL");
SELECT pg_current_xact_id() IS NULL WHERE NOT pg_is_in_recovery();
SELECT sum(g) < 0 FROM generate_series(1, 50000) g;
SELECT 'client', pid, extract(epoch FROM query_start) FROM pg_stat_get_activity(NULL) WHERE application_name = '$self->{name}';
SQL
	return { $answer =~ /^client\|(\d+)\|([\d.]+)$/mg };
}

# What is wrong with the clients, '' if each of them is seen to begin a
# statement and to end it from now on.
sub stuck
{
	my ($self) = @_;
	my %begun;
	my $wrong = '';
	for my $look (0 .. $looks)
	{
		my $now = $self->look;
		$begun{$_}{ $now->{$_} } = 1 for keys %$now;
		# The first may be from before, and the last may not have ended.
		my @waiting = grep { keys %{ $begun{$_} } < 3 } sort keys %begun;
		$wrong = keys %$now < $self->{clients} ? keys(%$now) . " of $self->{clients} clients are there"
		  : @waiting ? "no statement from beginning to end: processes @waiting"
		  : '';
		return '' if $wrong eq '';
		sleep 0.05;
	}
	return $wrong;
}

# To call while what fails still does; one test point.
sub goes_on_ok
{
	my ($self, $name) = @_;
	is($self->stuck, '', $name)
	  or diag($self->{node}->safe_psql('postgres', "SELECT pid, state, wait_event_type, wait_event, now() - query_start, query FROM pg_stat_activity WHERE application_name = '$self->{name}'"));
	return;
}

# Make the tables, about 16 MB for each unit of scale.
sub prepare
{
	my ($class, $node, $scale) = @_;
	PostgreSQL::Test::Utils::system_or_bail('pgbench', '-q', '-i', '-s',
		$scale // 4, $node->connstr('postgres'));
	return;
}

# [second, tps] for each line of progress.
sub progress
{
	my ($self) = @_;
	my $text = $self->{daemon}->log_text;
	my @lines;
	push @lines, [ $1, $2 ]
	  while $text =~ /^progress: ([\d.]+) s, ([\d.]+) tps/mg;
	return @lines;
}

sub running
{
	my ($self) = @_;
	return $self->{daemon}->alive;
}

# End it when its time is over, and judge it; three test points.
sub finish_ok
{
	my ($self, $name) = @_;
	my $end = $self->{began} + $self->{seconds};
	sleep 0.05 while $self->{daemon}->alive && time < $end;
	$self->goes_on_ok("$name: each client went on");
	$self->{daemon}->signal('ALRM');
	my $status = $self->{daemon}->wait_end(300);
	my $text = $self->{daemon}->log_text;
	is($status, 0, "$name: no client failed")
	  or diag(substr($text, -2000));
	$self->{observer}->quit;

	my @errors = grep { /(ERROR|FATAL|PANIC):/ }
	  split /\n/, slurp_file($self->{node}->logfile, $self->{offset});
	is(scalar @errors, 0, "$name: no query failed")
	  or diag(join("\n", @errors[ 0 .. ($#errors > 9 ? 9 : $#errors) ]));
	note(join(' ', 'tps:', map { int $_->[1] } $self->progress));
	return;
}

1;
