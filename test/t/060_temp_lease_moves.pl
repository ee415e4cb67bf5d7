# Spilled data lives through what happens to its lease while a query holds on
# to it: the lease shrinks and grows, goes to another broker and comes back,
# the credential changes, the broker is away for a while, the lease worker ends.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use RemoteBP;
use RemoteBP::Spill;
use Test::More;
use Time::HiRes qw(sleep);

my $MB = 1024 * 1024;
my $token = PostgreSQL::Test::Utils::tempdir() . '/token';
my $broker = start_broker();
my @donors = map { start_donor($broker, id => $_, memory => '64MB', region_size => '4MB') } qw(one two);
my $broker2 = start_broker(name => 'broker2');
my $donor3 = start_donor($broker2, id => 'three', memory => '64MB', region_size => '4MB');
my ($node, $session, $expected, $offset);

sub set
{
	my ($name, $value) = @_;
	$node->safe_psql('postgres', "ALTER SYSTEM SET remote_bp.$name = '$value'");
	$node->reload;
	return;
}

sub leased
{
	return $node->safe_psql('postgres',
		q{SELECT coalesce(sum(bytes), 0) / 1024 / 1024 FROM remote_bp_leases WHERE purpose = 'temp' AND expires_in > interval '0'});
}

sub lease
{
	return $node->safe_psql('postgres', q{SELECT string_agg(DISTINCT lease, ' ') FROM remote_bp_leases WHERE purpose = 'temp'});
}

sub has
{
	my ($megabytes, $name) = @_;
	return ok(wait_for("$megabytes MB", sub { leased() == $megabytes }, 120), $name);
}

sub pages
{
	return counter($node, 'spill.pages');
}

# All that the query spilled, backwards and forwards.
sub is_whole
{
	my ($name) = @_;
	return is($session->query(q{SELECT rows_of('c')}), $expected, "$name: spilled data is whole");
}

sub log_has
{
	my ($pattern, $name) = @_;
	return ok(wait_for("$pattern", sub { log_since($node, $offset) =~ /$pattern/ }, 120), $name);
}

