# A TCP proxy in a process of its own, which can play a broken network:
# silent (packets vanish: nothing is read, nothing answered, connections stay),
# refusing (connections are reset, new ones refused), or passing.  It can become silent
# in the middle of an answer, too.

package RemoteBP::Proxy;

use strict;
use warnings;

use IO::Select;
use IO::Socket::INET;
use List::Util qw(min);
use POSIX ();
use Socket qw(IPPROTO_TCP SOL_SOCKET SO_LINGER TCP_NODELAY);
use Test::More;
use Time::HiRes qw(sleep);

my $owner = $$;
my @all;

# Listens at once on a port of the system's choice; where it leads to is told
# later, because a donor must know the proxy's address before it has its own.
sub start
{
	my ($class) = @_;
	my $listener = listen_on(0) or BAIL_OUT("proxy: $!");
	my $self = bless {
		port => $listener->sockport,
		target_file => PostgreSQL::Test::Utils::tempdir() . '/target'
	}, $class;

	my $parent = $$;
	my $pid = fork // BAIL_OUT("fork: $!");
	if ($pid == 0)
	{
		eval { serve($listener, $self->{port}, $self->{target_file}, $parent); };
		POSIX::_exit(0);
	}
	close $listener;
	$self->{pid} = $pid;
	push @all, $self;
	return $self;
}

sub address { return "127.0.0.1:$_[0]->{port}"; }

sub lead_to
{
	my ($self, $address) = @_;
	put($self->{target_file}, $address);
	return;
}

# Of all that the other side answers to the next connection, so many bytes pass; then the
# network is silent.
sub silence_after
{
	my ($self, $bytes) = @_;
	put("$self->{target_file}.bytes", $bytes);
	return;
}

# The file has the text, at once.
sub put
{
	my ($path, $text) = @_;
	open(my $file, '>', "$path.new") or die $!;
	print $file $text;
	close $file;
	rename("$path.new", $path) or die $!;
	return;
}

sub silence { my ($self) = @_; note('the network is silent'); return kill('USR1', $self->{pid}); }
sub refuse { my ($self) = @_; note('the network refuses'); return kill('USR2', $self->{pid}); }
sub mend { my ($self) = @_; note('the network passes'); return kill('HUP', $self->{pid}); }

sub listen_on
{
	my ($port) = @_;
	return IO::Socket::INET->new(
		LocalAddr => '127.0.0.1',
		LocalPort => $port,
		Proto => 'tcp',
		Listen => 64,
		ReuseAddr => 1,
		Blocking => 0);
}

# The proxy's process.
sub serve
{
	my ($listener, $port, $target_file, $parent) = @_;
	my $mode = 'pass';
	my (%peer, %buffer, %left);
	local $SIG{USR1} = sub { $mode = 'silent' };
	local $SIG{USR2} = sub { $mode = 'refuse' };
	local $SIG{HUP} = sub { $mode = 'pass' };
	local $SIG{PIPE} = 'IGNORE';
	local $SIG{TERM} = 'DEFAULT';
	local $SIG{INT} = 'DEFAULT';

	my $drop = sub {
		my ($socket, $reset) = @_;
		for my $s ($socket, delete $peer{$socket})
		{
			next unless $s;
			setsockopt($s, SOL_SOCKET, SO_LINGER, pack('ii', 1, 0)) if $reset;
			delete $peer{$s};
			delete $buffer{$s};
			delete $left{$s};
			close $s;
		}
	};

	my %socket;
	while (getppid == $parent)
	{
		if ($mode eq 'silent')
		{
			select(undef, undef, undef, 0.05);
			next;
		}
		if ($mode eq 'refuse')
		{
			close $listener if $listener;
			undef $listener;
			for my $s (values %socket)
			{
				$drop->($s, 1) if defined fileno $s;
			}
			%socket = ();
			select(undef, undef, undef, 0.05);
			next;
		}
		$listener //= listen_on($port);

		my ($rin, $win) = ('', '');
		vec($rin, fileno($listener), 1) = 1 if $listener;
		for my $key (keys %socket)
		{
			my $s = $socket{$key};
			if (!defined fileno $s) { delete $socket{$key}; next; }
			# Read on only while the other side takes what there is.
			my $other = $peer{$s};
			vec($rin, fileno($s), 1) = 1
			  if $other && length($buffer{$other} // '') < 1_000_000;
			vec($win, fileno($s), 1) = 1 if length($buffer{$s} // '');
		}
		my ($rout, $wout) = ($rin, $win);
		next if select($rout, $wout, undef, 0.2) <= 0;

		if ($listener && vec($rout, fileno($listener), 1))
		{
			while (my $in = $listener->accept)
			{
				my $target = '';
				if (open(my $file, '<', $target_file)) { $target = <$file>; }
				my $out = IO::Socket::INET->new(PeerAddr => $target, Timeout => 5);
				if (!$out) { close $in; next; }
				for my $s ($in, $out)
				{
					$s->blocking(0);
					setsockopt($s, IPPROTO_TCP, TCP_NODELAY, 1);
					$socket{ fileno $s } = $s;
				}
				$peer{$in} = $out;
				$peer{$out} = $in;
				if (open(my $file, '<', "$target_file.bytes"))
				{
					$left{$out} = <$file>;
					unlink "$target_file.bytes";
				}
			}
		}
		for my $s (values %socket)
		{
			my $fd = fileno $s;
			next unless defined $fd;
			if (vec($rout, $fd, 1))
			{
				my $other = $peer{$s};
				my $n = sysread($s, my $data, min(262144, $left{$s} // 262144));
				if (!$n)
				{
					next if !defined $n && $!{EAGAIN};
					$drop->($s);
					next;
				}
				$buffer{$other} = ($buffer{$other} // '') . $data;
				flush_to($other, \%buffer);
				if (defined $left{$s} && ($left{$s} -= $n) == 0)
				{
					delete $left{$s};
					$mode = 'silent';
				}
			}
			elsif (vec($wout, $fd, 1))
			{
				flush_to($s, \%buffer);
			}
		}
	}
	return;
}

sub flush_to
{
	my ($s, $buffer) = @_;
	return unless defined fileno $s && length($buffer->{$s} // '');
	my $n = syswrite($s, $buffer->{$s});
	substr($buffer->{$s}, 0, $n) = '' if $n;
	return;
}

END
{
	my $exit_code = $?;
	if ($$ == $owner)
	{
		for my $proxy (@all)
		{
			kill('KILL', $proxy->{pid});
			waitpid($proxy->{pid}, 0);
		}
	}
	$? = $exit_code;
}

1;
