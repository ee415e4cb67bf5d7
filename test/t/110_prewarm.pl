# Prewarm: relations are brought into the tier, or into shared buffers, when
# somebody says so; all of them, beside writers, and until it is cancelled.

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
	'prewarm',
	broker => $broker,
	read_from => 'auto',
	shared_buffers => '4MB',
	# A donor that is late is not what is tested.
	conf => "remote_bp.io_timeout = '5s'\n");
wait_leased($node, 64) or BAIL_OUT('no memory');
make_table($node, 't', 16);

sub sql { return $node->safe_psql('postgres', $_[0]); }
sub size { my ($rel, $fork) = @_; $fork //= q{main}; return sql("SELECT pg_relation_size('$rel', '$fork') / 8192"); }
sub pages { my ($rel, $fork) = @_; $fork //= q{main}; return sql("SELECT coalesce(sum(pages + staged_pages), 0) FROM remote_bp_relations WHERE relation = '$rel'::regclass AND fork = '$fork'"); }
sub evict { return sql(join '', map { "SELECT remote_bp_evict('$_');" } @_); }

# What the statement is refused with.
sub refused
{
	my ($statement, $role) = @_;
	my (undef, undef, $err) = $node->psql('postgres', ($role ? "SET ROLE $role; " : '') . $statement);
	return $err;
}

#---- into the tier --------------------------------------------------------------

{
	my $expected = content($node, 't');
	evict_buffers($node);
	evict('t', 't_id');
	reset_counters($node);
	my $brought = sql(q{SELECT remote_bp_prewarm('t')});
	is(pages('t'), size('t'), 'all pages of the table are in the tier, whatever that costs');
	is($brought, size('t'), 'the function returns the number of pages');
	cmp_ok(pages('t_id'), '<', 10, 'prewarming a table loads no page of its index, except those evicted from shared buffers');
	is(counter($node, 'drops_full'), 0, 'no page is dropped because staging is full');
	is(sql(q{SELECT remote_bp_prewarm('t')}), 0, 'prewarming again loads nothing');

	evict_buffers($node);
	evict('t');
	is(sql(q{SELECT remote_bp_prewarm('t', first_block => 100, last_block => 199)}), 100, 'a part of the table is loaded');
	is(pages('t'), 100, 'no page outside of the part is loaded');
	is(sql(q{SELECT remote_bp_prewarm('t', first_block => 150)}), size('t') - 200, 'the part from a block to the end is loaded');
	is(sql(q{SELECT remote_bp_prewarm('t', last_block => 149)}), 100, 'the part from the start to a block is loaded');

	evict_buffers($node);
	evict('t', 't_id');
	is(sql(q{SELECT remote_bp_prewarm('t', include_indexes => true)}), size('t') + size('t_id'), 'the table is loaded with its index');
	is(pages('t_id'), size('t_id'), 'the index is in the tier');
	is(sql(q{SELECT remote_bp_prewarm('t', fork => 'vm')}), size('t', 'vm'), 'another fork is loaded');

	sql(q{SET remote_bp.read_from = donor; SELECT remote_bp_prewarm('t')});
	evict_buffers($node);
	reset_counters($node);
	# By index: the settings of this session are not those of I/O workers, which read a sequential scan's pages since 18.
	is($node->safe_psql('postgres', 'SET remote_bp.read_from = donor; SET enable_seqscan = off; SET enable_bitmapscan = off; ' . "SELECT count(*), sum(v), sum(hashtext(t::text)::bigint) FROM t t WHERE id > 0"),
		$expected, 'the content of the prewarmed table is right');
	cmp_ok(counter($node, 'hits + staged_hits'), '>=', size('t') * 0.95, 'the prewarmed table is read from the tier');
}

# What is in shared buffers already, read when it was not worth a claim, too
{
	make_table($node, 'small', 1, index => 0);
	evict_buffers($node);
	sql(q{SELECT sum(v) FROM small}) for 1 .. 3;
	evict('small');
	is(sql(q{SELECT remote_bp_prewarm('small')}), size('small'), 'pages that are in shared buffers are loaded into the tier');
	sql(q{UPDATE small SET v = 1});
	sql(q{SELECT remote_bp_prewarm('small')});
	evict_buffers($node);
	is(sql(q{SELECT min(v), max(v) FROM small}), '1|1', 'dirty pages in shared buffers are left as they are');
	sql('CHECKPOINT');
	sql(q{SELECT remote_bp_prewarm('small')});
	is(pages('small'), size('small'), 'dirty pages are in the tier when they were written');
}

#---- into shared buffers ----------------------------------------------------------

{
	sql(q{SELECT remote_bp_prewarm('t')});
	evict_buffers($node);
	reset_counters($node);
	my $read = sql(q{SET remote_bp.read_from = donor; SELECT remote_bp_prewarm('t', 'buffers', last_block => 99)});
	cmp_ok($read, '>', 90, 'pages are loaded into shared buffers');
	cmp_ok(counter($node, 'hits + staged_hits'), '>=', $read, 'pages come into shared buffers from the tier');
	is(sql(q{SELECT remote_bp_prewarm('t', 'buffers', last_block => 99)}), 0, 'pages that are in shared buffers are not loaded again');
}

#---- what is not possible ---------------------------------------------------------

sql(q{CREATE VIEW v AS SELECT 1; CREATE TABLE parted (i int) PARTITION BY LIST (i); CREATE ROLE nobody; CREATE ROLE reader; GRANT SELECT ON t TO reader; CREATE TABLE empty (i int)});
like(refused(q{SELECT remote_bp_prewarm('v')}), qr/"v" does not have storage/, 'a view is refused');
like(refused(q{SELECT remote_bp_prewarm('parted')}), qr/does not have storage.*partitions instead/s, 'a partitioned table is refused');
like(refused(q{CREATE TEMP TABLE x AS SELECT 1; SELECT remote_bp_prewarm('x')}), qr/"x" is temporary/, 'a temporary table is refused');
like(refused(q{SELECT remote_bp_prewarm('t', 'attic')}), qr/invalid prewarm mode "attic"/, 'an invalid mode is refused');
like(refused(q{SELECT remote_bp_prewarm('t', fork => 'spoon')}), qr/invalid fork name/, 'an invalid fork is refused');
like(refused(q{SELECT remote_bp_prewarm('t', fork => 'init')}), qr/fork "init" does not exist/, 'a fork that the table does not have is refused');
like(refused(q{SELECT remote_bp_prewarm('t', first_block => 1000000)}), qr/first_block must be between 0 and/, 'a block behind the end is refused');
like(refused(q{SELECT remote_bp_prewarm('t', last_block => -1)}), qr/last_block must be between 0 and/, 'a block before the start is refused');
like(refused(q{SELECT remote_bp_prewarm('t', NULL)}), qr/cannot be null/, 'a null is refused');
like(refused(q{SELECT remote_bp_prewarm('t')}, 'nobody'), qr/permission denied for table t/, 'a table is refused to a role without SELECT');
like(refused(q{SELECT remote_bp_prewarm('t_id')}, 'nobody'), qr/permission denied for index t_id/, 'an index is refused to a role without SELECT on its table');
is(refused(q{SELECT remote_bp_prewarm('t_id')}, 'reader'), '', 'a role with SELECT on the table can prewarm its index');
like(refused(q{SELECT * FROM remote_bp_prewarm_progress}, 'nobody'), qr/permission denied/, 'the progress view is for pg_monitor');
is(sql(q{SELECT remote_bp_prewarm('empty')}), 0, 'an empty table');
sql(q{ALTER SYSTEM SET remote_bp.enabled = off});
$node->reload;
$node->poll_query_until('postgres', 'SHOW remote_bp.enabled', 'off');
like(refused(q{SELECT remote_bp_prewarm('t')}), qr/there is no tier to prewarm: remote_bp.enabled is off/, 'without a tier, the error gives the reason');
is(refused(q{SELECT remote_bp_prewarm('t', 'buffers')}), '', 'without a tier, shared buffers can be prewarmed');
sql(q{ALTER SYSTEM RESET remote_bp.enabled});
$node->reload;
$node->poll_query_until('postgres', 'SHOW remote_bp.enabled', 'on');

# An index that is being built concurrently is written past shared buffers.
{
	my $holder = $node->background_psql('postgres');
	$holder->query('BEGIN; UPDATE small SET v = v WHERE id = 1');
	my $builder = $node->background_psql('postgres');
	$builder->query_until(qr/begun/, "\\echo begun\nCREATE INDEX CONCURRENTLY small_v ON small (v);\n");
	$node->poll_query_until('postgres', q{SELECT count(*) = 1 FROM pg_index WHERE indexrelid = to_regclass('small_v') AND NOT indisready}) or BAIL_OUT('no index');
	like(refused(q{SELECT remote_bp_prewarm('small_v', 'buffers')}), qr/index "small_v" is being built/, 'an index that is being built');
	is(refused(q{SELECT remote_bp_prewarm('small', 'buffers', include_indexes => true); SELECT remote_bp_prewarm('small', include_indexes => true)}), '', 'an index that is being built is left out');
	$holder->query('COMMIT');
	$holder->quit;
	$builder->quit;
	is(sql(q{SET enable_seqscan = off; SELECT count(*) FROM small WHERE v = 1}), 1024, 'an index that was being built is right in the end');
	cmp_ok(sql(q{SELECT remote_bp_prewarm('small_v', 'buffers') + remote_bp_prewarm('small_v')}), '>', 0, 'an index that is built can be prewarmed');
}

#---- progress, cancelling -----------------------------------------------------------

{
	evict('t');
	my $pusher = server_process($node, 'remote_bp pusher') or BAIL_OUT('no pusher');
	for my $how ('cancel', 'terminate')
	{
		# While it pushes, it might be stopped with a lock that all others wait for.
		wait_for('the pusher to be idle', sub { sql('SELECT staged_pages FROM remote_bp_stat') == 0 }) or BAIL_OUT('pages are staged');
		kill('STOP', $pusher) == 1 or BAIL_OUT('pusher');
		my $session = $node->background_psql('postgres', on_error_stop => 0);
		$session->query_until(qr/begun/, "\\echo begun\nSELECT remote_bp_prewarm('t');\n");
		ok( wait_for(
				'a prewarm that waits',
				sub { sql(q{SELECT count(*) FROM remote_bp_prewarm_progress WHERE phase = 'waiting for donors'}) == 1 },
				60),
			"$how: prewarm waits for room in staging");
		my $row = sql(q{SELECT relation, fork, mode, blocks_done > 0, blocks_done < blocks_total, blocks_total = pg_relation_size('t') / 8192, datid = (SELECT oid FROM pg_database WHERE datname = current_database()) FROM remote_bp_prewarm_progress});
		is($row, 't|main|tier|t|t|t|t', "$how: the progress view shows the relation");
		sql("SELECT pg_${how}_backend(pid) FROM remote_bp_prewarm_progress");
		ok( wait_for('its end', sub { sql('SELECT count(*) FROM remote_bp_prewarm_progress') == 0 }, 60),
			"$how: prewarm ends, and the progress view is empty");
		eval { $session->quit };
		kill('CONT', $pusher);
	}
	cmp_ok(sql(q{SELECT remote_bp_prewarm('t')}), '>', 0, 'another call loads the rest');
	is(pages('t'), size('t'), 'another call loads all of the rest');
}

#---- sessions that use the tier less -----------------------------------------------------

{
	my $read = 'SET remote_bp.read_from = donor; SET enable_seqscan = off; SET enable_bitmapscan = off;';
	my $all = 'SELECT count(pad) FROM t WHERE id > 0';
	evict_buffers($node);
	evict('t', 't_id');
	# Some victims of the ballast are still there to be captured: not of t.
	sql("$read SET remote_bp.use_tier = read; $all; SELECT count(pad) FROM rbp_ballast WHERE id > 0");
	evict_buffers($node);
	is(pages('t'), 0, 'use_tier = read: what the session reads is not captured, nor by others later');
	sql(q{SELECT remote_bp_prewarm('t', include_indexes => true)});
	evict_buffers($node);
	reset_counters($node);
	sql("$read SET remote_bp.use_tier = read; $all");
	cmp_ok(counter($node, 'hits + staged_hits'), '>=', size('t') * 0.95, 'use_tier = read: the session reads from the tier');
	evict_buffers($node);
	reset_counters($node);
	sql("$read SET remote_bp.use_tier = off; $all");
	cmp_ok(counter($node, 'hits + staged_hits'), '<', 100, 'use_tier = off: the session does not read from the tier');
	like(refused(q{SET remote_bp.use_tier = off; SELECT remote_bp_prewarm('t')}), qr/no tier to prewarm: remote_bp.use_tier is off/, 'use_tier = off: the session cannot prewarm the tier');
	my $before = pages('t');
	sql('SET remote_bp.use_tier = off; UPDATE t SET v = v + 1 WHERE id <= 80; CHECKPOINT');
	cmp_ok(pages('t'), '<', $before, 'use_tier = off: writes of the session invalidate pages');
	is(refused(q{CREATE ROLE dumper LOGIN; ALTER ROLE dumper SET remote_bp.use_tier = read}), '', 'a role has it');
}

#---- a database ---------------------------------------------------------------------

{
	make_table($node, 'big', 80, index => 0);
	sql('ANALYZE');
	# t is what is read
	sql(q{SELECT sum(v) FROM t}) for 1 .. 3;
	evict('t', 't_id', 'big', 'small', 'rbp_ballast');
	$node->poll_query_until('postgres', q{SELECT pg_stat_get_blocks_fetched('t'::regclass) > 0});
	my $evictions = counter($node, 'evictions');
	cmp_ok(sql('SELECT remote_bp_prewarm_database()'), '>', size('t'), 'the database is loaded');
	cmp_ok(pages('t'), '>=', size('t') * 0.98, 'the database: the most read table is loaded first');
	cmp_ok(counter($node, 'remote_pages + staged_pages'), '>', counter($node, 'online_pages') * 0.9, 'the database: the tier is full');
	cmp_ok(pages('big'), '<', size('big'), 'the database: the tier is full before all is loaded');
	cmp_ok(counter($node, 'evictions') - $evictions, '<', counter($node, 'online_pages') / 20, 'the database: hardly any page is evicted');
	evict('big');
}

#---- beside writers -------------------------------------------------------------------

{
	reset_counters($node);
	RemoteBP::Load->prepare($node, 3);
	my $pgbench = start_load($node, clients => 4, seconds => 8);
	for (1 .. 25)
	{
		sql(q{SELECT remote_bp_prewarm(r, include_indexes => true) FROM unnest('{pgbench_accounts,pgbench_branches,pgbench_tellers,pgbench_history}'::regclass[]) r});
		sql(q{SELECT remote_bp_evict('pgbench_accounts')}) if $_ % 5 == 0;
	}
	$pgbench->finish_ok('prewarm all the time');
	cmp_ok(counter($node, 'compared'), '>', 0, 'pages were compared with the disk');
	is(counter($node, 'mismatches'), 0, 'no page is different from the disk');
}

is_clean($node);
$node->stop;

#---- checksums; a standby ---------------------------------------------------------------

{
	my $primary = new_cluster('primary', broker => $broker, checksums => 1, streaming => 1, shared_buffers => '2MB', tier => '32MB', conf => "remote_bp.io_timeout = '5s'\n");
	wait_leased($primary, 32) or BAIL_OUT('no memory');
	make_table($primary, 't', 8);
	make_table($primary, 'u', 1, kind => 'UNLOGGED');
	$primary->backup('base');
	my $standby = PostgreSQL::Test::Cluster->new('standby');
	$standby->init_from_backup($primary, 'base', has_streaming => 1);
	$standby->start;
	wait_leased($standby, 32) or BAIL_OUT('no memory');
	$primary->wait_for_catchup($standby);
	for my $server ($primary, $standby)
	{
		my $name = $server->name;
		$server->safe_psql('postgres', q{SELECT remote_bp_evict('t')});
		cmp_ok($server->safe_psql('postgres', 'SELECT remote_bp_prewarm_database()'), '>=', 1000, "$name, checksums: the database");
		is($server->safe_psql('postgres', q{SELECT pages + staged_pages - pg_relation_size('t') / 8192 FROM remote_bp_relations WHERE relation = 't'::regclass AND fork = 'main'}), 0, "$name: all of the table");
		$server->safe_psql('postgres', 'SELECT sum(v) FROM t');
	}
	my $load = start_load_of_updates($primary);
	for my $server ($primary, $standby)
	{
		for (1 .. 20)
		{
			$server->safe_psql('postgres', q{SELECT remote_bp_prewarm('t', include_indexes => true)});
			$server->safe_psql('postgres', 'SELECT sum(v) FROM t');
		}
	}
	$load->quit;
	is_clean($_, $_->name) for $primary, $standby;
	$standby->stop;
	$primary->stop;
}

#---- past the page cache ---------------------------------------------------------------

if ($node->pg_version >= 16)
{
	my $direct = new_cluster(
		'direct',
		broker => $broker,
		tier => '32MB',
		shared_buffers => '16MB',
		conf => "debug_io_direct = 'data'\nremote_bp.io_timeout = '5s'\n");
	wait_leased($direct, 32) or BAIL_OUT('no memory');
	make_table($direct, 'd', 4, index => 0);
	$direct->restart;
	wait_leased($direct, 32) or BAIL_OUT('no memory');
	# Pages in shared buffers that have no claim are read from the file.
	my $right = $direct->safe_psql('postgres', 'SET remote_bp.use_tier = off; SELECT sum(hashtext(pad)::bigint) FROM d');
	is($direct->safe_psql('postgres', q{SELECT remote_bp_prewarm('d') - pg_relation_size('d') / 8192}), 0,
		'past the page cache: all of a table that is in shared buffers');
	is($direct->safe_psql('postgres', 'SELECT sum(hashtext(pad)::bigint) FROM d'), $right, 'past the page cache: it is right');
	is_clean($direct, 'past the page cache', no_compare => 1);
	$direct->stop;
}

done_testing();

# A session that updates the table for a while.
sub start_load_of_updates
{
	my ($server) = @_;
	my $session = $server->background_psql('postgres');
	$session->query_until(qr/begun/, "\\echo begun\n" . "UPDATE t SET v = v + 1 WHERE id % 7 = 0;\nCHECKPOINT;\n" x 20);
	return $session;
}
