# Policies: what is to be kept is loaded, and stays through rewrites of every kind
# while a load sweeps the tier; what is not wanted stays out; databases keep to
# their limits.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use POSIX ();
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use RemoteBP;
use Test::More;

my $broker = start_broker();
my $donor = start_donor($broker, memory => '192MB');
my $node = new_cluster(
	'policies',
	broker => $broker,
	shared_buffers => '4MB',
	streaming => 1,
	# A donor that is late is not what is tested.
	conf => "remote_bp.io_timeout = '5s'\nremote_bp.policy_interval = '1s'\nwal_level = replica\n");
wait_leased($node, 64) or BAIL_OUT('no memory');

sub sql { my ($query, $db) = @_; return $node->safe_psql($db // 'postgres', $query); }

# What the statement is refused with.
sub refused
{
	my ($statement, $role) = @_;
	my (undef, undef, $err) = $node->psql('postgres', ($role ? "SET ROLE $role; " : '') . $statement);
	return $err;
}

sub pages { my ($rel, $db) = @_; return sql("SELECT coalesce(sum(pages + staged_pages), 0) FROM remote_bp_relations WHERE relation = '$rel'::regclass", $db); }

# Is all held that is to be kept of what this was set on, and is there any?
sub all_held
{
	my ($set_on, $server) = @_;
	return wait_for("all of $set_on to be held",
		sub { ($server // $node)->safe_psql('postgres', "SELECT coalesce(sum(pages_held) >= sum(pages_wanted) * 0.95 AND sum(pages_wanted) > 0, false) FROM remote_bp_policies WHERE set_on = '$set_on'::regclass AND policy = 'keep'") eq 't' }, 120);
}

sub shown { my ($set_on, $server) = @_; return ($server // $node)->safe_psql('postgres', "SELECT relation, policy, pages_wanted, pages_held, reason FROM remote_bp_policies WHERE set_on = '$set_on'::regclass ORDER BY relation::text"); }

# A load that sweeps several times the tier through it, until it is told to end.
make_table($node, 'swept', 200, index => 0);
make_table($node, 't', 8);
sql('ALTER TABLE t ADD PRIMARY KEY (id)');
sql('DROP INDEX t_id');

sub sweep { sql(q{SELECT count(pad) FROM swept}); return; }

# How many of its pages are hits when all of the relation is read by its index,
# with nothing of it in shared buffers.
sub hits
{
	my ($rel, $server) = @_;
	$server //= $node;
	# a standby has the table that this reads from the primary
	if ($server == $node) { evict_buffers($node); }
	else { $server->safe_psql('postgres', 'SET enable_seqscan = off; SET enable_bitmapscan = off; SELECT count(pad) FROM rbp_ballast WHERE id > 0'); }
	my $before = counter($server, 'hits + staged_hits');
	$server->safe_psql('postgres', "SELECT count(v) FROM $rel");
	return counter($server, 'hits + staged_hits') - $before;
}

# A load that sweeps all the time, and ends when the file goes away; not while hits are
# counted, which are the server's.
my $sweeper;
my $sweeper_failed = 0;
my $flag = $node->basedir . '/sweeping';

sub start_sweeping
{
	my @sweep = (RemoteBP::pg_bindir() . '/psql', '-XAtq', '-d', $node->connstr('postgres'), '-c', 'SELECT count(pad) FROM swept');
	PostgreSQL::Test::Utils::append_to_file($flag, '1');
	$sweeper = fork() // BAIL_OUT('fork');
	if ($sweeper == 0)
	{
		exec($^X, '-e', 'my $f = shift; while (-e $f) { system(@ARGV) == 0 or exit 1 }', $flag, @sweep)
		  or POSIX::_exit(1);
	}
	return;
}

sub stop_sweeping
{
	unlink($flag);
	waitpid($sweeper, 0);
	$sweeper_failed |= $?;
	undef $sweeper;
	return;
}

sub kept_ok
{
	my ($rel, $what, $server) = @_;
	$server //= $node;
	ok(all_held($rel, $server), "$what: what is to be kept is held") or diag(shown($rel, $server));
	$server->safe_psql('postgres', 'SELECT count(pad) FROM swept');
	my $wanted = $server->safe_psql('postgres', "SELECT pg_relation_size('$rel') / 8192");
	my $was_sweeping = $sweeper;
	stop_sweeping() if $was_sweeping;
	cmp_ok(hits($rel, $server), '>=', 0.95 * $wanted, "$what: after a sweep at least 95 % of its pages are hits");
	start_sweeping() if $was_sweeping;
	return;
}

#---- keep -------------------------------------------------------------------------

{
	sql(q{SELECT remote_bp_set_policy('t', 'keep')});
	ok(all_held('t'), 'a table that is to be kept is loaded by itself') or diag(shown('t'));
	is(sql(q{SELECT string_agg(relation::text, ' ' ORDER BY relation::text COLLATE "C") FROM remote_bp_policies WHERE set_on = 't'::regclass AND relation::text NOT LIKE 'pg_toast%'}), 't t_pkey', 'a policy includes the index');
	ok(wait_for('all of it', sub { sql(q{SELECT count(*) FROM remote_bp_policies WHERE reason IS NOT NULL OR pages_held <> pages_wanted}) == 0 }, 60), 'no page of the kept relations is missing in the end') or diag(shown('t'));
	cmp_ok(counter($node, 'kept_pages'), '>=', 1024, 'kept pages are counted');
	my $evictions = counter($node, 'evictions');
	ok(wait_for('evictions', sub { sweep(); counter($node, 'evictions') > $evictions + 10000 }, 120), 'a load sweeps the tier');
	kept_ok('t', 'keep');
}

#---- new pages, which an extension leaves behind those in use -------------------------

{
	make_table($node, 'extended', 2, index => 0);
	PostgreSQL::Test::Utils::append_to_file($node->data_dir . '/' . sql(q{SELECT pg_relation_filepath('extended')}), "\0" x (7 * 8192));
	my $blocks = sql(q{SELECT pg_relation_size('extended') / 8192});
	my $held = q{SELECT count(*) FROM remote_bp_policies WHERE relation = 'extended'::regclass AND pages_held = pages_wanted AND reason IS NULL AND pages_wanted};
	sql(q{SELECT remote_bp_set_policy('extended', 'keep')});
	ok(wait_for('all but new pages', sub { sql("$held BETWEEN $blocks - 64 AND $blocks - 7") == 1 }, 60), 'new pages are not wanted') or diag(shown('extended'));
	my $wanted = sql(q{SELECT pages_wanted FROM remote_bp_policies WHERE relation = 'extended'::regclass});
	# VACUUM tells INSERT of the new pages.
	sql('VACUUM extended');
	sql(q{INSERT INTO extended SELECT i, 0, rpad(i::text, 980, 'x') FROM generate_series(1, 56) i; CHECKPOINT});
	is(sql(q{SELECT pg_relation_size('extended') / 8192}), $blocks, 'new pages come into use');
	ok(wait_for('all pages', sub { sql("$held > $wanted") == 1 }, 60), 'a page that comes into use is wanted') or diag(shown('extended'));
	sql('DROP TABLE extended');
}

#---- rewrites of each kind, while the load goes on -----------------------------------

{
	sql(<<'SQL');
CREATE MATERIALIZED VIEW mv AS SELECT id, v, rpad(id::text, 900, 'm') AS pad FROM t;
CREATE UNIQUE INDEX mv_id ON mv (id);
CREATE TABLE parted (id int, v int, pad text) PARTITION BY RANGE (id);
CREATE TABLE parted_1 PARTITION OF parted FOR VALUES FROM (0) TO (2000);
ALTER TABLE parted_1 ALTER pad SET STORAGE plain;
INSERT INTO parted SELECT i, 0, rpad(i::text, 980, 'p') FROM generate_series(1, 1999) i;
CREATE INDEX ON parted (id);
CREATE TABLE toasted (id int, v int, doc text);
ALTER TABLE toasted ALTER doc SET STORAGE external;
INSERT INTO toasted SELECT i, 0, repeat(md5(i::text), 200) FROM generate_series(1, 500) i;
CHECKPOINT;
SELECT remote_bp_set_policy(r, 'keep') FROM unnest('{mv,parted,toasted}'::regclass[]) r;
SQL
	mkdir($node->basedir . '/space') or BAIL_OUT('mkdir');
	sql("CREATE TABLESPACE space LOCATION '" . $node->basedir . "/space'");

	start_sweeping();
	for my $case (
		['t', 'VACUUM FULL', 'VACUUM FULL t'],
		['t', 'CLUSTER', 'CLUSTER t USING t_pkey'],
		['t', 'REINDEX', 'REINDEX TABLE t'],
		['t', 'REINDEX CONCURRENTLY', 'REINDEX TABLE CONCURRENTLY t'],
		['t', 'ALTER TABLE that rewrites', 'ALTER TABLE t SET UNLOGGED; ALTER TABLE t SET LOGGED'],
		['t', 'ALTER TABLE SET TABLESPACE', 'ALTER TABLE t SET TABLESPACE space'],
		['t', 'TRUNCATE and reload', q{BEGIN; CREATE TEMP TABLE c AS TABLE t; TRUNCATE t; INSERT INTO t TABLE c; COMMIT}],
		['mv', 'REFRESH', 'REFRESH MATERIALIZED VIEW mv'],
		['mv', 'REFRESH CONCURRENTLY', 'UPDATE t SET v = v + 1 WHERE id % 3 = 0; REFRESH MATERIALIZED VIEW CONCURRENTLY mv'],
		['toasted', 'a TOAST table rewritten', 'VACUUM FULL toasted'],
		['parted', 'a partition attached', q{CREATE TABLE parted_2 (LIKE parted); ALTER TABLE parted_2 ALTER pad SET STORAGE plain; INSERT INTO parted_2 SELECT i, 0, rpad(i::text, 980, 'p') FROM generate_series(2000, 3999) i; ALTER TABLE parted ATTACH PARTITION parted_2 FOR VALUES FROM (2000) TO (4000)}])
	{
		my ($rel, $what, $query) = @$case;
		my $before = sql("SELECT string_agg(pg_relation_filenode(relation)::text, ' ' ORDER BY relation) FROM remote_bp_policies WHERE set_on = '$rel'::regclass");
		$node->safe_psql('postgres', $_) for $query =~ /^BEGIN/ ? $query : split(/; /, $query);
		isnt(sql("SELECT string_agg(pg_relation_filenode(relation)::text, ' ' ORDER BY relation) FROM remote_bp_policies WHERE set_on = '$rel'::regclass"), $before, "$what: there are other files")
			unless $what eq 'REFRESH CONCURRENTLY';
		sql('CHECKPOINT');
		kept_ok($rel eq 'parted' ? 'parted_2' : $rel, $what) if $rel ne 'parted';
		ok(all_held($rel), "$what: all that belongs to it is held") or diag(shown($rel));
	}
	stop_sweeping();
	cmp_ok(hits('parted_1') + hits('parted_2'), '>=', 0.95 * sql(q{SELECT (pg_relation_size('parted_1') + pg_relation_size('parted_2')) / 8192}), 'partitions: hits');
	is($sweeper_failed, 0, 'the load has swept all the time');
	sql('DROP TABLE parted_1');
	ok(wait_for('a dropped partition', sub { sql(q{SELECT count(*) FROM remote_bp_policies WHERE set_on = 'parted'::regclass AND reason IS NOT NULL}) == 0 }, 60), 'a partition that is dropped does no harm');
	is(counter($node, 'mismatches'), 0, 'no page is different from the disk');
}

#---- which policy counts; what is not possible -------------------------------------------

{
	sql(q{SELECT remote_bp_set_policy('parted', 'none'); SELECT remote_bp_set_policy('parted_2', 'keep'); SELECT remote_bp_set_policy('parted_2_id_idx', 'none')});
	is(sql(q{SELECT relation, policy, set_on FROM remote_bp_policies WHERE relation::text LIKE 'parted_2%' ORDER BY relation::text COLLATE "C"}),
		"parted_2|keep|parted_2\nparted_2_id_idx|none|parted_2", 'the closest policy counts');
	sql(q{SELECT remote_bp_set_policy('parted_2', 'default')});
	is(sql(q{SELECT policy, set_on FROM remote_bp_policies WHERE relation = 'parted_2'::regclass}), 'none|parted', 'without a policy of its own, the one above counts');
	sql(q{ALTER INDEX parted_2_id_idx RENAME TO other_name});
	is(sql(q{SELECT relation IS NULL, reason FROM remote_bp_policies WHERE set_on = 'parted_2'::regclass}), 't|there is no index "parted_2_id_idx"', 'the view shows a policy of an index that was renamed');
	sql(q{ALTER INDEX other_name RENAME TO parted_2_id_idx; SELECT remote_bp_set_policy('parted_2_id_idx', 'default'); SELECT remote_bp_set_policy('parted', 'default')});
	is(sql(q{SELECT count(*) FROM remote_bp_policy WHERE relation::text LIKE 'parted%'}), 0, 'the policy default leaves no row');
	is(sql(q{SELECT count(*) FROM remote_bp_policy WHERE relation NOT IN (SELECT oid FROM pg_class)}), 0, 'dropped tables leave no row');
	sql(q{ALTER TABLE toasted RENAME TO renamed});
	is(sql(q{SELECT relation FROM remote_bp_policy WHERE relation = 'renamed'::regclass}), 'renamed', 'a table that is renamed keeps its policy');
	sql('DROP TABLE renamed');
	is(sql(q{SELECT count(*) FROM remote_bp_policies WHERE set_on NOT IN (SELECT oid FROM pg_class)}), 0, 'a table that was dropped is not shown');
	unlike($node->safe_psql('postgres', q{COPY (SELECT extcondition FROM pg_extension WHERE extname = 'remote_bp') TO STDOUT}), qr/^\\N/, 'a policy of a table that was dropped is not dumped');

	sql(q{CREATE VIEW v AS SELECT 1; CREATE ROLE owner; CREATE ROLE nobody; CREATE TABLE owned (i int); ALTER TABLE owned OWNER TO owner; CREATE INDEX owned_i ON owned (i); GRANT CREATE ON SCHEMA public TO owner; CREATE SEQUENCE s});
	like(refused(q{SELECT remote_bp_set_policy('v', 'keep')}), qr/policies are set on tables, materialized views and indexes/, 'a view is refused');
	like(refused(q{SELECT remote_bp_set_policy('s', 'keep')}), qr/policies are set on tables/, 'a sequence is refused');
	like(refused(q{CREATE TEMP TABLE x AS SELECT 1; SELECT remote_bp_set_policy('x', 'keep')}), qr/"x" is temporary/, 'a temporary table is refused');
	like(refused(q{SELECT remote_bp_set_policy('pg_database', 'keep')}), qr/shared by all databases/, 'a shared catalog is refused');
	like(refused(q{SELECT remote_bp_set_policy((SELECT reltoastrelid FROM pg_class WHERE oid = 'mv'::regclass), 'keep')}), qr/cannot set a policy on TOAST relation/, 'a TOAST table');
	like(refused(q{SELECT remote_bp_set_policy('t', 'hold')}), qr/invalid policy "hold"/, 'an invalid policy is refused');
	like(refused(q{SELECT remote_bp_set_policy('t', NULL)}), qr/cannot be null/, 'a null is refused');
	like(refused(q{SELECT remote_bp_set_policy('t', 'keep')}, 'nobody'), qr/must be owner of table t/, 'a policy is refused to a role that does not own the table');
	is(refused(q{SELECT remote_bp_set_policy('owned', 'keep'); SELECT remote_bp_set_policy('owned_i', 'none'); SELECT * FROM remote_bp_policies}, 'owner'), '', 'an owner may, and sees it');
	like(refused(q{DELETE FROM remote_bp_policy}, 'owner'), qr/permission denied/, 'the owner of a table cannot write remote_bp_policy');
	like(refused(q{SELECT remote_bp_set_database_limit('postgres', 1)}, 'owner'), qr/permission denied/, 'owners of tables cannot set limits');
	like(refused(q{SET remote_bp.exclude_tablespaces = 'pg_default'}), qr/cannot be changed now/, 'a session cannot exclude tablespaces');
	is(refused(q{BEGIN; SELECT remote_bp_set_policy('owned', 'none'); ROLLBACK}), '', 'a policy that is rolled back');
	is(sql(q{SELECT policy FROM remote_bp_policies WHERE relation = 'owned'::regclass}), 'keep', 'a policy that is rolled back is not set');
}

#---- none ---------------------------------------------------------------------------

{
	make_table($node, 'log', 4);
	evict_buffers($node);
	sql(q{SELECT remote_bp_prewarm('log', include_indexes => true)});
	cmp_ok(pages('log'), '>=', 400, 'a table is in the tier');
	sql(q{SELECT remote_bp_set_policy('log', 'none')});
	ok(wait_for('none', sub { pages('log') == 0 && pages('log_id') == 0 }, 60), 'none: pages of the table are dropped');
	my $skips = counter($node, 'skips_policy');
	sql(q{SET enable_seqscan = off; SET enable_bitmapscan = off; SELECT count(pad) FROM log WHERE id > 0; UPDATE log SET v = v + 1 WHERE id < 1000});
	sql('CHECKPOINT');
	evict_buffers($node);
	is(pages('log') + pages('log_id'), 0, 'none: pages of the table do not come back');
	cmp_ok(counter($node, 'skips_policy'), '>', $skips + 400, 'none: pages that were not captured are counted');
	like(refused(q{SELECT remote_bp_prewarm('log')}), qr/relation "log" is excluded from the tier/, '... not even by prewarm');
	sql(q{SELECT remote_bp_set_policy('log', 'default')});
	ok(wait_for('default', sub { sql(q{SELECT count(*) FROM remote_bp_policies WHERE set_on = 'log'::regclass}) == 0 && refused(q{SELECT remote_bp_prewarm('log')}) eq '' }, 60), 'default: prewarm accepts the table');
	cmp_ok(pages('log'), '>=', 400, 'default: prewarm loads the table');
}

#---- tablespaces --------------------------------------------------------------------

{
	sql(q{ALTER TABLE log SET TABLESPACE space});
	sql(q{SELECT remote_bp_prewarm('log')});
	cmp_ok(pages('log'), '>=', 400, 'a table in a tablespace');
	(sql(q{ALTER SYSTEM SET remote_bp.exclude_tablespaces = 'space, nowhere'}), sql(q{SELECT pg_reload_conf()}));
	ok(wait_for('excluded', sub { pages('log') == 0 }, 60), 'a tablespace that is excluded: pages are dropped');
	sql(q{SET enable_seqscan = off; SET enable_bitmapscan = off; SELECT count(pad) FROM log WHERE id > 0});
	evict_buffers($node);
	is(pages('log'), 0, 'a tablespace that is excluded: pages do not come back');
	like(slurp_file($node->logfile), qr/could not exclude tablespaces: "nowhere"/, 'a tablespace that there is not is told');
	like(refused(q{ALTER SYSTEM SET remote_bp.exclude_tablespaces = 'a,,b'}), qr/List syntax is invalid/, 'an invalid list is refused');
	sql(q{SELECT remote_bp_set_policy('log', 'keep')});
	ok(all_held('log'), 'a policy of the table comes first') or diag(shown('log'));
	is(sql(q{SELECT count(*) FROM remote_bp_policies WHERE set_on = 'log'::regclass AND relation = 'log_id'::regclass}), 1, 'a kept table in an excluded tablespace is kept with its index');
	sql(q{ALTER SYSTEM RESET remote_bp.exclude_tablespaces});
	sql(q{SELECT pg_reload_conf()});

	# One visit finds that it is excluded, and a limit to which the database keeps without it.
	sql('CREATE DATABASE apart');
	create_extension($node, 'apart');
	make_table($node, 'far', 12, db => 'apart', index => 0, tablespace => 'space');
	make_table($node, 'near', 4, db => 'apart', index => 0);
	# prewarm refuses what is still excluded
	my $both = sub { $node->psql('apart', q{SELECT remote_bp_prewarm('far'), remote_bp_prewarm('near')}); return pages('far', 'apart') >= 1200 && pages('near', 'apart') >= 400; };
	ok(wait_for('both tables', $both, 60), 'a database with a tablespace that is not excluded any more');
	my $near = pages('near', 'apart');
	my $go_on = hold_policy_worker($node);
	sql(sprintf(q{SELECT remote_bp_set_database_limit('apart', 8192 * (pages - %d)) FROM remote_bp_databases WHERE database = 'apart'}, pages('far', 'apart') - 300));
	(sql(q{ALTER SYSTEM SET remote_bp.exclude_tablespaces = 'space'}), sql(q{SELECT pg_reload_conf()}));
	$go_on->();
	ok(wait_for('both', sub { pages('far', 'apart') == 0 && sql(q{SELECT max_bytes > 0 FROM remote_bp_databases WHERE database = 'apart'}) eq 't' }, 60), 'it is excluded, and the database limited');
	cmp_ok(pages('near', 'apart'), '>=', 0.95 * $near, 'a limit costs no other pages if those that are excluded are enough');
	sql('DROP DATABASE apart');
	sql(q{SELECT remote_bp_set_policy('log', 'default'); ALTER TABLE log SET TABLESPACE pg_default; ALTER TABLE t SET TABLESPACE pg_default; DROP TABLESPACE space});
	sql(q{ALTER SYSTEM RESET remote_bp.exclude_tablespaces});
	sql(q{SELECT pg_reload_conf()});
}

#---- not enough memory -----------------------------------------------------------------

{
	my $size = log_size($node);
	(sql(q{ALTER SYSTEM SET remote_bp.keep_max_size = '4MB'}), sql(q{SELECT pg_reload_conf()}));
	sweep();
	ok(wait_for('less is kept', sub { sweep(); counter($node, 'kept_pages') <= 512 }, 60), 'keep_max_size: no more is kept') or diag(counter($node, 'kept_pages'));
	ok(wait_for('the reason', sub { sql(q{SELECT count(*) FROM remote_bp_policies WHERE reason LIKE 'no more can be kept%'}) > 0 }, 60), '... with the reason') or diag(shown('t'));
	ok(wait_for('the log', sub { log_since($node, $size) =~ /of \d+ pages of database "postgres": there is no room for more/ }, 60), '... in the log, too');
	(sql(q{ALTER SYSTEM RESET remote_bp.keep_max_size}), sql(q{SELECT pg_reload_conf()}));
	ok(all_held('t'), 'keep_max_size: all pages are kept when there is room again') or diag(shown('t'));
	ok(wait_for('the log', sub { log_since($node, $size) =~ /there is room again for pages of database "postgres"/ }, 60), 'keep_max_size: the log reports that there is room again');
}

#---- databases ------------------------------------------------------------------------

{
	sql('CREATE DATABASE other');
	create_extension($node, 'other');
	make_table($node, 'o', 40, db => 'other', index => 0);
	sql(q{SELECT remote_bp_set_database_limit('other', 8 * 1024 * 1024)});
	is(sql(q{SELECT setconfig FROM pg_db_role_setting WHERE setdatabase = (SELECT oid FROM pg_database WHERE datname = 'other')}), '{remote_bp.database_limit=8MB}', 'a limit is a setting of the database');
	sql('SELECT remote_bp_prewarm($$o$$)', 'other');
	ok(wait_for('the limit', sub { sql(q{SELECT max_bytes FROM remote_bp_databases WHERE database = 'other'}) eq 8 * 1024 * 1024 }, 60), 'the view shows the limit');
	ok(wait_for('less', sub { sql(q{SELECT bytes <= max_bytes + 1024 * 1024 FROM remote_bp_databases WHERE database = 'other'}) eq 't' }, 60), 'a database keeps to its limit');
	my $mine = sql(q{SELECT pages FROM remote_bp_databases WHERE database = 'postgres'});
	for (1 .. 3)
	{
		sql('SELECT count(pad) FROM o', 'other');
		is(sql(q{SELECT bytes <= max_bytes + 1024 * 1024 FROM remote_bp_databases WHERE database = 'other'}), 't', "a database keeps to its limit, whatever it reads, $_");
	}
	cmp_ok(sql(q{SELECT pages FROM remote_bp_databases WHERE database = 'other'}), '>', 800, 'a database uses its limit');
	cmp_ok(sql(q{SELECT pages FROM remote_bp_databases WHERE database = 'postgres'}), '>=', 0.9 * $mine, 'a database with a limit leaves the rest to others');
	make_table($node, 'dear', 4, db => 'other', index => 0);
	sql(q{SELECT remote_bp_evict('dear'), remote_bp_set_policy('dear', 'keep')}, 'other');
	ok(wait_for('dear', sub { sql(q{SELECT bool_and(pages_held >= pages_wanted) FROM remote_bp_policies}, 'other') eq 't' }, 60), 'kept pages are loaded up to the limit of the database') or diag(sql('TABLE remote_bp_policies', 'other'));
	sql(q{SELECT remote_bp_set_policy('o', 'keep')}, 'other');
	ok(wait_for('a reason', sub { sql(q{SELECT reason FROM remote_bp_policies WHERE relation = 'o'::regclass}, 'other') eq 'the limit of the database is reached' }, 60), 'the view shows that the limit of the database is reached') or diag(sql('TABLE remote_bp_policies', 'other'));
	ok(wait_for('less', sub { sql(q{SELECT bytes <= max_bytes + 1024 * 1024 FROM remote_bp_databases WHERE database = 'other'}) eq 't' }, 60), 'kept pages do not exceed the limit of the database') or diag(sql('TABLE remote_bp_databases'));
	sql(q{SELECT remote_bp_set_policy('o', 'default'), remote_bp_set_policy('dear', 'default')}, 'other');
	sql(q{SELECT remote_bp_set_database_limit('other', NULL)});
	ok(wait_for('no limit', sub { sql(q{SELECT max_bytes IS NULL FROM remote_bp_databases WHERE database = 'other'}) eq 't' }, 60), 'a limit is taken away');
	sql('SELECT remote_bp_prewarm($$o$$)', 'other');
	cmp_ok(sql(q{SELECT pages FROM remote_bp_databases WHERE database = 'other'}), '>', 1100, 'a database without a limit can use more');
	like(refused(q{SELECT remote_bp_set_database_limit('nowhere', 1)}), qr/database "nowhere" does not exist/, 'a database that does not exist is refused');
	like(refused(q{SELECT remote_bp_set_database_limit('other', -1)}), qr/max_bytes must be between/, 'a negative limit is refused');

	# A database that policies are looked at in can be copied, renamed and dropped.
	sql(q{CREATE TABLE small AS SELECT generate_series(1, 10000) i; SELECT remote_bp_set_policy('small', 'keep')}, 'other');
	for (1 .. 5)
	{
		is(refused(q{CREATE DATABASE copied TEMPLATE other}), '', "a database with policies is copied, $_");
		ok(wait_for('the copy', sub { sql(q{SELECT coalesce(sum(pages_held), 0) > 0 FROM remote_bp_policies}, 'copied') eq 't' }, 60), 'the copy of a database has its policies');
		is(refused(q{ALTER DATABASE copied RENAME TO renamed}), '', 'the copy can be renamed while it is loaded');
		is(refused(q{DROP DATABASE renamed}), '', 'the copy can be dropped while it is loaded');
	}
	is(refused('DROP DATABASE other'), '', 'a database with policies can be dropped');
}

#---- restart, crash, standby ------------------------------------------------------------

{
	$node->restart;
	wait_leased($node, 64) or BAIL_OUT('no memory');
	kept_ok('t', 'a restart');
	my $backend = $node->background_psql('postgres');
	my $pid = $backend->query('SELECT pg_backend_pid()');
	my $offset = log_size($node);
	kill('KILL', $pid) == 1 or BAIL_OUT('kill');
	eval { $backend->quit };
	wait_for('recovery', sub { log_since($node, $offset) =~ /database system is ready to accept connections/ }, 120) or BAIL_OUT('no recovery');
	wait_leased($node, 64) or BAIL_OUT('no memory');
	kept_ok('t', 'a crash');

	$node->backup('base');
	my $standby = PostgreSQL::Test::Cluster->new('standby');
	$standby->init_from_backup($node, 'base', has_streaming => 1);
	$standby->start;
	wait_leased($standby, 64) or BAIL_OUT('no memory');
	$node->wait_for_catchup($standby);
	kept_ok('t', 'a standby', $standby);
	sql('VACUUM FULL t');
	sql(q{SELECT remote_bp_set_policy('swept', 'none')});
	# what replay has changed is not on disk before it is written, and an idle standby
	# writes nothing before its next restartpoint
	sql('CHECKPOINT');
	$node->wait_for_catchup($standby);
	$standby->safe_psql('postgres', 'CHECKPOINT');
	kept_ok('t', 'a standby, VACUUM FULL on the primary', $standby);
	ok(wait_for('none', sub { $standby->safe_psql('postgres', q{SELECT coalesce(sum(pages), 0) FROM remote_bp_relations WHERE relation = 'swept'::regclass}) == 0 }, 60), 'a policy that is set on the primary is the standby\'s, too');
	is_clean($standby, 'standby');
	$standby->stop;
	sql(q{SELECT remote_bp_set_policy('swept', 'default')});
}

#---- dump and restore ----------------------------------------------------------------------

{
	sql(q{SELECT remote_bp_set_policy('t_pkey', 'none'); SELECT remote_bp_set_policy('mv_id', 'keep')});
	# for twice as much
	sql(q{ALTER SYSTEM SET remote_bp.keep_max_size = '46MB'});
	$node->reload;
	my $dump = $node->basedir . '/dump';
	$node->command_ok([ 'pg_dump', '-Fc', '-f', $dump, '--exclude-table-data=swept', $node->connstr('postgres') ], 'a dump');
	sql('CREATE DATABASE restored');
	$node->command_ok([ 'pg_restore', '--exit-on-error', '-d', $node->connstr('restored'), $dump ], 'a dump is restored');
	is(sql('SELECT relation, index_name, policy, include_indexes FROM remote_bp_policy ORDER BY 1::text, 2', 'restored'),
		sql('SELECT relation, index_name, policy, include_indexes FROM remote_bp_policy ORDER BY 1::text, 2'), 'a restored dump has its policies');
	sql('CHECKPOINT');
	ok(wait_for('the restored', sub { sql(q{SELECT bool_and(pages_held >= pages_wanted * 0.95) AND sum(pages_wanted) > 1000 FROM remote_bp_policies WHERE policy = 'keep'}, 'restored') eq 't' }, 120), 'policies of a restored dump are applied') or diag(sql('TABLE remote_bp_policies', 'restored'));
	sql('DROP DATABASE restored');
}

#---- the extension goes -----------------------------------------------------------------------

{
	sql('DROP EXTENSION remote_bp');
	sql('CREATE EXTENSION remote_bp');
	ok(wait_for('nothing kept', sub { counter($node, 'kept_pages') == 0 }, 60), 'without the extension, nothing is kept');
}

is_clean($node);
$node->stop;
done_testing();
