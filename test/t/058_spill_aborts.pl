# Errors, subtransactions that end, cancels and timeouts in the middle of a
# spill: the answers are those of a stock server, the session goes on, and
# what was spilled is given back.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use RemoteBP;
use RemoteBP::Spill;
use Test::More;
use Time::HiRes qw(sleep);

my @cases;

sub add
{
	my ($name, $sql, %opt) = @_;
	push @cases, { name => $name, sql => $sql, %opt };
	return;
}

add('errors', <<'SQL');
SELECT count(*) FROM (SELECT t, 1 / (id - 39500) AS x FROM big OFFSET 0) s GROUP BY t ORDER BY t DESC, count(DISTINCT x);
SELECT count(DISTINCT t) FROM big;
SELECT sum(1 / (n - 31000)) FROM (SELECT row_number() OVER (ORDER BY t) AS n FROM big) s;
SELECT count(*), sum(id) FROM (SELECT id FROM big ORDER BY t DESC OFFSET 10) s;
SET enable_mergejoin = off;
SELECT sum(1 / (b.id - 35000)) FROM big a JOIN big b USING (t);
SELECT count(*), sum(hashtext(a.t || b.t)::bigint) FROM big a JOIN big b USING (id);
BEGIN;
SELECT count(DISTINCT t) FROM big;
SELECT 1 / (id - 39999) FROM (SELECT id FROM big ORDER BY id) s OFFSET 50000;
SELECT 1;
ROLLBACK;
SELECT count(DISTINCT pad || t) FROM big;
SQL
add('subtransactions', <<'SQL');
CREATE FUNCTION pg_temp.fails(n int) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	c SCROLL CURSOR FOR SELECT id, t FROM big ORDER BY t;
	r record;
	q record;
	answer text := '';
BEGIN
	OPEN c;
	FOR i IN 1 .. n LOOP
		BEGIN
			FETCH RELATIVE 3000 FROM c INTO r;
			answer := answer || ' ' || r.id;
			FOR q IN SELECT id, pad FROM big WHERE id % n = i - 1 ORDER BY pad, t LOOP
				IF q.id > 38000 THEN
					RAISE EXCEPTION 'row %', q.id;
				END IF;
			END LOOP;
			PERFORM count(DISTINCT md5(t)) FROM big WHERE id / (k - 4) > 5;
		EXCEPTION WHEN OTHERS THEN
			answer := answer || ' ' || sqlerrm;
		END;
	END LOOP;
	FETCH LAST FROM c INTO r;
	RETURN answer || ' ' || r.id;
