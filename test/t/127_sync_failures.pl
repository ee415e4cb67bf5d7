# A failed sync or close of a relation's file: the disk may not hold what the tier's
# pages claim, so all of them are dropped, whether the server goes on or not.  What is
# kept over a crash is dropped if a process crashed by itself, or if the data directory
# cannot be synced before recovery.

use strict;
use warnings;

use Errno qw(EBADF EINTR EINVAL EIO ENOSYS);
use FindBin;
use lib "$FindBin::RealBin/lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use RemoteBP;
use RemoteBP::Preload;
use Test::More;

my $orders = PostgreSQL::Test::Utils::tempdir() . '/failed_syncs';
my $broker = start_broker();
my $donor = start_donor($broker, memory => '128MB');
my $node = new_cluster(
	'failed_syncs',
	start => 0,
	broker => $broker,
	# Nobody else writes or syncs.
	conf => "fsync = on\ndata_sync_retry = on\nremote_bp.io_timeout = '5s'\n"
	  . "checkpoint_timeout = '1h'\nmax_wal_size = '4GB'\nbgwriter_lru_maxpages = 0\n");
start_preloaded($node, 'failed_syncs', RBP_FAILED_SYNCS => $orders);
create_extension($node);
ok(wait_leased($node, 64), 'memory is leased');
make_table($node, $_, 8) for qw(changed other);
my $path = file_of('changed');
my $other = content($node, 'other');

sub file_of
{
	my ($rel) = @_;
	return '/' . $node->safe_psql('postgres', "SELECT pg_relation_filepath('$rel')");
}

# The next such call for a file whose path ends so fails.
sub fail_next
{
	my ($call, $error, $end) = @_;
	append_to_file("$orders.new", "$call $error $end\n");
	rename("$orders.new", $orders) or die $!;
	return;
}

# Pages of one table are in the tier, some of them in buffers, too.
sub prepare
{
	my ($name) = @_;
	cmp_ok(warm($node, 'other'), '>', 0, "$name: pages are in the tier");
	$node->safe_psql('postgres', 'SET enable_seqscan = off; SELECT count(pad) FROM other WHERE id <= 100');
	return;
}

# A statement whose call fails that way: is it an error, and what becomes of the tier?
sub try_failure
{
	my ($name, $failure, $sql, %expected) = @_;
	$node->safe_psql('postgres', 'CHECKPOINT');
	prepare($name);
	$node->safe_psql('postgres', 'SET enable_seqscan = off; UPDATE changed SET v = v + 1 WHERE id <= 100');
	my $offset = log_size($node);
	fail_next(@$failure);
	my $status = $node->psql('postgres', $sql);
	ok(!-e $orders, "$name: the call was made, and failed");
	unlink $orders;
	# some versions of the server call again when a call was interrupted
	is($status != 0, !!$expected{error}, "$name: the server " . ($expected{error} ? 'reports an error' : 'goes on'))
	  unless $failure->[1] == EINTR;
	if ($expected{kept})
	{
		cmp_ok(tier_pages($node, 'other'), '>', 0, "$name: the tier keeps its pages");
		unlike(log_since($node, $offset), qr/pages of the tier are dropped/, "$name: nothing is told");
		return;
	}
	is(tier_pages($node, 'other'), 0, "$name: none is in the tier");
	# nor does one come by a claim about a buffer that was made before
	evict_buffers($node);
	wait_still($node, qw(captures pushes staged_pages));
	is(tier_pages($node, 'other'), 0, "$name: nor later");
	log_tells($node, $offset, qr/all pages of the tier are dropped, since $failure->[0] failed/, "$name: that is told")
	  unless $expected{silent};
	return;
}

#---- the server goes on -----------------------------------------------------------

