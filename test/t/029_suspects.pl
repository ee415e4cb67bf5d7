# Whom a late answer is held against, and until when: hits over shared memory,
# which need nothing of the donor's process, do not clear the donor for one that
# waits for it; and a donor that keeps the pusher waiting does not make the
# next one look late.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use RemoteBP;
use Test::More;
use Time::HiRes qw(sleep time);

my $broker = start_broker(args => [ '--donor-timeout', '300' ]);
my $by_index = 'SET enable_seqscan = off; SET enable_bitmapscan = off;';

#---- whose hits clear a suspect donor -----------------------------------------
{
	my $donor = start_donor($broker, memory => '64MB');
	my $node = new_cluster(
		'suspect',
		broker => $broker,
		transport => 'shm',
		compare => 0,
		conf => "remote_bp.io_timeout = '1s'\n");
	wait_leased($node, 64);
	make_table($node, 'pages', 40);
	ok(warm($node, 'pages', part => 0.9), 'shm: pages are in the tier');

	# Without a pusher, a donor is suspect for 20 io_timeout at most: stop before.
	$node->safe_psql('postgres', <<'SQL');
CREATE FUNCTION probe(n int) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	t bigint; h bigint; late int := 0;
	first CONSTANT timestamptz := clock_timestamp(); began timestamptz;
BEGIN
	SELECT timeouts, hits INTO t, h FROM remote_bp_stat;
	FOR i IN 1..n LOOP
		began := clock_timestamp();
		PERFORM v FROM pages WHERE id = 1 + i * 97;
		late := late + (clock_timestamp() - began > interval '1 s')::int;
		EXIT WHEN clock_timestamp() - first > interval '15 s';
		PERFORM pg_sleep(0.002);
	END LOOP;
	SELECT timeouts - t, hits - h INTO t, h FROM remote_bp_stat;
	RETURN format('%s %s %s', t, h, late);
END
$$;
SQL

	# One has mapped all regions.  The other one has mapped some, and has read
	# all that it needs of the catalogs without the tier.
	my $switch = sub {
		$node->safe_psql('postgres', "ALTER SYSTEM SET remote_bp.enabled = $_[0]");
		$node->reload;
		$node->poll_query_until('postgres', 'SHOW remote_bp.enabled', $_[0]);
	};
	$switch->('off');
	my @sessions = map { $node->background_psql('postgres') } 1 .. 2;
	my ($busy, $new) = @sessions;
	$_->query_safe("$by_index SELECT probe(1)") for @sessions;
	$switch->('on');
	$busy->query_safe('SELECT sum(v) FROM pages WHERE id > 0');
	$new->query_safe('SELECT v FROM pages WHERE id = 1');

	# The pusher shall not settle anything meanwhile; it sleeps, and holds no lock.
	my $pusher = server_process($node, 'remote_bp pusher');
	my ($pushes, $same) = (-1, 0);
	wait_for(
		'all to be pushed',
		sub {
			my $now = counter($node, 'pushes');
			$same = $now == $pushes ? $same + 1 : 0;
			$pushes = $now;
			return $same > 10 && slurp_file("/proc/$pusher/stat") =~ /^\d+ \(.*\) S /;
		});
	is(kill('STOP', $pusher), 1, 'shm: the pusher is stopped');
	$donor->freeze;
	$busy->query_until(qr/begun/, "\\echo begun\n" . q{DO $$ BEGIN
		FOR i IN 1..5000 LOOP PERFORM v FROM pages WHERE id = (i * 7919) % 40000; PERFORM pg_sleep(0.001); END LOOP;
		END $$;} . "\n");
	my ($timeouts, $hits, $late) = split / /, $new->query_safe('SELECT probe(400)');
	kill('CONT', $pusher);
	$donor->thaw;
	note("timeouts $timeouts, hits $hits, $late reads that took long");
	is($timeouts, 1, 'shm: a process that waits for a mapping waits once, though others have hits');
	cmp_ok($hits, '>', 100, 'shm: the other processes have hits');
	cmp_ok($late, '<', 5, 'shm: no long wait is uncounted');
	$busy->query_safe('SELECT 1');
	ok(serves_pages($node), 'shm: the donor is used by all again');
	$_->quit for @sessions;
	is_clean($node, 'shm', no_compare => 1);
	$node->stop;
	$donor->stop;
}

sub serves_pages
{
	my ($node) = @_;
	return wait_for(
		'hits',
		sub {
			my $before = counters($node);
			content($node, 'pages');
			my $after = counters($node);
			evict_buffers($node);
			return $after->{hits} - $before->{hits} > $after->{misses} - $before->{misses};
		});
}

#---- a slow donor's neighbours -------------------------------------------------
{
	my %donor = map { $_ => start_donor($broker, id => $_, memory => '32MB') } qw(slow other);
	my $node = new_cluster(
		'neighbours',
		broker => $broker,
		transport => 'tcp',
		shared_buffers => '8MB',
		conf => "remote_bp.io_timeout = '100ms'\n");
	wait_leased($node, 64);
	make_table($node, 'pages', 24);
	ok(warm($node, 'pages'), 'tcp: pages are in the tier');
	my $of = sub {
		my ($donor, $column) = @_;
		return $node->safe_psql('postgres', "SELECT $column FROM remote_bp_stat_donors WHERE donor = '$donor'");
	};

	# A busy machine may make the other one late, too, now and then; held to be
	# late for the slow one's sake, it would be so each time.
	my $rounds = 0;
	for my $round (1 .. 20)
	{
		last if $rounds == 4;

		# Pages of both donors wait to be pushed ...
		my $pusher = server_process($node, 'remote_bp pusher');
		kill('STOP', $pusher);
		$node->safe_psql('postgres', "$by_index UPDATE pages SET v = v + 1 WHERE id > 0");
		$node->safe_psql('postgres', "$by_index SELECT count(v) FROM pages WHERE id > 0");
		my ($slow_before, $other_before) = map { $of->($_, 'timeouts') } qw(slow other);
		my $writes = $of->('other', 'writes');

		# ... by one that has no connections, and finds one of them hanging.
		$donor{slow}->freeze;
		kill('TERM', $pusher);
		kill('CONT', $pusher);
		wait_for('another pusher', sub { my $pid = server_process($node, 'remote_bp pusher'); $pid && $pid != $pusher });

		# Of a batch, the one that comes second is judged after the first.
		wait_for('a wait for the donor', sub { $of->('slow', 'timeouts') > $slow_before }, 5)
		  && wait_for('the other one', sub { $of->('other', 'writes') > $writes || $of->('other', 'timeouts') > $other_before }, 5);
		my ($slow_after, $other_after) = map { $of->($_, 'timeouts') } qw(slow other);
		note("timeouts: slow $slow_before to $slow_after, other $other_before to $other_after");
		$rounds++ if $slow_after > $slow_before && $other_after == $other_before;
		$donor{slow}->thaw;
		ok( wait_for(
				'the donor to be used again',
				sub {
					content($node, 'pages');
					return $node->safe_psql('postgres',
						q{SELECT count(*) FROM remote_bp_stat_donors WHERE state = 'ok'}) == 2;
				}),
			"tcp: round $round, both donors are in use");
	}
	is($rounds, 4, 'tcp: the pusher waited for a donor that hangs, and did not take the other one for late');
	is_clean($node, 'tcp', hash_failures => 1);
	$node->stop;
}

done_testing();
