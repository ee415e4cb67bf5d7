# What statements use is noted for each kind of them, as pg_stat_statements knows
# them, to the block, while others read; it survives a restart, and is bounded.

use strict;
use warnings;

use FindBin;
use IO::Socket::UNIX;
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
	compare => 0,
	io_workers => 0,
	# the last one in the list is called first, and takes identifiers from the plans of commands
	conf => "remote_bp.io_timeout = '5s'\nremote_bp.temp_tier_size = '64MB'\nmax_parallel_workers = 8\n"
	  . "max_parallel_maintenance_workers = 0\nshared_preload_libraries = 'remote_bp, pg_stat_statements'\n");
ok(wait_leased($node, 128), 'memory is leased');
$node->safe_psql('postgres', 'CREATE EXTENSION pg_stat_statements');

my %megabytes = (a => 4, b => 4, c => 6, d => 4);
make_table($node, $_, $megabytes{$_}) for sort keys %megabytes;
$node->safe_psql('postgres', 'ALTER TABLE c SET (parallel_workers = 2)');
$node->safe_psql('postgres', <<'SQL');
CREATE ROLE other;
GRANT SELECT ON a TO other;
CREATE FUNCTION reads_a(low text) RETURNS bigint STABLE LANGUAGE plpgsql AS 'BEGIN RETURN (SELECT count(*) FROM a WHERE pad > low); END';
CREATE FUNCTION folded() RETURNS bigint IMMUTABLE LANGUAGE plpgsql AS 'BEGIN RETURN (SELECT count(pad) /* planned */ FROM a); END';
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

# Nothing is noted that pg_stat_statements does not know: no others run statements.
sub is_known
{
	my ($name) = @_;
	is($node->safe_psql('postgres', q{SELECT count(*) FROM remote_bp_stat_statements r LEFT JOIN pg_stat_statements s
		ON (s.userid, s.dbid, s.queryid, s.toplevel) = (r.userid, r.dbid, r.queryid, true) WHERE s.queryid IS NULL}), 0, $name);
	return;
}

# ---- statements of several sessions at once ----

my %sql = (
	a => 'SELECT count(*), sum(hashtext(pad)) FROM a WHERE id > 0',
	b => 'SELECT count(*), sum(hashtext(pad)) FROM b WHERE id > 0',
	c => 'SELECT count(*), sum(hashtext(pad)) FROM c WHERE id > 0',
	d => 'SELECT count(*) FROM (SELECT pad FROM d ORDER BY pad DESC OFFSET 1) s');
my %set = (
	b => 'SET remote_bp.read_from = cache; SET remote_bp.use_tier = read',
	c => 'SET max_parallel_workers_per_gather = 2; SET parallel_setup_cost = 0; SET parallel_tuple_cost = 0',
	d => q{SET work_mem = '64kB'});
