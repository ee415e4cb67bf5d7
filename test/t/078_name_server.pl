# A name server that hangs stops nobody: leases are renewed, also at a broker
# that has to be connected to anew, and what was spilled stays.  Only a donor
# whose name was never resolved is not used until it is.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use RemoteBP;
use RemoteBP::Preload;
use Test::More;
use Time::HiRes qw(sleep);

my $MB = 1024 * 1024;
my $hang = PostgreSQL::Test::Utils::tempdir() . '/hang';

sub start_named_donor
{
	my ($broker, $name) = @_;
	my $port = PostgreSQL::Test::Cluster::get_free_port();
	return start_donor(
		$broker,
		id => $name,
		memory => '64MB',
		region_size => '4MB',
		listen => "127.0.0.1:$port",
		advertise => "$name.test:$port");
}

my $broker = start_broker();
my $donor = start_named_donor($broker, 'one');
(my $url = $broker->url) =~ s/127\.0\.0\.1/broker.test/;
my $node = new_cluster(
	'names',
	broker => $broker,
	transport => 'tcp',
	tier => '16MB',
	shared_buffers => '4MB',
	start => 0,
	conf => "work_mem = '64kB'\nremote_bp.temp_tier_max_size = '96MB'\nremote_bp.temp_tier_size = '32MB'\n"
	  . "remote_bp.lease_ttl = '5s'\nremote_bp.broker = '$url'\n");
start_preloaded($node, 'names', RBP_NAMES_HANG => $hang);
create_extension($node);

sub bytes_of
{
	my ($purpose) = @_;
	return $node->safe_psql('postgres',
		"SELECT coalesce(sum(bytes), 0) FROM remote_bp_leases WHERE purpose = '$purpose' AND expires_in > interval '0'");
}

sub leases
{
	return $node->safe_psql('postgres',
		q{SELECT string_agg(DISTINCT purpose || ' ' || lease, ', ' ORDER BY purpose || ' ' || lease) FROM remote_bp_leases WHERE expires_in > interval '0'});
}

sub donor_is
{
	my ($column, $donor) = @_;
	return $node->safe_psql('postgres', "SELECT $column FROM remote_bp_stat_donors WHERE donor = '$donor'");
}

sub log_count
{
	my ($offset, $pattern) = @_;
	return scalar(() = log_since($node, $offset) =~ /$pattern/g);
}

ok(wait_for('memory', sub { bytes_of('temp') == 32 * $MB && bytes_of('buffer') == 16 * $MB }, 60),
	'memory is leased of a broker and a donor with names');
make_table($node, 't', 4);
my $content = content($node, 't');
ok(warm($node, 't'), 'pages come from the donor');
$node->safe_psql('postgres',
	q{CREATE TABLE big AS SELECT i, md5(i::text) AS t, rpad('', 300, md5((-i)::text)) AS pad FROM generate_series(1, 30000) i});
my $session = $node->background_psql('postgres', on_error_stop => 0);
my $whole = q{SELECT count(*), md5(string_agg(t || pad, ',')) FROM (SELECT * FROM big ORDER BY t OFFSET 0) s};
my $expected = $session->query($whole);
$session->query('BEGIN; DECLARE c SCROLL CURSOR FOR SELECT t, pad FROM big ORDER BY t');
$session->query('MOVE FORWARD ALL FROM c; MOVE ABSOLUTE 0 FROM c');
cmp_ok(counter($node, 'spill.pages'), '>', 500, 'a query has spilled to it');
my $leases = leases();
like($leases, qr/^buffer \S+, temp \S+$/, 'there are two leases');

# The name server hangs.  There is a name to be looked up, since another donor
# lends memory, and the broker has to be connected to anew.
append_to_file($hang, "x\n");
my $offset = log_size($node);
my $donor2 = start_named_donor($broker, 'two');
$node->safe_psql('postgres', q{ALTER SYSTEM SET remote_bp.temp_tier_size = '96MB'});
$node->reload;
ok( wait_for(
		'the new donor to be looked up',
		sub { -f "$hang.log" && slurp_file("$hang.log") =~ /^two\.test$/m },
		30),
	'a name server hangs at the name of another donor');
$broker->kill9;
$broker = restart_broker($broker);
wait_renewed($node, 12);    # more than twice the TTL
is(leases(), $leases, 'both leases are the same while a name server hangs');
is(log_count($offset, qr/could not be renewed in time|has ended|are lost/), 0, 'both leases were renewed in time');
ok(wait_for('the broker to count renewals', sub { (http_json($broker, 'GET', '/v1/leases') // {})->{leases} }, 10), 'the broker answers');
is(join(' ', sort map { $_->{purpose} } @{ http_json($broker, 'GET', '/v1/leases')->{leases} }), 'buffer temp', 'the broker knows both leases');
is(bytes_of('temp'), 96 * $MB, 'the new donor lends memory');
is(donor_is('state', 'two'), 'unresolved', 'the view shows the new donor as unresolved');
is(donor_is('state', 'one'), 'ok', 'the other donor is used');
ok( wait_for('the log', sub { log_count($offset, qr/LOG: .*no address yet for host "two\.test" of donor "two"/) }, 10), 'the log reports the name that is not resolved');
$session->query(q{CREATE TEMP TABLE got (t text, pad text)});
my $sum = $session->query(<<'SQL');
DO $$ DECLARE c CONSTANT refcursor := 'c'; r record; BEGIN
	LOOP FETCH c INTO r; EXIT WHEN NOT FOUND; INSERT INTO got VALUES (r.t, r.pad); END LOOP; END $$;
SELECT count(*), md5(string_agg(t || pad, ',' ORDER BY t)) FROM got;
SQL
is($sum, $expected, 'spilled data is whole');
is($session->{stderr}, '', 'the query on spilled data has no error');
is(content($node, 't'), $content, 'pages are read');
is(log_count($offset, qr/no address yet for host "two\.test"/), 1, 'the log reports the name once');

# It answers again.
unlink($hang) or die "unlink: $!";
ok(wait_for('the new donor', sub { donor_is('state', 'two') eq 'ok' }, 30), 'the new donor can be used when names are resolved again');
ok(wait_for('the log', sub { log_count($offset, qr/LOG: .*host "two\.test" of donor "two" has an address/) }, 10), 'the log reports that the name is resolved');
$session->query('CLOSE c');
# Slots that were freed are used again first, so more is kept than the other donor lends.
my $kept = 0;
ok( wait_for(
		'writes to the new donor',
		sub {
			$session->query("DECLARE kept$kept SCROLL CURSOR FOR SELECT t, pad FROM big ORDER BY t; MOVE FORWARD ALL FROM kept$kept")
			  if ++$kept <= 6;
			return $session->query($whole) eq $expected && donor_is('writes', 'two') > 0;
		},
		60),
	'the new donor is used');
is(leases(), $leases, 'the leases are the same when the new donor is used');
$session->query('COMMIT');
$session->quit;
is(counter($node, 'spill.lost'), 0, 'nothing was lost');
is_clean($node);

# The server does not wait for it at its end, nor at its start.
append_to_file($hang, "x\n");
$node->stop;
start_preloaded($node, 'names', RBP_NAMES_HANG => $hang);
$offset = 0;
ok(wait_for('the log', sub { log_count($offset, qr/could not get a lease from broker \S+ .*broker\.test/) }, 30),
	'without the address of the broker there is no lease, and the log tells why');
is(content($node, 't'), $content, 'the server works');
unlink($hang) or die "unlink: $!";
ok(wait_leased($node, 16, 60), 'with the address of the broker there is a lease');
$node->stop;

done_testing();
