# What the server tells about temporary files is as on a stock server while
# their blocks are elsewhere: EXPLAIN, temp_file_limit, log_temp_files,
# pg_ls_tmpdir, pg_stat_file, the sizes of tablespaces; and
# remote_bp_temp_files agrees with that.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use RemoteBP;
use RemoteBP::Spill;
use Test::More;

my %queries = (
	'sort' => 'SELECT id, t, pad FROM big ORDER BY t',
	'sort, 200 kB' => 'SET work_mem = 200; SELECT id, t, pad FROM big ORDER BY t',
	'hash join' => 'SET enable_mergejoin = off; SELECT a.t, b.t FROM big a JOIN big b USING (id)',
	'hash aggregate' => 'SET enable_sort = off; SELECT t, count(*) FROM big GROUP BY t',
	'CTE' => 'WITH c AS MATERIALIZED (SELECT * FROM big) SELECT a.id FROM c a JOIN c b ON a.id = b.id + 1',
	'window' => 'SELECT lag(t, 3000) OVER (ORDER BY pad, t), sum(id) OVER () FROM big',
	'function' => 'SELECT * FROM generate_series(1, 50000) g',
	'CREATE TABLE AS' => 'CREATE TEMP TABLE x AS SELECT t FROM big ORDER BY t');

