# A broker that tells no revs of regions and keeps no lease beyond its TTL, as those up to
# version 1.1, is upgraded while a server uses its memory, and replaced by the
# former one: pages stay in the tier, and temporary data stays whole.
#
# The former version is played by a proxy.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use HTTP::Tiny;
use IO::Socket::INET;
use POSIX ();
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use RemoteBP;
use RemoteBP::Spill;
use Test::More;

my $dir = PostgreSQL::Test::Utils::tempdir();
my $proxy;

END
{
	local $?;
	kill('TERM', $proxy) && waitpid($proxy, 0) if $proxy;
}

# Forward requests.  While the file "former" is there, what that version knows nothing of
# is taken out.  Each renewal is noted in a file of the version.
sub serve
{
	my ($listener, $broker, $parent) = @_;
	serve_requests(
		$listener, $parent,
		sub {
			my ($method, $path, $body) = @_;
			my $version = -e "$dir/former" ? 'former' : 'present';
			$body =~ s/"keep_ms"/"no_such"/ if $version eq 'former';
			my $answer = HTTP::Tiny->new(timeout => 10)->request($method, $broker->url . $path,
				{ content => $body, headers => { 'Content-Type' => 'application/json' } });
			$answer->{content} =~ s/, ?"rev": ?\d+//g if $version eq 'former';
			append_to_file("$dir/renewed_by_$version", "$path\n") if $path =~ /renew/ && $answer->{status} == 200;
			return $answer;
		});
	return;
}

sub Front::url { return $_[0]->{url} }

sub put_in_front
{
	my ($broker) = @_;
	my $parent = $$;
	my $listener = IO::Socket::INET->new(Listen => 16, LocalAddr => '127.0.0.1') or BAIL_OUT("listen: $!");
	$proxy = fork // BAIL_OUT("fork: $!");
	if ($proxy == 0)
	{
		eval { serve($listener, $broker, $parent); 1 } or print STDERR "the proxy: $@";
		POSIX::_exit(0);
	}
	return bless({ url => 'http://127.0.0.1:' . $listener->sockport }, 'Front');
}

# The broker is of that version from now on; wait until it has renewed both leases twice.
sub replaced_by
{
	my ($version) = @_;
	unlink "$dir/renewed_by_$version";
	$version eq 'former' ? append_to_file("$dir/former", '') : unlink("$dir/former");
	return wait_for(
		"renewals by the $version version",
		sub {
			my %renewed;
			$renewed{$_}++ for split /\n/, eval { slurp_file("$dir/renewed_by_$version") } // '';
			return 2 == grep { $_ >= 2 } values %renewed;
		});
}

my $broker = start_broker();
my $donor = start_donor($broker, memory => '64MB');
append_to_file("$dir/former", '');
my $node = spill_cluster(
	'upgraded',
	broker => put_in_front($broker),
	transport => 'tcp',
	temp => '16MB',
	buffer => '32MB',
	conf => "remote_bp.lease_ttl = '600s'\n");
spill_data($node);
create_rows_of($node);
make_table($node, 'pages', 16);
ok(warm($node, 'pages'), 'pages are in the tier');
my $session = $node->background_psql('postgres', on_error_stop => 0);
$session->query('BEGIN; DECLARE c SCROLL CURSOR FOR WITH w AS MATERIALIZED (SELECT id, t, pad FROM big) SELECT * FROM w');
my $rows = $session->query(q{SELECT rows_of('c')});
like($rows, qr/^40000 -?\d+$/, 'a query has spilled');
cmp_ok(counter($node, 'spill.pages'), '>', 100, 'its data is on a donor');
wait_still($node, 'captures', 'bytes_written');
my $held = tier_pages($node, 'pages');
my ($keep) = map { $_->{keep_ms} } grep { $_->{purpose} eq 'buffer' } @{ http_json($broker, 'GET', '/v1/leases')->{leases} };
is($keep, 0, 'the broker keeps no lease');

for my $round (1, 2)
{
	for my $version ('present', 'former')
	{
		my $what = "$version version, round $round";
		ok(replaced_by($version), "$what: leases are renewed");
		cmp_ok(tier_pages($node, 'pages'), '>=', $held, "$what: the pages are in the tier");
		is($session->query(q{SELECT rows_of('c')}), $rows, "$what: temporary data is whole");
	}
}
$session->quit;
is_clean($node);
$node->stop;

done_testing();
