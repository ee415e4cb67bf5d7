# Temporary files against an ordinary file as the model: random reads, writes,
# truncations and so on by the server's own functions, in one session and in
# several, with every byte, return value and size compared (see
# test/modules/file_model).  First on the stock server, which shows that the
# model is right; then with the spill, over each transport, with little
# memory of every kind, two copies, and a transport that fails.
#
# RBP_SEED repeats a run's random seed.
# Timeout: 1800

use strict;
use warnings;

use FindBin;
use List::Util qw(sum0);
use lib "$FindBin::RealBin/lib";

use POSIX ();
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use RemoteBP;
use RemoteBP::Spill qw(spill_counters);
use Test::More;
use Time::HiRes qw(sleep);

my $seed = $ENV{RBP_SEED} // int(rand(2**30));
note("random seed: $seed (RBP_SEED=$seed repeats it)");

my $MB = 1024 * 1024;
my @profiles = qw(random blocks overwrites streams many named relations);

#---- the module -----------------------------------------------------------

sub define_functions
{
	my ($node, $module) = @_;
	$node->safe_psql(
		'postgres',
		slurp_file("$FindBin::RealBin/../modules/file_model/file_model.sql"),
		extra_params => [ '-v', "module=$module" ]);
	$node->safe_psql('postgres', 'ALTER DATABASE postgres SET search_path = file_model, public');
	return;
}

#---- one session ----------------------------------------------------------

# The query gives something; what it gives, or '' with the reason as a
# diagnostic.
sub succeeds
{
	my ($node, $what, $query) = @_;
	my ($status, $out, $err) = $node->psql('postgres', $query);
	is($status, 0, $what) or diag($err);
	note("$what: $out");
	return $status == 0 ? $out : '';
}

