# The lease for temporary data: it comes and goes with remote_bp.temp_tier_size
# beside the lease of the buffer tier, and neither disturbs the other, whatever
# happens to the broker, a donor or the lease worker.
# Alone

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
is(bytes_of('temp'), 0, 'and by default none for temporary data');
my $buffer = lease_of('buffer');
my $start = log_size($node);

# It comes, grows, and shrinks, at a reload.
set('temp_tier_size', '32MB');
has('temp', 32, 'memory for temporary data is leased at a reload');
my $temp = lease_of('temp');
like($temp, qr/^[-0-9a-f]{36}$/, 'by one lease');
isnt($temp, $buffer, 'another one');
is(broker_leases($broker), 'buffer:64 temp:32', 'the broker knows both, and what for');
log_tells($node, $start, qr/LOG: .*remote_bp: leased 32 MB of 32 MB wanted for temporary data, in 4 regions on 2 donors/,
	'the log tells');
set('temp_tier_size', '80MB');
has('temp', 80, 'it grows');
set('temp_tier_size', '16MB');
has('temp', 16, 'it shrinks');
ok(wait_for('the broker to know', sub { broker_leases($broker) eq 'buffer:64 temp:16' }, 120), 'and the broker gets the rest');
log_tells($node, $start, qr/the lease now has 16 MB of 16 MB wanted for temporary data/, 'the log tells');
set('temp_tier_size', '200MB');
has('temp', 128, 'it is content with less than it wants');
log_tells($node, $start, qr/the lease now has 128 MB of 200 MB wanted for temporary data/, 'and says so');
set('temp_tier_size', '48MB');
has('temp', 48, 'it is resized');
is(lease_of('temp'), $temp, 'and was the same lease all the time');

# Both are renewed.
ok(wait_renewed($node), 'both are renewed');
is(bytes_of('temp'), 48 * $MB, 'the one for temporary data is still there');
is(bytes_of('buffer'), 64 * $MB, 'as is the one for buffer pages');
is(lease_of('temp') . lease_of('buffer'), $temp . $buffer, 'both are those of before');

# The one does not depend on the other, nor on what the tier may do.
set('buffer_tier_size', '0');
has('buffer', 0, 'the buffer tier gives its memory back');
is(bytes_of('temp'), 48 * $MB, 'and only that');
set('buffer_tier_size', '64MB');
has('buffer', 64, 'it comes again');
$buffer = lease_of('buffer');
set('enabled', 'off');
wait_renewed($node);
is(bytes_of('temp'), 48 * $MB, 'remote_bp.enabled does not concern it');
set('enabled', 'on');
set('temp_tier_size', '0');
has('temp', 0, 'it is given back as a whole');
ok(wait_for('the broker to know', sub { broker_leases($broker) eq 'buffer:64' }, 120), 'and the broker has it');
log_tells($node, $start, qr/gave the leased memory for temporary data back/, 'the log tells');
set('temp_tier_size', '48MB');
has('temp', 48, 'and it comes again');
isnt(lease_of('temp'), $temp, 'as another lease');
$temp = lease_of('temp');
is(lease_of('buffer'), $buffer, 'the buffer tier has kept its own');

# A broker that dies and comes back: nothing is lost, and one line tells of each.
my $offset = log_size($node);
$broker->kill9;
ok(wait_for('the loss to be noticed', sub { logged($offset, qr/could not renew the lease/) }, 120), 'the broker is killed');
$broker = restart_broker($broker);
ok(wait_for('it to be back', sub { logged($offset, qr/broker "\S+" is back/) }, 120), 'and comes back');
wait_renewed($node);
is(bytes_of('temp'), 48 * $MB, 'temporary data has its memory');
is(lease_of('temp') . lease_of('buffer'), $temp . $buffer, 'both leases are those of before');
is(logged($offset, qr/could not renew the lease/), 1, 'the log tells once that the broker is away');
is(logged($offset, qr/broker "\S+" is back/), 1, 'and once that it is back');

