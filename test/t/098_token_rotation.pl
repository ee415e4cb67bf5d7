# Credentials are rotated while broker, donors and a server run, as
# docs/operations.md has it: leases, the pages of the tier and spilled data
# stay.  A file that cannot be used changes nothing.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use RemoteBP;
use RemoteBP::Spill;
use Test::More;

my $dir = PostgreSQL::Test::Utils::tempdir();
my %role = (told => 'donor', untold => 'donor', server => 'server');
my %file = map { $_ => write_token("$dir/$_", 'old', $role{$_}) } sort keys %role;
$file{broker} = write_credentials("$dir/broker", 'old');

my $broker = start_broker(args => [ '--credentials', $file{broker} ], token => 'old');
my %donor = map { $_ => start_donor($broker, id => $_, memory => '32MB', region_size => '4MB', args => [ '--token-file', $file{$_} ]) }
  qw(told untold);
my $node = spill_cluster(
	'rotation',
	broker => $broker,
	transport => 'tcp',
	temp => '32MB',
	buffer => '32MB',
	conf => "remote_bp.token_file = '$file{server}'\n");
spill_data($node);
create_rows_of($node);

sub status
{
	my ($word) = @_;
	return http_client(timeout => 10, default_headers => { Authorization => 'Bearer ' . credential($word, 'operator') })
	  ->get($broker->url . '/v1/donors')->{status};
}

sub leases
{
	return $node->safe_psql('postgres', q{SELECT string_agg(DISTINCT lease, ' ' ORDER BY lease) FROM remote_bp_leases});
}

sub log_count
{
	my ($daemon, $pattern) = @_;
	return scalar(() = $daemon->log_text =~ /$pattern/g);
}

sub reload
{
	my ($daemon, $pattern, $name) = @_;
	my $before = log_count($daemon, $pattern);
	$daemon->signal('HUP');
	return ok(wait_for($pattern, sub { log_count($daemon, $pattern) > $before }), $name);
}

# Heartbeats of both donors, and renewals of both leases, from now on.
sub all_stays
{
	my ($name) = @_;
	my ($up, $beats) = (0, 0);
	my $beats_now = sub {
		my $answer = http_client(timeout => 10, default_headers => { Authorization => 'Bearer ' . credential($broker->{token}, 'operator') })
		  ->get($broker->url . '/metrics');
		return $answer->{content} =~ /^remote_bp_heartbeats_total (\d+)/m ? $1 : 0;
	};
	ok(wait_for('heartbeats', sub { ($beats ||= $beats_now->()) && $beats_now->() >= $beats + 6 }), "$name: donors are heard");
	ok(wait_renewed($node), "$name: leases are renewed");
	$up += $_->{state} eq 'up' for @{ http_json($broker, 'GET', '/v1/donors')->{donors} };
	is($up, 2, "$name: both donors are up");
	return;
}

ok(wait_leased($node, 64), 'memory is leased');
make_table($node, 't', 4);
ok(warm($node, 't'), 'the tier has pages');
my $session = $node->background_psql('postgres', on_error_stop => 0);
$session->query('BEGIN; DECLARE c SCROLL CURSOR FOR WITH w AS MATERIALIZED (SELECT id, t, pad FROM big) SELECT * FROM w');
my $expected = $session->query(q{SELECT rows_of('c')});
cmp_ok(counter($node, 'spill.pages'), '>', 100, 'a cursor has spilled to donors');
my ($leases, $pages) = (leases(), pages_kept_or_evicted($node, 't'));

# 1. the broker takes both
write_credentials($file{broker}, 'old', 'new');
reload($broker, 'accepting 8 credentials', 'the broker reads its file again');
is(join(' ', map { status($_) } qw(old new other)), '200 200 401', 'both are accepted, and no other');

# 2. the others get the new one; one of them is told
write_token($file{$_}, 'new', $role{$_}) for sort keys %role;
reload($donor{told}, 'the broker accepts the new credential', 'a donor that is told uses the new credential');
all_stays('both');

# 3. the old one goes
$broker->{token} = 'new';
write_credentials($file{broker}, 'new');
reload($broker, 'accepting 4 credentials', 'the broker takes one of each again');
is(join(' ', map { status($_) } qw(old new)), '401 200', 'the old ones are not accepted any more');
ok(wait_for('the other donor', sub { log_count($donor{untold}, 'the broker accepts the new credential') }),
	'a donor that was not told finds the new one when it is refused');
all_stays('the new ones');

is(leases(), $leases, 'the leases are the same');
is(pages_kept_or_evicted($node, 't'), $pages, 'the pages are in the tier, but for those that made room');
is($session->query(q{SELECT rows_of('c')}), $expected, 'spilled data is whole');
is($session->{stderr}, '', 'no error');

# what cannot be used is not
write_token($file{broker}, 'new', 'server');
reload($broker, 'warning: credentials file \S+ is not used: line 1 is not', 'a broker reads a file that is none');
is(status('new'), 200, 'it goes on with what it has');
write_token($file{told}, 'mistyped', 'donor');
reload($donor{told}, 'warning: the broker does not accept the credential of', 'a donor reports a credential that is refused');
all_stays('mistyped files');

is(log_count($_, 'registered with the broker'), 1, 'a donor has registered once') for values %donor;
my $secrets = join('|', map { secret($_) } qw(old new mistyped));
unlike($_->log_text, qr/$secrets/, 'no secret is in a log') for $broker, values %donor;
unlike(log_since($node), qr/$secrets|could not renew|has ended/, 'the server has noticed nothing');
$session->quit;
is_clean($node);
$node->stop;

done_testing();
