# What goes past the buffers sees the disk and nothing else: a base backup
# during writes, prewarming in all three ways, a consistent dump.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use RemoteBP;
use Test::More;

my $broker = start_broker();
my $donor = start_donor($broker, memory => '192MB');
my $node = new_cluster(
	'bufferless',
	broker => $broker,
	streaming => 1,
	checksums => 1,
	shared_buffers => '2MB');
ok(wait_leased($node, 64), 'memory is leased');
RemoteBP::Load->prepare($node, 4);
make_table($node, 't', 8);
ok(warm($node, 't'), 'the tier has pages');
ok(serves_again($node), 'the tier has pages of the busy tables');
my $expected = content($node, 't');

# A dump and a backup while everything changes.
my $load = start_load($node, seconds => 12, scripts => [ '-b', 'tpcb-like@1', '-b', 'select-only@1' ]);
my $backup_path = $node->backup_dir . '/under_load';
$node->command_ok(
	[ 'pg_basebackup', '-D', $backup_path, '-c', 'fast', '--no-sync', '-d', $node->connstr('postgres') ],
	'a base backup, whose pages have their checksums verified');
$node->command_ok([ 'pg_verifybackup', $backup_path ], 'the backup is what its manifest says');
my $dump = PostgreSQL::Test::Utils::tempdir() . '/dump.sql';
$node->command_ok([ 'pg_dump', '-f', $dump, '-d', $node->connstr('postgres'),
		'-t', 'pgbench_*', '-t', 't' ], 'a dump');
ok($load->running, 'the load lasted as long');
$load->finish_ok('backup and dump');

# The dump is of one moment: all sums are the same.
$node->safe_psql('postgres', 'CREATE DATABASE restored');
$node->command_ok([ 'psql', '-Xq', '-v', 'ON_ERROR_STOP=1', '-f', $dump, '-d', $node->connstr('restored') ],
	'the dump can be restored');
my $sums = q{SELECT (SELECT sum(abalance) FROM pgbench_accounts) = (SELECT coalesce(sum(delta), 0) FROM pgbench_history),
	(SELECT sum(tbalance) FROM pgbench_tellers) = (SELECT sum(bbalance) FROM pgbench_branches),
	(SELECT sum(tbalance) FROM pgbench_tellers) = (SELECT coalesce(sum(delta), 0) FROM pgbench_history)};
is($node->safe_psql('restored', $sums), 't|t|t', 'the dump is of one moment');
is(content($node, 't', 'restored'), $expected, 'the restored dump has the table that nobody changed');
is($node->safe_psql('postgres', $sums), 't|t|t', 'the sums on the server agree');

# The backup starts, without and with the extension.
my $copy = PostgreSQL::Test::Cluster->new('copy');
$copy->init_from_backup($node, 'under_load');
$copy->append_conf('postgresql.conf', "shared_preload_libraries = ''\n");
$copy->start;
is($copy->safe_psql('postgres', $sums), 't|t|t', 'the backup is of one moment');
is(content($copy, 't'), $expected, 'the backup has the table');
$copy->stop;
$copy->command_ok([ 'pg_checksums', '--check', '-D', $copy->data_dir ], 'the backup has right checksums');
$copy->append_conf('postgresql.conf', "shared_preload_libraries = 'remote_bp'\n");
$copy->start;
ok(wait_leased($copy, 64), 'the copy leases memory of its own');
ok(warm($copy, 't'), 'the copy uses its memory');
is(content($copy, 't'), $expected, 'the copy is right');
is(content($node, 't'), $expected, 'the original is right');
is_clean($copy, 'copy');
$copy->stop;

# pg_prewarm: prefetch and read go around the buffers, buffer goes through.
$node->safe_psql('postgres', 'CREATE EXTENSION pg_prewarm');
my $pages = $node->safe_psql('postgres', q{SELECT pg_relation_size('t') / 8192});
for my $mode ('prefetch', 'read', 'buffer')
{
	evict_buffers($node);
	reset_counters($node) if $mode eq 'read';
	is($node->safe_psql('postgres', "SELECT pg_prewarm('t', '$mode')"), $pages, "pg_prewarm by $mode");
	# It reads 8 kB at a time into memory of its own: none of that is served.
	# (The catalog reads of the same statement may be.)
	cmp_ok(counter($node, 'hits + staged_hits'), '<', $pages / 2, 'reads past the buffers are not served')
	  if $mode eq 'read';
	is(content($node, 't'), $expected, "pg_prewarm by $mode: reads are right");
}

# Prefetched by a bitmap scan: still right.
evict_buffers($node);
is( $node->safe_psql(
		'postgres',
		'SET enable_seqscan = off; SET enable_indexscan = off; SET effective_io_concurrency = 16;
		 SELECT count(*), sum(v) FROM t WHERE id > 0'),
	'8192|0', 'a bitmap scan with prefetching is right');
is($node->safe_psql('postgres', 'SELECT sum(checksum_failures) FROM pg_stat_database'), 0,
	'no checksum failed');
is_clean($node);
$node->stop;
$node->command_ok([ 'pg_checksums', '--check', '-D', $node->data_dir ], 'checksums on disk are right');

done_testing();