# Away for too long: neither is used any more, and both come again.
$offset = log_size($node);
$broker->freeze;
ok(wait_for('both leases to end', sub { bytes_of('temp') + bytes_of('buffer') == 0 }, 120), 'a lease that is not renewed ends');
ok( wait_for(
		'the log to tell',
		sub { logged($offset, qr/the lease(?: for temporary data)? could not be renewed in time/) == 2 },
		120),
	'the log tells of both');
$broker->thaw;
has('temp', 48, 'memory for temporary data is leased anew');
has('buffer', 64, 'and for buffer pages');
is(logged($offset, qr/broker "\S+" is back/), 1, 'the broker is back once');

# One of them is revoked: the other one stays.
($buffer, $temp) = (lease_of('buffer'), lease_of('temp'));
$offset = log_size($node);
is((ctl($broker, 'revoke', $temp))[0], 0, 'the lease is revoked');
ok(wait_for('another lease', sub { my $l = lease_of('temp'); $l ne '' && $l ne $temp }, 120), 'and another one made');
has('temp', 48, 'with all its memory');
log_tells($node, $offset, qr/the lease for temporary data has ended/, 'the log tells');
is(lease_of('buffer'), $buffer, 'the buffer tier has kept its own');
$temp = lease_of('temp');
is((ctl($broker, 'revoke', $buffer))[0], 0, 'the other one is revoked');
ok(wait_for('another lease', sub { my $l = lease_of('buffer'); $l ne '' && $l ne $buffer }, 120), 'and made anew');
has('buffer', 64, 'with all its memory');
is(lease_of('temp'), $temp, 'temporary data has kept its own');

# The lease worker is ended: the one after it goes on with the lease for
# temporary data, which carries what is nowhere else.
$offset = log_size($node);
my $pid = server_process($node, 'remote_bp lease worker');
like($pid, qr/^\d+$/, 'the lease worker is there');
is(kill('TERM', $pid), 1, 'and is ended');
ok(wait_for('another worker', sub { my $p = server_process($node, 'remote_bp lease worker'); defined $p && $p != $pid }, 120),
	'another one takes its place');
has('temp', 48, 'temporary data has its memory');
has('buffer', 64, 'the buffer tier, too');
is(lease_of('temp'), $temp, 'temporary data by the same lease');
ok(wait_renewed($node), 'which is renewed');
is(bytes_of('temp'), 48 * $MB, 'and all there');
is(logged($offset, qr/gave the leased memory for temporary data back/), 0, 'it was not given back in between');
is(broker_leases($broker), 'buffer:64 temp:48', 'and the broker knows these two');

# A donor wants its memory back: both leases move to the other one.
is((ctl($broker, 'drain', 'one'))[0], 0, 'a donor is drained');
ok( wait_for(
		'the donor to be empty',
		sub { $node->safe_psql('postgres', "SELECT count(*) FROM remote_bp_leases WHERE donor = 'one'") == 0 },
		120),
	'and gets all memory back');
is($donor1->stop, 0, 'it stops cleanly');
is(lease_of('temp'), $temp, 'the lease is the same');
has('temp', 48, 'with its memory elsewhere');
has('buffer', 64, 'as has the buffer tier');

# Another broker: the lease is ended at the one and begun at the other.
my $broker2 = start_broker(name => 'broker2');
my $donor3 = start_donor($broker2, id => 'three', memory => '128MB');
set('broker', $broker2->url);
has('temp', 48, 'another broker lends, too');
has('buffer', 64, 'for both');
is(broker_leases($broker), '', 'nothing is left at the first');
is($node->safe_psql('postgres', 'SELECT DISTINCT donor FROM remote_bp_leases'), 'three', 'all is on its donor');
set('broker', '');
ok(wait_for('no lease', sub { broker_leases($broker2) eq '' }, 120), 'without a broker there is no lease');
set('broker', $broker2->url);
has('temp', 48, 'until there is one again');

# The end of the server is that of its leases.
has('buffer', 64, 'both are leased');
is_clean($node, undef, no_compare => 1);
$node->stop;
is(broker_leases($broker2), '', 'a server that is stopped gives both back');

done_testing();
