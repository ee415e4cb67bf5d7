# The lease for temporary data: it comes and goes with remote_bp.temp_tier_size
# beside the lease of the buffer tier, and neither disturbs the other, whatever
# happens to the broker, a donor or the lease worker.

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
my $broker = start_broker();
my $donor1 = start_donor($broker, id => 'one', memory => '64MB');
my $donor2 = start_donor($broker, id => 'two', memory => '128MB');
my $node = new_cluster(
	'leases',
	broker => $broker,
	shared_buffers => '4MB',
	tier => '64MB',
	conf => "remote_bp.temp_tier_max_size = '256MB'\nremote_bp.lease_ttl = '30s'\n");

sub set
{
	my ($name, $value) = @_;
	$node->safe_psql('postgres', "ALTER SYSTEM SET remote_bp.$name = '$value'");
	$node->reload;
	return;
}

sub bytes_of
{
	my ($purpose) = @_;
	return $node->safe_psql('postgres',
		"SELECT coalesce(sum(bytes), 0) FROM remote_bp_leases WHERE purpose = '$purpose' AND expires_in > interval '0'");
}

sub lease_of
{
	my ($purpose) = @_;
	return $node->safe_psql('postgres',
		"SELECT string_agg(DISTINCT lease, ' ') FROM remote_bp_leases WHERE purpose = '$purpose'");
}

# Until the lease has that many MB.
sub has
{
	my ($purpose, $megabytes, $name) = @_;
	return ok(wait_for("$megabytes MB for $purpose", sub { bytes_of($purpose) == $megabytes * $MB }, 120), $name);
}

sub broker_leases
{
	my ($of) = @_;
	my $list = http_json($of, 'GET', '/v1/leases');
	return join(' ', sort map { "$_->{purpose}:" . $_->{bytes} / $MB } @{ $list->{leases} });
}

# How often the log has it since then.
sub logged
{
	my ($offset, $pattern) = @_;
	my @found = log_since($node, $offset) =~ /$pattern/g;
	return scalar @found;
}

has('buffer', 64, 'memory for buffer pages is leased');
is(bytes_of('temp'), 0, 'no memory for temporary data is leased by default');
my $buffer = lease_of('buffer');
my $start = log_size($node);

# It comes, grows, and shrinks, at a reload.
set('temp_tier_size', '32MB');
has('temp', 32, 'memory for temporary data is leased at a reload');
my $temp = lease_of('temp');
like($temp, qr/^[-0-9a-f]{36}$/, 'temporary data has one lease');
isnt($temp, $buffer, 'temporary data has another lease than buffer pages');
is(broker_leases($broker), 'buffer:64 temp:32', 'the broker shows both leases with their purposes');
log_tells($node, $start, qr/LOG: .*remote_bp: leased 32 MB of 32 MB wanted for temporary data, in 4 regions on 2 donors/,
	'the log reports the lease for temporary data');
set('temp_tier_size', '80MB');
has('temp', 80, 'the lease for temporary data grows');
set('temp_tier_size', '16MB');
has('temp', 16, 'the lease for temporary data shrinks');
ok(wait_for('the broker to know', sub { broker_leases($broker) eq 'buffer:64 temp:16' }, 120), 'the broker has the memory that was given back');
log_tells($node, $start, qr/the lease now has 16 MB of 16 MB wanted for temporary data/, 'the log reports the memory that was given back');
set('temp_tier_size', '200MB');
has('temp', 128, 'the lease has less memory than wanted if there is no more');
log_tells($node, $start, qr/the lease now has 128 MB of 200 MB wanted for temporary data/, 'the log reports that the lease has less than wanted');
set('temp_tier_size', '48MB');
has('temp', 48, 'the lease for temporary data is resized');
is(lease_of('temp'), $temp, 'the resized lease is the same one');

# Both are renewed.
ok(wait_renewed($node), 'both are renewed');
is(bytes_of('temp'), 48 * $MB, 'the renewed lease for temporary data has its memory');
is(bytes_of('buffer'), 64 * $MB, 'the renewed lease for buffer pages has its memory');
is(lease_of('temp') . lease_of('buffer'), $temp . $buffer, 'both leases are the same after renewals');

# The one does not depend on the other, nor on what the tier may do.
set('buffer_tier_size', '0');
has('buffer', 0, 'the buffer tier gives its memory back');
is(bytes_of('temp'), 48 * $MB, 'the lease for temporary data keeps its memory');
set('buffer_tier_size', '64MB');
has('buffer', 64, 'the buffer tier leases memory again');
$buffer = lease_of('buffer');
set('enabled', 'off');
wait_renewed($node);
is(bytes_of('temp'), 48 * $MB, 'remote_bp.enabled does not affect the lease for temporary data');
set('enabled', 'on');
set('temp_tier_size', '0');
has('temp', 0, 'a size of 0 gives all memory for temporary data back');
ok(wait_for('the broker to know', sub { broker_leases($broker) eq 'buffer:64' }, 120), 'the broker has that memory');
log_tells($node, $start, qr/gave the leased memory for temporary data back/, 'the log reports that all was given back');
set('temp_tier_size', '48MB');
has('temp', 48, 'memory for temporary data is leased again');
isnt(lease_of('temp'), $temp, 'memory that is leased again has a new lease');
$temp = lease_of('temp');
is(lease_of('buffer'), $buffer, 'the buffer tier has kept its lease');

