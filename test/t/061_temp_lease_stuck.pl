# A lease for temporary data that is not wanted any more, while its donor does
# not answer: it is kept for a while and then ended all the same, leases are
# renewed meanwhile, and what could not be moved is an error of the query that
# needs it.  What is wanted again in time is kept.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use RemoteBP;
use Test::More;
use Time::HiRes qw(sleep);

my $broker = start_broker(args => [ '--donor-timeout', '300' ]);
my $donor = start_donor($broker, memory => '64MB', region_size => '4MB');
my $node = new_cluster(
	'stuck',
	broker => $broker,
	transport => 'tcp',
	tier => '8MB',
	shared_buffers => '4MB',
	conf => "work_mem = '64kB'\nremote_bp.temp_tier_max_size = '32MB'\nremote_bp.temp_tier_size = '32MB'\n"
	  . "remote_bp.lease_ttl = '300s'\nremote_bp.temp_io_timeout = '1s'\n");

sub set
{
	my ($name, $value) = @_;
	$node->safe_psql('postgres', "ALTER SYSTEM SET remote_bp.$name = '$value'");
	$node->reload;
	return;
}

# The lease of that purpose, if it may be used now.
sub lease
{
	my ($purpose) = @_;
	return $node->safe_psql('postgres',
		"SELECT string_agg(DISTINCT lease, ' ') FROM remote_bp_leases WHERE purpose = '$purpose' AND expires_in > interval '0'");
}

$node->safe_psql('postgres',
	'CREATE TABLE big AS SELECT i, md5(i::text) AS t, repeat(md5((-i)::text), 5) AS pad FROM generate_series(1, 50000) i');
ok(wait_for('memory for temporary data', sub { lease('temp') ne '' }, 120), 'memory for temporary data is leased');
my $session = $node->background_psql('postgres', on_error_stop => 0);
$session->query('BEGIN; DECLARE c SCROLL CURSOR FOR SELECT * FROM big ORDER BY t');
$session->query('MOVE FORWARD ALL FROM c');
cmp_ok(counter($node, 'spill.pages'), '>', 500, 'a query has spilled to the donor');
my ($buffer, $temp) = (lease('buffer'), lease('temp'));

# The donor hangs; the wish passes.  It hears of no renewals meanwhile, so the
# TTL is long.
$donor->freeze;
set('temp_tier_size', '0');
ok(wait_renewed($node), 'leases are renewed while the donor does not answer');
is(lease('temp'), $temp, 'the lease that is not wanted is kept meanwhile');
is(lease('buffer'), $buffer, 'the other lease is kept meanwhile');
set('temp_tier_size', '32MB');
set('temp_io_timeout', '60s');	# a donor of a busy machine takes its time to go on
wait_renewed($node);
wait_for('patience', sub { $session->query('SHOW remote_bp.temp_io_timeout') eq '1min' }) or BAIL_OUT('no patience');
$donor->thaw;
$session->query('MOVE ABSOLUTE 0 FROM c');
$session->query('MOVE FORWARD ALL FROM c');
is($session->{stderr}, '', 'data is still there if the lease is wanted again in time');
is(lease('temp'), $temp, 'the lease is the same if it is wanted again in time');

# It hangs for longer.
set('temp_io_timeout', '1s');
$donor->freeze;
my $offset = log_size($node);
set('temp_tier_size', '0');
ok( wait_for(
		'the lease to be ended',
		sub { log_since($node, $offset) =~ /temporary data in \d+ leased regions could not be moved in time/ },
		180),
	'the lease is ended although its data cannot be moved');
ok(wait_for('no lease', sub { lease('temp') eq '' }, 120), 'the ended lease is gone');
log_tells($node, $offset, qr/\d+ kB of temporary data are lost with \d+ regions?/, 'the log reports the lost data');
is(lease('buffer'), $buffer, 'the other lease was renewed all the time');
$donor->thaw;
$session->query('MOVE ABSOLUTE 0 FROM c; MOVE FORWARD ALL FROM c');
like($session->{stderr}, qr/ERROR: .*could not read block \d+ of temporary file/, 'the query that needs it fails');
$session->{stderr} = '';
$session->query('ROLLBACK');
is($session->query('SELECT count(*) FROM (SELECT * FROM big ORDER BY t OFFSET 0) s'), '50000', 'the session goes on after the failed query');
$session->quit;
ok(wait_for('no page in use', sub { counter($node, 'spill.pages') == 0 }, 120), 'no page is in use in the end');
is(scalar(grep { !/could not read/ } log_troubles($node)), 0, 'the log is quiet otherwise');
$node->stop;

done_testing();