try_failure('fsync', [ 'fsync', EIO, $path ], 'CHECKPOINT', error => 1);
# the checkpointer has told of the tier just before
try_failure('sync_file_range', [ 'sync_file_range', EIO, $path ], 'CHECKPOINT', silent => 1);
try_failure('sync_file_range, not supported', [ 'sync_file_range', ENOSYS, $path ], 'CHECKPOINT', kept => 1);
try_failure('fsync, interrupted', [ 'fsync', EINTR, $path ], 'CHECKPOINT', kept => 1);
for ([ 'close', EIO ], [ 'close of nothing', EBADF, kept => 1 ])
{
	my ($name, $error, @expected) = @$_;
	$node->safe_psql('postgres', 'DROP TABLE IF EXISTS closed; CREATE TABLE closed AS SELECT 1 AS a');
	try_failure($name, [ 'close', $error, file_of('closed') ], 'SELECT * FROM closed; TRUNCATE closed', @expected);
}
try_failure('fsync of a directory', [ 'fsync', EIO, '/pgdata' ], q{ALTER SYSTEM SET work_mem = '5MB'}, error => 1);
try_failure('fsync of a directory, not supported', [ 'fsync', EINVAL, '/pgdata' ], q{ALTER SYSTEM SET work_mem = '6MB'}, kept => 1);
try_failure('fsync of another file', [ 'fsync', EIO, '/postgresql.auto.conf.tmp' ], q{ALTER SYSTEM SET work_mem = '7MB'}, error => 1, kept => 1);

cmp_ok(warm($node, 'changed'), '>', 0, 'the tier is used again');
is($node->safe_psql('postgres', 'SELECT DISTINCT v FROM changed WHERE id <= 100'), 9, 'the changed table is right');
is(content($node, 'other'), $other, 'the other table is right');
is_clean($node);

#---- the server starts anew -------------------------------------------------------

# End the background writer, which has no handler of such signals, and wait for recovery.
sub crash
{
	my ($signal) = @_;
	my $offset = log_size($node);
	kill($signal, server_process($node, 'background writer')) or die "kill: $!";
	ok( wait_for(
			'recovery',
			sub { log_since($node, $offset) =~ /database system is ready to accept connections/ }),
		"$signal: the server recovers");
	ok(wait_leased($node, 64), "$signal: memory is leased");
	return log_since($node, $offset);
}

# After a sync has failed nothing is kept.
prepare('failed before');
like(crash('KILL'), qr/what was kept over the crash is discarded: a sync of relation files failed/, 'failed before: what was kept is discarded');
prepare('killed');
unlike(crash('KILL'), qr/kept over the crash is discarded|pages of the tier are dropped/, 'killed: nothing is discarded');
cmp_ok(tier_pages($node, 'other'), '>', 0, 'killed: the pages are kept');

for my $signal (qw(SEGV BUS ILL FPE ABRT TRAP SYS))
{
	prepare($signal);
	like(crash($signal), qr/remote_bp: what was kept over the crash is discarded: a process of the server may have overwritten it/, "$signal: what was kept is discarded");
	is(tier_pages($node, 'other'), 0, "$signal: no page is in the tier");
}

for (['fsync', $path], ['syncfs', '/pgdata'])
{
	my ($method, $end) = @$_;
	# nothing is kept over the first crash after a failure
	crash('KILL');
	prepare("$method before recovery");
	$node->safe_psql('postgres', "ALTER SYSTEM SET recovery_init_sync_method = '$method'");
	$node->reload;
	$node->poll_query_until('postgres', 'SHOW recovery_init_sync_method', $method) or die 'not reloaded';
	$node->safe_psql('postgres', 'CHECKPOINT');
	fail_next($method, EIO, $end);
	like(crash('KILL'), qr/all pages of the tier are dropped, since $method failed/, "$method before recovery: that is told");
	ok(!-e $orders, "$method before recovery: the call was made, and failed");
	unlink $orders;
	is(tier_pages($node, 'other'), 0, "$method before recovery: no page is in the tier");
}
# Before the tier has had any memory, too: what the page cache has is newer than the disk.
my $broker_url = $node->safe_psql('postgres', 'SHOW remote_bp.broker');
$node->safe_psql('postgres', q{ALTER SYSTEM SET remote_bp.broker = ''});
$node->stop;
start_preloaded($node, 'failed_syncs', RBP_FAILED_SYNCS => $orders);
$node->safe_psql('postgres', 'UPDATE changed SET v = v + 1 WHERE id <= 100');
fail_next('fsync', EIO, $path);
isnt($node->psql('postgres', 'CHECKPOINT'), 0, 'without memory: a sync fails');
unlink $orders;
$node->safe_psql('postgres', "ALTER SYSTEM SET remote_bp.broker = '$broker_url'");
$node->reload;
ok(wait_leased($node, 64), 'without memory: it comes later');
prepare('without memory');
like(crash('KILL'), qr/what was kept over the crash is discarded: a sync of relation files failed/, 'without memory: the failure is not forgotten');
is(content($node, 'other'), $other, 'the other table is right after that');
is(counter($node, 'mismatches'), 0, 'no page was different from the disk');
$node->stop;

done_testing();
