# What statements use is noted for each kind of them, as pg_stat_statements knows
# them, to the block, while others read; it survives a restart, and is bounded.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use RemoteBP;
use Test::More;

my $broker = start_broker();
my $donor = start_donor($broker, memory => '256MB');
# Donors on a busy machine are late, which is not what is tested.
my $node = new_cluster(
	'statements',
	broker => $broker,
	transport => 'tcp',
	shared_buffers => '2MB',
	io_workers => 0,
	# the last one in the list is called first, and takes identifiers from the plans of commands
	conf => "remote_bp.io_timeout = '5s'\nremote_bp.temp_tier_size = '64MB'\nmax_parallel_workers = 8\n"
	  . "max_parallel_maintenance_workers = 0\nshared_preload_libraries = 'remote_bp, pg_stat_statements'\n");
ok(wait_leased($node, 128), 'memory is leased');
$node->safe_psql('postgres', 'CREATE EXTENSION pg_stat_statements');

my %megabytes = (a => 8, b => 12, c => 16, d => 6);
make_table($node, $_, $megabytes{$_}) for sort keys %megabytes;
$node->safe_psql('postgres', 'ALTER TABLE c SET (parallel_workers = 2)');
$node->safe_psql('postgres', <<'SQL');
CREATE ROLE other;
GRANT SELECT ON a TO other;
CREATE FUNCTION reads_a(low text) RETURNS bigint STABLE LANGUAGE plpgsql AS 'BEGIN RETURN (SELECT count(*) FROM a WHERE pad > low); END';
CREATE FUNCTION fails_after_a() RETURNS bigint LANGUAGE plpgsql AS $$ BEGIN PERFORM count(pad) FROM a; RAISE 'no'; END $$;
SQL
warm($node, $_, part => 0.3) for qw(a c);

# Both views, row by row: the pages that were read, and the temporary blocks.
my $join = q{
	SELECT s.query, r.calls, s.calls, r.hits + r.staged_hits + r.misses, s.shared_blks_read,
		r.spill_reads + r.spill_staged_reads, s.temp_blks_read, r.hits, r.page_cache_reads + r.disk_reads, r.spill_writes, s.temp_blks_written,
		r.hit_time, r.disk_time, r.spill_read_time
	FROM pg_stat_statements s LEFT JOIN remote_bp_stat_statements r USING (userid, dbid, queryid)
	WHERE s.toplevel AND (s.shared_blks_read > 0 OR s.temp_blks_read > 0 OR r.calls IS NOT NULL)};
my @columns = qw(query calls all_calls pages blks_read spilled temp_read hits file spill_writes temp_written hit_time disk_time spill_time);

sub rows
{
	my ($where) = @_;
	my $out = $node->safe_psql('postgres', "$join AND ($where)", extra_params => [ '-F', "\x1f", '-R', "\x1e" ]);
	my @rows;
	for my $row (split /\x1e/, $out)
	{
		my %row;
		@row{@columns} = split /\x1f/, $row, -1;
		push @rows, \%row;
	}
	return @rows;
}

sub row
{
	my ($pattern) = @_;
	my @rows = rows("s.query ~ '$pattern'");
	is(scalar @rows, 1, "there is one statement like $pattern") or diag(explain(\@rows));
	return $rows[0] // {};
}

sub reset_all
{
	$node->safe_psql('postgres', 'SELECT remote_bp_stat_statements_reset(), pg_stat_statements_reset()');
	return;
}

# ---- statements of several sessions at once ----

my %sql = (
	a => 'SELECT count(*), sum(hashtext(pad)) FROM a WHERE id > 0',
	b => 'SELECT count(*), sum(hashtext(pad)) FROM b WHERE id > 0',
	c => 'SELECT count(*), sum(hashtext(pad)) FROM c WHERE id > 0',
	d => 'SELECT count(*) FROM (SELECT pad FROM d ORDER BY pad DESC OFFSET 1) s');
my %set = (
	b => 'SET remote_bp.page_cache_first = on; SET remote_bp.use_tier = read',
	c => 'SET max_parallel_workers_per_gather = 2; SET parallel_setup_cost = 0; SET parallel_tuple_cost = 0',
	d => q{SET work_mem = '64kB'});
