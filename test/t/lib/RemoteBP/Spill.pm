# For the tests of spilled temporary data: one cluster that is started as a
# stock server, then with the extension over each transport, so that the data,
# the settings and the plans are the same; what a session printed, what the
# books say, and that nothing is left behind.

package RemoteBP::Spill;

use strict;
use warnings;

use Exporter 'import';
use File::Find;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use RemoteBP;
use Test::More;

our @EXPORT = qw(
  spill_cluster spill_mode spill_data create_rows_of spill_conf temp_leased wait_temp_leased
  temp_dirs temp_paths spill_counters spills spill_use spill_is_idle spill_is_clean
  run_session run_cases compare_modes
);

my $MB = 1024 * 1024;

# The server's own settings, stock or not.
my $SETTINGS = <<'CONF';
shared_buffers = 4MB
max_connections = 60
autovacuum = off
synchronize_seqscans = off
max_parallel_workers_per_gather = 0
max_parallel_maintenance_workers = 0
allow_in_place_tablespaces = on
restart_after_crash = on
log_min_messages = info
log_statement = none
jit = off
work_mem = 64kB
hash_mem_multiplier = 1
include 'mode.conf'
CONF

# The extension's settings.  Options as of spill_cluster.
sub spill_conf
{
	my (%opt) = @_;
	my $broker = $opt{broker} ? $opt{broker}->url : '';
	my $dir = $opt{test_build} ? test_build() : $ENV{RBP_MODULE_DIR};
	my $temp = $opt{temp} // '64MB';
	return <<"CONF" . ($dir ? "dynamic_library_path = '$dir:\$libdir'\n" : '') . ($opt{conf} // '') . ($ENV{RBP_EXTRA_CONF} // '') . "\n";
shared_preload_libraries = 'remote_bp'
remote_bp.broker = '$broker'
remote_bp.transport = '@{[ $opt{transport} // 'shm' ]}'
remote_bp.encrypt = '@{[ RemoteBP::encrypt(%opt) ]}'
remote_bp.buffer_tier_max_size = '@{[ $opt{buffer} // '16MB' ]}'
remote_bp.buffer_tier_size = '@{[ $opt{buffer} // '16MB' ]}'
remote_bp.staging_size = 1MB
remote_bp.temp_tier_max_size = '@{[ $opt{max_temp} // $temp ]}'
remote_bp.temp_tier_size = '$temp'
remote_bp.compare_with_disk = on
remote_bp.read_from = donor
# A busy machine is not what is tested: late answers bring donors down.
remote_bp.io_timeout = 1s
CONF
}

# Options: broker (none: stock, for spill_mode to change), transport (shm),
# temp (64MB), max_temp (the same), buffer (16MB; the buffer tier), conf
# (further settings of the extension), settings (of the server), test_build.
sub spill_cluster
{
	my ($name, %opt) = @_;
	my $node = PostgreSQL::Test::Cluster->new($name);
	$node->init(extra => [ '--no-locale', '--encoding=UTF8' ]);
	append_to_file($node->data_dir . '/mode.conf', '');
	$node->append_conf('postgresql.conf', $SETTINGS . ($opt{settings} // ''));
	if ($opt{broker})
	{
		spill_mode($node, %opt) or BAIL_OUT("$name: no memory is leased");
	}
	else
	{
		$node->start;
	}
	return $node;
}

# Start the server, or start it anew, stock (no broker) or with the extension
# and its memory leased.
sub spill_mode
{
	my ($node, %opt) = @_;
	$node->stop if defined $node->{_pid};
	my $file = $node->data_dir . '/mode.conf';
	unlink $file;
	append_to_file($file, $opt{broker} ? spill_conf(%opt) : '');
	$node->start;
	return 1 unless $opt{broker};
	$node->safe_psql('postgres', 'CREATE EXTENSION IF NOT EXISTS remote_bp');
	my ($megabytes) = ($opt{leased} // $opt{temp} // '64MB') =~ /(\d+)/;
	return wait_temp_leased($node, $megabytes);
}

sub temp_leased
{
	my ($node) = @_;
	return $node->safe_psql('postgres',
		q{SELECT coalesce(sum(bytes), 0) FROM remote_bp_leases WHERE purpose = 'temp'});
}

# Wait until at least so many MB are leased for temporary data, and can be
# used.
sub wait_temp_leased
{
	my ($node, $megabytes, $seconds) = @_;
	return wait_for(
		"$megabytes MB to be leased for temporary data",
		sub {
			return temp_leased($node) >= $megabytes * $MB
			  && counter($node, 'spill.online_pages') * 8192 >= $megabytes * $MB;
		},
		$seconds);
}

# Tables to sort, join and group: "big" with keys of all kinds of spread, a
# smaller one, and points.
sub spill_data
{
	my ($node, %opt) = @_;
	my $rows = $opt{rows} // 40000;
	my $few = int($rows / 10);
	my $pid = $node->safe_psql('postgres', <<"SQL");
CREATE TABLE big (id int, k int, skew int, t text, pad text) WITH (autovacuum_enabled = off);
INSERT INTO big SELECT i, i % 10, CASE WHEN i % 2 = 0 THEN 7 ELSE i % 1000 END,
		md5(i::text), rpad('', 30 + i % 50, 'p')
	FROM generate_series(1, $rows) i;
CREATE INDEX big_k ON big (k);
CREATE TABLE small (id int, skew int, w text) WITH (autovacuum_enabled = off);
INSERT INTO small SELECT i, CASE WHEN i % 100 < 3 THEN 7 ELSE i % 1000 END, md5((-i)::text)
	FROM generate_series(1, $few) i;
CREATE TABLE points (id int, p point) WITH (autovacuum_enabled = off);
INSERT INTO points SELECT i, point((i * 7919) % 10007, (i::bigint * 104729) % 9973) FROM generate_series(1, $rows) i;
CREATE EXTENSION amcheck;
VACUUM ANALYZE big, small, points;
CHECKPOINT;
SELECT pg_backend_pid();
SQL
	wait_ended($node, $pid);
	return;
}

# A function that reads the cursor c, from its start or from where it stands,
# to its end or so many rows: how many there were, and a hash of them.
sub create_rows_of
{
	my ($node) = @_;
	$node->safe_psql('postgres', <<'SQL');
CREATE FUNCTION rows_of(c refcursor, rewind bool DEFAULT true, at_most bigint DEFAULT NULL) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	r record;
	n bigint := 0;
	h bigint := 0;
BEGIN
	IF rewind THEN
		MOVE ABSOLUTE 0 FROM c;
	END IF;
	WHILE at_most IS NULL OR n < at_most LOOP
		FETCH c INTO r;
		EXIT WHEN NOT FOUND;
		n := n + 1;
		h := hashtextextended(r::text, h);
	END LOOP;
	RETURN n || ' ' || h;
END
$$;
SQL
	return;
}

# Wait until this session's process is gone.  Files that it held to the end,
# and what it had not yet told the database's books, count until then.
sub wait_ended
{
	my ($node, $pid) = @_;
	return wait_for("process $pid to end",
		sub { $node->safe_psql('postgres', "SELECT count(*) FROM pg_stat_activity WHERE pid = $pid") == 0 });
}

#---- what there is --------------------------------------------------------

# Directories of temporary files, of all tablespaces.
sub temp_dirs
{
	my ($node) = @_;
	my $data = $node->data_dir;
	return grep { -d $_ } "$data/base/pgsql_tmp",
	  glob("$data/pg_tblspc/*/PG_*/pgsql_tmp");
}

# What is in them, sets of files and their content, too, relative to the data
# directory.
sub temp_paths
{
	my ($node) = @_;
	my $data = $node->data_dir;
	my @dirs = temp_dirs($node) or return ();
	my @found;
	find(
		{
			no_chdir => 1,
			wanted => sub {
				my $path = $File::Find::name;
				push @found, $path =~ s{^\Q$data/}{}r unless grep { $_ eq $path } @dirs;
			}
		},
		@dirs);
	return @found;
}

# The counters of temporary data.
sub spill_counters
{
	my ($node) = @_;
	my $c = counters($node);
	return { map { $_ => $c->{$_} } grep { /^spill\./ && ($c->{$_} // '') =~ /^\d+$/ } keys %$c };
}

# Two test points: the query has this result, and it spills to donors.  It is run
# until it does, since on a busy machine donors may be late for a while.
sub spills
{
	my ($node, $query, $result, $name) = @_;
	my $writes = counter($node, 'spill.writes');
	my $got;
	my $spills = wait_for(
		'the query to spill to donors',
		sub {
			$got = $node->safe_psql('postgres', $query);
			return $got ne $result || counter($node, 'spill.writes') > $writes;
		},
		120);
	is($got, $result, "$name: queries are right");
	ok($spills && counter($node, 'spill.writes') > $writes, "$name: and spill to donors");
	return;
}

# In words, what is in use of the temp quota and in directories; '' for
# nothing.
sub spill_use
{
	my ($node) = @_;
	my $use = $node->safe_psql('postgres', <<'SQL');
SELECT concat_ws(', ',
	(SELECT 'pages ' || pages FROM remote_bp_stat_spill WHERE pages <> 0),
	(SELECT 'files ' || files FROM remote_bp_stat_spill WHERE files <> 0),
	(SELECT string_agg(f::text, ' ') FROM remote_bp_temp_files f))
SQL
	my @paths = temp_paths($node);
	return join(', ', ($use ne '' ? $use : ()), @paths);
}

# Nothing of the temp quota is in use any more, no file is known or left in a
# directory.  Backends that have just ended may still be about it.  One test
# point; false and the reason with quiet => 1.
sub spill_is_idle
{
	my ($node, $name, %opt) = @_;
	my $use;
	my $idle = wait_for('nothing to be left behind', sub { ($use = spill_use($node)) eq '' }, $opt{seconds} // 60);
	return $idle if $opt{quiet};
	ok($idle, "$name: nothing is left behind") or diag($use);
	return $idle;
}

# The end of a test: no wrong data, no leak, nothing unseemly in the log.
# lost => 1 if reads may have failed, interrupted => 1 if they may have been
# interrupted.
sub spill_is_clean
{
	my ($node, $name, %opt) = @_;
	my $c = counters($node);
	spill_is_idle($node, $name);
	is($c->{mismatches}, 0, "$name: no page of the buffer tier was different");
	is($c->{'spill.hash_failures'}, 0, "$name: no temporary block was different")
	  unless $opt{lost} || $opt{hash_failures};
	is($c->{'spill.lost'}, 0, "$name: no temporary block was lost") unless $opt{lost};
	my @troubles = grep { !$opt{lost} || !/could not read block/ } log_troubles($node, $opt{offset});
	@troubles = grep { !/could not read blocks .*: Interrupted system call/ } @troubles if $opt{interrupted};
	is(scalar @troubles, 0, "$name: the log is quiet")
	  or diag(join("\n", @troubles[ 0 .. ($#troubles > 9 ? 9 : $#troubles) ]));
	return;
}

#---- cases ----------------------------------------------------------------

# One session: a hash of what it printed, and what the database's books say
# about its temporary files.  The statements go on after an error.  When it
# returns, the session has ended.
sub run_session
{
	my ($node, $sql, %opt) = @_;
	my $db = $opt{db} // 'postgres';
	my $books = 'SELECT temp_files, temp_bytes FROM pg_stat_database WHERE datname = current_database()';
	my ($out, $err) = ('', '');
	my $status = $node->psql(
		$db,
		"SELECT pg_backend_pid();\n$books;\n\\echo -- begin\n$sql\n;\\echo -- end\nROLLBACK;\nSELECT pg_stat_force_next_flush();\n$books;\n",
		stdout => \$out,
		stderr => \$err,
		on_error_stop => 0,
		timeout => $opt{timeout} // 120);
	my ($before, $text, $after) = $out =~ /^(.*?)\n-- begin\n(.*?)\n?-- end\n(.*)\z/s;
	my ($pid, @before) = split /[|\n]/, ($before // '');
	wait_ended($node, $pid) if $pid;
	my @after = split /\|/, ($after // '') =~ s/^\s+//r;
	# Where psql was in its input, and what its warnings say about our own end.
	$err =~ s/^psql:<stdin>:\d+: //mg;
	# The session's number, which is another one when a session before it is late to end.
	s/\bpg_temp_\d+/pg_temp/g for grep { defined } $text, $out, $err;
	$err =~ s/^WARNING:  there is no transaction in progress\n?//mg;
	return {
		status => $status,
		out => $text // $out,
		err => $err,
		files => ($after[0] // 0) - ($before[0] // 0),
		bytes => ($after[1] // 0) - ($before[1] // 0)
	};
}

# Run the cases one after the other; a hash of results by name.  A case is a
# hash: name, sql, and
#   any => 1      sizes of temporary files are not determined (parallel, GiST)
#   dry => 1      it writes no temporary file on a stock server either
#   tables => 1   it uses temporary tables, not files
# With the extension, two test points for each: blocks went to donors, and
# nothing is left behind.
sub run_cases
{
	my ($node, $mode, @cases) = @_;
	my %results;
	for my $case (@cases)
	{
		my $before = $mode eq 'stock' ? {} : spill_counters($node);
		my $r = $results{ $case->{name} } = run_session($node, $case->{sql});
		if ($mode eq 'stock')
		{
			note("$case->{name}: $r->{files} temporary files, $r->{bytes} bytes\n"
				  . substr($r->{out}, 0, 300) . ($r->{err} ? "\nstderr: $r->{err}" : ''));
			next;
		}
		my $after = spill_counters($node);
		my %d = map { $_ => $after->{$_} - $before->{$_} } keys %$after;
		note("$mode, $case->{name}: " . join(', ', map { "$_ $d{$_}" } grep { $d{$_} } sort keys %d));
		# What is soon read again is in staging still, and its files may go first.
		cmp_ok($d{'spill.writes'} + $d{'spill.staged_reads'}, '>', 0, "$mode, $case->{name}: blocks went to donors")
		  unless $case->{dry};
		$r->{reads} = $d{'spill.reads'};
		spill_is_idle($node, "$mode, $case->{name}");
	}
	return \%results;
}

# Two results of run_cases: one test point for each case, and one for its
# books.
sub compare_modes
{
	my ($stock, $other, $mode, @cases) = @_;
	my $reads = 0;
	for my $case (@cases)
	{
		my ($a, $b) = ($stock->{ $case->{name} }, $other->{ $case->{name} });
		if ($a->{out} eq $b->{out} && $a->{err} eq $b->{err})
		{
			pass("$mode, $case->{name}: as the stock server");
		}
		else
		{
			fail("$mode, $case->{name}: as the stock server");
			diag(first_difference($a->{out}, $b->{out}));
			diag(first_difference($a->{err}, $b->{err}));
		}
		is("$b->{files} files, $b->{bytes} bytes", "$a->{files} files, $a->{bytes} bytes",
			"$mode, $case->{name}: the same books")
		  unless $case->{any};
		cmp_ok($b->{files}, '>', 0, "$mode, $case->{name}: temporary files are counted")
		  if $case->{any} && !$case->{dry};
		$reads += $b->{reads} // 0;
	}
	cmp_ok($reads, '>', 0, "$mode: blocks came from donors");
	return;
}

sub first_difference
{
	my ($a, $b) = @_;
	return 'the same' if $a eq $b;
	my @a = split /\n/, $a;
	my @b = split /\n/, $b;
	for my $i (0 .. ($#a > $#b ? $#a : $#b))
	{
		my ($x, $y) = ($a[$i] // '(nothing)', $b[$i] // '(nothing)');
		return "line $i: stock " . substr($x, 0, 500) . "\n      now " . substr($y, 0, 500)
		  if $x ne $y;
	}
	return 'line ends';
}

1;
