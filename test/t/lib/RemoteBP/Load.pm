# pgbench in the background while something fails, and what must be true of
# it afterwards: no query failed, and no second went by without a transaction.

package RemoteBP::Load;

use strict;
use warnings;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep time);

use RemoteBP::Daemon;

my $count = 0;

# The node must have pgbench's tables (prepare).  seconds, clients, args.
sub start
{
	my ($class, $node, %opt) = @_;
	my ($test) = $0 =~ m{([^/]*?)(\.[^./]*)?$};
	my $n = ++$count;
	my $self = bless {
		node => $node,
		offset => -s $node->logfile,
		seconds => $opt{seconds} // 15
	  },
	  $class;

	# A mix of short reads, TPC-B writes and range scans.
	my @scripts = $opt{scripts}
	  ? @{ $opt{scripts} }
	  : ('-b', 'select-only@6', '-b', 'simple-update@3', '-b', 'tpcb-like@1');
	$self->{daemon} = RemoteBP::Daemon->start(
		name => "pgbench$n",
		log => "$PostgreSQL::Test::Utils::log_path/${test}_pgbench$n.log",
		listens => 0,
		command => [
			'pgbench', '-n', '-M', 'prepared', '-P', '1', '-T',
			$self->{seconds}, '-c', $opt{clients} // 4, '-j', '1', @scripts,
			@{ $opt{args} // [] }, $node->connstr('postgres')
		]);
	# It is under way once it has reported its first second.
	my $end = time + 30;
	while (!$self->progress && $self->{daemon}->alive && time < $end)
	{
		sleep 0.05;
	}
	return $self;
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

# Transactions a second on average over the last n seconds reported.
sub recent_tps
{
	my ($self, $n) = @_;
	my @lines = $self->progress;
	@lines = @lines[ -$n .. -1 ] if @lines > $n;
	my $sum = 0;
	$sum += $_->[1] for @lines;
	return @lines ? $sum / @lines : 0;
}

# Wait for its end and judge it; three test points.
sub finish_ok
{
	my ($self, $name) = @_;
	my $status = $self->{daemon}->wait_end($self->{seconds} + 60);
	my $text = $self->{daemon}->log_text;
	is($status, 0, "$name: no client failed")
	  or diag(substr($text, -2000));

	my @errors = grep { /(ERROR|FATAL|PANIC):/ }
	  split /\n/, slurp_file($self->{node}->logfile, $self->{offset});
	is(scalar @errors, 0, "$name: no query failed")
	  or diag(join("\n", @errors[ 0 .. ($#errors > 9 ? 9 : $#errors) ]));

	my @seconds = $self->progress;
	my @idle = grep { $_->[1] == 0 } @seconds;
	ok(@seconds >= $self->{seconds} / 2 && !@idle,
		"$name: no second without a transaction")
	  or diag(join("\n", map { "second $_->[0]: $_->[1] tps" } @seconds));
	note(join(' ', 'tps:', map { int $_->[1] } @seconds));
	return;
}

1;
