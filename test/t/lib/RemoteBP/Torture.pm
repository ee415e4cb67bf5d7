# The coherence torture: twenty clients that write, read and take away files
# in every way there is, on a server with 2 MB of shared buffers and a tier
# that cannot hold all of it, with every hit compared with the disk, through a
# crash and an immediate restart; or while processes of the server are killed again and
# again, over which the tier keeps its pages.

package RemoteBP::Torture;

use strict;
use warnings;

use Exporter 'import';
use POSIX ();
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use RemoteBP;
use RemoteBP::Kept;
use Test::More;
use Time::HiRes qw(sleep time);

our @EXPORT = qw(torture torture_kills);

my $rounds = 3;
my $hits = 12_000;    # that donors serve at least, and this part of all:
my $share = 1 / 4;
my $scale = 6;    # 6 x 16 MB
my ($dir, @workers, $load);

# With read_from = cache, pages come from donors or the page cache, which is
# emptied again and again.

# The jobs beside pgbench, each a client of its own; called once a turn with
# the node, their number and the turn's.
my @jobs = (
	[ vacuum => \&vacuum ],
	[ checkpoint => \&checkpoint ],
	[ shrink => \&shrink ],
	[ shrink => \&shrink ],
	[ dropcreate => \&dropcreate ],
	[ dropcreate => \&dropcreate ],
	[ truncate => \&truncate_table ],
	[ createdb => \&createdb ],
	[ createdb => \&createdb ],
	[ movedb => \&movedb ],
	[ movetable => \&movetable ],
	[ reindex => \&reindex ],
	[ unlogged => \&unlogged ]);
my $pgbench_clients = 20 - @jobs;