# The lines of EXPLAIN that tell about temporary files, without the buffers
# that depend on what ran before.
sub explained
{
	my ($node, $query) = @_;
	my @statements = split /; /, $query;
	my $last = pop @statements;
	my $r = run_session($node,
		join('', map { "$_;\n" } @statements) . "EXPLAIN (ANALYZE, BUFFERS, COSTS OFF, TIMING OFF, SUMMARY OFF) $last");
	return join("\n", $r->{err}, map { /temp /? /(temp .*)/ : $_ =~ s/^\s+//r } grep { /temp |Sort Method|Batches|Disk/ } split /\n/, $r->{out});
}

# "number size" of each file that the log tells of.
sub logged
{
	my ($node, $sql) = @_;
	my $offset = log_size($node);
	my $r = run_session($node, $sql);
	my $text = log_since($node, $offset);
	my @files;
	push @files, [ $1, $2, $3 ] while $text =~ m{temporary file: path "(\S+?)/pgsql_tmp\d+\.(\d+)", size (\d+)}g;
	my @lines = map { "$_->[0] $_->[1] $_->[2]" } sort { $a->[1] <=> $b->[1] } @files;
	return join("\n", @lines, $r->{err});
}

# What a stock server and the other must agree on, by name.
sub books
{
	my ($node, $mode) = @_;
	my %said;
	for my $name (sort keys %queries)
	{
		$said{"EXPLAIN, $name"} = explained($node, $queries{$name});
		$said{"log, $name"} = logged($node, "SET log_temp_files = 0; $queries{$name}");
		$said{"log above 300 kB, $name"} = logged($node, "SET log_temp_files = 300; $queries{$name}");
	}

	# The limit: the same error after the same row.
	for my $limit (64, 300, 1000, 1003, 4000)
	{
		$said{"limit of $limit kB, tuplestore"} = limited($node, $limit, 'SELECT count(*) FROM pg_temp.counted()');
		$said{"limit of $limit kB, sort"} = limited($node, $limit, "SELECT count(*) FROM (SELECT pad, t || nextval('counter') AS x FROM big OFFSET 0) b JOIN (SELECT max(t) AS m FROM big) m ON x < m OR x > m GROUP BY pad ORDER BY count(DISTINCT x)");
		$said{"limit of $limit kB, hash join"} = limited($node, $limit, "SET enable_mergejoin = off; SELECT count(*) FROM (SELECT id, t || nextval('counter') AS x FROM big OFFSET 0) a JOIN big b USING (id)");
	}

	# While files live.
	for my $space ('pg_default', 'elsewhere')
	{
		my $session = $node->background_psql('postgres');
		$session->query("SET temp_tablespaces = '$space'");
		$session->query('BEGIN');
		my $text = '';
		my $sizes = "SELECT regexp_replace(name, '[0-9]+[.]', '.'), size FROM pg_ls_tmpdir((SELECT oid FROM pg_tablespace WHERE spcname = '$space')) ORDER BY 1";
		my $step = 0;
		for my $sql (
			'DECLARE a CURSOR FOR SELECT id, t, pad FROM big ORDER BY t', 'FETCH 1 FROM a',
			'DECLARE b SCROLL CURSOR FOR SELECT g FROM generate_series(1, 30000) g', 'FETCH 10 FROM b',
			'MOVE 9999 FROM b', 'DECLARE d CURSOR FOR SELECT a.t, b.w FROM big a LEFT JOIN small b USING (id)', 'FETCH 100 FROM d',
			'CLOSE a', 'MOVE ALL FROM d', 'COMMIT')
		{
			$step++;
			my $answer = $session->query($sql);
			$text .= "$sql:\n$answer\n" . $session->query($sizes) . "\n";
			$text .= 'size of the tablespace: ' . $session->query("SELECT pg_tablespace_size('$space')") . "\n"
			  if $space eq 'elsewhere';
			if ($space eq 'pg_default' && $step < 10)
			{
				$text .= $session->query("SELECT sum(s.size) FROM pg_ls_tmpdir() l, pg_stat_file('base/pgsql_tmp/' || l.name) s") . "\n";
			}
			view_agrees($node, $session, "$mode, $space, step $step", $space) if $mode ne 'stock';
		}
		$session->quit;
		$said{"files that live, $space"} = $text;
	}
	return \%said;
}

sub limited
{
	my ($node, $limit, $query) = @_;
	my $r = run_session($node, <<"SQL");
CREATE SEQUENCE counter;
CREATE FUNCTION pg_temp.counted() RETURNS SETOF text LANGUAGE plpgsql AS \$\$
BEGIN
	FOR i IN 1 .. 20000 LOOP
		RETURN NEXT md5(i::text) || nextval('counter');
	END LOOP;
END
\$\$;
SET temp_file_limit = $limit;
SET enable_material = off;
$query;
SELECT last_value FROM counter;
RESET temp_file_limit;
DROP SEQUENCE counter;
SQL
	return "$r->{out}\n$r->{err}";
}

# remote_bp_temp_files against pg_ls_tmpdir: files of which a block is
# elsewhere, with the size that the server knows.
sub view_agrees
{
	my ($node, $session, $name, $space) = @_;
	my $pid = $session->query('SELECT pg_backend_pid()');
	my $oid = $session->query("SELECT oid FROM pg_tablespace WHERE spcname = '$space'");
	my $bad = $session->query(<<"SQL");
SELECT f FROM remote_bp_temp_files f LEFT JOIN pg_ls_tmpdir($oid) l ON f.file LIKE '%/' || l.name
	WHERE l.size IS DISTINCT FROM f.size OR f.owner IS DISTINCT FROM $pid OR f.tablespace IS DISTINCT FROM $oid OR f.temp_relation
		OR f.remote_bytes % 8192 <> 0 OR f.remote_bytes + f.staged_bytes > f.size + 8191 OR f.mirrored_bytes <> 0;
SQL
	is($bad, '', "$name: the view agrees with the directory");
	my $missing = $session->query(<<"SQL");
SELECT l FROM pg_ls_tmpdir($oid) l LEFT JOIN remote_bp_temp_files f ON f.file LIKE '%/' || l.name
	WHERE l.size >= 16384 AND coalesce(f.remote_bytes + f.staged_bytes, 0) = 0 OR l.size > 2000000 AND coalesce(f.remote_bytes, 0) = 0
SQL
	is($missing, '', "$name: files of some size are elsewhere, large ones on donors");
	return;
}

my $node = spill_cluster('books', settings => "wal_level = replica\nmax_wal_senders = 4\n");
$node->safe_psql('postgres', "SET allow_in_place_tablespaces = on; CREATE TABLESPACE elsewhere LOCATION ''");
spill_data($node);
# Directories that stay are a part of a tablespace's size.
run_session($node, "SET temp_tablespaces = 'elsewhere'; SELECT count(DISTINCT t) FROM big");
my $stock = books($node, 'stock');
for my $name (sort keys %$stock)
{
	note("stock, $name:\n" . substr($stock->{$name}, 0, 600));
	like($stock->{$name}, qr/temp read|temp written/, "stock, $name: spills") if $name =~ /^EXPLAIN/;
	like($stock->{$name}, qr/pgsql_tmp 0 [1-9]/, "stock, $name: is logged") if $name =~ /^log,/;
	like($stock->{$name}, qr/temporary file size exceeds "?temp_file_limit"?/, "stock, $name: is exceeded") if $name =~ /^limit of (64|300) /;
}

my $broker = start_broker();
my $donor = start_donor($broker, memory => '128MB');
for my $transport ('shm', 'tcp')
{
	ok(spill_mode($node, broker => $broker, transport => $transport), "$transport: memory is leased");
	my $now = books($node, $transport);
	is($now->{$_}, $stock->{$_}, "$transport, $_") for sort keys %$stock;
	my $c = counters($node);
	cmp_ok($c->{'spill.writes'}, '>', 0, "$transport: blocks went to donors");
	cmp_ok($c->{'spill.reads'}, '>', 0, "$transport: blocks came from donors");

	# Off, and nothing goes there.
	my $r = run_session($node, 'SET remote_bp.spill_temp_files = off; SELECT count(DISTINCT t) FROM big');
	is($r->{out}, '40000', "$transport: a query with the spill off");
	cmp_ok($r->{bytes}, '>', 0, "$transport: a query with the spill off spills to the disk");
	is(counter($node, 'spill.writes'), $c->{'spill.writes'}, "$transport: a query with the spill off writes nothing to donors");

	# A base backup's manifest is a temporary file, that is written where no
	# callback for the end of the process may be left behind.
	my $before = counter($node, 'spill.writes') + counter($node, 'spill.staged_reads');
	$node->command_ok(
		[ 'pg_basebackup', '-D', $node->backup_dir . "/$transport", '-h', $node->host, '-p', $node->port, '-c', 'fast', '--no-sync' ],
		"$transport: a base backup");
	cmp_ok(counter($node, 'spill.writes') + counter($node, 'spill.staged_reads'),
		'>', $before, "$transport: the manifest of the base backup was spilled");
	spill_is_clean($node, $transport);
}
$node->stop;

done_testing();
