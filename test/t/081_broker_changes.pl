# Another broker is taken when it answers: until then the leases of the one
# before are kept, with what they hold.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use RemoteBP;
use Test::More;
use Time::HiRes qw(sleep);

my $MB = 1024 * 1024;
my $token = PostgreSQL::Test::Utils::tempdir() . '/token';
write_token($token, 'the-second-ones', 'server');
my $donor_token = write_token("$token.donor", 'the-second-ones', 'donor');
my $broker = start_broker();
my $donor = start_donor($broker, memory => '64MB', region_size => '4MB');
my $broker2 = start_broker(
	name => 'broker2',
	args => [ '--credentials', write_credentials("$token.broker", 'the-second-ones') ],
	token => 'the-second-ones');
my $donor2 = start_donor($broker2, id => 'donor2', memory => '64MB', region_size => '4MB', args => [ '--token-file', $donor_token ]);
my $node = new_cluster(
	'changes',
	broker => $broker,
	tier => '32MB',
	shared_buffers => '4MB',
	conf => "work_mem = '64kB'\nremote_bp.temp_tier_max_size = '32MB'\nremote_bp.temp_tier_size = '32MB'\nremote_bp.broker_ca_file = '@{[ tls()->{cert} ]}'\n");
my ($offset, $leases, $pages);

sub leases
{
	return $node->safe_psql('postgres', q{SELECT string_agg(DISTINCT lease, ' ' ORDER BY lease) FROM remote_bp_leases});
}

sub log_count
{
	my ($pattern) = @_;
	return scalar(() = log_since($node, $offset) =~ /$pattern/g);
}

sub renewals
{
	my ($n) = HTTP::Tiny->new(timeout => 5)->get($broker->url . '/metrics')->{content} =~ /^remote_bp_leases_renewed_total (\d+)/m;
	return $n // 0;
}

sub set
{
	my (%settings) = @_;
	$offset = log_size($node);
	for my $name (sort keys %settings)
	{
		$node->safe_psql('postgres', "ALTER SYSTEM SET remote_bp.$name = '$settings{$name}'");
	}
	$node->reload;
	return;
}

sub stays
{
	my ($name, $reason) = @_;
	ok(wait_for('the log', sub { log_count($reason) > 0 }, 30), "$name: the log tells");
	my $before = renewals();
	ok(wait_for('renewals', sub { renewals() >= $before + 6 }, 60), "$name: the leases are renewed at the old broker");
	is(leases(), $leases, "$name: the leases are the same");
	cmp_ok(tier_pages($node, 't'), '>=', $pages, "$name: pages stay in the tier");
	is(log_count($reason), 1, "$name: the log has reported it once");
	return;
}

ok(wait_leased($node, 64), 'memory is leased');
make_table($node, 't', 4);
ok(warm($node, 't'), 'the leased memory holds pages');
my $content = content($node, 't');
($leases, $pages) = (leases(), tier_pages($node, 't'));

my $nobody = PostgreSQL::Test::Cluster::get_free_port();
set(broker => "http://127.0.0.1:$nobody");
stays('nobody there', qr/LOG: .*could not switch to broker "http:\S+:$nobody"/);
log_tells($node, $offset, qr/DETAIL: .*\Q@{[ $broker->url ]}\E.* stays in use/, 'nobody there: the log says which broker is used');
like($node->safe_psql('postgres', 'SELECT last_error FROM remote_bp_stat'),
	qr/could not switch to broker "http:\S+:$nobody": /, 'nobody there: the view reports it');

$broker2->freeze;
set(broker => $broker2->url);
stays('it hangs', qr/LOG: .*could not switch to broker "\Q@{[ $broker2->url ]}\E"/);
$broker2->thaw;
ok( wait_for('the log', sub { log_count(qr/credential/) > 0 }, 30), 'a broker that wants a credential: the log reports it');
wait_renewed($node);
is(leases(), $leases, 'a broker that wants a credential: without one the leases stay');
is(log_count(qr/could not switch to broker \S+ it requires a credential/), 1, 'a broker that wants a credential: the log reports it once');

set(broker => $broker2->url, token_file => $donor_token);
stays('a credential of another role', qr/LOG: .*could not switch to broker .*HTTP status 403: donor "\*" may not do this: role server may/);

set(broker => 'http://' . $donor->address, token_file => '');
stays('not a broker', qr/LOG: .*could not switch to broker/);

# Back, as if nothing had been.
set(broker => $broker->url . '/');
wait_renewed($node);
is(leases(), $leases, 'back to the first: the leases are the same');
cmp_ok(tier_pages($node, 't'), '>=', $pages, 'back to the first: all pages are in the tier');

# A broker that works, and spilled data that has to go with it.
my $session = $node->background_psql('postgres', on_error_stop => 0);
$node->safe_psql('postgres',
	q{CREATE TABLE big AS SELECT i, md5(i::text) AS t, rpad('', 300, md5((-i)::text)) AS pad FROM generate_series(1, 30000) i});
$session->query('BEGIN; DECLARE c SCROLL CURSOR FOR SELECT t, pad FROM big ORDER BY t');
$session->query('MOVE FORWARD ALL FROM c; MOVE ABSOLUTE 0 FROM c');
cmp_ok(counter($node, 'spill.pages'), '>', 500, 'a query has spilled');
set(broker => $broker2->url, token_file => $token);
ok( wait_for(
		'the other broker',
		sub {
			$node->safe_psql('postgres', q{SELECT string_agg(DISTINCT donor || ' ' || purpose, ', ' ORDER BY donor || ' ' || purpose) FROM remote_bp_leases}) eq
			  'donor2 buffer, donor2 temp';
		},
		60),
	'a broker that works is taken');
ok(wait_leased($node, 64), 'the other broker lends its memory');
is($session->query('MOVE FORWARD ALL FROM c'), '', 'spilled data is read without an error');
is($session->{stderr}, '', 'the session has no error');
$session->query('COMMIT');
$session->quit;
is(counter($node, 'spill.lost'), 0, 'nothing was lost');
is(scalar @{ http_json($broker, 'GET', '/v1/leases')->{leases} }, 0, 'the first broker has no lease left');
is(content($node, 't'), $content, 'pages are right');
ok(warm($node, 't'), 'pages are in the tier of the other broker');
is_clean($node);

# Without anything to lose, another broker is taken at once, be it there or not.
$broker2->kill9;
set(broker => $broker->url, token_file => '');
ok(wait_leased($node, 64), 'from an unreachable broker to a reachable one');
$node->stop;

done_testing();
