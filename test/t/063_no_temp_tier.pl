# remote_bp.temp_tier_max_size = 0: no shared memory is there for temporary data.
# The buffer tier is what it always is, whatever happens to its lease, and
# temporary data goes to files as it does without the extension.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use RemoteBP;
use Test::More;

my $broker = start_broker();
my %donors = map { $_ => start_donor($broker, id => $_, memory => '64MB') } qw(one two);
my $node = new_cluster(
	'buffer_tier_only',
	broker => $broker,
	# A donor that is late is not what is tested.
	conf => "remote_bp.temp_tier_max_size = 0\nremote_bp.io_timeout = '5s'\nwork_mem = '64kB'\n");
my $postmaster_started = $node->safe_psql('postgres', 'SELECT pg_postmaster_start_time()');

# Processes of the server that have crashed since it was started first.
sub crashes
{
	my @found = slurp_file($node->logfile) =~ /was terminated by signal|all server processes terminated/g;
	return scalar @found;
}

ok(wait_leased($node, 64), 'memory for buffer pages is leased');
make_table($node, 't', 24);
cmp_ok(warm($node, 't'), '>', 0, 'pages of a table are on donors');
my $content = content($node, 't');

# Temporary data goes to files.
sub sorted
{
	return $node->safe_psql('postgres',
		'SELECT md5(string_agg(id::text, $$ $$ ORDER BY md5(id::text))), count(*) FROM t');
}
my $sorted = sorted();
like($sorted, qr/^[0-9a-f]{32}\|[1-9]/, 'a sort that spills has its result');
cmp_ok($node->safe_psql('postgres', q{SELECT pg_sleep(1.1), pg_stat_force_next_flush(); SELECT temp_bytes FROM pg_stat_database WHERE datname = 'postgres'}) =~ /(\d+)\z/ ? $1 : 0,
	'>', 0, 'it has spilled');

# Every view, and what is set and refused.
my @views = split /\n/, $node->safe_psql('postgres', <<'SQL');
SELECT objid::regclass FROM pg_depend
JOIN pg_extension e ON refobjid = e.oid AND refclassid = 'pg_extension'::regclass
JOIN pg_class c ON c.oid = objid AND classid = 'pg_class'::regclass
WHERE extname = 'remote_bp' AND deptype = 'e' AND relkind = 'v' ORDER BY 1
SQL
cmp_ok(scalar @views, '>', 5, 'there are views');
for my $view (@views)
{
	my ($status, undef, $err) = $node->psql('postgres', "SELECT count(*) FROM $view");
	is("$status$err", '0', "$view can be read");
}
my (undef, undef, $refused) = $node->psql('postgres', q{ALTER SYSTEM SET remote_bp.temp_tier_size = '16MB'});
like($refused, qr/must not be greater than remote_bp\.temp_tier_max_size/, 'no memory can be asked for temporary data');

# The lease shrinks, ends, and begins again; a donor goes, the worker goes.
sub set
{
	my ($name, $value) = @_;
	$node->safe_psql('postgres', "ALTER SYSTEM SET remote_bp.$name = '$value'");
	$node->reload;
	return;
}

sub has
{
	my ($megabytes, $name) = @_;
	return ok(wait_for("$megabytes MB", sub { leased_bytes($node) == $megabytes * 1024 * 1024 }, 120), $name);
}
set('buffer_tier_size', '32MB');
has(32, 'the lease shrinks');
set('buffer_tier_size', 0);
has(0, 'the lease ends');
set('buffer_tier_size', '64MB');
has(64, 'memory is leased again');
is((ctl($broker, 'drain', 'one'))[0], 0, 'a donor is drained');
ok(wait_for('the donor to be empty', sub { $node->safe_psql('postgres', "SELECT count(*) FROM remote_bp_leases WHERE donor = 'one'") eq '0' }, 120),
	'the drained donor gets its memory back');
my $worker = server_process($node, 'remote_bp lease worker');
kill('TERM', $worker);
ok(wait_for('another worker', sub { my $p = server_process($node, 'remote_bp lease worker'); defined $p && $p != $worker }, 120),
	'another lease worker takes its place');
ok(wait_renewed($node), 'it renews the lease');
cmp_ok(warm($node, 't'), '>', 0, 'pages are on donors again');
set('broker', '');
has(0, 'without a broker there is no lease');
set('broker', $broker->url);
ok(wait_for('memory', sub { leased_bytes($node) > 0 }, 120), 'with one there is');
is(content($node, 't'), $content, 'the table is what it was');
is($node->safe_psql('postgres', 'SELECT pg_postmaster_start_time()'), $postmaster_started, 'the server has run all the time');
is(crashes(), 0, 'no process of it has crashed');

$node->restart;
ok(wait_for('memory', sub { leased_bytes($node) > 0 }, 120), 'a restarted server leases memory');
cmp_ok(warm($node, 't'), '>', 0, 'its pages are on donors, too');
is(sorted(), $sorted, 'its sorts give the same');
is(crashes(), 0, 'no process has crashed');
is_clean($node);
$node->stop;

done_testing();