my %session;
for my $name (sort keys %sql)
{
	$session{$name} = [ map { $node->background_psql('postgres') } 1 .. 2 ];
	$_->query("SET enable_indexscan = off; SET enable_bitmapscan = off; " . ($set{$name} // '')) for @{ $session{$name} };
}
my $go_on = hold_policy_worker($node);
reset_all();
# The two of a kind one after the other: which of two processes has read a page that
# both want at once is not the same for the server as it is here.
for my $i (0, 1)
{
	$session{$_}[$i]->query_until(qr/begun/, "\\echo begun\n" . "$sql{$_};\n" x 2) for sort keys %sql;
	$session{$_}[$i]->query('SELECT 1') for sort keys %sql;
}
for my $name (qw(a b d))
{
	my $row = row("FROM $name ");
	is($row->{calls}, 4, "$name: each execution is noted");
	is($row->{pages}, $row->{blks_read}, "$name: all pages that it read, and no others");
	is($row->{spilled}, $row->{temp_read}, "$name: all temporary blocks that it read");
	cmp_ok($row->{spill_writes}, '<=', $row->{temp_written}, "$name: no block was written that was not");
	cmp_ok($row->{hits}, '>', 0, "$name: donors served pages") if $name ne 'b';
	cmp_ok($row->{hit_time}, '>', 0, "$name: in a time") if $name ne 'b';
	cmp_ok($row->{file}, '>', 0, "$name: files served pages") if $name eq 'b';
	cmp_ok($row->{spill_time}, $name eq 'd' ? '>' : '==', 0, "$name: time of temporary blocks");
}
my $parallel = row('FROM c ');
is($parallel->{calls}, 4, 'parallel: each execution is noted');
# workers also read catalogs, which the server does not count for the statement
cmp_ok($parallel->{pages}, '>=', $parallel->{blks_read}, 'parallel: all pages that its workers read');
cmp_ok($parallel->{pages}, '<', $parallel->{blks_read} + 4 * 2 * 500, 'parallel: hardly others');
for my $name (sort keys %sql)
{
	$_->quit for @{ $session{$name} };
}

# ---- kinds of statements: a row each, or a part of another's ----

is_known('nothing else is noted');
reset_all();
my $session = $node->background_psql('postgres', on_error_stop => 0);
$session->query($_) for q{SET work_mem = '64kB'; SET maintenance_work_mem = '1MB'},
  "SELECT reads_a('') /* function */",
  'PREPARE p AS SELECT min(pad) /* prepared */ FROM a',
  'EXECUTE p', 'EXECUTE p',
  'BEGIN; DECLARE cur CURSOR FOR SELECT pad /* cursor */ FROM b', 'FETCH 100 FROM cur', 'SELECT count(pad), max(pad) /* between */ FROM a', 'FETCH 3000 FROM cur', 'COMMIT',
  'CREATE INDEX d_pad ON d (pad)',
  'SELECT fails_after_a()', 'SELECT folded()', 'SET compute_query_id = off; SELECT max(pad) /* without identifier */ FROM a; RESET compute_query_id',
  'EXPLAIN (ANALYZE) SELECT count(pad) /* explained */ FROM a',
  'CREATE TABLE a2 AS SELECT count(pad) /* created */ FROM a',
  q{DO 'BEGIN PERFORM count(pad) FROM a; END'},
  'SET ROLE other; SELECT count(pad) /* other */ FROM a; RESET ROLE',
  q{COPY (SELECT pad /* copied */ FROM a) TO '/dev/null'};
$session->quit;
my @rows = rows(q{s.query !~ 'pg_stat_statements|pg_database|fails_after|planned'});
my @different = grep { ($_->{pages} || 0) != $_->{blks_read} || ($_->{spilled} || 0) != $_->{temp_read} } @rows;
is(scalar @different, 0, 'all rows are as those of pg_stat_statements') or diag(explain(\@different));
is_known('nothing else is noted: no EXECUTE, and nothing that has failed');
cmp_ok(row('function')->{pages}, '>=', 384, q{a function's query is part of the one that calls it});
is(row('prepared')->{calls}, 2, 'what is executed is noted, as it was prepared');
is($node->safe_psql('postgres', q{SELECT count(*) FROM remote_bp_stat_statements r JOIN pg_stat_statements s USING (userid, dbid, queryid)
	WHERE s.query ~ 'planned|without'}), 0, 'what is run while planning is not noted, nor what has no identifier');
cmp_ok(row('FETCH 3000 FROM cur')->{pages}, '>', 240, q{fetching from a cursor is noted});
cmp_ok(row('between')->{pages}, '<=', 520, 'what runs between is not part of it');
my $index = row('CREATE INDEX');
cmp_ok($index->{spill_writes}, '>', 0, 'a command that spills is noted');
cmp_ok(row('created')->{pages}, '>=', 384, 'CREATE TABLE AS');
cmp_ok(row('explained')->{pages}, '>=', 384, 'EXPLAIN ANALYZE');
cmp_ok(row('copied')->{pages}, '>=', 384, 'COPY');
is($node->safe_psql('postgres', q{SELECT string_agg(DISTINCT r.userid::regrole::text, ',') FROM remote_bp_stat_statements r
	JOIN pg_stat_statements s USING (userid, dbid, queryid) WHERE s.query ~ 'other'}), 'other', 'the user is the one who runs it');
my $seen = q{SELECT count(*) FILTER (WHERE queryid IS NULL) > 0, count(queryid) > 0, bool_and(userid::regrole::text = 'other') FILTER (WHERE queryid IS NOT NULL),
	sum(calls) >= (SELECT sum(calls) FROM all_statements) FROM remote_bp_stat_statements};
is($node->safe_psql('postgres', "CREATE TABLE all_statements AS SELECT * FROM remote_bp_stat_statements; GRANT SELECT ON all_statements TO other; SET ROLE other; $seen"), 't|t|t|t',
	'others see what statements use, but not which ones, unless they are theirs');
is($node->safe_psql('postgres', "GRANT pg_read_all_stats TO other; SET ROLE other; SELECT count(*) FROM remote_bp_stat_statements WHERE queryid IS NULL"), 0,
	'who may read all statistics sees which they are');

# A portal of the protocol, of which the client reads a part, and a command the other one.
my $socket = IO::Socket::UNIX->new(Peer => $node->host . '/.s.PGSQL.' . $node->port) or die "cannot connect: $!";

# Send messages, and read until the server is ready; returns the number of rows.
sub converse
{
	my $rows = 0;
	for my $message (@_)
	{
		my ($type, $body) = @$message;
		print $socket $type . pack('N', 4 + length $body) . $body;
	}
	$socket->flush;
	while (1)
	{
		read($socket, my $head, 5) == 5 or die 'the server has hung up';
		my ($type, $length) = unpack 'aN', $head;
		read($socket, my $body, $length - 4) if $length > 4;
		die $body if $type eq 'E';
		$rows++ if $type eq 'D';
		return $rows if $type eq 'Z';
	}
}

converse([ '', pack('N', 196608) . "user\0" . getpwuid($<) . "\0database\0postgres\0\0" ]);
converse([ 'Q', "BEGIN\0" ]);
is(converse([ 'P', "\0SELECT pad /* portal */ FROM b\0" . pack('n', 0) ], [ 'B', "mine\0\0" . pack('n3', 0, 0, 0) ], [ 'E', "mine\0" . pack('N', 80) ], [ 'S', '' ]),
	80, 'a portal is read');
is(converse([ 'Q', "FETCH 2000 FROM mine\0" ]), 2000, 'and then by FETCH');
converse([ 'Q', "COMMIT\0" ]);
$socket->close;
cmp_ok(row('portal')->{pages}, '<', 100, 'the statement of a portal has what was read of it without a command');
cmp_ok(row('FETCH .* FROM mine')->{pages}, '>', 110, 'the command has what it read');
$go_on->();

# ---- restarts ----

# what looks may read, too
my $noted = 'SELECT count(*), sum(hashtext(r::text)::bigint) FROM remote_bp_stat_statements r WHERE hits + staged_hits + misses > 300';
$node->safe_psql('postgres', q{SELECT remote_bp_stat_statements_reset(); SELECT count(pad) FROM a; SELECT count(pad) FROM b; SELECT reads_a('')});
my $before = $node->safe_psql('postgres', $noted);
like($before, qr/^3\|/, 'three are noted');
my $file = $node->data_dir . '/pg_stat/remote_bp_statements.stat';
ok(!-e $file, 'while the server runs there is no file');
$node->stop;
my $saved = slurp_file($file);
$node->start;
is($node->safe_psql('postgres', $noted), $before, 'they are there after a restart');
ok(!-e $file, 'the file is gone then');

sub start_with_file
{
	my ($name, $content) = @_;
	$node->stop('immediate');
	open my $out, '>:raw', $file or die $!;
	print $out $content;
	close $out;
	my $offset = log_size($node);
	$node->start;
	log_tells($node, $offset, qr/LOG: .*ignoring invalid data in file "pg_stat\/remote_bp_statements.stat"/, "$name is not believed");
	like($node->safe_psql('postgres', $noted), qr/^0\|/, "$name: nothing is noted");
	return;
}
start_with_file('a shorter file', substr($saved, 0, -1));
start_with_file('a longer file', $saved . 'x');
for my $change ([ 4, 'a file of another server version' ], [ 100, 'a changed file' ])
{
	my ($at, $name) = @$change;
	my $content = $saved;
	substr($content, $at, 1) ^= "\x01";
	start_with_file($name, $content);
}

# A crash loses them, and the next stop saves what comes after it.
ok(wait_leased($node, 128), 'memory is leased after a restart');
$node->safe_psql('postgres', 'SELECT count(pad) FROM a');
like($node->safe_psql('postgres', $noted), qr/^1\|/, 'one is noted');
my $victim = $node->background_psql('postgres', on_error_stop => 0);
my $pid = $victim->query('SELECT pg_backend_pid()');
kill 'KILL', $pid;
ok(wait_for('the crash', sub { (($node->psql('postgres', $noted))[1] // '') =~ /^0\|/ }), 'after a crash, nothing is noted');
eval { $victim->quit };
ok(wait_leased($node, 128), 'memory is leased after a crash');
$node->safe_psql('postgres', 'SELECT count(pad) FROM b');
like($node->safe_psql('postgres', $noted), qr/^1\|/, 'after a crash, what comes is noted');
$node->stop;
isnt(slurp_file($file), $saved, 'and saved');

# ---- bounds ----

# Together they are larger than shared buffers: each execution reads something.
unlink $file or die $!;
$node->append_conf('postgresql.conf', "remote_bp.statements_max = 10\n");
$node->start;
make_table($node, $_, 1, index => 0) for qw(s t);
ok(wait_leased($node, 128), 'memory is leased');
$go_on = hold_policy_worker($node);
$node->safe_psql('postgres', 'SELECT remote_bp_stat_statements_reset()');
# each is a kind of its own, and two are used again and again
my $hot = 'SELECT count(pad) FROM s; SELECT count(pad) FROM t;';
$node->safe_psql('postgres', join("\n", map { $hot . 'SELECT ' . join(', ', ('count(pad)') x $_) . ' FROM s WHERE v = 0;' } 2 .. 16));
is($node->safe_psql('postgres', 'SELECT count(*) FROM remote_bp_stat_statements'), 10, 'there are as many as are allowed');
is($node->safe_psql('postgres', 'SELECT string_agg(calls::text, \',\') FROM remote_bp_stat_statements WHERE calls >= 15'), '15,15', 'those that are used stay');
$go_on->();
$node->append_conf('postgresql.conf', "remote_bp.statements_max = 0\n");
$node->restart;
ok(wait_leased($node, 128), 'memory is leased');
$node->safe_psql('postgres', 'SELECT count(pad) FROM a; SELECT remote_bp_stat_statements_reset()');
is($node->safe_psql('postgres', 'SELECT count(*) FROM remote_bp_stat_statements'), 0, 'switched off, nothing is noted');
ok(-e $file, 'and what is saved stays');
is_clean($node, '', no_compare => 1);
$node->stop;

done_testing();
