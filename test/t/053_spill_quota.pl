# The temp quota, staging and the table of files run out in the middle of a
# query: the next blocks go to the real file, what is freed is used again, and
# the results are right.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use RemoteBP;
use RemoteBP::Spill;
use Test::More;

my @cases = (
	{
		name => 'sort',
		sql => "SELECT count(*), md5(string_agg(t, '')) FROM (SELECT t, pad FROM big ORDER BY t) s"
	},
	{
		name => 'wide sort',
		# two columns: since 17 a sort of one column keeps wide values in memory
		sql => "SELECT count(*), sum(id), md5(string_agg(md5(w), '')) FROM (SELECT id, repeat(t, 250) AS w FROM big WHERE id <= 1200 ORDER BY repeat(t, 250)) s"
	},
	{
		name => 'hash join',
		sql => 'SET enable_mergejoin = off; SELECT count(*), sum(hashtext(a.t || b.t)::bigint) FROM big a JOIN big b USING (id)'
	},
	{
		name => 'tuplestores',
		sql => "SELECT count(*), md5(string_agg(x, ',')) FROM (SELECT lag(t, 3000) OVER w || first_value(pad) OVER w AS x FROM big WINDOW w AS (ORDER BY t)) s"
	},
	{
		name => 'held cursor',
		sql => <<'SQL'
BEGIN;
DECLARE c SCROLL CURSOR WITH HOLD FOR SELECT id, t, pad FROM big ORDER BY t;
COMMIT;
FETCH LAST FROM c;
FETCH BACKWARD ALL FROM c;
FETCH ALL FROM c;
SQL
	},
	{
		name => 'temporary table',
		sql => <<'SQL'
SET remote_bp.spill_temp_tables = on;
SET temp_buffers = '800kB';
CREATE TEMP TABLE f AS SELECT * FROM big;
UPDATE f SET pad = t WHERE k = 3;
TRUNCATE f;
INSERT INTO f SELECT * FROM big;
SELECT count(*), sum(hashtextextended(f::text, 0)::numeric), pg_relation_size('f') FROM f;
SQL
	});

my $node = spill_cluster('quota');
spill_data($node);
my $stock = run_cases($node, 'stock', @cases);

my $broker = start_broker();
my $donor = start_donor($broker, memory => '96MB', region_size => '1MB');

# A cursor over a hash join, which is materialised as far as it was read.
my $hold = 'DECLARE c SCROLL CURSOR FOR SELECT a.id, a.t, b.w FROM big a LEFT JOIN small b USING (id)';

# Some rows from so many places, each 7200 after the one before.
sub read_on
{
	my ($session, $times) = @_;
	return map { my $rows = $session->query('FETCH 200 FROM c'); $session->query('MOVE 7000 FROM c'); $rows } 1 .. $times;
}

sub read_again
{
	my ($session, $times) = @_;
	return map { $session->query('MOVE ABSOLUTE ' . $_ * 7200 . ' FROM c'); scalar $session->query('FETCH 200 FROM c') } reverse 0 .. $times - 1;
}

my $plain = $node->background_psql('postgres');
$plain->query('BEGIN');
$plain->query($hold);
my @right = read_on($plain, 4);
is(scalar(grep { length > 5000 } @right), 4, 'stock: rows to compare with');
$plain->quit;

