# Pages that are written leave the tier before they reach the disk: UPDATE,
# DELETE, VACUUM, hint bits, index inserts, free space and visibility maps.

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

for my $transport ('shm', 'tcp')
{
	my $node = new_cluster(
		"writes_$transport",
		broker => $broker,
		transport => $transport,
		conf => "shared_buffers = '512kB'\n");
	ok(wait_leased($node, 64), "$transport: memory is leased");
	my $rows = make_table($node, 't', 8);
	$node->safe_psql('postgres', 'ALTER TABLE t SET (fillfactor = 100)');

	# $what: change it, then read it twice after all of it was evicted.
	my $try = sub {
		my ($what, $change, $query, $expected) = @_;
		cmp_ok(warm($node, 't'), '>', 0, "$transport, $what: the tier has pages");
		my $invalidations = counter($node, 'invalidations');
		$node->safe_psql('postgres', $change);
		is($node->safe_psql('postgres', $query), $expected, "$transport, $what: read at once");
		evict_buffers($node);
		cmp_ok(counter($node, 'invalidations'), '>', $invalidations,
			"$transport, $what: entries were dropped");
		is($node->safe_psql('postgres', $query), $expected, "$transport, $what: read from disk or tier");
		evict_buffers($node);
		is($node->safe_psql('postgres', $query), $expected, "$transport, $what: read again");
		my $by_index = "SET enable_seqscan = off; SET enable_bitmapscan = off; $query";
		is($node->safe_psql('postgres', $by_index), $expected, "$transport, $what: read by index");
	};

	my $sums = 'SELECT count(*), sum(v) FROM t WHERE id > 0';
	$try->('update', 'UPDATE t SET v = v + 1 WHERE id % 10 = 0',
		$sums, "$rows|" . int($rows / 10));
	my $sum = int($rows / 10);
	$try->('vacuum', 'VACUUM t', $sums, "$rows|$sum");
	$try->('delete', 'DELETE FROM t WHERE id % 3 = 0',
		'SELECT count(*) FROM t WHERE id > 0', $rows - int($rows / 3));
	my $left = $rows - int($rows / 3);
	$try->('vacuum after delete', 'VACUUM t', 'SELECT count(*) FROM t WHERE id > 0', $left);
	$try->('insert', 'INSERT INTO t SELECT i, 5, repeat(\'z\', 900) FROM generate_series(1, 1000) i',
		'SELECT count(*) FROM t WHERE id > 0', $left + 1000);
	$try->('update all', 'UPDATE t SET v = 7', 'SELECT count(*), sum(v) FROM t WHERE id > 0',
		($left + 1000) . '|' . 7 * ($left + 1000));
	$try->('vacuum freeze', 'VACUUM FREEZE t',
		'SELECT count(*), sum(v) FROM t WHERE id > 0', ($left + 1000) . '|' . 7 * ($left + 1000));

	# The index agrees with the table.
	$node->safe_psql('postgres', 'CREATE EXTENSION amcheck');
	is($node->safe_psql('postgres', q{SELECT bt_index_check('t_id', true)}), '',
		"$transport: the index agrees with the table");
	is($node->safe_psql('postgres', q{SELECT count(*) FROM verify_heapam('t')}), 0,
		"$transport: the table is sound");
	is_clean($node, $transport);
	$node->stop;
}

done_testing();
