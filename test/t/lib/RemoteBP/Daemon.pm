# A program that runs while a test does: started with its messages in a file,
# stopped by its process id, killed when the test ends in whatever way.

package RemoteBP::Daemon;

use strict;
use warnings;

use POSIX ();
use Test::More;
use Time::HiRes qw(sleep time);

my @all;
my $owner = $$;

# setpriv makes the kernel kill the program if the test itself is killed.
my ($setpriv) = grep { -x $_ } qw(/usr/bin/setpriv /bin/setpriv);

# name, log (file), command => [...], listens => 0 if it logs no address, tls => 1 if it serves HTTPS, pipe => 1
# if its messages go to the log through a pipe: another process reads that.
sub start
{
	my ($class, %arg) = @_;
	my $self = bless {%arg}, $class;
	my @command = @{ $arg{command} };
	my $messages = $arg{log};
	if ($arg{pipe})
	{
		$messages = $self->{pipe} = "$arg{log}.pipe";
		POSIX::mkfifo($messages, 0600) or BAIL_OUT("$messages: $!");
		$self->{reader} =
		  $class->start(name => "the log of $arg{name}", log => $arg{log}, command => [ 'cat', $messages ], listens => 0);
	}
	unshift @command, $setpriv, '--pdeathsig', 'KILL', '--' if $setpriv;

	my $pid = fork // BAIL_OUT("fork: $!");
	if ($pid == 0)
	{
		open(STDIN, '<', '/dev/null');
		open(STDOUT, '>>', $messages);
		open(STDERR, '>&', \*STDOUT);
		no warnings 'exec';
		exec { $command[0] } @command;
		POSIX::_exit(127);
	}
	$self->{pid} = $pid;
	push @all, $self;
	note("started $arg{name}, pid $pid: @{ $arg{command} }");
	return $self if defined $arg{listens} && !$arg{listens};

	my $end = time + 60;
	until ($self->address)
	{
		BAIL_OUT("$arg{name} ended at its start: " . $self->log_text)
		  unless $self->alive;
		BAIL_OUT("$arg{name} does not listen: " . $self->log_text)
		  if time > $end;
		sleep 0.02;
	}
	return $self;
}

sub log_text
{
	my ($self) = @_;
	open(my $file, '<', $self->{log}) or return '';
	local $/;
	return scalar(<$file>) // '';
}

sub address
{
	my ($self) = @_;
	($self->{address}) = $self->log_text =~ /listening on (\S+:\d+)/
	  unless $self->{address};
	return $self->{address};
}

sub port
{
	my ($self) = @_;
	my ($port) = $self->address =~ /:(\d+)$/;
	return $port;
}

sub url
{
	my ($self) = @_;
	return ($self->{tls} ? 'https://' : 'http://') . $self->address;
}

sub pid
{
	return $_[0]->{pid};
}

# Collects the exit status when it ended.
sub alive
{
	my ($self) = @_;
	return 0 if defined $self->{status};
	if (waitpid($self->{pid}, POSIX::WNOHANG()) == $self->{pid})
	{
		$self->{status} = $?;
		return 0;
	}
	return 1;
}

sub signal
{
	my ($self, $signal) = @_;
	note("$signal to $self->{name}, pid $self->{pid}");
	return $self->alive && kill($signal, $self->{pid});
}

# Wait until it ends: its exit status as in $?, undef if it does not.
sub wait_end
{
	my ($self, $seconds) = @_;
	my $end = time + ($seconds // 30);
	while ($self->alive)
	{
		return undef if time > $end;
		sleep 0.02;
	}
	return $self->{status};
}

# SIGTERM and wait; what it exits with, undef if it does not.
sub stop
{
	my ($self, $seconds) = @_;
	$self->signal('TERM');
	return $self->wait_end($seconds);
}

sub kill9
{
	my ($self) = @_;
	$self->signal('KILL');
	return $self->wait_end;
}

# Nobody reads its messages any more, and there is room for none.
sub block_log
{
	my ($self) = @_;
	$self->{reader}->freeze;
	sysopen(my $pipe, $self->{pipe}, POSIX::O_WRONLY() | POSIX::O_NONBLOCK()) or BAIL_OUT("$self->{pipe}: $!");
	for my $line (("x" x 4095) . "\n", "\n")
	{
		1 while syswrite($pipe, $line);
	}
	close $pipe;
	return;
}

sub unblock_log { return $_[0]->{reader}->thaw; }

# The state of each of its threads, one letter each.
sub states
{
	my ($self) = @_;
	my $states = '';
	for my $thread (glob "/proc/$self->{pid}/task/*/stat")
	{
		open(my $file, '<', $thread) or next;
		$states .= $1 if (<$file> // '') =~ /^\d+ \(.*\) (\S)/s;
	}
	return $states;
}

# Returns when all of its threads have stopped: one of them takes the signal, and
# until it runs, the others go on, accept connections and answer.
sub freeze
{
	my ($self) = @_;
	my $end = time + 60;
	$self->signal('STOP') or return 0;
	until ($self->states =~ /^T+$/)
	{
		return 0 unless $self->alive;
		BAIL_OUT("$self->{name} does not stop: " . $self->states) if time > $end;
		sleep 0.001;
	}
	return 1;
}

sub thaw { return $_[0]->signal('CONT'); }

END
{
	my $exit_code = $?;
	if ($$ == $owner)
	{
		for my $daemon (reverse @all)
		{
			kill('KILL', $daemon->{pid}) if $daemon->alive;
			$daemon->wait_end(5);
		}
	}
	$? = $exit_code;
}

1;
