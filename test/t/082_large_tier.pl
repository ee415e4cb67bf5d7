# The upkeep of a lease does not grow with the tier: on one of 512 GB, donors
# ask for memory back again and again, and a lease of ten seconds survives.
#
# The broker and its donors are played by this test, since nobody has the
# memory: the tier stays empty.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use IO::Socket::INET;
use JSON::PP;
use POSIX ();
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use RemoteBP;
use Test::More;

my $GB = 1024 * 1024 * 1024;
my ($DONORS, $REGIONS, $WAVES, $TTL_MS) = (4, 64, 5, 10000);

my $listener = IO::Socket::INET->new(Listen => 16, LocalAddr => '127.0.0.1') or BAIL_OUT("listen: $!");
my $events = PostgreSQL::Test::Utils::tempdir() . '/events';
my $parent = $$;
my $pid = fork // BAIL_OUT("fork: $!");
if ($pid == 0)
{
	eval { play_broker(); };
	POSIX::_exit(0);
}

sub event
{
	open(my $out, '>>', $events) or die $!;
	print $out "@_\n";
	close $out;
	return;
}

sub events
{
	my ($what) = @_;
	return 0 unless -e $events;
	return scalar grep { /^\Q$what\E/ } split /\n/, slurp_file($events);
}

# One lease of the purpose "buffer"; each donor asks for two regions in each
# wave, which ends when all have got them.
sub play_broker
{
	my %regions = map { my $d = $_; map { ("donor$d/$_" => 1) } 0 .. $REGIONS - 1 } 1 .. $DONORS;
	my %asked = map { ("donor$_" => 0) } 1 .. $DONORS;
	my ($waves, $answers) = (0, 0);
	$SIG{ALRM} = sub { POSIX::_exit(0) unless kill 0, $parent; alarm 2 };
	alarm 2;
	while (1)
	{
		my $conn = $listener->accept or next;
		my ($head, $body, $path) = ('', '');
		while (my $line = <$conn>) { $head .= $line; last if $line =~ /^\r?\n$/ }
		($path) = $head =~ /^\w+ (\S+)/ or next;
		read($conn, $body, $1) if $head =~ /^Content-Length: *(\d+)/mi;
		my $ask = eval { decode_json($body) } // {};
		my $status = 200;
		if ($path eq '/v1/leases')
		{
			if ($ask->{purpose} ne 'buffer')
			{
				print $conn "HTTP/1.1 503 No\r\nRemote-BP-Broker: test\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";
				next;
			}
			event('lease');
			$status = 201;
		}
		for my $r (@{ $ask->{release} // [] })
		{
			next unless delete $regions{"$r->{donor}/$r->{region}"};
			$asked{ $r->{donor} }-- if $asked{ $r->{donor} };
			event('released');
		}
		# let the lease be in use before memory is asked back
		if (++$answers > 3 && !grep { $_ } values %asked)
		{
			event('wave') if $waves++;
			%asked = map { ($_ => 2) } keys %asked if $waves <= $WAVES;
		}
		my $answer = encode_json({
			lease => '6f1b4f0e-0000-4000-8000-000000000001',
			secret => '00' x 32,
			client => 'x', purpose => 'buffer', ttl_ms => $TTL_MS,
			regions => [ map { my ($d, $n) = split m{/}; { donor => $d, region => $n + 0, bytes => 2 * $GB, rev => 1 } } sort keys %regions ],
			donors => [ map { { id => $_, host => '127.0.0.1', port => 1, transports => ['tcp'] } } sort keys %asked ],
			reclaim => [ map { { donor => $_, regions => $asked{$_} } } grep { $asked{$_} } sort keys %asked ] });
		print $conn "HTTP/1.1 $status OK\r\nRemote-BP-Broker: test\r\nConnection: close\r\nContent-Length: " . length($answer) . "\r\n\r\n$answer";
		close $conn;
	}
}

my $node = new_cluster(
	'large',
	tier => '512GB',
	conf => "remote_bp.lease_ttl = '${TTL_MS}ms'\nremote_bp.broker = 'http://127.0.0.1:" . $listener->sockport . "'\n");

ok(wait_for('the waves', sub { events('wave') >= $WAVES }, 180), 'donors get back what they ask for');
is(events('released'), $WAVES * $DONORS * 2, 'donors get back no more than they ask for');
is(events('lease'), 1, 'the lease was held all the time');
my $log = log_since($node);
unlike($log, qr/could not be renewed in time/, 'the lease was never held past its deadline');

my $left = $DONORS * ($REGIONS - 2 * $WAVES);
ok(wait_for('the rest', sub { $node->safe_psql('postgres', 'SELECT count(*) FROM remote_bp_leases') == $left }, 60),
	'the rest is in use');
is($node->safe_psql('postgres', 'SELECT sum(leased_bytes) FROM remote_bp_stat_donors'), $left * 2 * $GB, 'the leases of all donors are in use');
is( wait_for('all slots', sub {
		my $free = $node->safe_psql('postgres', 'SELECT free_pages FROM remote_bp_stat');
		$free == $left * 2 * $GB / 8192 ? $free : 0;
	}, 60),
	$left * 2 * $GB / 8192, 'all slots of the rest are free');

$node->stop;
kill 'KILL', $pid;
waitpid $pid, 0;

done_testing();