END
$$;
SELECT pg_temp.fails(6);
BEGIN;
DECLARE outer_one SCROLL CURSOR FOR SELECT id, t FROM big ORDER BY t DESC;
FETCH 2 FROM outer_one;
SAVEPOINT a;
DECLARE inner_one CURSOR FOR SELECT id, pad FROM big ORDER BY pad, id;
FETCH 2 FROM inner_one;
MOVE 15000 FROM inner_one;
MOVE 15000 FROM outer_one;
SAVEPOINT b;
SELECT count(DISTINCT t), 1 / (count(*) - 40000) FROM big;
ROLLBACK TO b;
FETCH 2 FROM inner_one;
FETCH 2 FROM outer_one;
ROLLBACK TO a;
FETCH 2 FROM inner_one;
ROLLBACK TO a;
FETCH 2 FROM outer_one;
SAVEPOINT d;
DECLARE third CURSOR FOR SELECT id, t FROM big ORDER BY t || 'x';
FETCH 2 FROM third;
RELEASE d;
MOVE 20000 FROM third;
FETCH 2 FROM third;
FETCH BACKWARD 2 FROM outer_one;
COMMIT;
SELECT count(DISTINCT t) FROM big;
SQL
add('holdable cursors that fail', <<'SQL');
BEGIN;
DECLARE c CURSOR WITH HOLD FOR SELECT id, t, 1 / (id - 39990) AS x FROM big;
FETCH 2 FROM c;
COMMIT;
FETCH 2 FROM c;
BEGIN;
DECLARE c CURSOR WITH HOLD FOR SELECT id, t, 1 / (id - 50000) AS x FROM big;
FETCH 2 FROM c;
SAVEPOINT s;
SELECT 1 / 0;
ROLLBACK TO s;
COMMIT;
MOVE 30000 FROM c;
FETCH 2 FROM c;
BEGIN;
DECLARE d CURSOR WITH HOLD FOR SELECT id FROM big ORDER BY t;
FETCH 2 FROM d;
ROLLBACK;
FETCH 2 FROM d;
FETCH 2 FROM c;
SQL
# Ended by a timeout where the files are what they are, however slow the
# machine is: at a lock, in the middle of filling a sort, and when a sort is
# only read any more.
add('timeouts', <<'SQL');
SET lock_timeout = '100ms';
SELECT count(*) FROM (SELECT t, CASE WHEN id = 39000 THEN pg_advisory_xact_lock(58)::text END AS x FROM big OFFSET 0) s GROUP BY t, x ORDER BY x, t;
RESET lock_timeout;
BEGIN;
DECLARE c CURSOR FOR SELECT t, CASE WHEN t > 'f' THEN pg_sleep(100)::text END FROM big ORDER BY t;
MOVE 30000 FROM c;
SET LOCAL statement_timeout = '1s';
MOVE ALL FROM c;
ROLLBACK;
SELECT count(DISTINCT t) FROM big;
SQL
# And where they depend on how far the query has come.
add('timeout at any point', <<'SQL', any => 1);
SET statement_timeout = '1s';
SELECT count(*) FROM (SELECT t, CASE WHEN id = 39000 THEN pg_sleep(100)::text END AS x FROM big OFFSET 0) s GROUP BY t, x ORDER BY x, t;
SELECT t, CASE WHEN t > 'f' THEN pg_sleep(100)::text END FROM big ORDER BY t OFFSET 39000;
RESET statement_timeout;
SELECT count(DISTINCT t) FROM big;
SQL
add('index builds that fail', <<'SQL');
SET maintenance_work_mem = '1MB';
CREATE UNIQUE INDEX big_bad ON big (skew, (left(t, 2)));
CREATE INDEX big_bad ON big ((1 / (id - 39000)), t);
CREATE UNIQUE INDEX CONCURRENTLY big_bad ON big (k, pad);
DROP INDEX big_bad;
BEGIN;
CREATE INDEX big_bad ON big (t);
ROLLBACK;
SELECT count(*) FROM pg_class WHERE relname = 'big_bad';
SQL
add('parallel workers that fail', <<'SQL', any => 1);
SET max_parallel_workers_per_gather = 2;
SET min_parallel_table_scan_size = 0;
SET parallel_setup_cost = 0;
SET parallel_tuple_cost = 0;
SET enable_mergejoin = off;
\set VERBOSITY sqlstate
SELECT sum(1 / (a.id - 35000 + b.id - 35000)) FROM big a JOIN big b USING (t);
SELECT count(*), sum(a.id) FROM big a JOIN big b USING (t);
SQL

my $node = spill_cluster('aborts', settings => "max_prepared_transactions = 1\n");
spill_data($node);
# The lock that the case "timeouts" waits for, also after a restart.
$node->safe_psql('postgres', "BEGIN; SELECT pg_advisory_xact_lock(58); PREPARE TRANSACTION 'holder'");
my $stock = run_cases($node, 'stock', @cases);
like($stock->{ $_->{name} }{err}, qr/ERROR/, "stock, $_->{name}: fails")
  for grep { $_->{name} ne 'subtransactions' } @cases;

