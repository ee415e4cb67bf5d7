# What no broker should answer: as many regions as there are small ones, more
# memory than anybody asked for, regions of an absurd size, leases without end,
# and a text of millions of values.  The lease worker stays small, the server
# stops, and a donor goes on.
#
# The broker is played by this test, which writes down what it answers.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use IO::Socket::INET;
use POSIX ();
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use RemoteBP;
use Test::More;

# That of pg_ctl itself.
$ENV{PGCTLTIMEOUT} = 60;

my $MB = 1024 * 1024;
my $dir = PostgreSQL::Test::Utils::tempdir();
my $parent = $$;
my @pids;

# A broker that answers with what is in the file; its URL.
sub play_broker
{
	my ($file) = @_;
	my $listener = IO::Socket::INET->new(Listen => 16, LocalAddr => '127.0.0.1') or BAIL_OUT("listen: $!");
	my $pid = fork // BAIL_OUT("fork: $!");
	if ($pid == 0)
	{
		eval { serve($listener, $file); };
		POSIX::_exit(0);
	}
	push @pids, $pid;
	return 'http://127.0.0.1:' . $listener->sockport;
}

sub serve
{
	my ($listener, $file) = @_;
	$SIG{PIPE} = 'IGNORE';
	$SIG{ALRM} = sub { POSIX::_exit(0) unless kill 0, $parent; alarm 2 };
	alarm 2;
	while (1)
	{
		my $conn = $listener->accept or next;
		my ($head, $body) = ('', '');
		while (my $line = <$conn>) { $head .= $line; last if $line =~ /^\r?\n$/ }
		read($conn, $body, $1) if $head =~ /^Content-Length: *(\d+)/mi;
		my $answer = $head =~ /^POST/ ? slurp_file($file) : '{}';
		select(undef, undef, undef, 0.1) if $head =~ /heartbeat/;    # as where nothing is new
		print $conn "HTTP/1.1 200 OK\r\nRemote-BP-Broker: test\r\nConnection: close\r\nContent-Length: " . length($answer) . "\r\n\r\n$answer";
		close $conn;
	}
}

sub answer
{
	my ($name, $text) = @_;
	open(my $out, '>', "$dir/$name.new") or die $!;
	print $out $text;
	close $out;
	rename("$dir/$name.new", "$dir/$name") or die $!;
	return "$dir/$name";
}

# A lease of so many regions of that size.
sub lease
{
	my ($count, $megabytes) = @_;
	my $secret = '00' x 32;
	my $bytes = $megabytes * $MB;
	return qq({"lease": "6f1b4f0e-0000-4000-8000-000000000001", "secret": "$secret", "ttl_ms": 30000,)
	  . qq("donors": [{"id": "d", "host": "127.0.0.1", "port": 1, "transports": ["tcp"]}], "regions": [)
	  . join(',', map { qq({"donor": "d", "region": $_, "bytes": $bytes, "rev": 1}) } 0 .. $count - 1) . ']}';
}

sub cluster
{
	my ($name, $tier, $text) = @_;
	my $url = play_broker(answer($name, $text));
	return new_cluster($name, tier => $tier, transport => 'tcp', conf => "remote_bp.broker = '$url'\n");
}

# Regions that can carry nothing: the tier is off until the broker has others.
my $huge = cluster('huge', '64MB', lease(1, 128 * 1024));
log_tells($huge, 0, qr/1 leased region is given back, beyond what/, 'a region of an absurd size is given back');
answer('huge', lease(1, 64));

# Others meanwhile.  A donor of eight regions is told of more leases.
sub Played::url { return $_[0]->{url} }

sub desired
{
	my ($leases) = @_;
	my $key = '00' x 32;
	my $drain = $leases > 0 ? 'false' : 'true';
	return qq({"revision": 1, "dirty": [], "drain": $drain, "leases": [)
	  . join(',', map { qq({"lease": "lease-$_", "key": "$key", "ttl_ms": 30000, "regions": []}) } 1 .. $leases) . ']}';
}

my $played = bless({ url => play_broker(answer('donor', desired(50_000))) }, 'Played');
my $donor = start_donor($played, memory => '32MB', region_size => '4MB', register => 0);

sub donor_says
{
	my ($pattern, $name) = @_;
	return ok(wait_for($pattern, sub { $donor->log_text =~ /$pattern/ }), $name);
}

donor_says(q{warning: the broker's answer is not valid: ignored}, 'a donor takes no answer with more leases than it has regions');
answer('donor', '[' . ('{},' x 2_000_000) . '{}]');
donor_says('warning: cannot reach the broker: the answer has too many values', 'nor one of two million objects');
answer('donor', desired(8));
donor_says('info: the broker is back', 'it goes on with one that can be');
answer('donor', desired(0));
is($donor->stop, 0, 'and stops');

my $many = cluster('many', '400GB', lease(300_000, 1));
log_tells($many, 0, qr/\d+ leased regions are given back, beyond what/, 'of very many regions, those that do not fit are given back');
ok($many->stop('fast', fail_ok => 1), 'the server stops');
$many->append_conf('postgresql.conf', "remote_bp.buffer_tier_max_size = '64MB'\nremote_bp.buffer_tier_size = '64MB'\n");

my $offset = log_size($many);
$many->start;
log_tells(
	$many, $offset,
	qr/could not get a lease from broker .*: its answer is a lease of 300000 MB, more than twice remote_bp\.buffer_tier_max_size/,
	'far more memory than can be wanted is no answer');
is(leased_bytes($many), 0, 'none of it is used');
ok($many->stop('fast', fail_ok => 1), 'the server stops');

$offset = log_size($many);
answer('many', '[' . ('{},' x 10_000_000) . '{}]');
$many->start;
log_tells($many, $offset, qr/its answer is not a lease: it has too many values/, 'an answer of ten million values is none');
my $worker = server_process($many, 'remote_bp lease worker');
my ($peak) = slurp_file("/proc/$worker/status") =~ /^VmHWM:\s+(\d+) kB/m;
cmp_ok($peak, '<', 500 * 1024, 'the lease worker has not decoded it');
answer('many', lease(64, 1));
ok(wait_leased($many, 64), 'an answer that is one comes into use');
ok($many->stop('fast', fail_ok => 1), 'the server stops');

ok(wait_leased($huge, 64, 120), 'the tier comes back as soon as the broker has other regions, with the same settings');
my @fits = log_since($huge) =~ /given back, beyond what/g;
is(scalar @fits, 1, 'what does not fit is reported once');
$huge->stop;

kill 'KILL', @pids;
waitpid $_, 0 for @pids;

done_testing();