# A broker that dies and comes back: nothing is lost, and one line tells of each.
my $offset = log_size($node);
$broker->kill9;
ok(wait_for('the loss to be noticed', sub { logged($offset, qr/could not renew the lease/) }, 120), 'the broker is killed');
$broker = restart_broker($broker);
ok(wait_for('it to be back', sub { logged($offset, qr/broker "\S+" is back/) }, 120), 'the broker comes back');
wait_renewed($node);
is(bytes_of('temp'), 48 * $MB, 'temporary data has its memory after a restart of the broker');
is(lease_of('temp') . lease_of('buffer'), $temp . $buffer, 'both leases are the same after a restart of the broker');
# A broker that is back before its donors says so: 503.
is(logged($offset, qr/could not renew the lease[^\n]*": (?!HTTP status 503)/), 1, 'the log reports once that the broker is unreachable');
my $back = logged($offset, qr/broker "\S+" is back/);
ok($back == 1 || $back == 2, 'the log reports once that the broker is back, for each lease at most') or diag("$back times");

# Away for too long: neither is used any more, and both come again.
$offset = log_size($node);
$broker->freeze;
ok(wait_for('both leases to end', sub { bytes_of('temp') + bytes_of('buffer') == 0 }, 120), 'a lease that is not renewed ends');
ok( wait_for(
		'the log to tell',
		sub { logged($offset, qr/the lease(?: for temporary data)? could not be renewed in time/) == 2 },
		120),
	'the log reports the end of both leases');
$broker->thaw;
has('temp', 48, 'memory for temporary data is leased anew');
has('buffer', 64, 'memory for buffer pages is leased anew');
$back = logged($offset, qr/broker "\S+" is back/);
ok($back == 1 || $back == 2, 'the log reports once more that the broker is back, for each lease at most') or diag("$back times");

# One of them is revoked: the other one stays.
($buffer, $temp) = (lease_of('buffer'), lease_of('temp'));
$offset = log_size($node);
is((ctl($broker, 'revoke', $temp))[0], 0, 'the lease for temporary data is revoked');
ok(wait_for('another lease', sub { my $l = lease_of('temp'); $l ne '' && $l ne $temp }, 120), 'temporary data gets another lease');
has('temp', 48, 'a new lease for temporary data has all its memory');
log_tells($node, $offset, qr/the lease for temporary data has ended/, 'the log reports the revoked lease');
is(lease_of('buffer'), $buffer, 'the buffer tier has kept its lease when the other one was revoked');
$temp = lease_of('temp');
is((ctl($broker, 'revoke', $buffer))[0], 0, 'the lease for buffer pages is revoked');
ok(wait_for('another lease', sub { my $l = lease_of('buffer'); $l ne '' && $l ne $buffer }, 120), 'buffer pages get another lease');
has('buffer', 64, 'a new lease for buffer pages has all its memory');
is(lease_of('temp'), $temp, 'temporary data has kept its lease when the other one was revoked');

# The lease worker is ended: the one after it goes on with the lease for
# temporary data, which carries what is nowhere else.
$offset = log_size($node);
my $pid = server_process($node, 'remote_bp lease worker');
like($pid, qr/^\d+$/, 'the lease worker is there');
is(kill('TERM', $pid), 1, 'the lease worker is terminated');
ok(wait_for('another worker', sub { my $p = server_process($node, 'remote_bp lease worker'); defined $p && $p != $pid }, 120),
	'another one takes its place');
has('temp', 48, 'temporary data has its memory after the lease worker ended');
has('buffer', 64, 'the buffer tier has its memory after the lease worker ended');
is(lease_of('temp'), $temp, 'temporary data has the same lease after the lease worker ended');
ok(wait_renewed($node), 'the next lease worker renews the lease');
is(bytes_of('temp'), 48 * $MB, 'the renewed lease has all its memory');
is(logged($offset, qr/gave the leased memory for temporary data back/), 0, 'the ended lease worker did not give the memory back');
is(broker_leases($broker), 'buffer:64 temp:48', 'the broker shows only these two leases');

# A donor wants its memory back: both leases move to the other one.
is((ctl($broker, 'drain', 'one'))[0], 0, 'a donor is drained');
ok( wait_for(
		'the donor to be empty',
		sub { $node->safe_psql('postgres', "SELECT count(*) FROM remote_bp_leases WHERE donor = 'one'") == 0 },
		120),
	'the drained donor gets all memory back');
is($donor1->stop, 0, 'the drained donor stops cleanly');
is(lease_of('temp'), $temp, 'the lease is the same after a donor was drained');
has('temp', 48, 'temporary data has its memory on the other donor');
has('buffer', 64, 'the buffer tier has its memory on the other donor');

# Another broker: the lease is ended at the one and begun at the other.
my $broker2 = start_broker(name => 'broker2');
my $donor3 = start_donor($broker2, id => 'three', memory => '128MB');
set('broker', $broker2->url);
ok(wait_for('the first broker to know', sub { broker_leases($broker) eq '' }, 120), 'nothing is leased at the first broker');
has('temp', 48, 'another broker lends, too');
has('buffer', 64, 'another broker lends memory for buffer pages, too');
is($node->safe_psql('postgres', 'SELECT DISTINCT donor FROM remote_bp_leases'), 'three', 'all memory is on the donor of the other broker');
set('broker', '');
ok(wait_for('no lease', sub { broker_leases($broker2) eq '' }, 120), 'without a broker there is no lease');
set('broker', $broker2->url);
has('temp', 48, 'memory is leased again when a broker is set');

# The end of the server is that of its leases.
has('buffer', 64, 'both are leased');
is_clean($node, undef, no_compare => 1);
$node->stop;
is(broker_leases($broker2), '', 'a stopped server gives both leases back');

done_testing();
