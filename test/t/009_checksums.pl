# With data checksums, dirty pages are written from a private copy.  They go
# to the tier from that copy or, if the checkpointer wrote them, from the frame,
# with the checksum set; and pass verification when they come back.

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
	# compare_with_disk off: what the tier serves is what the server verifies.
	my $node = new_cluster(
		"checksums_$transport",
		broker => $broker,
		transport => $transport,
		checksums => 1,
		compare => 0,
		conf => "shared_buffers = '512kB'\nremote_bp.io_timeout = '1s'\n");
	ok(wait_leased($node, 64), "$transport: memory is leased");
	is($node->safe_psql('postgres', 'SHOW data_checksums'), 'on', "$transport: checksums are on");
	my $rows = make_table($node, 't', 8);

	# Read-only pages.
	ok(warm($node, 't'), "$transport: the tier has pages");
	reset_counters($node);
	is($node->safe_psql('postgres', 'SELECT count(*), sum(v) FROM t'), "$rows|0", "$transport: rows read from the tier are right");
	cmp_ok(counter($node, 'hits + staged_hits'), '>', 0, "$transport: there are hits");

	# Pages that were dirty when they were evicted: some of what is captured
	# comes from frames that were written, not read, last.
	my $sum = 0;
	for my $round (1 .. 3)
	{
		$node->safe_psql('postgres', 'UPDATE t SET v = v + 1');
		$sum += $rows;
		$node->safe_psql('postgres', 'VACUUM t');
		reset_counters($node);
		for my $again (1 .. 2)
		{
			evict_buffers($node);
			is($node->safe_psql('postgres', 'SET enable_seqscan = off; SET enable_bitmapscan = off; SELECT count(*), sum(v) FROM t WHERE id > 0'),
				"$rows|$sum", "$transport: round $round: written, evicted and read");
		}
		cmp_ok(counter($node, 'hits + staged_hits'), '>', 0, "$transport: round $round: with hits");
	}

	# The same once more, compared.
	$node->safe_psql('postgres', 'ALTER SYSTEM SET remote_bp.compare_with_disk = on');
	$node->reload;
	$node->poll_query_until('postgres', 'SHOW remote_bp.compare_with_disk', 'on');
	is($node->safe_psql('postgres', 'SELECT count(*), sum(v) FROM t'), "$rows|$sum", "$transport: compared");
	is_clean($node, $transport);
	is($node->safe_psql('postgres', 'SELECT coalesce(sum(checksum_failures), 0) FROM pg_stat_database'),
		0, "$transport: no checksum failed");
	$node->stop;
	$node->command_ok([ 'pg_checksums', '--check', '-D', $node->data_dir ],
		"$transport: checksums on disk are right");
}

done_testing();
