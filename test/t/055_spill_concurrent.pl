# Many sessions spill at once, and every result is checked; sessions are
# terminated and a backend is killed in the middle of it: what they held is
# given back, nothing is left in directories, and file names that come again
# find nothing of the old.
# Timeout: 1800

use strict;
use warnings;

use File::Path 'remove_tree';
use FindBin;
use lib "$FindBin::RealBin/lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use RemoteBP;
use RemoteBP::Daemon;
use RemoteBP::Spill;
use Test::More;
use Time::HiRes qw(sleep);

my $node = spill_cluster('concurrent', settings => "shared_buffers = 2MB\n");
spill_data($node, rows => 12000);

# What each of these gives.
my %queries = (
	sort => q{SELECT md5(string_agg(t, '')) FROM (SELECT t, pad FROM big WHERE k <> :n ORDER BY t) s},
	join => q{SELECT sum(hashtext(a.t || b.t)::bigint) FROM big a JOIN big b USING (id) WHERE a.k <> :n},
	window => q{SELECT md5(string_agg(x, '')) FROM (SELECT lag(t, 900) OVER (ORDER BY t, id) AS x FROM big WHERE k <> :n) s},
	cte => q{WITH c AS MATERIALIZED (SELECT id, t, pad FROM big WHERE k <> :n) SELECT sum(hashtext(a.t || b.pad)::bigint) FROM c a JOIN c b ON a.id = b.id + 2});
my $parallel = q{SELECT sum(hashtext(a.t || b.t)::bigint) FROM big a JOIN big b USING (id) WHERE a.k <> :n};

$node->safe_psql('postgres', 'CREATE TABLE answers (name text, n int, answer text, PRIMARY KEY (name, n))');
for my $n (0 .. 9)
{
	for my $name (sort keys %queries)
	{
		my $sql = $queries{$name} =~ s/:n/$n/r;
		$node->safe_psql('postgres', "INSERT INTO answers SELECT '$name', $n, ($sql)::text");
	}
}

# Scripts of pgbench: a result that is not the right one divides by zero.
my $dir = PostgreSQL::Test::Utils::tempdir();
my @scripts;
sub script
{
	my ($name, $weight, $text) = @_;
	append_to_file("$dir/$name.sql", $text);
	push @scripts, '-f', "$dir/$name.sql\@$weight";
	return;
}
for my $name (sort keys %queries)
{
	script($name, 3, "\\set n random(0, 9)\nSELECT 1 / (($queries{$name})::text = (SELECT answer FROM answers WHERE name = '$name' AND n = :n))::int;\n");
}
script('parallel', 1, <<"SQL");
\\set n random(0, 9)
SET max_parallel_workers_per_gather = 2;
SET min_parallel_table_scan_size = 0;
SET parallel_setup_cost = 0;
SET parallel_tuple_cost = 0;
SET enable_mergejoin = off;
SELECT 1 / (($queries{join})::text = (SELECT answer FROM answers WHERE name = 'join' AND n = :n))::int;
RESET ALL;
SQL
script('cursor', 2, <<'SQL');
BEGIN;
DECLARE c SCROLL CURSOR WITH HOLD FOR SELECT id, t FROM big ORDER BY t, id;
COMMIT;
MOVE ABSOLUTE 9000 FROM c;
MOVE RELATIVE -7000 FROM c;
FETCH NEXT FROM c \gset
SELECT 1 / (:id = (SELECT id FROM big ORDER BY t, id OFFSET 2000 LIMIT 1))::int;
CLOSE c;
SQL
script('table', 2, <<'SQL');
\set n random(1, 1000000000)
SET remote_bp.spill_temp_tables = on;
CREATE TEMP TABLE IF NOT EXISTS f (id int, n int, t text);
TRUNCATE f;
INSERT INTO f SELECT id, :n, t FROM big;
UPDATE f SET n = n + 1 WHERE id % 2 = 0;
SELECT 1 / (count(*) = 12000 AND sum(n) = 12000 * :n::bigint + 6000 AND sum(hashtext(f.t)::bigint) = (SELECT sum(hashtext(t)::bigint) FROM big))::int FROM f;
SQL
script('abort', 1, <<'SQL');
BEGIN;
DECLARE c CURSOR FOR SELECT id, t FROM big ORDER BY pad, t;
FETCH 100 FROM c;
ROLLBACK;
SQL

