# The extension is loaded by shared_preload_libraries or not at all, and
# refuses settings that make no sense.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use RemoteBP;
use Test::More;

my $node = PostgreSQL::Test::Cluster->new('load');
$node->init;
$node->append_conf('postgresql.conf', RemoteBP::module_path());
$node->start;

# By LOAD, by session_preload_libraries, by CREATE EXTENSION's functions.
my ($ret, $out, $err) = $node->psql('postgres', q{LOAD 'remote_bp'});
isnt($ret, 0, 'LOAD is refused');
like($err, qr/remote_bp.*shared_preload_libraries/s, 'the error after LOAD says what to do');

# psql may have ended before it could be told anything.
my $connstr = $node->connstr('postgres');
($ret, $out, $err) = $node->psql(
	'postgres', '',
	extra_params => [],
	connstr => "$connstr options='-c session_preload_libraries=remote_bp'");
isnt($ret, 0, 'session_preload_libraries is refused');
like($err, qr/remote_bp.*shared_preload_libraries/s, 'the error after session_preload_libraries says what to do');

($ret, $out, $err) = $node->psql('postgres', 'CREATE EXTENSION remote_bp');
isnt($ret, 0, 'CREATE EXTENSION without the library is refused');
like($err, qr/remote_bp.*shared_preload_libraries/s, 'the error after CREATE EXTENSION says what to do');
is($node->safe_psql('postgres', 'SELECT 1'), 1, 'the server goes on');

$node->append_conf('postgresql.conf', "shared_preload_libraries = 'remote_bp'\n");
$node->restart;
$node->safe_psql('postgres', 'CREATE EXTENSION remote_bp');
is($node->safe_psql('postgres', q{SELECT extversion FROM pg_extension WHERE extname = 'remote_bp'}),
	'1.2', 'the extension is there');
is($node->safe_psql('postgres', 'SHOW remote_bp.broker'), '', 'no broker by default');
is(counter($node, 'hits + misses + captures'), 0, 'no broker: the tier is off');
is($node->safe_psql('postgres', 'SHOW remote_bp.io_timeout'),
	'10ms', 'a wait is bounded by 10 ms');
is($node->safe_psql('postgres', 'SHOW remote_bp.transport'), 'auto', 'the transport is chosen');

# Refused, with a reason; those that need a reload or a restart are tried with
# ALTER SYSTEM, which runs the same checks.
for my $bad (
	[ 'remote_bp.broker', 'ftp://host', qr/invalid value for parameter "remote_bp.broker"/ ],
	[ 'remote_bp.broker', 'host:80', qr/invalid value for parameter "remote_bp.broker"/ ],
	[ 'remote_bp.transport', 'pigeon', qr/invalid value for parameter "remote_bp.transport"/ ],
	[ 'remote_bp.buffer_tier_size', '-2', qr/outside the valid range/ ],
	[ 'remote_bp.buffer_tier_max_size', '0', qr/outside the valid range/ ],
	[ 'remote_bp.staging_size', '0', qr/outside the valid range/ ],
	[ 'remote_bp.staging_size', '1001kB', qr/invalid value for parameter "remote_bp.staging_size"/ ],
	[ 'remote_bp.io_timeout', '-5', qr/outside the valid range/ ],
	[ 'remote_bp.io_timeout', '0', qr/outside the valid range/ ],
	[ 'remote_bp.lease_ttl', '0', qr/outside the valid range/ ],
	[ 'remote_bp.compare_with_disk', 'perhaps', qr/requires a Boolean value/ ])
{
	my ($name, $value, $message) = @$bad;
	($ret, $out, $err) = $node->psql('postgres', "ALTER SYSTEM SET $name = '$value'");
	like($err, $message, "$name = '$value' is refused");
	if ($message =~ /invalid value/)
	{
		like($err, qr/DETAIL|HINT/, "$name = '$value': it says why");
	}
}

# Who may change what.
$node->safe_psql('postgres', 'CREATE ROLE nobody');
($ret, $out, $err) =
  $node->psql('postgres', 'SET ROLE nobody; SET remote_bp.compare_with_disk = on');
like($err, qr/permission denied/, 'compare_with_disk is for superusers');
($ret, $out, $err) = $node->psql('postgres', q{SET remote_bp.buffer_tier_max_size = '1GB'});
like($err, qr/cannot be changed without restarting/, 'the maximum needs a restart');
($ret, $out, $err) = $node->psql('postgres', q{SET remote_bp.buffer_tier_size = '1MB'});
like($err, qr/cannot be changed now/, 'the size needs a reload');

# A size above the maximum, in a reload and at the start.
$node->append_conf('postgresql.conf', "remote_bp.buffer_tier_max_size = '16MB'\n");
$node->restart;
($ret, $out, $err) = $node->psql('postgres', q{ALTER SYSTEM SET remote_bp.buffer_tier_size = '64MB'});
like($err, qr/invalid value for parameter "remote_bp.buffer_tier_size".*DETAIL.*buffer_tier_max_size/s,
	'a size above the maximum is refused, and it says why');
$node->stop;
$node->append_conf('postgresql.conf', "remote_bp.buffer_tier_size = '64MB'\n");
my $offset = log_size($node);
$node->start;
log_tells($node, $offset,
	qr/WARNING:.*remote_bp.buffer_tier_size.*DETAIL.*buffer_tier_max_size/s,
	'a size above the maximum in the file does not keep the server from starting, and is logged');
is($node->safe_psql('postgres', 'SHOW remote_bp.buffer_tier_size'), '-1', 'the maximum is used instead');

# Single-user mode does without shared memory workers.
$node->stop;
my $datadir = $node->data_dir;
my $single = '';
ok( IPC::Run::run(
		[ 'postgres', '--single', '-D', $datadir, 'postgres' ],
		'<', \"SELECT count(*) FROM pg_class;\n",
		'>&', \$single),
	'single-user mode works')
  or diag($single);
like($single, qr/count = "\d+"/, 'a single-user server reads tables');
$node->start;
is($node->safe_psql('postgres', 'SELECT 1'), 1, 'the server starts after a single-user server');
is(scalar log_troubles($node), 0, 'the log is quiet');
$node->stop;

done_testing();