sub torture
{
	my (%opt) = @_;
	my $seconds = $ENV{RBP_TORTURE_SECONDS} || 60;
	# What the page cache has is hardly captured: a smaller tier is full, too.
	my $cache = ($opt{read_from} // '') eq 'cache';
	my $tier = $cache ? 32 : 96;
	if ($cache)
	{
		($hits, $share) = (3_000, 0);
		push @jobs, [ forget => \&forget ];
		$pgbench_clients--;
	}
	my $name = $opt{name};
	$dir = PostgreSQL::Test::Utils::tempdir();

	my $node = server(%opt, tier => $tier);

	my %sum;
	for my $round (1 .. $rounds)
	{
		run_round($node, $round, $seconds / $rounds);
		my $c = counters($node);
		$sum{$_} += $c->{$_} for grep { ($c->{$_} // '') =~ /^\d+$/ } keys %$c;
		# Hits that were under way then are compared a moment later.
		my $done = $c->{hits} + $c->{staged_hits};
		ok(wait_for('hits to be compared', sub { counter($node, 'compared') >= 0.99 * $done }),
			"round $round: all were compared with the disk");
		note("round $round: " . join(', ', map { "$_ $c->{$_}" } grep { ($c->{$_} // '') =~ /^[1-9]\d*$/ } sort keys %$c));
		note($node->safe_psql('postgres', 'SELECT donor, state, reads, writes, failures, timeouts, read_p50_us, read_p99_us FROM remote_bp_stat_donors'));
		note($node->safe_psql('postgres', 'SELECT operation, calls, p50_us, p99_us FROM remote_bp_stat_latency'));
		end_round($node, $round);
		my $failed = finish_round($round);
		is($failed, '', "round $round: no client saw anything wrong");
		for my $job (sort { $a cmp $b } keys %{ { map { $_->[0] => 1 } @jobs } })
		{
			my $n = turns($job);
			cmp_ok($n, '>', 0, "round $round: $job had its turns") or next;
			note("round $round: $job: $n turns");
		}
		is(balances($node), 't|t|t', "round $round: balances agree");
		ok(wait_leased($node, $tier), "round $round: memory is leased") if $round < $rounds;
	}

	cmp_ok($sum{hits}, '>', $hits, 'donors served many pages');
	cmp_ok($sum{hits} + $sum{staged_hits}, '>', $sum{misses} * $share, 'a good part of all');
	cmp_ok($sum{page_cache_first}, '>', $hits, 'many that they had came from the page cache') if $cache;
	# Over shm there is nothing to wait for; with the page cache, tables that
	# are read in order are in the page cache.
	cmp_ok($sum{read_ahead_used}, '>', 0, 'pages were read ahead') if $opt{transport} eq 'tcp' && !$cache;
	cmp_ok($sum{$_}, '>', 0, "there were $_") for qw(evictions invalidations generations pushes captures);
	is($sum{mismatches}, 0, 'none was different');
	is($sum{hash_failures}, 0, 'none was broken');
	is_sound($node, %opt);
	return;
}

# As many kills of processes, of any kind and at any moment, as RBP_TORTURE_KILLS says: ten,
# in a soak so many as soak => N says.  Every other life of the server is without
# full_page_writes.  After the last one, the clients end in order.
sub torture_kills
{
	my (%opt) = @_;
	my $kills = $ENV{RBP_TORTURE_KILLS} || ($ENV{RBP_SOAK} ? $opt{soak} : 10);
	my (%sum, %victims);
	my ($discarded, $kept, $hit) = (0, 0, 0);
	$rounds = $kills + 1;
	$dir = PostgreSQL::Test::Utils::tempdir();
	# What was written with fsync = off would not be kept.  With wal_level = minimal
	# PostgreSQL itself loses databases made by wal_log.
	my $node = server(%opt, tier => 96, conf => <<'CONF');
fsync = on
wal_level = replica
autovacuum = on
autovacuum_naptime = 1s
CONF

	for my $round (1 .. $rounds)
	{
		my $last = $round == $rounds;
		my $writes = $round % 2 ? 'on' : 'off';
		set_and_wait($node, full_page_writes => $writes);
		run_round($node, $round, $last ? 5 : 3 * rand()**2, $round > 1 && !$last);
		my $c = counters($node);
		$sum{$_} += $c->{$_} for qw(hits staged_hits compared mismatches hash_failures evictions invalidations generations pushes captures);
		my $lease = lease_id($node);
		my $offset = log_size($node);
		my ($victim, $pages) = $last ? end_round($node, $round) : kill_some($node, $round, $writes);
		is(finish_round($round), '', "round $round: no client saw anything wrong");
		last if $last;
		$victims{$_}++ for split /, /, $victim;
		my ($why) = log_since($node, $offset) =~ /what was kept over the crash is discarded: (.*)/;
		note("round $round, full_page_writes $writes: $victim; pages: $c->{remote_pages}, then $pages; " . ($why // ''));
		wait_usable($node);
		$discarded++ if $why;
		$kept++ if $pages > 0.5 * $c->{remote_pages} && lease_id($node) eq $lease;
		my $hits = counter($node, 'hits');
		$node->safe_psql('postgres', 'SELECT sum(length(filler)) FROM pgbench_accounts TABLESAMPLE SYSTEM (10)');
		$hit++ if counter($node, 'hits') > $hits;
		is(balances($node), 't|t|t', "round $round: balances agree") if $round % 10 == 0;
		clean_up($node) if $round % 50 == 0;
	}

	note('killed: ' . join(', ', map { "$_ $victims{$_}" } sort keys %victims));
	note("pages were kept over $kept kills, and read after $hit of them; discarded $discarded times");
	# The lease worker is rarely killed within a change of the lease; redo writes pages, and
	# these are not kept.
	cmp_ok($kept, '>=', 0.7 * $kills, 'most pages were kept over most kills');
	cmp_ok($hit, '>=', 0.7 * $kills, 'pages were read from donors then');
	cmp_ok($discarded, '<=', 0.1 * ($victims{'remote_bp lease worker'} // 0), 'hardly ever was all of it discarded');
	cmp_ok($sum{$_}, '>', 0, "there were $_") for qw(hits staged_hits compared evictions invalidations generations pushes captures);
	is($sum{mismatches}, 0, 'no page was different');
	# A write over the network may arrive late, when its slot has another page.
	cmp_ok($sum{hash_failures}, '<=', $opt{transport} eq 'tcp' ? $kills : 0, 'none was broken, but by writes of killed processes');
	is(balances($node), 't|t|t', 'balances agree in the end');
	is_sound($node, %opt, kills => $kills);
	return;
}

# What kind of process that is, by its title
sub kind_of
{
	my ($process) = @_;
	my ($kind) = $process->{title} =~
	  /^postgres: \S+ (checkpointer|background writer|walwriter|autovacuum launcher|autovacuum worker|logical replication launcher|io worker|remote_bp (?:\w+ )*\w+)/;
	return $kind // 'client backend';
}

# Kill a process with everything under way, sometimes another one during recovery.  Without
# full_page_writes no write may be torn.  Returns the names of their kinds, and the pages
# that the tier has at once.
sub kill_some
{
	my ($node, $round, $writes) = @_;
	my $offset = log_size($node);
	my $alive = $load->alive;
	my $kind;
	my $killed = sub { return scalar(() = log_since($node, $offset) =~ /was terminated by signal 9/g) };
	for my $try (1 .. 20)
	{
		my %of_kind;
		push @{ $of_kind{ kind_of($_) } }, $_ for server_processes($node);
		my @kinds = sort keys %of_kind;
		$kind = $try % 2 && rand() < 0.3 && $of_kind{'client backend'} ? 'client backend' : $kinds[ rand @kinds ];
		my $process = $of_kind{$kind}[ rand @{ $of_kind{$kind} } ];
		append_to_file(flag(), '');
		# it may just be at its end
		last if kill_process($process->{pid}, whole => $writes eq 'off') && wait_for('a crash', $killed, 5);
	}
	is($alive, 1, "round $round: pgbench is still running") or diag(substr($load->log_text, -1500));
	cmp_ok($killed->(), '>', 0, "round $round: a process is killed: $kind");
	if (rand() < 0.3)
	{
		my $second = rand() < 0.5 ? 'checkpointer' : 'background writer';
		wait_for('redo', sub { log_since($node, $offset) =~ /redo starts at|ready to accept connections/ }, 120);
		my ($pid, $n) = (server_process($node, $second), $killed->());
		if ($pid && kill_process($pid, whole => $writes eq 'off') && wait_for('another crash', sub { $killed->() > $n }, 20))
		{
			$kind .= ", $second again";
			$offset += rindex(log_since($node, $offset), 'was terminated by signal 9');
		}
	}
	recovered($node, $offset, "round $round");
	return ($kind, counter($node, 'remote_pages'));
}

# Files of transactions that have died with a crash stay for ever.  They are removed while
# the server is stopped: nobody may do that behind its back.
sub clean_up
{
	my ($node) = @_;
	my %databases = map { $_ => 1 } split /\n/, $node->safe_psql('postgres', 'SELECT oid FROM pg_database');
	my %files = map { $_ => 1 } split /\n/, $node->safe_psql('postgres', 'SELECT pg_relation_filenode(oid) FROM pg_class WHERE pg_relation_filenode(oid) IS NOT NULL');
	my $own = $node->safe_psql('postgres', q{SELECT oid FROM pg_database WHERE datname = 'postgres'});
	my $base = $node->data_dir . '/base';
	$node->stop;
	for my $path (glob "$base/*")
	{
		my ($oid) = $path =~ m{/(\d+)$} or next;
		system('rm', '-r', $path) if $oid >= 100_000 && !$databases{$oid};
	}
	for my $path (glob "$base/$own/*")
	{
		my ($number) = $path =~ m{/(\d+)(?:_\w+)?(?:\.\d+)?$} or next;
		unlink $path unless $files{$number};
	}
	$node->start;
	ok(wait_leased($node, 96, 120), 'the server is started again without files of nobody');
	return;
}

# The server, its tables, and its donors
sub server
{
	my (%opt) = @_;
	my $broker = start_broker();
	start_donor($broker, id => $_, memory => '64MB') for 'donor1', 'donor2';
	my $node = new_cluster(
		$opt{name},
		broker => $broker,
		transport => $opt{transport},
		checksums => $opt{checksums},
		shared_buffers => '2MB',
		tier => "$opt{tier}MB",
		staging => '1MB',
		read_from => $opt{read_from},
		conf => <<'CONF' . ($opt{conf} // ''));
remote_bp.read_ahead = 64
max_wal_size = 512MB
checkpoint_timeout = 30s
deadlock_timeout = 200ms
log_checkpoints = off
CONF
	ok(wait_leased($node, $opt{tier}), 'memory is leased');
	set_up($node);
	return $node;
}

# The end: nobody has seen anything wrong, and nothing is.
sub is_sound
{
	my ($node, %opt) = @_;
	my @troubles = grep { !/signal 9/ } log_troubles($node);
	is(scalar @troubles, 0, 'the log is quiet') or diag(join("\n", @troubles[ 0 .. ($#troubles > 9 ? 9 : $#troubles) ]));
	my @errors = grep { /(ERROR|FATAL|PANIC):/ && !/(the database system is|terminating (?:connection|autovacuum)|canceling|database \d+ does not exist|could not receive|connection to client lost|invalid database)/ }
	  split /\n/, log_since($node);
	is(scalar @errors, 0, 'no query failed') or diag(join("\n", @errors[ 0 .. ($#errors > 9 ? 9 : $#errors) ]));

	# All of it is sound, read through the tier and from disk.
	my @amcheck = ('pg_amcheck', '--all', '--install-missing', '--heapallindexed', '--host', $node->host, '--port', $node->port);
	$node->command_ok([@amcheck], 'pg_amcheck finds nothing');
	is(counter($node, 'mismatches'), 0, 'nor did reading for it');
	is($node->safe_psql('postgres', 'SELECT coalesce(sum(checksum_failures), 0) FROM pg_stat_database'),
		0, 'no checksum failed')
	  if $opt{checksums};
	$node->stop;
	$node->command_ok([ 'pg_checksums', '--check', '-D', $node->data_dir ], 'checksums on disk are right')
	  if $opt{checksums};
	$node->append_conf('postgresql.conf', "shared_preload_libraries = ''\n");
	$node->start;
	is(balances($node), 't|t|t', 'balances agree without the extension, too');
	# What redo skipped is not seen by comparing pages.
	$node->command_ok([@amcheck], 'nor does pg_amcheck find anything') if $opt{kills};
	$node->stop;
	return;
}

#---- rounds ---------------------------------------------------------------

sub flag { return "$dir/over"; }
sub over { return -e flag(); }

sub set_up
{
	my ($node) = @_;
	RemoteBP::Load->prepare($node, $scale);
	for my $n (1 .. @jobs)
	{
		mkdir "$dir/space$n" or die $!;
		$node->safe_psql('postgres', "CREATE TABLESPACE space$n LOCATION '$dir/space$n'");
	}
	# Two templates whose files are named alike and whose contents differ.
	$node->safe_psql('postgres', 'CREATE DATABASE one');
	$node->safe_psql('one', <<'SQL');
CREATE TABLE t AS SELECT i AS id, 1 AS v, repeat('a', 400) AS pad FROM generate_series(1, 4000) i;
CREATE INDEX t_id ON t (id);
VACUUM FREEZE t;
SQL
	$node->safe_psql('postgres', 'CREATE DATABASE two TEMPLATE one');
	$node->safe_psql('two', "UPDATE t SET v = 2, pad = repeat('b', 390); VACUUM t; UPDATE t SET pad = repeat('c', 400); VACUUM FREEZE t");
	return;
}

sub balances
{
	my ($node) = @_;
	return $node->safe_psql('postgres', <<'SQL');
SELECT (SELECT sum(abalance) FROM pgbench_accounts) = (SELECT coalesce(sum(delta), 0) FROM pgbench_history),
	(SELECT sum(tbalance) FROM pgbench_tellers) = (SELECT sum(bbalance) FROM pgbench_branches),
	(SELECT sum(tbalance) FROM pgbench_tellers) = (SELECT coalesce(sum(delta), 0) FROM pgbench_history)
SQL
}

# Have donors served so many pages in this round, and so many of all?  More
# than is asked for, since a little of it may be counted later.
sub served
{
	my ($node) = @_;
	my $c = counters($node);
	return $c->{hits} > $hits / $rounds && $c->{hits} + $c->{staged_hits} > $c->{misses} * $share * 4 / 3;
}

# Start all clients and let them run for that time, and, unless any moment will do, until
# each job has had a turn and donors have served the pages and the part of all pages that
# they shall, however slow the machine is.
sub run_round
{
	my ($node, $round, $seconds, $any) = @_;
	unlink flag();

	# A reader that checks balances as of one moment, and pages at random.
	my $checks = "$dir/checks.sql";
	open(my $file, '>', $checks) or die $!;
	print $file <<'SQL';
\set aid random(1, 100000 * :scale)
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT (SELECT sum(tbalance) FROM pgbench_tellers) - (SELECT sum(bbalance) FROM pgbench_branches) AS wrong \gset
SELECT count(*) AS n FROM pgbench_accounts WHERE aid BETWEEN :aid AND :aid + 999 \gset
COMMIT;
\if :wrong <> 0
SELECT 'balances differ' / 0;
\endif
\set most 100000 * :scale
\set n_wanted least(1000, :most - :aid + 1)
\if :n <> :n_wanted
SELECT 'accounts are missing' / 0;
\endif
SQL
	close $file;
	$load = RemoteBP::Daemon->start(
		name => 'pgbench',
		log => "$PostgreSQL::Test::Utils::log_path/torture_pgbench_$round.log",
		listens => 0,
		command => [
			'pgbench', '-n', '-P', '5', '-s', $scale, '-T', '3600', '-c', $pgbench_clients, '-j', '1',
			'-b', 'tpcb-like@6', '-b', 'select-only@6', '-f', "$checks\@1", $node->connstr('postgres')
		]);

	@workers = ();
	for my $n (1 .. @jobs)
	{
		my ($name, $job) = @{ $jobs[ $n - 1 ] };
		my ($out, $had) = ("$dir/result.$n", "$dir/turn.$n");
		unlink $out, $had;
		my $pid = fork // die $!;
		if ($pid == 0)
		{
			my $turn = 0;
			eval {
				until (over())
				{
					$job->($node, $n, $round, ++$turn);
					append_to_file($had, '') if $turn == 1;
				}
			};
			# What goes wrong once the round is over is the crash.
			my $error = $@;
			$error = '' if over();
			open(my $result, '>', $out);
			$turn-- if $turn && ($@ || $error);
			print $result "$turn\n$error";
			close $result;
			POSIX::_exit(0);
		}
		push @workers, { pid => $pid, name => $name, out => $out, had => $had };
	}

	my ($end, $latest) = (time + $seconds, time + $seconds + 400);
	while ($load->alive && time < $latest)
	{
		last if grep { -e $_->{out} } @workers;    # one has failed
		last if time > $end && ($any || !grep({ !-e $_->{had} } @workers) && served($node));
		sleep($any ? 0.02 : 0.2);
	}
	return;
}

# The end of a round, with everything under way.
sub end_round
{
	my ($node, $round) = @_;
	my $alive = $load->alive;
	open(my $file, '>', flag()) or die $!;
	close $file;
	is($alive, 1, "round $round: pgbench is still running") or diag(substr($load->log_text, -1500));
	if ($round == 1)
	{
		my $offset = log_size($node);
		my $pid;
		wait_for(
			'an update of pgbench',
			sub {
				$pid = $node->safe_psql('postgres',
					q{SELECT pid FROM pg_stat_activity WHERE query ~ '^UPDATE pgbench_' AND pid <> pg_backend_pid() LIMIT 1});
			});
		is($pid && kill('KILL', $pid), 1, "round $round: a backend is killed");
		ok( wait_for(
				'recovery',
				sub { log_since($node, $offset) =~ /database system is ready to accept connections/ },
				120),
			"round $round: the server recovers");
	}
	elsif ($round == 2)
	{
		$node->stop('immediate');
		$node->start;
	}
	else
	{
		# The last one ends in order: clients finish, except pgbench.
		$load->signal('INT');
		$load->wait_end(120);
	}
	return;
}

sub finish_round
{
	my ($round) = @_;
	my @failed;
	my $text = $load->log_text;
	$load->kill9 unless defined $load->wait_end(60);
	push @failed, "pgbench: $1" if $text =~ /(balances differ|accounts are missing|division by zero|.*could not read.*)/;
	for my $worker (@workers)
	{
		my $end = time + 120;
		while (waitpid($worker->{pid}, POSIX::WNOHANG()) == 0)
		{
			if (time > $end)
			{
				kill('KILL', $worker->{pid});
				push @failed, "$worker->{name} did not end";
			}
			sleep 0.05;
		}
		my ($turns, @error) = split /\n/, slurp_file($worker->{out});
		$worker->{turns} = $turns;
		push @failed, "$worker->{name}: @error" if @error;
	}
	return join("\n", @failed);
}

sub turns
{
	my ($name) = @_;
	my $sum = 0;
	$sum += $_->{turns} for grep { $_->{name} eq $name } @workers;
	return $sum;
}

#---- jobs -----------------------------------------------------------------

# The files of pgbench's accounts leave the page cache.
sub forget
{
	my ($node) = @_;
	for my $rel ('pgbench_accounts', 'pgbench_accounts_pkey')
	{
		my $file = $node->data_dir . '/' . $node->safe_psql('postgres', "SELECT pg_relation_filepath('$rel')");
		# it may just be rewritten
		system('dd', "of=$file", 'oflag=nocache', 'conv=notrunc,nocreat,fdatasync', 'count=0', 'status=none')
		  if -e $file;
	}
	sleep 0.1;
	return;
}

# Run a script; dies when it fails.
sub sql
{
	my ($node, $db, $script) = @_;
	my ($out, $err) = ('', '');
	my $ok = IPC::Run::run(
		[ 'psql', '-XAtq', '-v', 'ON_ERROR_STOP=1', '-d', $node->connstr($db), '-f', '-' ],
		'<', \$script, '>', \$out, '2>', \$err,
		IPC::Run::timeout(900));
	die "$err in: $script\n" unless $ok;
	chomp $out;
	return $out;
}

# Dies unless the query gives that, by scan and by index.
sub check
{
	my ($node, $db, $what, $query, $expected) = @_;
	for my $how ('', 'SET enable_seqscan = off; SET enable_bitmapscan = off; ')
	{
		my $got = sql($node, $db, "$how$query;");
		die "$what: $how$query gives $got, not $expected\n" if $got ne $expected;
	}
	return;
}

my $sums = 'SELECT count(*), sum(v) FROM %s WHERE id > 0';

sub fill
{
	my ($rows, $v) = @_;
	return "SELECT i, $v, rpad(i::text, 400, '$v') FROM generate_series(1, $rows) i";
}

# A small working table for a job of this number.
sub ensure_table
{
	my ($node, $t, $round, $turn, $kind, $columns) = @_;
	return if $turn > 1;
	$kind //= '';
	$columns //= '';
	# all of it or nothing: there may be a crash
	sql($node, 'postgres', "BEGIN; DROP TABLE IF EXISTS $t; CREATE $kind TABLE $t (id int, v int, pad text $columns); CREATE INDEX ${t}_id ON $t (id); COMMIT;");
	return;
}

sub vacuum
{
	my ($node, $n, $round, $turn) = @_;
	my @what = (
		'VACUUM pgbench_branches', 'VACUUM pgbench_tellers', 'VACUUM (TRUNCATE on) pgbench_history',
		'VACUUM pgbench_accounts', 'VACUUM FULL pgbench_branches', 'ANALYZE pgbench_tellers',
		'VACUUM FREEZE pgbench_tellers');
	sql($node, 'postgres', "$what[ $turn % @what ];");
	return;
}

sub checkpoint
{
	my ($node) = @_;
	sql($node, 'postgres', 'CHECKPOINT;');
	sleep 0.5;
	return;
}

# Truncation by VACUUM: the tail goes and grows again with other content.
sub shrink
{
	my ($node, $n, $round, $turn) = @_;
	my $t = "shrink$n";
	my $rows = 4000;
	ensure_table($node, $t, $round, $turn);
	sql($node, 'postgres', "INSERT INTO $t SELECT i, $turn, rpad(i::text, 400, '$turn') FROM generate_series((SELECT coalesce(max(id), 0) FROM $t) + 1, $rows) i;");
	my ($before) = sql($node, 'postgres', "SELECT sum(v) FROM $t");
	check($node, 'postgres', 'grown', sprintf($sums, $t), "$rows|$before");
	my $keep = 100 + $turn * 37 % 1500;
	sql($node, 'postgres', "DELETE FROM $t WHERE id > $keep; VACUUM (TRUNCATE on) $t;");
	check($node, 'postgres', 'shrunk', "SELECT count(*) FROM $t WHERE id > 0", $keep);
	return;
}

sub dropcreate
{
	my ($node, $n, $round, $turn) = @_;
	my $t = "drop$n";
	my $rows = 2000 + 500 * ($turn % 4);
	ensure_table($node, $t, $round, 1);
	sql($node, 'postgres', "INSERT INTO $t " . fill($rows, $turn) . ';');
	check($node, 'postgres', 'created', sprintf($sums, $t), "$rows|" . $rows * $turn);
	sql($node, 'postgres', "UPDATE $t SET v = v + 1 WHERE id % 2 = 0;");
	check($node, 'postgres', 'updated', sprintf($sums, $t), "$rows|" . ($rows * $turn + $rows / 2));
	sql($node, 'postgres', "BEGIN; DROP TABLE $t; ROLLBACK;") if $turn % 3 == 0;
	check($node, 'postgres', 'not dropped', sprintf($sums, $t), "$rows|" . ($rows * $turn + $rows / 2));
	sql($node, 'postgres', "DROP TABLE $t;");
	return;
}

sub truncate_table
{
	my ($node, $n, $round, $turn) = @_;
	my $t = "trunc$n";
	my $rows = 3000;
	ensure_table($node, $t, $round, $turn);
	sql($node, 'postgres', "TRUNCATE $t; INSERT INTO $t " . fill($rows, $turn) . ';');
	check($node, 'postgres', 'filled', sprintf($sums, $t), "$rows|" . $rows * $turn);

	# Twice in one transaction, the second time in place.
	my $next = $turn + 1;
	sql($node, 'postgres', "BEGIN; TRUNCATE $t; INSERT INTO $t " . fill(1000, 7)
		  . "; SELECT sum(length(pad)) FROM $t; TRUNCATE $t; INSERT INTO $t " . fill($rows, $next) . '; COMMIT;');
	check($node, 'postgres', 'truncated in place', sprintf($sums, $t), "$rows|" . $rows * $next);
	sql($node, 'postgres', "BEGIN; TRUNCATE $t; INSERT INTO $t " . fill(500, 9) . '; ROLLBACK;');
	check($node, 'postgres', 'truncation rolled back', sprintf($sums, $t), "$rows|" . $rows * $next);
	return;
}

# A database by either strategy from either template, with an object id that
# is used again and again.
sub createdb
{
	my ($node, $n, $round, $turn) = @_;
	my $strategy = $turn % 2 ? 'file_copy' : 'wal_log';
	my ($template, $v) = int($turn / 2) % 2 ? ('one', 1) : ('two', 2);
	my $oid = 100_000 + $round * 1000 + $n;
	my $db = "db$n";
	sql($node, 'postgres', "DROP DATABASE IF EXISTS $db (FORCE);") if $turn == 1;
	sql($node, 'postgres', "CREATE DATABASE $db TEMPLATE $template STRATEGY $strategy OID $oid;");
	check($node, $db, "$db from $template by $strategy", sprintf($sums, 't'), '4000|' . 4000 * $v);
	sql($node, $db, 'UPDATE t SET v = v + 10 WHERE id % 4 = 0;');
	check($node, $db, "$db changed", sprintf($sums, 't'), '4000|' . (4000 * $v + 10_000));
	sql($node, 'postgres', "DROP DATABASE $db (FORCE);");
	return;
}

# A database moves away and back and is changed in both places.
sub movedb
{
	my ($node, $n, $round, $turn) = @_;
	my $db = "mover$n";
	if ($turn == 1)
	{
		# A crash may have left half a move behind: start over.
		sql($node, 'postgres', "DROP DATABASE IF EXISTS $db (FORCE);");
		sql($node, 'postgres', "CREATE DATABASE $db TEMPLATE one;");
	}
	my ($before) = sql($node, $db, 'SELECT sum(v) FROM t;');
	for my $space ("space$n", 'pg_default')
	{
		check($node, $db, "$db before its move", sprintf($sums, 't'), "4000|$before");
		retry_while_accessed(sub { sql($node, 'postgres', "ALTER DATABASE $db SET TABLESPACE $space;") });
		check($node, $db, "$db in $space", sprintf($sums, 't'), "4000|$before");
		sql($node, $db, 'UPDATE t SET v = v + 1; VACUUM t;');
		$before += 4000;
	}
	return;
}

# A session that has just ended may still count for a moment.
sub retry_while_accessed
{
	my ($sub) = @_;
	for my $try (1 .. 5)
	{
		return if eval { $sub->(); 1 };
		die $@ unless $@ =~ /being accessed by other users/ && $try < 5;
	}
	return;
}

sub movetable
{
	my ($node, $n, $round, $turn) = @_;
	my $t = "mover_table$n";
	my $rows = 6000;
	ensure_table($node, $t, $round, $turn);
	sql($node, 'postgres', "INSERT INTO $t " . fill($rows, 1) . ';') if $turn == 1;
	my $sum = sql($node, 'postgres', "SELECT sum(v) FROM $t;");
	for my $space ("space$n", 'pg_default')
	{
		sql($node, 'postgres', "ALTER TABLE $t SET TABLESPACE $space; ALTER INDEX ${t}_id SET TABLESPACE $space;");
		check($node, 'postgres', "moved to $space", sprintf($sums, $t), "$rows|$sum");
		sql($node, 'postgres', "UPDATE $t SET v = v + 1 WHERE id % 3 = 0;");
		$sum += int($rows / 3);
	}
	check($node, 'postgres', 'moved', sprintf($sums, $t), "$rows|$sum");
	sql($node, 'postgres', "VACUUM $t;");
	return;
}

sub reindex
{
	my ($node, $n, $round, $turn) = @_;
	my $t = "reindexed$n";
	my $rows = 6000;
	ensure_table($node, $t, $round, $turn);
	sql($node, 'postgres', "INSERT INTO $t " . fill($rows, 1) . ';') if $turn == 1;
	my $sum = sql($node, 'postgres', "SELECT sum(v) FROM $t;");
	my @how = ("REINDEX TABLE $t", "REINDEX INDEX CONCURRENTLY ${t}_id", 'REINDEX TABLE pgbench_tellers',
		"CLUSTER $t USING ${t}_id", "VACUUM FULL $t");
	sql($node, 'postgres', "UPDATE $t SET v = v + 1 WHERE id % 5 = $turn % 5;");
	$sum += $rows / 5;
	sql($node, 'postgres', $how[ $turn % @how ] . ';');
	check($node, 'postgres', $how[ $turn % @how ], sprintf($sums, $t), "$rows|$sum");
	return;
}

sub unlogged
{
	my ($node, $n, $round, $turn) = @_;
	my $t = "quick$n";
	my $rows = 3000;

	# After a crash it is there, and has no row from before.  It can have all
	# rows of one statement from after it: the server is back at once, and the
	# job of the round before may have been between two statements.  So each
	# row tells for which life of the server it was written.
	my $life = q{(SELECT backend_start FROM pg_stat_activity WHERE backend_type = 'checkpointer')};
	if ($turn == 1 && $round > 1)
	{
		check($node, 'postgres', 'unlogged after a crash',
			"SELECT count(*) FILTER (WHERE life IS DISTINCT FROM $life), count(*) % $rows FROM $t WHERE id > 0", '0|0');
	}
	ensure_table($node, $t, $round, $turn, 'UNLOGGED', ', life timestamptz NOT NULL');
	sql($node, 'postgres', "TRUNCATE $t;") if $turn % 2;
	sql($node, 'postgres', "DELETE FROM $t; VACUUM $t;") unless $turn % 2;
	sql($node, 'postgres', "INSERT INTO $t SELECT f.*, $life FROM (" . fill($rows, $turn) . ') f;');
	check($node, 'postgres', 'unlogged', sprintf($sums, $t), "$rows|" . $rows * $turn);
	return;
}

1;
