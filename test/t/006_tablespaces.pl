# Tables and indexes moved to another tablespace and back: read to private
# memory, written elsewhere.

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
my $node = new_cluster('tablespaces', broker => $broker, conf => "shared_buffers = '512kB'\n");
ok(wait_leased($node, 64), 'memory is leased');

my $space = PostgreSQL::Test::Utils::tempdir() . '/space';
mkdir $space or die $!;
$node->safe_psql('postgres', "CREATE TABLESPACE elsewhere LOCATION '$space'");
my $rows = make_table($node, 't', 8);
my $sum = 0;

sub reads_are_right
{
	my ($what) = @_;
	for my $round (1 .. 2)
	{
		is($node->safe_psql('postgres', 'SELECT count(*), sum(v) FROM t'),
			"$rows|$sum", "$what: reads are right");
		is($node->safe_psql('postgres',
				'SET enable_seqscan = off; SET enable_bitmapscan = off; SELECT count(*), sum(v) FROM t WHERE id > 0'),
			"$rows|$sum", "$what: index scans are right");
		evict_buffers($node);
	}
	return;
}

for my $round (1 .. 2)
{
	for my $where ('elsewhere', 'pg_default')
	{
		my $what = "round $round, to $where";
		cmp_ok(warm($node, 't'), '>', 0, "$what: the tier has pages");

		# Some of it dirty, some in the tier, some only on disk.
		$node->safe_psql('postgres', 'UPDATE t SET v = v + 1 WHERE id % 20 = 0');
		$sum += int($rows / 20);
		my $before = content($node, 't');
		$node->safe_psql('postgres', "ALTER TABLE t SET TABLESPACE $where");
		is(content($node, 't'), $before, "$what: the content is the same");
		reads_are_right($what);
		$node->safe_psql('postgres', "ALTER INDEX t_id SET TABLESPACE $where");
		reads_are_right("$what, with its index");
		$node->safe_psql('postgres', 'VACUUM t');
	}
}

# Tables in the other space have pages in the tier as well.
$node->safe_psql('postgres', 'ALTER TABLE t SET TABLESPACE elsewhere');
cmp_ok(warm($node, 't'), '>', 0, 'the tier has pages of the other space');
reset_counters($node);
reads_are_right('the other space');
cmp_ok(counter($node, 'hits + staged_hits'), '>', 0, 'the other space: there are hits');

# A move that is rolled back leaves the old file in use.
$node->safe_psql('postgres',
	'BEGIN; ALTER TABLE t SET TABLESPACE pg_default; SELECT sum(v) FROM t; ROLLBACK');
reads_are_right('a move rolled back');

# A limit of the database holds for all of its tablespaces, also for one that comes later.
{
	mkdir "$space-late" or die $!;
	$node->safe_psql('postgres', "CREATE TABLESPACE late LOCATION '$space-late'");
	make_table($node, 'u', 16, index => 0);
	$node->safe_psql('postgres', q{SELECT remote_bp_set_database_limit('postgres', 8 * 1024 * 1024)});
	ok(wait_for('the limit', sub { $node->safe_psql('postgres', q{SELECT bytes <= max_bytes + 1024 * 1024 FROM remote_bp_databases WHERE database = 'postgres'}) eq 't' }, 60), 'the database keeps to its limit');
	$node->safe_psql('postgres', q{ALTER TABLE u SET TABLESPACE late; SELECT remote_bp_prewarm('u')});
	ok(wait_for('the pusher', sub { counter($node, 'staged_pages') == 0 }, 60), 'all of a table in a new tablespace is offered to the tier');
	cmp_ok(tier_pages($node, 'u'), '>', 400, 'the tier has some of it');
	is($node->safe_psql('postgres', q{SELECT bytes <= max_bytes + 1024 * 1024 FROM remote_bp_databases WHERE database = 'postgres'}), 't', 'the database keeps to its limit, with a new tablespace, too')
	  or diag($node->safe_psql('postgres', 'TABLE remote_bp_databases'));
}
is_clean($node);
$node->stop;

done_testing();