for my $transport ('tcp', 'shm')
{
	$node = new_cluster(
		"moves_$transport",
		broker => $broker,
		transport => $transport,
		tier => '8MB',
		shared_buffers => '4MB',
		conf => "work_mem = '64kB'\nremote_bp.temp_tier_max_size = '64MB'\nremote_bp.temp_tier_size = '48MB'\n"
		  . "remote_bp.lease_ttl = '60s'\n");
	$node->safe_psql('postgres', <<'SQL');
CREATE TABLE big AS SELECT i, md5(i::text) AS t, rpad('', 300, md5((-i)::text)) AS pad FROM generate_series(1, 50000) i;
SQL
	create_rows_of($node);
	has(48, "$transport: memory is leased");
	$session = $node->background_psql('postgres');
	$session->query('BEGIN; DECLARE c SCROLL CURSOR FOR SELECT * FROM big ORDER BY t, i');
	$expected = $session->query(q{SELECT rows_of('c')});
	like($expected, qr/^50000 -?\d+$/, "$transport: a query has spilled");
	cmp_ok(pages() * 8192, '>', 16 * $MB, "$transport: the query has spilled to donors");
	my $lease = lease();
	my $evacuated = counter($node, 'spill.evacuated');

	# Up and down.
	for my $size (8, 40, 4, 64, 12, 48)
	{
		$offset = log_size($node);
		set('temp_tier_size', "${size}MB");
		has($size, "$transport: resized to $size MB");
		is_whole("$transport, $size MB");
	}
	is(lease(), $lease, "$transport: the resized lease is the same");
	cmp_ok(counter($node, 'spill.evacuated'), '>', $evacuated, "$transport: data has moved");

	# More than can be moved at once, and another wish in the middle of it.
	$session->query('CLOSE c; DECLARE c SCROLL CURSOR FOR SELECT * FROM big ORDER BY t, i');
	is_whole("$transport, another cursor");
	my $used = pages();
	cmp_ok($used, '>', 0, "$transport: the other cursor is on donors");
	set('temp_tier_size', '0');
	set('temp_tier_size', '48MB');
	has(48, "$transport: off, and on again at once");
	is_whole("$transport, off and on");

	# The lease worker ends.
	$session->query('CLOSE c; DECLARE c SCROLL CURSOR FOR SELECT * FROM big ORDER BY t, i');
	is_whole("$transport, one more cursor");
	cmp_ok(pages(), '>', 0, "$transport: one more cursor is on donors");
	$lease = lease();
	$used = pages();
	$offset = log_size($node);
	my $pid = server_process($node, 'remote_bp lease worker');
	is(kill('TERM', $pid), 1, "$transport: the lease worker is ended");
	log_has('going on with the lease for temporary data, 48 MB', "$transport: the next one takes the lease over");
	is_whole("$transport, lease worker ended");
	ok(wait_renewed($node), "$transport: the lease that was taken over is renewed");
	is_whole("$transport, lease renewed by another worker");
	is(lease(), $lease, "$transport: the lease is the same");
	is(pages(), $used, "$transport: the same pages are in use after the lease worker ended");

	# The broker is away for a while.
	$offset = log_size($node);
	$broker->kill9;
	log_has('could not renew the lease', "$transport: the broker is killed");
	is_whole("$transport, without a broker");
	$broker = restart_broker($broker);
	log_has('broker "\S+" is back', "$transport: the broker comes back");
	is_whole("$transport, with a broker again");
	is(lease(), $lease, "$transport: the lease is the same");

	# With a credential, at a broker that wants none.
	write_token($token, 'secret', 'server', '*', '-');
	set('token_file', $token);
	wait_renewed($node);
	is_whole("$transport, with a credential");
	is(lease(), $lease, "$transport: the lease is the same");
	is(pages(), $used, "$transport: the same pages are in use with a credential");

	# Another broker: what the old one's donors have is moved to disk.
	set('broker', $broker2->url);
	ok( wait_for('the new broker', sub { $node->safe_psql('postgres', 'SELECT string_agg(DISTINCT donor, $$ $$) FROM remote_bp_leases') eq 'three' }, 120),
		"$transport: another broker, another donor");
	has(48, "$transport: the other broker lends memory");
	is_whole("$transport, another broker");
	ok(wait_for('the lease to end', sub { !@{ http_json($broker, 'GET', '/v1/leases')->{leases} } }),
		"$transport: the first broker has no lease left");

	is($session->query('COMMIT'), '', "$transport: the query ends well");
	$session->quit;
	is(pages(), 0, "$transport: all pages are free");
	is(counter($node, 'spill.lost'), 0, "$transport: nothing was lost");
	is(counter($node, 'spill.hash_failures'), 0, "$transport: no hash failure of spilled blocks");
	is_clean($node, $transport, no_compare => 1);

	# A lease that is revoked: what it carried is lost, and that is told.
	$session = $node->background_psql('postgres', on_error_stop => 0);
	$session->query('BEGIN; DECLARE c SCROLL CURSOR FOR SELECT * FROM big ORDER BY t, i');
	is_whole("$transport, a last cursor");
	cmp_ok(pages(), '>', 0, "$transport: the last cursor is on donors");
	$offset = log_size($node);
	is((ctl($broker2, 'revoke', lease()))[0], 0, "$transport: the lease is revoked");
	log_has('the lease for temporary data has ended', "$transport: the server notices");
	log_has('\d+ kB of temporary data are lost with \d+ regions?', "$transport: the log reports the lost data");
	has(48, "$transport: there is another lease");
	$session->query(q{SELECT rows_of('c')});
	like($session->{stderr}, qr/ERROR: .*could not read block \d+ of temporary file/, "$transport: the query that needs it fails");
	$session->{stderr} = '';
	$session->query('ROLLBACK');
	is($session->query('SELECT 1'), '1', "$transport: the session goes on after the failed query");
	$session->query('BEGIN; DECLARE c SCROLL CURSOR FOR SELECT * FROM big ORDER BY t, i');
	is_whole("$transport, the next query");
	cmp_ok(pages(), '>', 0, "$transport: the next query spills to the new lease");
	$session->quit;
	$node->stop;
	is(scalar @{ http_json($broker2, 'GET', '/v1/leases')->{leases} }, 0, "$transport: the server gives all back at its end");
}

done_testing();