sub load
{
	my ($name, $transactions) = @_;
	return RemoteBP::Daemon->start(
		name => "pgbench $name",
		log => "$dir/$name.log",
		listens => 0,
		command => [ 'pgbench', '-n', '-c', '20', '-j', '2', '-t', $transactions, @scripts, $node->connstr('postgres') ]);
}

my $broker = start_broker();
my $donor1 = start_donor($broker, id => 'one', memory => '64MB', region_size => '2MB');
my $donor2 = start_donor($broker, id => 'two', memory => '64MB', region_size => '2MB');

sub mode
{
	my ($transport, $temp, $conf) = @_;
	ok( spill_mode(
			$node,
			broker => $broker,
			transport => $transport,
			temp => $temp,
			buffer => '8MB',
			conf => "temp_buffers = '800kB'\nmax_worker_processes = 16\n" . ($conf // '')),
		"$transport, $temp: memory is leased");
	return;
}

#---- all at once ------------------------------------------------------------

# The last with too little memory for all, and little staging.
for my $run ([ 'shm', '64MB' ], [ 'tcp', '64MB' ], [ 'tcp', '6MB', "remote_bp.temp_staging_size = '256kB'\n" ])
{
	my ($transport, $temp, $conf) = @$run;
	my $name = "$transport, $temp";
	mode($transport, $temp, $conf);
	my $offset = log_size($node);
	my $load = load("$transport$temp", $temp eq '6MB' ? 12 : 25);
	is($load->wait_end(600), 0, "$name: 20 clients, no wrong result")
	  or diag(substr($load->log_text, -3000));
	my @errors = grep { /(ERROR|FATAL):/ } split /\n/, log_since($node, $offset);
	is(scalar @errors, 0, "$name: no error") or diag(join("\n", @errors[ 0 .. ($#errors > 5 ? 5 : $#errors) ]));
	my $c = counters($node);
	note("$name: " . join(', ', map { "$_ $c->{$_}" } grep { /^spill\./ && $c->{$_} } sort keys %$c));
	cmp_ok($c->{'spill.writes'}, '>', 1000, "$name: blocks went to donors");
	cmp_ok($c->{'spill.reads'}, '>', 1000, "$name: blocks came from donors");
	cmp_ok($c->{'spill.local'}, '>', 0, "$name: and to the real files, when there was no room") if $temp eq '6MB';
	spill_is_clean($node, $name);
}

#---- terminated -------------------------------------------------------------

my $sleeper = q{SELECT count(*) FROM (SELECT t, CASE WHEN id = 11500 THEN pg_sleep(100)::text END AS x FROM big OFFSET 0) s GROUP BY t, x ORDER BY x, t};
my $all = q{SELECT md5(string_agg(t, '')) FROM (SELECT t, pad FROM big WHERE k <> 3 ORDER BY t) s};
my $right = $node->safe_psql('postgres', q{SELECT answer FROM answers WHERE name = 'sort' AND n = 3});

# A session in the middle of a sort, with files of other kinds, too; and its
# process.
sub amid
{
	my ($node, $name) = @_;
	my $session = $node->background_psql('postgres', on_error_stop => 0);
	my $pid = $session->query('SELECT pg_backend_pid()');
	$session->query($_)
	  for 'SET remote_bp.spill_temp_tables = on', 'CREATE TEMP TABLE f AS SELECT * FROM big', 'BEGIN',
	  'DECLARE c SCROLL CURSOR WITH HOLD FOR SELECT id, t FROM big', 'COMMIT', 'FETCH 100 FROM c';
	$session->query_until(qr/begins/, "\\echo begins\n$sleeper;\n");
	wait_for('the query to sleep',
		sub { $node->safe_psql('postgres', "SELECT wait_event FROM pg_stat_activity WHERE pid = $pid") eq 'PgSleep' });
	my $held = $node->safe_psql('postgres', "SELECT count(*) FILTER (WHERE temp_relation) > 0 AND count(*) FILTER (WHERE NOT temp_relation) > 1 AND sum(remote_bytes) > 1000000 FROM remote_bp_temp_files WHERE owner = $pid");
	is($held, 't', "$name: a session holds files and a temporary table");
	return ($session, $pid);
}

for my $transport ('shm', 'tcp')
{
	mode($transport, '64MB');
	for my $round (1 .. 2)
	{
		my ($session, $pid) = amid($node, "$transport, terminated");
		is($node->safe_psql('postgres', "SELECT pg_terminate_backend($pid, 20000)"), 't', "$transport: the session is terminated");
		spill_is_idle($node, "$transport, terminated");
		eval { $session->quit };
	}

	# At any other point, several at a time.
	my $load = load("terminated_$transport", 1000);
	my $killed = 0;
	wait_for(
		'queries to be terminated',
		sub {
			$killed += $node->safe_psql('postgres', q{
				SELECT count(*) FILTER (WHERE pg_terminate_backend(pid)) FROM (SELECT pid FROM pg_stat_activity
					WHERE pid <> pg_backend_pid() AND state = 'active' AND backend_type = 'client backend' ORDER BY random() LIMIT 1) s});
			sleep 0.1;
			return $killed > 14;
		},
		300);
	$load->stop;
	cmp_ok($killed, '>', 14, "$transport: more are terminated amid their queries");
	unlike($load->log_text, qr/division by zero/, "$transport: no wrong result");
	spill_is_idle($node, "$transport, $killed terminated");
	is($node->safe_psql('postgres', $all), $right, "$transport: queries are right after the terminations");
	spill_is_clean($node, "$transport, terminated");
}

#---- killed: the server starts anew -------------------------------------------

for my $run ([ 'tcp', 'on' ], [ 'shm', 'off' ])
{
	my ($transport, $remove) = @$run;
	my $name = "$transport, killed";
	mode($transport, '32MB', "remove_temp_files_after_crash = $remove\n");
	my ($session, $pid) = amid($node, $name);
	my $load = load("killed_$transport", 1000);
	ok(wait_for('more files', sub { counter($node, 'spill.files') > 8 }), "$name: others hold files");
	my $offset = log_size($node);
	is(kill('KILL', $pid), 1, "$name: a backend is killed");
	ok( wait_for(
			'recovery',
			sub { log_since($node, $offset) =~ /database system is ready to accept connections/ }),
		"$name: the server starts anew");
	$load->wait_end(300);
	unlike($load->log_text, qr/division by zero/, "$name: no wrong result");
	eval { $session->quit };
	is(counter($node, 'spill.pages'), 0, "$name: no page is in use");
	is($node->safe_psql('postgres', 'SELECT count(*) FROM remote_bp_temp_files'), 0, "$name: no file is known");
	my @left = temp_paths($node);
	if ($remove eq 'on')
	{
		is(scalar @left, 0, "$name: nothing is left in the directory");
	}
	else
	{
		# What the server was told to leave is there, for names to recur.
		cmp_ok(scalar @left, '>', 0, "$name: the server leaves its files");
		remove_tree(map { $node->data_dir . "/$_" } @left);
	}
	ok(wait_temp_leased($node, 32), "$name: memory is leased again");
	spills($node, $all, $right, $name);

	# Names that recur: there is something else in the file that the session
	# makes first, as a crash leaves it when its process id comes again.
	$session = $node->background_psql('postgres');
	$pid = $session->query('SELECT pg_backend_pid()');
	for my $n (0 .. 3)
	{
		append_to_file($node->data_dir . "/base/pgsql_tmp/pgsql_tmp$pid.$n", 'of another time' x 200000);
	}
	my $sizes = "SELECT size FROM pg_ls_tmpdir() WHERE name LIKE 'pgsql\\_tmp$pid.%' ORDER BY name";
	is($session->query($all), $right, "$name: a file of a name that was there");
	$session->query('BEGIN');
	$session->query('DECLARE c SCROLL CURSOR WITH HOLD FOR SELECT g, md5(g::text) FROM generate_series(1, 9000) g');
	$session->query('FETCH 1 FROM c');
	my $size = (split /\n/, $session->query($sizes))[0];
	my $clean = $node->background_psql('postgres');
	$clean->query('BEGIN');
	$clean->query('DECLARE c SCROLL CURSOR WITH HOLD FOR SELECT g, md5(g::text) FROM generate_series(1, 9000) g');
	$clean->query('FETCH 1 FROM c');
	my $other = $clean->query('SELECT pg_backend_pid()');
	is($size, $clean->query("SELECT size FROM pg_ls_tmpdir() WHERE name LIKE 'pgsql\\_tmp$other.%'"), "$name: has the size that is its own");
	is($session->query('FETCH LAST FROM c'), $clean->query('FETCH LAST FROM c'), "$name: the file has its own content");
	$_->quit for $session, $clean;
	unlink glob($node->data_dir . "/base/pgsql_tmp/pgsql_tmp$pid.*");
	spill_is_clean($node, $name, offset => log_size($node));
}
is(scalar grep({ !/signal 9/ } log_troubles($node)), 0, 'the log is quiet otherwise');
$node->stop;

done_testing();
