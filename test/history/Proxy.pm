# The network of the test: a process through which each party reaches each other one, by a port of each
# pair, and which holds bytes back in one direction or both.  What is held back comes later.

package Proxy;

use strict;
use warnings;

use IO::Socket::INET;
use POSIX ();

# start(pairs): FROM>TO.  Returns a process, a handle for commands, and FROM>TO => port.  Commands are "FROM>TO out|in 0|1", and
# "TO port NUMBER", since a daemon that is started again has another one: nobody can keep one free.
sub start
{
	my (%listener, %port);

	for my $pair (@_)
	{
		$listener{$pair} = IO::Socket::INET->new(LocalAddr => '127.0.0.1:0', Listen => 64, Blocking => 0) or die "no port: $!";
		$port{$pair} = $listener{$pair}->sockport;
	}
	pipe(my $commands, my $tell) or die $!;
	my $pid = fork() // die $!;
	if ($pid == 0)
	{
		close $tell;
		$SIG{PIPE} = 'IGNORE';
		eval { serve(\%listener, $commands) };
		print STDERR "proxy: $@" if $@;
		POSIX::_exit($@ ? 1 : 0);
	}
	close $commands;
	$tell->autoflush(1);
	return ($pid, $tell, %port);
}

sub serve
{
	my ($listener, $commands) = @_;
	my (%held, %pipes, $said);    # pipes: by number of the socket that is read

	for (;;)
	{
		my $ready = '';
		vec($ready, fileno($commands), 1) = 1;
		for my $pair (keys %$listener)
		{
			vec($ready, fileno($listener->{$pair}), 1) = 1 unless $held{"$pair out"};
		}
		for my $from (keys %pipes)
		{
			vec($ready, $from, 1) = 1 unless $held{ $pipes{$from}{way} };
		}
		next if select($ready, undef, undef, undef) < 0;
		if (vec($ready, fileno($commands), 1))
		{
			sysread($commands, $said, 65536, length($said // '')) or return;
			$held{"$1 $2"} = $3 while $said =~ s/^(\S+) (\S+) (\d+)\n//;
			next;
		}
		for my $from (grep { vec($ready, $_, 1) } keys %pipes)
		{
			my $pipe = $pipes{$from} // next;
			my $n = sysread($pipe->{from}, my $bytes, 1 << 20);
			next if !defined $n && $!{EAGAIN};
			next if $n && (syswrite($pipe->{to}, $bytes) // 0) == $n;
			delete @pipes{ fileno($pipe->{to}), $from };
			close $_ for $pipe->{from}, $pipe->{to};
		}
		for my $pair (grep { vec($ready, fileno($listener->{$_}), 1) } keys %$listener)
		{
			my $near = $listener->{$pair}->accept() // next;
			my $port = $held{ $pair =~ s/.*>//r . ' port' };
			my $far = $port && IO::Socket::INET->new(PeerAddr => "127.0.0.1:$port", Timeout => 1);
			next if !$far;
			$_->blocking(0) for $near, $far;
			$pipes{ fileno($near) } = { from => $near, to => $far, way => "$pair out" };
			$pipes{ fileno($far) } = { from => $far, to => $near, way => "$pair in" };
		}
	}
}

1;
