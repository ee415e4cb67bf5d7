# A broker or a donor is at another address, or something else answers in the
# broker's place: nothing is lost, and the new address is used, since a name is
# looked up again when its address has failed, and only a broker's own answers count.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use IO::Select;
use IO::Socket::INET;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use RemoteBP;
use RemoteBP::Preload;
use RemoteBP::Spill;
use Test::More;
use Time::HiRes qw(sleep);

my $dir = PostgreSQL::Test::Utils::tempdir();
my $names = "$dir/names";
mkdir $names or die "$names: $!";

# From now on the name has that address.
sub move
{
	my ($name, $address) = @_;
	open(my $file, '>', "$dir/new") or die $!;
	print $file "$address\n";
	close $file;
	rename("$dir/new", "$names/$name.test") or die $!;
	note("$name.test is $address");
	return;
}

# Something that is no broker: what it answers, in turn, to each path.
my @answers = (
	[ 404, 'text/plain', 'default backend - 404' ],
	[ 410, 'application/json', '{"error":"gone"}' ],
	[ 409, 'application/json', '{"error":"conflict"}' ],
	[ 200, 'application/json', '{}' ]);

# It keeps connections, and notes each path in a file.
sub start_other_program
{
	my ($address, $paths) = @_;
	my $listener = IO::Socket::INET->new(LocalAddr => $address, Listen => 16, ReuseAddr => 1) or BAIL_OUT("$address: $!");
	my $parent = $$;
	my $pid = fork // BAIL_OUT("fork: $!");
	if ($pid == 0)
	{
		eval { answer($listener, $paths, $parent) };
		POSIX::_exit(0);
	}
	close $listener;
	return $pid;
}