my %session;
for my $name (sort keys %sql)
{
	$session{$name} = [ map { $node->background_psql('postgres') } 1 .. 2 ];
	$_->query("SET enable_indexscan = off; SET enable_bitmapscan = off; " . ($set{$name} // '')) for @{ $session{$name} };
}
reset_all();
# The two of a kind one after the other: which of two processes has read a page that
# both want at once is not the same for the server as it is here.
for my $i (0, 1)
{
	$session{$_}[$i]->query_until(qr/begun/, "\\echo begun\n" . "$sql{$_};\n" x 3) for sort keys %sql;
	$session{$_}[$i]->query('SELECT 1') for sort keys %sql;
}
for my $name (qw(a b d))
{
	my $row = row("FROM $name ");
	is($row->{calls}, 6, "$name: each execution is noted");
	is($row->{pages}, $row->{blks_read}, "$name: all pages that it read, and no others");
	is($row->{spilled}, $row->{temp_read}, "$name: all temporary blocks that it read");
	cmp_ok($row->{spill_writes}, '<=', $row->{temp_written}, "$name: no block was written that was not");
	cmp_ok($row->{hits}, '>', 0, "$name: donors served pages") if $name ne 'b';
	cmp_ok($row->{hit_time}, '>', 0, "$name: in a time") if $name ne 'b';
	cmp_ok($row->{file}, '>', 0, "$name: files served pages") if $name eq 'b';
	cmp_ok($row->{spill_time}, $name eq 'd' ? '>' : '==', 0, "$name: time of temporary blocks");
}
my $parallel = row('FROM c ');
is($parallel->{calls}, 6, 'parallel: each execution is noted');
# workers also read catalogs, which the server does not count for the statement
cmp_ok($parallel->{pages}, '>=', $parallel->{blks_read}, 'parallel: all pages that its workers read');
cmp_ok($parallel->{pages}, '<', $parallel->{blks_read} + 6 * 2 * 500, 'parallel: hardly others');
for my $name (sort keys %sql)
{
	$_->quit for @{ $session{$name} };
}

# ---- kinds of statements: a row each, or a part of another's ----

my $go_on = hold_policy_worker($node);
reset_all();
my $session = $node->background_psql('postgres', on_error_stop => 0);
$session->query($_) for q{SET work_mem = '64kB'; SET maintenance_work_mem = '1MB'},
  "SELECT reads_a('') /* function */",
  'PREPARE p AS SELECT min(pad) /* prepared */ FROM a',
  'EXECUTE p', 'EXECUTE p',
  'BEGIN; DECLARE cur CURSOR FOR SELECT pad /* cursor */ FROM b', 'FETCH 100 FROM cur', 'SELECT count(pad), max(pad) /* between */ FROM a', 'FETCH 7000 FROM cur', 'COMMIT',
  'CREATE INDEX d_pad ON d (pad)',
  'SELECT fails_after_a()',
  'EXPLAIN (ANALYZE) SELECT count(pad) /* explained */ FROM a',
  'CREATE TABLE a2 AS SELECT count(pad) /* created */ FROM a',
  q{DO 'BEGIN PERFORM count(pad) FROM a; END'},
  'SET ROLE other; SELECT count(pad) /* other */ FROM a; RESET ROLE',
  q{COPY (SELECT pad /* copied */ FROM a) TO '/dev/null'};
$session->quit;
my @rows = rows(q{s.query !~ 'pg_stat_statements|pg_database|fails_after'});
my @different = grep { ($_->{pages} || 0) != $_->{blks_read} || ($_->{spilled} || 0) != $_->{temp_read} } @rows;
is(scalar @different, 0, 'all rows are as those of pg_stat_statements') or diag(explain(\@different));
$go_on->();
cmp_ok(row('function')->{pages}, '>=', 1024 - 256, q{a function's query is part of the one that calls it});
is(row('prepared')->{calls}, 2, 'what is executed is noted, as it was prepared');
is(scalar(grep { $_->{query} =~ /^EXECUTE/ } @rows), 0, 'and its execution is not, besides');
cmp_ok(row('FETCH .* FROM cur')->{pages}, '>', 700, q{fetching from a cursor is noted}) if $node->pg_version >= 18;
cmp_ok(row('FETCH 7000 FROM cur')->{pages}, '>', 700, q{fetching from a cursor is noted}) if $node->pg_version < 18;
cmp_ok(row('between')->{pages}, '<=', 1030, 'what runs between is not part of it');
my $index = row('CREATE INDEX');
cmp_ok($index->{spill_writes}, '>', 0, 'a command that spills is noted');
cmp_ok(row('created')->{pages}, '>=', 768, 'CREATE TABLE AS');
cmp_ok(row('explained')->{pages}, '>=', 768, 'EXPLAIN ANALYZE');
cmp_ok(row('copied')->{pages}, '>=', 768, 'COPY');
is($node->safe_psql('postgres', q{SELECT string_agg(DISTINCT r.userid::regrole::text, ',') FROM remote_bp_stat_statements r
	JOIN pg_stat_statements s USING (userid, dbid, queryid) WHERE s.query ~ 'other'}), 'other', 'the user is the one who runs it');
is($node->safe_psql('postgres', q{SELECT count(*) FROM remote_bp_stat_statements r
	JOIN pg_stat_statements s USING (userid, dbid, queryid) WHERE s.query ~ 'fails_after'}), 0, 'what fails is not noted');
my $seen = q{SELECT count(*) FILTER (WHERE queryid IS NULL) > 0, count(queryid) > 0, bool_and(userid::regrole::text = 'other') FILTER (WHERE queryid IS NOT NULL),
	sum(calls) >= (SELECT sum(calls) FROM all_statements) FROM remote_bp_stat_statements};
is($node->safe_psql('postgres', "CREATE TABLE all_statements AS SELECT * FROM remote_bp_stat_statements; GRANT SELECT ON all_statements TO other; SET ROLE other; $seen"), 't|t|t|t',
	'others see what statements use, but not which ones, unless they are theirs');
is($node->safe_psql('postgres', "GRANT pg_read_all_stats TO other; SET ROLE other; SELECT count(*) FROM remote_bp_stat_statements WHERE queryid IS NULL"), 0,
	'who may read all statistics sees which they are');

# ---- restarts ----

my $all = 'SELECT string_agg(r::text, E\'\n\' ORDER BY userid, queryid) FROM remote_bp_stat_statements r WHERE pg_backend_pid() > 0';
$node->safe_psql('postgres', 'SELECT remote_bp_stat_statements_reset()');
$node->safe_psql('postgres', 'SELECT count(pad) FROM a; SELECT count(pad) FROM b; SELECT reads_a(\'\')');
# what looks may read, too
my $noted = 'SELECT count(*), sum(hashtext(r::text)::bigint) FROM remote_bp_stat_statements r WHERE pages > 700';
$noted =~ s/pages/hits + staged_hits + misses/;
my $before = $node->safe_psql('postgres', $noted);
like($before, qr/^3\|/, 'three are noted');
my $file = $node->data_dir . '/pg_stat/remote_bp_statements.stat';
ok(!-e $file, 'while the server runs there is no file');
$node->restart;
is($node->safe_psql('postgres', $noted), $before, 'they are there after a restart');
ok(!-e $file, 'the file is gone then');
$node->stop;
ok(-e $file, 'a server that stops leaves it');

sub start_with_file
{
	my ($name, $change) = @_;
	my $content = slurp_file($file);
	$change->($content);
	open my $out, '>', $file or die $!;
	binmode $out;
	print $out $content;
	close $out;
	my $offset = log_size($node);
	$node->start;
	log_tells($node, $offset, qr/LOG: .*ignoring invalid data in file "pg_stat\/remote_bp_statements.stat"/, "$name is not believed");
	is($node->safe_psql('postgres', 'SELECT count(*) FROM remote_bp_stat_statements WHERE hits + staged_hits + misses > 700'), 0, "$name: nothing is noted");
	$node->safe_psql('postgres', 'SELECT count(pad) FROM a');
	$node->stop;
	ok(-e $file, "$name: the next one is written");
	return;
}
start_with_file('a shorter file', sub { chop $_[0] });
start_with_file('a longer file', sub { $_[0] .= 'x' });
start_with_file('a changed file', sub { substr($_[0], 100, 1) ^= "\x01" });
start_with_file('a file of another server version', sub { substr($_[0], 4, 1) ^= "\x01" });
start_with_file('an empty file', sub { $_[0] = '' });

# A crash loses them, and the next stop saves what comes after it.
$node->start;
my $victim = $node->background_psql('postgres', on_error_stop => 0);
my $pid = $victim->query('SELECT pg_backend_pid()');
kill 'KILL', $pid;
ok(wait_for('the crash', sub { ($node->psql('postgres', q{SELECT 1 WHERE (SELECT count(*) FROM remote_bp_stat_statements WHERE hits + staged_hits + misses > 700) = 0}))[1] eq '1' }),
	'after a crash, nothing is noted');
eval { $victim->quit };
$node->safe_psql('postgres', 'SELECT count(pad) FROM b');
$before = $node->safe_psql('postgres', $noted);
like($before, qr/^1\|/, 'after a crash, what comes is noted');
$node->restart;
is($node->safe_psql('postgres', $noted), $before, 'and is there after a restart');

# ---- bounds ----

$node->append_conf('postgresql.conf', "remote_bp.statements_max = 10\n");
$node->restart;
$node->safe_psql('postgres', 'SELECT remote_bp_stat_statements_reset()');
# each is a kind of its own, and two are used again and again
my $hot = 'SELECT count(pad) FROM a; SELECT count(pad) FROM b;';
$node->safe_psql('postgres', join("\n", map { $hot . 'SELECT ' . join(', ', ('count(pad)') x $_) . ' FROM a WHERE v = 0;' } 2 .. 16));
is($node->safe_psql('postgres', 'SELECT count(*) FROM remote_bp_stat_statements'), 10, 'there are as many as are allowed');
is($node->safe_psql('postgres', 'SELECT string_agg(calls::text, \',\') FROM remote_bp_stat_statements WHERE calls > 1 AND hits + staged_hits + misses > 700'), '15,15',
	'those that are used stay');
$node->append_conf('postgresql.conf', "remote_bp.statements_max = 0\n");
$node->restart;
$node->safe_psql('postgres', 'SELECT count(pad) FROM a; SELECT remote_bp_stat_statements_reset()');
is($node->safe_psql('postgres', 'SELECT count(*) FROM remote_bp_stat_statements'), 0, 'switched off, nothing is noted');
$node->append_conf('postgresql.conf', "remote_bp.statements_max = 3\ncompute_query_id = off\n");
$node->restart;
$node->safe_psql('postgres', 'SELECT remote_bp_stat_statements_reset(); SELECT count(pad) FROM a');
is($node->safe_psql('postgres', 'SELECT count(*) FROM remote_bp_stat_statements'), 0, 'without identifiers, nothing is noted');
is_clean($node, '', no_compare => 1);
$node->stop;

done_testing();
