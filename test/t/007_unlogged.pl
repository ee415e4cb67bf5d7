# Unlogged tables are reset from their init forks after a crash: by a crash of
# one backend, and by an immediate stop.  The tier starts empty after both, since fsync is
# off; see t/127_kept_files.pl.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use RemoteBP;
use Test::More;

my $broker = start_broker();
my $donor = start_donor($broker, memory => '128MB');
my $node = new_cluster('unlogged', broker => $broker, conf => "shared_buffers = '512kB'\n");
ok(wait_leased($node, 64), 'memory is leased');
my $rows = make_table($node, 'logged', 8);
make_table($node, 'quick', 8, kind => 'UNLOGGED');

my $round = 0;
my $expected = content($node, 'logged');
for my $crash ('backend', 'immediate', 'backend')
{
	$round++;
	my $what = "round $round, $crash";
	cmp_ok(warm($node, 'quick'), '>', 0, "$what: the tier has pages of the unlogged table");
	cmp_ok(warm($node, 'logged'), '>', 0, "$what: the tier has pages of the logged table");
	my $held = counter($node, 'remote_pages + staged_pages');
	$node->safe_psql('postgres', "UPDATE logged SET v = v + 1 WHERE id % 7 = 0");
	$expected = content($node, 'logged');

	if ($crash eq 'backend')
	{
		my $victim = $node->background_psql('postgres', on_error_stop => 0);
		my $pid = $victim->query('SELECT pg_backend_pid()');
		my $offset = log_size($node);
		is(kill('KILL', $pid), 1, "$what: a backend is killed");
		eval { $victim->quit };
		ok( wait_for(
				'crash recovery',
				sub { log_since($node, $offset) =~ /database system is ready to accept connections/ }),
			"$what: the server recovers");
	}
	else
	{
		$node->stop('immediate');
		$node->start;
	}

	cmp_ok(counter($node, 'remote_pages + staged_pages'), '<', $held / 2, "$what: the tier starts anew");
	is($node->safe_psql('postgres', 'SELECT count(*) FROM quick'), 0, "$what: the unlogged table is empty");
	is(content($node, 'logged'), $expected, "$what: the logged table is as it was");
	is($node->safe_psql('postgres', 'SET enable_seqscan = off; SELECT count(*) FROM quick WHERE id > 0'),
		0, "$what: the unlogged index is empty");

	ok(wait_leased($node, 64), "$what: memory is leased again");
	$node->safe_psql('postgres',
		"INSERT INTO quick SELECT i, $round, rpad(i::text, 980, 'u') FROM generate_series(1, $rows) i");
	for my $again (1 .. 2)
	{
		evict_buffers($node);
		is($node->safe_psql('postgres', 'SELECT count(*), sum(v) FROM quick'),
			"$rows|" . $rows * $round, "$what: filled again, reads are right");
		is($node->safe_psql('postgres', 'SET enable_seqscan = off; SELECT count(*), sum(v) FROM quick WHERE id > 0'),
			"$rows|" . $rows * $round, "$what: index scans are right after the table is filled again");
	}
	is(counter($node, 'mismatches'), 0, "$what: no page is different from the disk");
}
ok(warm($node, 'logged'), 'the tier works after all that');
is(content($node, 'logged'), $expected, 'the logged table is right');
is(counter($node, 'mismatches'), 0, 'no page is different from the disk');
is(scalar grep({ !/signal 9/ } log_troubles($node)), 0, 'the log is quiet');
$node->stop;

done_testing();