# A query that sleeps, cancelled then, in one session, again and again.
my @sleepers = (
	# while a sort is filled
	q{SELECT count(*) FROM (SELECT t, CASE WHEN id = 39000 THEN pg_sleep(100)::text END AS x FROM big OFFSET 0) s GROUP BY t, x ORDER BY x, t},
	# while it is read
	q{SELECT t, CASE WHEN t > 'f' THEN pg_sleep(100)::text END FROM big ORDER BY t OFFSET 39000},
	# between the batches of a hash join
	q{SELECT count(*) FROM (SELECT a.t, CASE WHEN a.id = 38765 THEN pg_sleep(100)::text END FROM big a JOIN big b USING (t) OFFSET 0) s},
	# while a tuplestore is read
	q{WITH c AS MATERIALIZED (SELECT * FROM big) SELECT count(*) FROM (SELECT CASE WHEN a.id = 30000 THEN pg_sleep(100) END FROM c a, (SELECT count(*) FROM c) x OFFSET 0) s});

sub cancel
{
	my ($node, $name) = @_;
	my $session = $node->background_psql('postgres', on_error_stop => 0);
	my $pid = $session->query('SELECT pg_backend_pid()');
	$session->query('SET enable_mergejoin = off');
	my $n = 0;
	for my $sql (@sleepers)
	{
		$n++;
		$session->query_until(qr/begins/, "\\echo begins\n$sql;\n");
		ok( wait_for(
				'the query to sleep',
				sub {
					$node->safe_psql('postgres', "SELECT wait_event FROM pg_stat_activity WHERE pid = $pid") eq 'PgSleep';
				}),
			"$name: query $n is in its middle");
		my $held = $node->safe_psql('postgres', "SELECT coalesce(sum(remote_bytes), 0) FROM remote_bp_temp_files WHERE owner = $pid");
		cmp_ok($held, '>', 0, "$name: query $n holds blocks on donors");
		cmp_ok(counter($node, 'spill.pages') * 8192, '>=', $held, "$name: these blocks are counted");
		my $offset = log_size($node);
		is($node->safe_psql('postgres', "SELECT pg_cancel_backend($pid)"), 't', "$name: query $n is cancelled");
		is($session->query('SELECT 1'), '1', "$name: the session answers");
		log_tells($node, $offset, qr/canceling statement due to user request/, "$name: query $n has failed");
		spill_is_idle($node, "$name: query $n");
		is($session->query('SELECT count(DISTINCT t) FROM big'), '40000', "$name: the session spills on");
	}

	# At any other point.  Whether a cancel finds the query under way is a
	# matter of chance.
	my ($hit, $round) = (0, 0);
	while ($round < 12 || !$hit && $round < 300)
	{
		$round++;
		my $offset = log_size($node);
		$session->query_until(qr/begins/, "\\echo begins\nSELECT count(*) FROM (SELECT a.t FROM big a JOIN big b USING (t) ORDER BY a.pad, b.t OFFSET 0) s;\n");
		sleep rand(0.3);
		$node->safe_psql('postgres', "SELECT pg_cancel_backend($pid)");
		my $answer = $session->query('SELECT count(DISTINCT t) FROM big') // '';
		# A cancel that comes late hits this one.
		$answer = $session->query('SELECT count(DISTINCT t) FROM big') unless $answer =~ /40000/;
		like($answer, qr/^(40000\n)*40000$/, "$name: the session's next query, round $round");
		$hit++ if log_since($node, $offset) =~ /canceling statement due to user request/;
	}
	cmp_ok($hit, '>', 0, "$name: queries were cancelled ($hit of $round)");
	$session->quit;
	return;
}

my $broker = start_broker();
my $donor = start_donor($broker, memory => '128MB');
for my $transport ('shm', 'tcp')
{
	ok(spill_mode($node, broker => $broker, transport => $transport), "$transport: memory is leased");
	my $now = run_cases($node, $transport, @cases);
	compare_modes($stock, $now, $transport, @cases);
	cancel($node, $transport);
	spill_is_clean($node, $transport);
}
$node->stop;

done_testing();
