# The disk under the broker is full for longer than the TTL of a lease: the
# lease goes on, spilled data stays, and what was released meanwhile is given
# back when there is room.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use RemoteBP;
use RemoteBP::Spill;
use Test::More;

my $MB = 1024 * 1024;
my $broker = start_broker();
my @donors = map { start_donor($broker, id => $_, memory => '64MB', region_size => '4MB') } qw(one two);
my $node = new_cluster(
	'full',
	broker => $broker,
	transport => 'tcp',
	tier => '8MB',
	shared_buffers => '4MB',
	conf => "work_mem = '64kB'\nremote_bp.temp_tier_max_size = '64MB'\nremote_bp.temp_tier_size = '48MB'\n"
	  . "remote_bp.lease_ttl = '12s'\n");

# The broker's state file may not grow, or may.
sub limit_broker
{
	my ($bytes) = @_;
	return system('prlimit', '--pid', $broker->pid, "--fsize=$bytes:") == 0 || BAIL_OUT('prlimit fails');
}

sub resize
{
	my ($size) = @_;
	$node->safe_psql('postgres', "ALTER SYSTEM SET remote_bp.temp_tier_size = '$size'");
	$node->reload;
	return;
}

# The temp lease's megabytes, as the server and as the broker have it
sub leased
{
	return temp_leased($node) / $MB;
}

sub booked
{
	my $list = http_json($broker, 'GET', '/v1/leases') or return -1;
	my ($lease) = grep { $_->{purpose} eq 'temp' && $_->{client} ne 'dead' } @{ $list->{leases} };
	return $lease ? $lease->{bytes} / $MB : 0;
}

my ($session, $expected);

sub is_whole
{
	my ($name) = @_;
	return is($session->query(q{SELECT rows_of('c')}), $expected, "$name: spilled data is whole");
}

$node->safe_psql('postgres', <<'SQL');
CREATE TABLE big AS SELECT i, md5(i::text) AS t, rpad('', 300, md5((-i)::text)) AS pad FROM generate_series(1, 50000) i;
SQL
create_rows_of($node);
ok(wait_for('48 MB', sub { leased() == 48 }, 120), 'memory is leased');
$session = $node->background_psql('postgres');
$session->query('BEGIN; DECLARE c SCROLL CURSOR FOR SELECT * FROM big ORDER BY t, i');
$expected = $session->query(q{SELECT rows_of('c')});
cmp_ok(counter($node, 'spill.pages') * 8192, '>', 16 * $MB, 'a query has spilled to donors');
my $leases = $node->safe_psql('postgres', q{SELECT string_agg(DISTINCT lease, '|') FROM remote_bp_leases});

# Both donors have to report that this one has ended, and cannot.
ok( http_json($broker, 'POST', '/v1/leases', { client => 'dead', instance => 'i', purpose => 'temp', bytes => 8 * $MB, ttl_ms => 8000 }),
	'a lease that nobody renews');
limit_broker(-s "$broker->{state}-wal");
is_whole('the disk is full');
for my $donor (@donors)
{
	ok(wait_for('the donor to end it', sub { $donor->log_text =~ /not renewed in time/ }, 120), "$donor->{name} ends it by its clock");
}
ok(wait_for('the broker to find out', sub { $broker->log_text =~ /error: could not write the state file: / }, 120),
	'the broker tells that its disk is full');

# (grants and demands for each second would be seen by now)
resize('24MB');
ok(wait_for('24 MB', sub { leased() == 24 }, 120), 'regions are released');
is_whole('with fewer regions');
ok(wait_renewed($node, 13), 'the leases are renewed until after their time');
is_whole('after that time');
is(leased(), 24, 'no more regions are released than were wanted');
is(booked(), 48, 'the broker still has them in the lease');
ok($broker->alive, 'the broker is up');

limit_broker('unlimited');
ok(wait_for('the release', sub { booked() == 24 }, 120), 'with room they are given back');
resize('48MB');
ok(wait_for('48 MB', sub { leased() == 48 && booked() == 48 }, 120), 'and others are granted');
is_whole('with room');
is($node->safe_psql('postgres', q{SELECT string_agg(DISTINCT lease, '|') FROM remote_bp_leases}), $leases, 'the leases are the same');
unlike($_->log_text, qr/(?:$leases) ended/, "$_->{name} ended none of them") for @donors;
$session->quit;
is_clean($node);
$node->stop;

done_testing();
