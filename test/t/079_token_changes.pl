# Another token file, or a mistyped one: leases and pages stay.  Another token
# is taken when the broker accepts it; until then the one before is used.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use RemoteBP;
use Test::More;
use Time::HiRes qw(sleep);

my $dir = PostgreSQL::Test::Utils::tempdir();

my $right = write_token("$dir/right", 'correct-horse-battery-staple');
my $broker = start_broker(args => [ '--token-file', $right ], token => 'correct-horse-battery-staple');
my $donor = start_donor($broker, memory => '64MB', args => [ '--token-file', $right ]);
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
	my ($n) = HTTP::Tiny->new(timeout => 5, default_headers => { Authorization => "Bearer $broker->{token}" })
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

write_token("$dir/copy", 'correct-horse-battery-staple');
token_file("$dir/copy");
stays('the same token in another file');
is(log_count(qr{LOG:  remote_bp: }), 0, 'the same token in another file: the log reports nothing');

token_file("$dir/mistyped");
stays('a mistyped path');
is(log_count(qr/LOG: .*could not read token file "\S+mistyped": No such file/), 1, 'a mistyped path: the log reports it once');
log_tells($node, $offset, qr/DETAIL: .*the token that was accepted last/, 'a mistyped path: the log says which token is used');

token_file("$dir/copy");
stays('the right path again');
ok(wait_for('the log', sub { log_count(qr/broker accepts the token of file|accepts the token/) == 1 }, 10),
	'the right path again: the log reports it');

write_token("$dir/wrong", 'guessed');
token_file("$dir/wrong");
stays('a token that is refused');
is(log_count(qr/LOG: .*does not accept the token/), 1, 'a token that is refused: the log reports it once');
like($node->safe_psql('postgres', 'SELECT last_error FROM remote_bp_stat'),
	qr/token for broker .* is not replaced: it does not accept the token/, 'a token that is refused: the view reports it');

token_file('');
stays('no token');

# The broker has changed its own: what was refused is what it wants.
token_file("$dir/wrong");
ok(wait_for('the log', sub { log_count(qr/does not accept the token/) == 1 }, 30), 'a token that is refused is refused again');
write_token("$dir/right", 'guessed');
$broker->{token} = 'guessed';
$broker = restart_broker($broker);
stays('the broker has changed its token');
ok(wait_for('the log', sub { log_count(qr/accepts the token/) >= 1 }, 30), 'the broker has changed its token: the log reports it');
unlike(log_since($node), qr/guessed|correct-horse/, 'no token is in the log');
is_clean($node);
$node->stop;
is(scalar @{ http_json($broker, 'GET', '/v1/leases')->{leases} }, 0, 'the leases were given back with the token that works');

done_testing();