sub answer
{
	my ($listener, $paths, $parent) = @_;
	my $select = IO::Select->new($listener);
	my (%got, %turn);
	local $SIG{TERM} = 'DEFAULT';
	open(my $log, '>>', $paths) or die $!;
	$log->autoflush(1);
	while (getppid == $parent)
	{
		for my $socket ($select->can_read(0.2))
		{
			if ($socket == $listener)
			{
				$select->add(scalar $listener->accept);
				next;
			}
			if (!sysread($socket, $got{$socket}, 65536, length($got{$socket} // '')))
			{
				$select->remove($socket);
				delete $got{$socket};
				close $socket;
				next;
			}
			next unless $got{$socket} =~ /^\w+ (\S+) .*?\r\n\r\n(.*)/s;
			my ($path, $body) = ($1, $2);
			next if $got{$socket} =~ /^content-length: (\d+)/mi && length $body < $1;
			my $n = $turn{$path}++;
			my ($status, $type, $text) = @{ $answers[ $n % @answers ] };
			syswrite($socket, "HTTP/1.1 $status X\r\nContent-Type: $type\r\nContent-Length: " . length($text) . "\r\n\r\n$text");
			delete $got{$socket};
			print $log "$path\n";
		}
	}
	return;
}

move(broker => '127.0.0.1');
move(donor => '127.0.0.1');
my $port = PostgreSQL::Test::Cluster::get_free_port();
my $url = "http://broker.test:$port";
# Long enough for a donor to find its broker, shorter than any cache of names.
my @patience = ('--donor-timeout', '15');
my $broker = start_broker(listen => "127.0.0.1:$port", args => [@patience]);

# Clients reach the donor at 127.0.0.1 through a proxy, and at 127.0.0.2 itself.
my $proxy = start_proxy();
$proxy->lead_to("127.0.0.2:$proxy->{port}");
my $donor;
{
	local %ENV = (%ENV, RBP_NAMES_DIR => $names, LD_PRELOAD => preload_library('names'));
	$donor = start_donor(
		$broker,
		url => $url,
		memory => '32MB',
		region_size => '4MB',
		listen => "127.0.0.2:$proxy->{port}",
		advertise => "donor.test:$proxy->{port}",
		args => [ '--transports', 'tcp' ]);
}

my $node = PostgreSQL::Test::Cluster->new('moved');
$node->init(extra => [ '--no-locale', '--encoding=UTF8' ]);
$node->append_conf('postgresql.conf',
	"shared_buffers = 4MB\nwork_mem = 64kB\nmax_parallel_workers_per_gather = 0\n"
	  . spill_conf(transport => 'tcp', temp => '16MB', conf => "remote_bp.broker = '$url'\nremote_bp.lease_ttl = '120s'\n"));
start_preloaded($node, 'names', RBP_NAMES_DIR => $names);
create_extension($node);
ok(wait_temp_leased($node, 16), 'memory is leased of a broker and a donor with names');
spill_data($node);
create_rows_of($node);
my $session = $node->background_psql('postgres', on_error_stop => 0);
$session->query('BEGIN; DECLARE c SCROLL CURSOR FOR WITH w AS MATERIALIZED (SELECT id, t, pad FROM big) SELECT * FROM w');
my $expected = $session->query(q{SELECT rows_of('c')});
like($expected, qr/^40000 -?\d+$/, 'a query has spilled');
cmp_ok(counter($node, 'spill.pages'), '>', 100, 'a query has spilled to the donor');

sub leases
{
	return $node->safe_psql('postgres',
		q{SELECT string_agg(DISTINCT purpose || ' ' || lease, ', ' ORDER BY purpose || ' ' || lease) FROM remote_bp_leases});
}

my $leases = leases();

# Nothing was lost so far, and all goes on.
sub goes_on
{
	my ($name) = @_;
	ok( wait_for(
			'the donor to be heard',
			sub {
				my $list = http_json($broker, 'GET', '/v1/donors') or return 0;
				return grep { $_->{state} eq 'up' && $_->{leased} == 8 } @{ $list->{donors} };
			},
			90),
		"$name: the donor is heard, and has all its leases");
	ok(wait_renewed($node, 1), "$name: the leases are renewed");
	is(leases(), $leases, "$name: the leases are the same");
	ok($donor->alive, "$name: the donor runs");
	is($session->query(q{SELECT rows_of('c')}), $expected, "$name: spilled data is whole");
	is($session->{stderr}, '', "$name: the session has no error");
	return;
}

# The donor moves: its old address does not answer any more, which whoever spills
# finds out.
move(donor => '127.0.0.2');
$proxy->refuse;
ok( wait_for(
		'the donor to be used',
		sub {
			$node->safe_psql('postgres', 'SELECT count(*) FROM (SELECT * FROM big ORDER BY t OFFSET 0) s');
			return $node->safe_psql('postgres', 'SELECT host, state FROM remote_bp_stat_donors') eq '127.0.0.2|ok';
		},
		30),
	'the donor moves: its new address is used');
goes_on('the donor moves');

# The broker moves: the name's old address refuses connections.
$broker->kill9;
move(broker => '127.0.0.2');
my $moved = start_broker(name => 'moved', listen => "127.0.0.2:$port", args => [@patience]);
$broker = $moved;
goes_on('the broker moves');

# Something else takes its address, and answers both.
$broker->kill9;
my $paths = "$dir/paths";
my $offset = log_size($node);
my $other = start_other_program("127.0.0.2:$port", $paths);
ok( wait_for(
		'all answers to be given',
		sub {
			my %asked;
			$asked{$_}++ for -f $paths ? split /\n/, slurp_file($paths) : ();
			return 3 == grep { $asked{$_} >= @answers } keys %asked;
		},
		90),
	'a proxy answers: it has said to the donor and to the server what a broker might');
ok($donor->alive, 'a proxy answers: the donor runs');
is(leases(), $leases, 'a proxy answers: the leases are the same');
like($donor->log_text, qr/HTTP status 404, but not from a remote_bp broker: "default backend - 404"/,
	'a proxy answers: the log of the donor says what');
log_tells($node, $offset, qr/LOG: .*HTTP status 404, but not from a remote_bp broker: "default backend - 404"/,
	'a proxy answers: the log of the server says what');

# It stays, and keeps its connections, but the name leads to the broker again.
move(broker => '127.0.0.3');
$broker = start_broker(name => 'again', listen => "127.0.0.3:$port", args => [@patience]);
goes_on('the proxy leads nowhere');
kill('TERM', $other);
waitpid($other, 0);

unlike(log_since($node), qr/has ended|could not be renewed in time|are lost/, 'the server has lost nothing');
for my $log ($moved->log_text, $broker->log_text)
{
	unlike($log, qr/has been silent|is a new process|has expired|ended leases/, 'the broker has lost nothing');
}
$session->query('COMMIT');
$session->quit;
is(counter($node, 'spill.lost'), 0, 'nothing was lost');
spill_is_clean($node, 'in the end');
$node->stop;

done_testing();
