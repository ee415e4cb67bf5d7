# A proxy in front of a broker that does not reach it: it answers each request by
# itself, in plain text.  It runs in a process of its own, where the broker was.

package RemoteBP::Ingress;

use strict;
use warnings;

use IO::Socket::SSL;
use RemoteBP::Daemon;

# In the place of the broker, with its key: with this status, and this text.
sub start
{
	my ($class, $address, $status, $text, $tls) = @_;
	(my $lib = __FILE__) =~ s{RemoteBP/[^/]*$}{};
	return RemoteBP::Daemon->start(
		name => 'ingress',
		log => PostgreSQL::Test::Utils::tempdir() . "/ingress_$status.log",
		command => [ $^X, "-I$lib", '-MRemoteBP::Ingress', '-e', 'RemoteBP::Ingress::serve(@ARGV)',
			$address, $status, $text, $tls->{cert}, $tls->{key} ]);
}

# The process: says which requests it was asked for, one a line.
sub serve
{
	my ($address, $status, $text, $cert, $key) = @_;
	local $| = 1;
	my $listener = IO::Socket::SSL->new(LocalAddr => $address, Proto => 'tcp', Listen => 64, ReuseAddr => 1, SSL_cert_file => $cert, SSL_key_file => $key)
	  or die "$address: $!";
	print "listening on $address\n";
	for (;;)
	{
		my $client = $listener->accept or next;
		my ($request, $length) = ('', 0);
		while (my $line = <$client>)
		{
			$request ||= $line;
			$length = $1 if $line =~ /^content-length:\s*(\d+)/i;
			last if $line =~ /^\r?\n$/;
		}
		read($client, my $body, $length) if $length;
		print $client "HTTP/1.1 $status Error\r\nContent-Type: text/plain\r\nContent-Length: "
		  . length($text) . "\r\nConnection: close\r\n\r\n$text";
		close $client;
		print $request;
	}
}

1;