for my $transport ('shm', 'tcp')
{
	ok( spill_mode(
			$node,
			broker => $broker,
			transport => $transport,
			temp => '2MB',
			buffer => '4MB'),
		"$transport: memory is leased");
	my $now = run_cases($node, "$transport, 2 MB", @cases);
	compare_modes($stock, $now, "$transport, 2 MB", @cases);
	my $c = counters($node);
	cmp_ok($c->{'spill.local'}, '>', 0, "$transport: blocks went to the real file");
	is($c->{'spill.free_pages'}, $c->{'spill.online_pages'}, "$transport: all is free in the end");
	is($c->{'spill.online_pages'}, 256, "$transport: 2 MB are leased");

	# One session takes it all, then another one comes.
	my $first = $node->background_psql('postgres');
	my $second = $node->background_psql('postgres');
	$first->query('BEGIN');
	$first->query('DECLARE c CURSOR FOR SELECT id, t, pad FROM big ORDER BY t');
	$first->query('FETCH 1 FROM c');
	# An overwritten block may have given its page back last.
	cmp_ok(counter($node, 'spill.pages'), '>=', 254, "$transport: the quota is used up");
	$c = counters($node);
	$second->query('BEGIN');
	$second->query($hold);
	my @rows = read_on($second, 2);
	my $writes = counter($node, 'spill.writes');
	cmp_ok(counter($node, 'spill.local'), '>', $c->{'spill.local'}, "$transport: the second session's blocks go to the real file");

	# What the first one gives back, the second one uses, in the same file.
	$first->query('CLOSE c');
	push @rows, read_on($second, 2);
	cmp_ok(counter($node, 'spill.writes'), '>', $writes, "$transport: freed memory is used again");
	# (the last block of another one, which is not complete, may be on a donor, too)
	my $mixed = $node->safe_psql('postgres',
		"SELECT count(*) FROM remote_bp_temp_files WHERE remote_bytes > 0 AND remote_bytes + staged_bytes BETWEEN 100000 AND size - 100000");
	is($mixed, 1, "$transport: freed memory is used by a file of which a part is on disk");
	is_deeply([ @rows, read_again($second, 4) ], [ @right, reverse @right ], "$transport: a file of which a part is on disk is read right");
	$_->quit for $first, $second;
	spill_is_idle($node, "$transport, two sessions");

	# Nothing at all at first; then the quota grows while a file is written.
	$node->append_conf('mode.conf', 'remote_bp.temp_tier_size = 0');
	$node->reload;
	ok(wait_for('the memory to be given back', sub { temp_leased($node) == 0 }), "$transport: the quota is lowered to nothing");
	$writes = counter($node, 'spill.writes');
	my $session = $node->background_psql('postgres');
	$session->query('BEGIN');
	$session->query($hold);
	@rows = read_on($session, 2);
	is(counter($node, 'spill.writes'), $writes, "$transport: nothing goes to donors without a quota");
	$node->append_conf('mode.conf', "remote_bp.temp_tier_size = '2MB'");
	$node->reload;
	ok(wait_temp_leased($node, 2), "$transport: the quota is raised");
	push @rows, read_on($session, 2);
	cmp_ok(counter($node, 'spill.writes'), '>', $writes, "$transport: the raised quota is used");
	is_deeply([ @rows, read_again($session, 4) ], [ @right, reverse @right ], "$transport: a file that began before is read right");
	$session->quit;

	spill_is_clean($node, "$transport, 2 MB");

	# Hardly any staging, few descriptors: files are closed and opened again
	# by the hundred.
	ok( spill_mode(
			$node,
			broker => $broker,
			transport => $transport,
			temp => '24MB',
			buffer => '4MB',
			conf => "remote_bp.temp_staging_size = '128kB'\nmax_files_per_process = 64\n"),
		"$transport: a server with little staging");
	$now = run_cases($node, "$transport, little staging", @cases);
	compare_modes($stock, $now, "$transport, little staging", @cases);

	# More files at once than there is staging for their ends.
	my @sessions = map { $node->background_psql('postgres') } 1 .. 4;
	for my $s (@sessions)
	{
		$s->query('BEGIN');
		$s->query('SET enable_mergejoin = off');
		$s->query("DECLARE c$_ CURSOR FOR SELECT g, md5(g::text) FROM generate_series(1, 6000 * $_) g") for 1 .. 6;
		$s->query('DECLARE h CURSOR FOR SELECT a.id, a.t, b.t FROM big a JOIN big b USING (id)');
	}
	my $rows = 0;
	for my $round (1 .. 3)
	{
		for my $s (@sessions)
		{
			for my $n (1 .. 6)
			{
				my $answer = $s->query("FETCH 1 FROM c$n");
				$rows++ if $answer eq "$round|" . md5_of($round);
			}
			$s->query('MOVE 5000 FROM h');
		}
	}
	is($rows, 3 * 4 * 6, "$transport, little staging: many files at once");
	cmp_ok(counter($node, 'spill.files'), '>', 24, "$transport, little staging: all files are known");
	my @left = map { scalar $_->query('FETCH ALL FROM h') } @sessions;
	is(scalar(grep { $_ eq $left[0] } @left), 4, "$transport, little staging: joins agree");
	is(scalar(my @lines = split /\n/, $left[0]), 25000, "$transport, little staging: joins return all rows");
	$_->quit for @sessions;
	spill_is_clean($node, "$transport, little staging");
}

# More files than the table of files has places for.
my $many = <<'SQL';
BEGIN;
SELECT format('DECLARE c%s SCROLL CURSOR FOR SELECT g, g * %s FROM generate_series(1, 4000) g', i, i) FROM generate_series(1, 1100) i
\gexec
SELECT format('FETCH ABSOLUTE %s FROM c%s', i * 7 % 3000 + 1, i) FROM generate_series(1, 1100) i
\gexec
SELECT files FROM remote_bp_stat_spill;
SELECT format('FETCH LAST FROM c%s', i) FROM generate_series(1, 1100) i
\gexec
COMMIT;
SQL
ok( spill_mode(
		$node,
		broker => $broker,
		transport => 'shm',
		temp => '80MB',
		buffer => '4MB'),
	'many files: memory is leased');
my $r = run_session($node, $many);
is($r->{err}, '', 'many files: no error');
cmp_ok($r->{files}, '>=', 1100, 'many files: one for each cursor');
my @lines = split /\n/, $r->{out};
my @expected = (
	(map { my $row = $_ * 7 % 3000 + 1; "$row|" . $row * $_ } 1 .. 1100),
	$lines[1100],
	(map { "4000|" . 4000 * $_ } 1 .. 1100));
is_deeply(\@lines, \@expected, 'many files: rows are right');
cmp_ok($lines[1100], '>', 1000, 'many files: the table of files was full');
cmp_ok($lines[1100], '<', 1100, 'many files: some files had no place in the table of files');
spill_is_clean($node, 'many files');
$node->stop;

sub md5_of
{
	my ($text) = @_;
	require Digest::MD5;
	return Digest::MD5::md5_hex($text);
}

done_testing();