sub walks
{
	my ($node, $what, %opt) = @_;
	my $steps = $opt{steps} // 1200;
	for my $s (@{ $opt{seeds} // [$seed] })
	{
		succeeds($node, "$what: $_, seed $s", "SELECT file_model($s, $steps, '$_')")
		  for @{ $opt{profiles} // \@profiles };
		succeeds($node, "$what: BufFile, seed $s", "SELECT file_model_buffile($s, $steps)");
	}
	return;
}

#---- several sessions -------------------------------------------------------

# Sessions in a transaction each, with handles on the same file.
sub sessions
{
	my ($node, $n) = @_;
	my @sessions = map { $node->background_psql('postgres') } 1 .. $n;
	$_->query_safe('BEGIN') for @sessions;
	return @sessions;
}

# A query that must succeed in one of them; what it gives.
sub in_session
{
	my ($session, $what, $query) = @_;
	my $out = eval { $session->query_safe($query) };
	ok(defined $out, $what) or diag($@);
	return $out // '';
}

# Scripts that run at the same time, a session each; what failed.
sub failures_at_once
{
	my ($node, @scripts) = @_;
	my @runs;
	for my $script (@scripts)
	{
		my $run = { script => $script, out => '', err => '' };
		$run->{harness} = IPC::Run::start(
			[ 'psql', '-XAtq', '-v', 'ON_ERROR_STOP=1', '-d', $node->connstr('postgres'), '-f', '-' ],
			'<', \$run->{script}, '>', \$run->{out}, '2>', \$run->{err},
			IPC::Run::timeout(300));
		push @runs, $run;
	}
	my @failed;
	for my $run (@runs)
	{
		IPC::Run::finish($run->{harness}) or push @failed, $run->{err};
	}
	return "@failed";
}

# ... and all must succeed.
sub at_once
{
	my ($node, $what, @scripts) = @_;
	is(failures_at_once($node, @scripts), '', $what);
	return;
}

sub several
{
	my ($node, $what, $s) = @_;

	# A set belongs to the session that makes it, and goes with it.
	my $owner = $node->background_psql('postgres');
	my $set = $owner->query_safe('SELECT file_model_set()');

	# Writers in turns, a reader from the beginning on, all with the file open.
	my ($one, $two, $three) = sessions($node, 3);
	my $a = in_session($one, "$what: created", "SELECT file_model_open('$set', 'turns', 'create')");
	in_session($one, "$what: the first writer", "SELECT file_model_steps($a, $s, 0, 150, 'shared')");
	my $b = in_session($two, "$what: opened to read", "SELECT file_model_open('$set', 'turns', 'read')");
	in_session($two, "$what: the reader sees it", "SELECT file_model_check($b, $s, 150, 'shared', 1)");
	my $c = in_session($three, "$what: opened to write", "SELECT file_model_open('$set', 'turns', 'write')");
	in_session($three, "$what: the second writer", "SELECT file_model_steps($c, $s, 150, 300, 'shared')");
	in_session($two, "$what: the reader sees that", "SELECT file_model_check($b, $s, 300, 'shared', 2)");
	in_session($one, "$what: the first writer again", "SELECT file_model_steps($a, $s, 300, 450, 'shared')");
	in_session($three, "$what: the second writer sees that", "SELECT file_model_check($c, $s, 450, 'shared', 3)");
	in_session($one, "$what: the first writer closes", "SELECT file_model_close($a)");
	in_session($two, "$what: the reader still sees it", "SELECT file_model_check($b, $s, 450, 'shared', 4)");
	in_session($three, "$what: the second writer goes on", "SELECT file_model_steps($c, $s, 450, 500, 'shared')");
	in_session($three, "$what: and closes", "SELECT file_model_close($c)");
	in_session($two, "$what: the reader sees its end", "SELECT file_model_check($b, $s, 500, 'shared', 5)");
	$a = in_session($one, "$what: opened again", "SELECT file_model_open('$set', 'turns', 'read')");
	in_session($one, "$what: and seen as it is", "SELECT file_model_check($a, $s, 500, 'shared', 6)");
	in_session($one, "$what: closed again", "SELECT file_model_close($a)");

	# The same name created anew.  A descriptor of the old file, which the
	# server never keeps, sees the new one or is refused.
	my $other = $s + 1;
	my $late = $node->background_psql('postgres', on_error_stop => 0);
	$late->query_safe('BEGIN');
	my $old = $late->query_safe("SELECT file_model_open('$set', 'turns', 'read')");
	$late->query_safe("SELECT file_model_check($old, $s, 500, 'shared', 7)");
	in_session($two, "$what: the reader closes", "SELECT file_model_close($b)");
	$a = in_session($one, "$what: created anew", "SELECT file_model_open('$set', 'turns', 'create')");
	in_session($one, "$what: and written anew", "SELECT file_model_steps($a, $other, 0, 150, 'shared')");
	$b = in_session($two, "$what: opened anew", "SELECT file_model_open('$set', 'turns', 'read')");
	in_session($two, "$what: the reader sees what is new", "SELECT file_model_check($b, $other, 150, 'shared', 8)");
	my $seen = $late->query("SELECT file_model_check($old, $other, 150, 'shared', 8)");
	ok($seen =~ /60 steps/ || $late->{stderr} =~ /Input\/output error/, "$what: an old descriptor does not see anything else")
	  or diag($late->{stderr});
	$late->{stderr} = '';
	$late->query('ROLLBACK');
	$late->quit;
	in_session($two, "$what: the reader closes again", "SELECT file_model_close($b)");
	my $path = in_session($one, "$what: its path", "SELECT file_model_path($a)");
	in_session($one, "$what: the writer closes", "SELECT file_model_close($a)");

	# Deleted by another one than wrote it, and created again.
	is(in_session($two, "$what: deleted", "SELECT file_model_unlink('$set', 'turns')"), 't', "$what: deleting the file finds it");
	is(in_session($three, "$what: looked for", "SELECT count(size) FROM pg_stat_file('$path', true)"),
		0, "$what: the file is gone");
	is(in_session($one, "$what: deleted again", "SELECT file_model_unlink('$set', 'turns')"), 'f', "$what: deleting the file again does not find it");
	$c = in_session($three, "$what: created by another one", "SELECT file_model_open('$set', 'turns', 'create')");
	in_session($three, "$what: and written", "SELECT file_model_steps($c, $s, 0, 150, 'shared')");
	$a = in_session($one, "$what: opened by the first", "SELECT file_model_open('$set', 'turns', 'read')");
	in_session($one, "$what: which sees it", "SELECT file_model_check($a, $s, 150, 'shared', 9)");

	# Readers beside a writer that appends: the beginning stays as it is.
	my $w = in_session($two, "$what: one that grows", "SELECT file_model_open('$set', 'grows', 'create')");
	in_session($two, "$what: begins to grow", "SELECT file_model_steps($w, $s, 0, 3, 'grow')");
	at_once(
		$node,
		"$what: a writer appends while others read",
		"BEGIN; SELECT file_model_steps(file_model_open('$set', 'grows', 'write'), $s, 3, 60, 'grow');",
		map {
			"BEGIN; SELECT file_model_check_prefix(file_model_open('$set', 'grows', 'read'), $s, 3, 'grow', $_, 1500);"
		} 1 .. 3);
	in_session($two, "$what: it is as it should be", "SELECT file_model_check($w, $s, 60, 'grow', 10)");

	# Writers of one file at once, in blocks of their own; and one after the
	# other, in parts of blocks.
	for my $unit (8192, 24576, 1000)
	{
		my $units = $unit == 1000 ? 900 : 120;
		my $h = in_session($two, "$what: for units of $unit", "SELECT file_model_open('$set', 'stripes$unit', 'create')");
		my @writers = map {
			"BEGIN; SELECT file_model_stripes(file_model_open('$set', 'stripes$unit', 'write'), $s, $_, 3, $unit, $units, 3);"
		} 0 .. 2;
		if ($unit % 8192 == 0)
		{
			at_once($node, "$what: three write units of $unit at once", @writers);
		}
		else
		{
			at_once($node, "$what: one writes units of $unit", $_) for @writers;
		}
		in_session($two, "$what: which are as they should be", "SELECT file_model_stripes_check($h, $s, $unit, $units, 2)");
	}
	$_->query('ROLLBACK'), $_->quit for $one, $two, $three;

	# As a parallel CREATE INDEX: workers' files, appended to the leader's.
	at_once($node, "$what: workers write their files",
		map { "SELECT file_model_buffile_write('$set', 'worker$_', $_, 1000000);" } 0 .. 2);
	succeeds($node, "$what: the leader reads them", "SELECT file_model_buffile_check('$set', 'worker', 3, 1000000)");
	$owner->query_safe("SELECT file_model_set_delete('$set')");
	$owner->quit;
	return;
}

#---- the books ---------------------------------------------------------------

# Sizes as the log tells them, temp_bytes, and EXPLAIN's counters of statements
# that spill.  In a database of their own: what other sessions did counts when
# they end, which may be late.
sub books
{
	my ($node) = @_;
	my $offset = log_size($node);
	my $counted = q{SELECT temp_files, temp_bytes FROM pg_stat_database WHERE datname = 'books'};
	my @before = split /\|/, $node->safe_psql('postgres', $counted);
	my $explain = $node->safe_psql('books', <<'SQL');
SET work_mem = '128kB';
SET hash_mem_multiplier = 1;
SET jit = off;
SET log_temp_files = 0;
SET enable_sort = on;
EXPLAIN (ANALYZE, BUFFERS, COSTS off, TIMING off, SUMMARY off) SELECT * FROM books ORDER BY pad, id;
SET enable_mergejoin = off; SET enable_nestloop = off;
EXPLAIN (ANALYZE, BUFFERS, COSTS off, TIMING off, SUMMARY off) SELECT count(*) FROM books a JOIN books b USING (id);
EXPLAIN (ANALYZE, BUFFERS, COSTS off, TIMING off, SUMMARY off) SELECT id, count(*) FROM books GROUP BY id;
EXPLAIN (ANALYZE, BUFFERS, COSTS off, TIMING off, SUMMARY off) WITH m AS MATERIALIZED (SELECT * FROM books) SELECT count(*) FROM m x, (SELECT 1 FROM m LIMIT 3) y;
BEGIN;
DECLARE c SCROLL CURSOR WITH HOLD FOR SELECT * FROM books ORDER BY id % 77, id;
COMMIT;
MOVE ALL IN c;
FETCH BACKWARD 2 IN c;
CLOSE c;
SET maintenance_work_mem = '1MB';
CREATE INDEX books_pad ON books (pad);
DROP INDEX books_pad;
SELECT pg_stat_force_next_flush();
SQL
	my @after = split /\|/, $node->safe_psql('postgres', $counted);
	my @temp = $explain =~ /(temp read=\d+ written=\d+|Disk: \d+kB|Batches: \d+)/g;
	my @logged = sort { $a <=> $b } log_since($node, $offset) =~ /temporary file: path "[^"]+", size (\d+)/g;
	return {
		explain => join(', ', @temp),
		logged => join(' ', @logged),
		files => $after[0] - $before[0],
		bytes => $after[1] - $before[1]
	};
}

#---- the spill ----------------------------------------------------------------

# Everything that was taken is given back.
sub comes_back
{
	my ($node, $what) = @_;
	ok( wait_for(
			'temporary data to be gone',
			sub { $node->safe_psql('postgres', 'SELECT pages = 0 AND files = 0 FROM remote_bp_stat_spill') eq 't' },
			120),
		"$what: all slots are free again")
	  or diag($node->safe_psql('postgres', 'SELECT * FROM remote_bp_temp_files'));
	return;
}

# Set these, restart, and wait for the memory.
sub reconfigure
{
	my ($node, $what, $megabytes, %settings) = @_;
	$node->append_conf('postgresql.conf', "remote_bp.$_ = '$settings{$_}'") for sort keys %settings;
	$node->append_conf('postgresql.conf', "remote_bp.temp_tier_size = '${megabytes}MB'");
	$node->restart;
	$node->safe_psql('postgres', 'CREATE EXTENSION IF NOT EXISTS remote_bp');
	ok(wait_for('memory for temporary data', sub { counter($node, 'spill.online_pages') == $megabytes * 128 }, 120),
		"$what: $megabytes MB are there");
	return;
}

# Run the sub; the counters that must and must not have moved, and whether most
# blocks must have gone to donors.
sub counted
{
	my ($node, $what, $sub, %expect) = @_;
	my $before = spill_counters($node);
	$sub->();
	my $after = spill_counters($node);
	my %moved = map { $_ => $after->{$_} - $before->{$_} } keys %$after;
	note("$what: " . join(', ', map { "$_ $moved{$_}" } sort keys %moved));
	cmp_ok($moved{$_}, '>', 0, "$what: $_") for @{ $expect{more} };
	is($moved{$_}, 0, "$what: no $_") for qw(spill.lost), @{ $expect{none} // ['spill.hash_failures'] };
	# (a donor that is late is not waited for: see io_timeout below)
	cmp_ok($moved{'spill.local'} + $moved{'spill.rescued'}, '<', $moved{'spill.writes'} / 10, "$what: most blocks went to donors")
	  if $expect{mostly};
	comes_back($node, $what);
	return;
}

need_test_build();
set_faults();
my $module = build_module('file_model');
my $broker = start_broker();
my @donors = map { start_donor($broker, id => "donor$_", memory => '128MB', region_size => '1MB') } 1, 2;
my $node = new_cluster(
	'file_model',
	broker => $broker,
	tier => '8MB',
	test_build => 1,
	extension => 0,
	start => 0,
	conf => <<'CONF');
# So few that descriptors are closed and opened again all the time.
max_files_per_process = 64
remote_bp.temp_tier_max_size = '96MB'
remote_bp.temp_tier_size = '96MB'
remote_bp.spill_temp_tables = on
remote_bp.io_timeout = 10s
remote_bp.temp_io_timeout = 1min
CONF

# Without the extension.
$node->append_conf('postgresql.conf', "shared_preload_libraries = ''");
$node->start;
define_functions($node, $module);
$node->safe_psql('postgres', 'CREATE DATABASE books');
$node->safe_psql($_, 'CREATE TABLE books AS SELECT i * 7919 % 20000 AS id, repeat(md5(i::text), 4) AS pad FROM generate_series(1, 20000) i; VACUUM ANALYZE books')
  for qw(postgres books);
walks($node, 'stock', seeds => [ 1, $seed ]);
several($node, 'stock', $seed);
my $stock_books = books($node);
note("books of the stock server: $_: $stock_books->{$_}") for sort keys %$stock_books;
cmp_ok($stock_books->{bytes}, '>', 10 * $MB, 'the statements spill');

$node->append_conf('postgresql.conf', "shared_preload_libraries = 'remote_bp'");
reconfigure($node, 'shm', 96, transport => 'shm');
counted(
	$node, 'shm',
	sub {
		walks($node, 'shm', seeds => [ 1, $seed ]);
		several($node, 'shm', $_) for 1, $seed;
	},
	more => [qw(spill.writes spill.reads)],
	mostly => 1);

# The books are the stock server's.
my $spill_books;
counted(
	$node,
	'books',
	sub { $spill_books = books($node); },
	more => [qw(spill.writes spill.reads)],
	mostly => 1);
is($spill_books->{$_}, $stock_books->{$_}, "$_ as on the stock server") for sort keys %$stock_books;

# What others see of a file, while it lives and when it is gone.
{
	my ($session) = sessions($node, 1);
	my $pid = $session->query_safe('SELECT pg_backend_pid()');
	my $set = $session->query_safe('SELECT file_model_set()');
	my $h = $session->query_safe("SELECT file_model_open('$set', 'seen', 'create')");
	$session->query_safe("SELECT file_model_steps($h, 3, 0, 30, 'grow')");
	my $path = $session->query_safe("SELECT file_model_path($h)");
	my $size = $node->safe_psql('postgres', "SELECT size FROM pg_stat_file('$path')");
	cmp_ok($size, '>', $MB, 'another session sees the size of the file');
	is( $node->safe_psql('postgres', <<"SQL"), "$path|1663|$pid|f|$size|t|t|0", 'another session sees the file in remote_bp_temp_files');
SELECT file, tablespace, owner, temp_relation, size, remote_bytes > 0.9 * size,
	remote_bytes + staged_bytes BETWEEN size - 8191 AND size + 8191, mirrored_bytes
	FROM remote_bp_temp_files
SQL
	# Blocks on their way, and a few to come, have their slots already.
	is($node->safe_psql('postgres', <<'SQL'), '1|t', 'remote_bp_stat_spill agrees');
SELECT files, pages BETWEEN remote AND remote + staged + 31
	FROM remote_bp_stat_spill, (SELECT sum(remote_bytes) / 8192 AS remote, sum(staged_bytes) / 8192 AS staged FROM remote_bp_temp_files) f
SQL
	$session->query_safe("SELECT file_model_close($h), file_model_unlink('$set', 'seen')");
	is($node->safe_psql('postgres', "SELECT size FROM pg_stat_file('$path', true)"), '', 'a deleted file has no size');

	# (which counts no file sets)
	my $space = $node->safe_psql('postgres', "SELECT pg_tablespace_size('pg_default')");
	$session->query_safe('SET work_mem = 64; DECLARE c CURSOR FOR SELECT id FROM books ORDER BY pad; FETCH c');
	my ($listed, $files) = split /\|/, $node->safe_psql('postgres', 'SELECT sum(size), count(*) FROM pg_ls_tmpdir()');
	my $more = $node->safe_psql('postgres', "SELECT pg_tablespace_size('pg_default')");
	cmp_ok($listed, '>', $MB, 'pg_ls_tmpdir shows a sort');
	is($more - $space, $listed, 'pg_tablespace_size counts it');
	is($node->safe_psql('postgres', 'SELECT sum(size), count(*) FROM remote_bp_temp_files'),
		"$listed|$files", 'remote_bp_temp_files lists it');
	$session->query('ROLLBACK');
	$session->quit;
	comes_back($node, 'a file that is deleted');
}

# Sessions that end in the middle.
for my $how ('cancelled', 'terminated')
{
	my $sql = "SELECT file_model(4, 1000000, 'streams')";
	my $run = IPC::Run::start([ 'psql', '-XAtq', '-d', $node->connstr('postgres'), '-c', $sql ],
		'<', \'', '>&', \my $said, IPC::Run::timeout(60));
	ok(wait_for('it to spill', sub { counter($node, 'spill.pages') > 100 }), "$how: the query spills");
	my $function = $how eq 'cancelled' ? 'pg_cancel_backend' : 'pg_terminate_backend';
	$node->safe_psql('postgres', "SELECT $function(pid) FROM pg_stat_activity WHERE query LIKE 'SELECT file_model(4, %'");
	IPC::Run::finish($run);
	like($said, $how eq 'cancelled' ? qr/canceling statement/ : qr/terminating connection/, "$how: the client gets the error");
	comes_back($node, $how);
}
{
	my $session = $node->background_psql('postgres', on_error_stop => 0);
	$session->query_safe('BEGIN');
	my $set = $session->query_safe('SELECT file_model_set()');
	my $h = $session->query_safe("SELECT file_model_open('$set', 'left', 'create')");
	$session->query_safe("SELECT file_model_steps($h, 3, 0, 30, 'grow')");
	cmp_ok(counter($node, 'spill.pages'), '>', 100, 'rolled back: the session spills');
	$session->query('SAVEPOINT s; SELECT 1 / 0; ROLLBACK TO s');
	$session->query('ROLLBACK');
	$node->safe_psql('postgres', "SELECT file_model_unlink('$set', 'left')");
	comes_back($node, 'rolled back');
	$session->quit;
}

# In another tablespace.
{
	my $dir = PostgreSQL::Test::Utils::tempdir();
	$node->safe_psql('postgres', "CREATE TABLESPACE elsewhere LOCATION '$dir'");
	$node->safe_psql('postgres', "ALTER DATABASE postgres SET temp_tablespaces = elsewhere");
	counted(
		$node,
		'tablespace',
		sub {
			walks($node, 'tablespace');
			several($node, 'tablespace', 5);
			my ($session) = sessions($node, 1);
			my $set = $session->query_safe('SELECT file_model_set()');
			my $h = $session->query_safe("SELECT file_model_open('$set', 'seen', 'create')");
			$session->query_safe("SELECT file_model_steps($h, 3, 0, 30, 'grow')");
			my $path = $session->query_safe("SELECT file_model_path($h)");
			like($path, qr{^pg_tblspc/}, 'the file is in the tablespace');
			is( $node->safe_psql('postgres', "SELECT file, spcname FROM remote_bp_temp_files f JOIN pg_tablespace t ON t.oid = tablespace"),
				"$path|elsewhere",
				'remote_bp_temp_files shows the tablespace');
			$session->query_safe("SELECT file_model_close($h), file_model_unlink('$set', 'seen')");
			$session->query('ROLLBACK');
			$session->quit;
		},
		more => [qw(spill.writes spill.reads)],
		mostly => 1);
	$node->safe_psql('postgres', "ALTER DATABASE postgres RESET temp_tablespaces");
}

reconfigure($node, 'tcp', 96, transport => 'tcp');
counted(
	$node, 'tcp',
	sub {
		walks($node, 'tcp', seeds => [ 1, $seed ]);
		several($node, 'tcp', $seed);
	},
	more => [qw(spill.writes spill.reads spill.read_ahead)],
	mostly => 1);

# So little of it that most files are here and there.
for my $transport (qw(shm tcp))
{
	reconfigure($node, "tiny quota, $transport", 2, transport => $transport);
	counted(
		$node,
		"tiny quota, $transport",
		sub {
			walks($node, "tiny quota, $transport");
			several($node, "tiny quota, $transport", $seed);
		},
		more => [qw(spill.writes spill.reads spill.local)]);
}

# The quota goes up and down meanwhile: blocks move, and are not lost.
for my $transport (qw(shm tcp))
{
	my $what = "moving quota, $transport";
	reconfigure($node, $what, 30, transport => $transport);
	counted(
		$node, $what,
		sub {
			my @scripts = map {
				my $s = $seed + $_;
				join('', map { "SELECT file_model($s, 1500, '$_');" } qw(blocks overwrites streams named relations) x 3);
			} 1, 2;
			my $over = PostgreSQL::Test::Utils::tempdir() . '/over';
			my $flip = fork // die $!;
			if ($flip == 0)
			{
				my $n = 0;
				until (-e $over)
				{
					my $q = (0, 30, 2, 20)[ $n++ % 4 ];
					eval { $node->safe_psql('postgres', "ALTER SYSTEM SET remote_bp.temp_tier_size = '${q}MB'"); $node->safe_psql('postgres', 'SELECT pg_reload_conf()'); };
					sleep 0.6;
				}
				POSIX::_exit(0);
			}
			# Again if they were so quick that no quota met blocks that had to move.
			my $evacuated = counter($node, 'spill.evacuated');
			my ($times, $failed) = (0, '');
			do { $failed .= failures_at_once($node, @scripts) } until $failed ne '' || counter($node, 'spill.evacuated') > $evacuated || ++$times == 30;
			is($failed, '', "$what: sessions with their files");
			open(my $file, '>', $over) or die $!;
			close $file;
			waitpid($flip, 0);
			$node->safe_psql('postgres', 'ALTER SYSTEM RESET remote_bp.temp_tier_size');
			$node->reload;
		},
		more => [qw(spill.writes spill.reads spill.local spill.evacuated)],
		none => []);    # who reads a block while it moves may find another in its place
}

# Blocks of a file in the file and at donors by turns, as when now the one costs
# less and now the other: by chance, and many files without an entry at first.
for my $transport (qw(shm tcp))
{
	reconfigure($node, "mixed, $transport", 30, transport => $transport, injection_point => 'mix-spill');
	counted(
		$node,
		"mixed, $transport",
		sub {
			walks($node, "mixed, $transport");
			several($node, "mixed, $transport", $seed);
		},
		more => [qw(spill.writes spill.reads spill.bypassed)]);
}

# (over shm blocks are not staged)
reconfigure($node, 'tiny staging', 64, injection_point => '', transport => 'tcp', temp_staging_size => '128kB');
counted(
	$node,
	'tiny staging',
	sub {
		walks($node, 'tiny staging');
		several($node, 'tiny staging', $seed);
	},
	more => [qw(spill.writes spill.reads)]);

for my $transport (qw(shm tcp))
{
	reconfigure($node, "two copies, $transport", 96, transport => $transport, temp_staging_size => '8MB', temp_mirror => 'on');
	counted(
		$node,
		"two copies, $transport",
		sub {
			walks($node, "two copies, $transport");
			several($node, "two copies, $transport", $seed);
			my ($session) = sessions($node, 1);
			my $set = $session->query_safe('SELECT file_model_set()');
			my $h = $session->query_safe("SELECT file_model_open('$set', 'seen', 'create')");
			$session->query_safe("SELECT file_model_steps($h, 3, 0, 30, 'grow')");
			is( $node->safe_psql('postgres', 'SELECT mirrored_bytes > 0, mirrored_bytes = remote_bytes FROM remote_bp_temp_files'),
				't|t', "two copies, $transport: remote_bp_temp_files shows both copies");
			$session->query_safe("SELECT file_model_close($h), file_model_unlink('$set', 'seen')");
			$session->query('ROLLBACK');
			$session->quit;
		},
		more => [qw(spill.writes spill.reads)]);
}

# Faults of the transport: a call may fail, with EIO, but never give wrong
# data, and the session goes on.  Afterwards none fails, however late donors are.
for my $case (
	[ 'corrupted replies', ['spill.hash_failures'], 'read corrupt 0.3' ],
	[ 'short replies', ['spill.hash_failures'], 'read truncate 0.3' ],
	[ 'late replies', ['spill.reads'], 'read delay_us 5000 0.1' ],
	[ 'corrupted writes', ['spill.hash_failures'], 'write corrupt 0.3' ],
	[ 'lost writes', [qw(spill.rescued spill.local)], 'write drop 0.04' ],
	[ 'cut connections', [qw(spill.rescued spill.local)], 'read cut 0.01', 'write cut 0.05' ])
{
	my ($what, $shows, @faults) = @$case;
	for my $mirror (qw(off on))
	{
		my $name = "$what, mirror $mirror";
		reconfigure($node, $name, 64, transport => 'tcp', temp_mirror => $mirror, io_timeout => '10ms', temp_io_timeout => '200ms');
		my $before = spill_counters($node);
		set_faults(@faults);
		succeeds($node, "$name: $_", "SELECT file_model($seed, 400, '$_', true)") for qw(random streams);
		set_faults();
		my $after = spill_counters($node);
		cmp_ok(sum0(map { $after->{$_} - $before->{$_} } @$shows), '>', 0, "$name: it happened");
		note("$name: " . join(', ', map { "$_ " . ($after->{$_} - $before->{$_}) } sort keys %$after));
		comes_back($node, $name);
		$node->append_conf('postgresql.conf', "remote_bp.temp_io_timeout = '1min'");
		$node->reload;
		$node->poll_query_until('postgres', 'SHOW remote_bp.temp_io_timeout', '1min') or BAIL_OUT('reload');
		walks($node, "after $name", seeds => [1], profiles => ['random']);
	}
}

my @troubles = log_troubles($node);
is(scalar @troubles, 0, 'the log is quiet') or diag(join("\n", @troubles[ 0 .. ($#troubles > 9 ? 9 : $#troubles) ]));
unlike(log_since($node), qr/temporary file leak/, 'no file was left open');
$node->stop;
done_testing();
