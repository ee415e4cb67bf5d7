# Another token file, or a mistyped one: leases and pages stay.  Another credential
# is taken when the broker accepts it; until then the one before is used.  One that is
# accepted, but for another role or another name, ends no lease.

use strict;
use warnings;

use Digest::SHA qw(sha256_hex);
use FindBin;
use lib "$FindBin::RealBin/lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use RemoteBP;
use Test::More;
use Time::HiRes qw(sleep);

my $dir = PostgreSQL::Test::Utils::tempdir();

my $word = 'correct-horse-battery-staple';
my $right = write_token("$dir/right", $word, 'server');
my $accepted = write_credentials("$dir/accepted", $word);
append_to_file($accepted, "server db2 @{[ sha256_hex(secret($word)) ]}\n");
my $broker = start_broker(args => [ '--credentials', $accepted ], token => $word);
my $donor = start_donor($broker, memory => '64MB', args => [ '--token-file', write_token("$dir/donor", $word, 'donor') ]);
my $node = new_cluster(
	'token_changes',
	broker => $broker,
	tier => '32MB',
	conf => "remote_bp.temp_tier_max_size = '16MB'\nremote_bp.temp_tier_size = '16MB'\nremote_bp.token_file = '$right'\n");
my ($offset, $leases, $pages);

sub leases
{
	return $node->safe_psql('postgres', q{SELECT string_agg(DISTINCT lease, ' ' ORDER BY lease) FROM remote_bp_leases});
}

sub renewals
{
	my ($n) = http_client(timeout => 5, default_headers => { Authorization => 'Bearer ' . credential($broker->{token}, 'operator') })
	  ->get($broker->url . '/metrics')->{content} =~ /^remote_bp_leases_renewed_total (\d+)/m;
	return $n // 0;
}

sub log_count
{
	my ($pattern) = @_;
	return scalar(() = log_since($node, $offset) =~ /$pattern/g);
}

sub token_file
{
	my ($file) = @_;
	$offset = log_size($node);
	$node->safe_psql('postgres', "ALTER SYSTEM SET remote_bp.token_file = '$file'");
	$node->reload;
	return;
}

# Renewed several times since, with the same leases and pages.
sub stays
{
	my ($name) = @_;
	my $before = renewals();
	ok(wait_for('renewals', sub { renewals() >= $before + 6 }, 60), "$name: the leases are renewed");
	is(leases(), $leases, "$name: the leases are the same");
	is(pages_kept_or_evicted($node, 't'), $pages, "$name: pages stay in the tier, but for those that make room");
	is(log_count('gave the leased memory|the lease\S* has ended|leased \d+ MB'), 0, "$name: nothing was given back");
	return;
}

ok(wait_leased($node, 48), 'memory is leased');
make_table($node, 't', 4);
ok(warm($node, 't'), 'the leased memory holds pages');
($leases, $pages) = (leases(), pages_kept_or_evicted($node, 't'));
cmp_ok($pages, '>', 0, 'some pages');

write_token("$dir/copy", $word, 'server');
token_file("$dir/copy");
stays('the same credential in another file');
is(log_count(qr{LOG:  remote_bp: }), 0, 'the same credential in another file: the log reports nothing');

token_file("$dir/mistyped");
stays('a mistyped path');
is(log_count(qr/LOG: .*could not read token file "\S+mistyped": No such file/), 1, 'a mistyped path: the log reports it once');
log_tells($node, $offset, qr/DETAIL: .*the credential that was accepted last/, 'a mistyped path: the log says which credential is used');

token_file("$dir/copy");
stays('the right path again');
ok(wait_for('the log', sub { log_count(qr/accepts the credential of remote_bp.token_file/) == 1 }, 10),
	'the right path again: the log reports it');

write_token("$dir/wrong", 'guessed', 'server');
token_file("$dir/wrong");
stays('a credential that is refused');
is(log_count(qr/LOG: .*does not accept the credential/), 1, 'a credential that is refused: the log reports it once');
like($node->safe_psql('postgres', 'SELECT last_error FROM remote_bp_stat'),
	qr/credential for broker .* is not replaced: it does not accept the credential/, 'a credential that is refused: the view reports it');

token_file('');
stays('no credential');

# Somebody else's: the broker knows it, but it is not for these leases.
token_file("$dir/donor");
stays('a credential of another role');
is(log_count(qr/LOG: .*is not replaced: it does not accept the credential \(HTTP status 403: donor "\*" may not do this: role server may\)/),
	1, 'a credential of another role: the log reports it once');
token_file(write_token("$dir/db2", $word, 'server', 'db2'));
stays('a credential of another name');
is(log_count(qr/LOG: .*is not replaced: it does not accept the credential \(HTTP status 403: server "db2" may not do this for "pg-/),
	1, 'a credential of another name: the log reports it once');

# The broker has changed its own: what was refused is what it wants.
token_file("$dir/wrong");
ok(wait_for('the log', sub { log_count(qr/does not accept the credential/) == 1 }, 30), 'a credential that is refused is refused again');
write_credentials($accepted, 'guessed');
write_token("$dir/donor", 'guessed', 'donor');      # which tells the broker of the leases
$broker->{token} = 'guessed';
$broker = restart_broker($broker);
stays('the broker has changed its credentials');
ok(wait_for('the log', sub { log_count(qr/accepts the credential/) >= 1 }, 30), 'the broker has changed its credentials: the log reports it');
my @secrets = map { secret($_) } $word, 'guessed';
unlike(log_since($node), qr/$secrets[0]|$secrets[1]/, 'no secret is in the log');
is_clean($node);
$node->stop;
is(scalar @{ http_json($broker, 'GET', '/v1/leases')->{leases} }, 0, 'the leases were given back with the credential that works');

done_testing();
