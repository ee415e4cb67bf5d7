# A subscription that streams large transactions: its apply worker keeps their
# changes in files that are written, closed, opened again by the transaction's
# next part, truncated when a subtransaction aborts, and read at the commit.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use RemoteBP;
use RemoteBP::Spill;
use Test::More;

my $broker = start_broker();
my $donor = start_donor($broker, memory => '64MB');
my $node = spill_cluster(
	'replication',
	broker => $broker,
	temp => '32MB',
	settings => "wal_level = logical\nmax_wal_senders = 4\nmax_replication_slots = 4\nlogical_decoding_work_mem = 64kB\nmax_worker_processes = 16\n");
$node->safe_psql('postgres', 'CREATE DATABASE there');

my $table = 'CREATE TABLE changes (id int PRIMARY KEY, t text, pad text)';
$node->safe_psql('postgres', "$table; CREATE PUBLICATION p FOR TABLE changes; SELECT pg_create_logical_replication_slot('s', 'pgoutput')");
$node->safe_psql('there', $table);
# The server is its own publisher, so the slot had to be there before.
$node->safe_psql('there',
	'CREATE SUBSCRIPTION s CONNECTION $$' . $node->connstr('postgres') . "\$\$ PUBLICATION p WITH (create_slot = false, slot_name = 's', streaming = on, copy_data = false)");

my $sums = 'SELECT count(*), sum(hashtextextended(c::text, 0)::numeric) FROM changes c';

sub arrives
{
	my ($name) = @_;
	my $lsn = $node->safe_psql('postgres', 'SELECT pg_current_wal_insert_lsn()');
	ok( wait_for(
			'the subscription to catch up',
			sub {
				$node->safe_psql('postgres', "SELECT confirmed_flush_lsn >= '$lsn' FROM pg_replication_slots WHERE slot_name = 's'") eq 't';
			},
			60),
		"$name: the subscription catches up");
	is($node->safe_psql('there', $sums), $node->safe_psql('postgres', $sums), "$name: the subscriber has the same rows");
	return;
}

for my $transport ('shm', 'tcp')
{
	ok(spill_mode($node, broker => $broker, transport => $transport, temp => '32MB'), "$transport: memory is leased")
	  if $transport ne 'shm';
	my $before = spill_counters($node);
	my $n = $transport eq 'shm' ? 0 : 1000000;
	$node->safe_psql('postgres', "INSERT INTO changes SELECT $n + i, md5(i::text), repeat('p', i % 200) FROM generate_series(1, 20000) i");
	arrives("$transport, one transaction");

	# Parts that abort cut the file; what comes next goes where they were.
	$node->safe_psql('postgres', <<"SQL");
BEGIN;
INSERT INTO changes SELECT $n + 100000 + i, md5(i::text), 'kept' FROM generate_series(1, 3000) i;
SAVEPOINT a;
INSERT INTO changes SELECT $n + 200000 + i, md5(i::text), repeat('gone', 20) FROM generate_series(1, 5000) i;
SAVEPOINT b;
UPDATE changes SET pad = 'gone, too' WHERE id % 3 = 0;
ROLLBACK TO b;
INSERT INTO changes SELECT $n + 300000 + i, md5(i::text), repeat('gone', 20) FROM generate_series(1, 5000) i;
ROLLBACK TO a;
INSERT INTO changes SELECT $n + 200000 + i, md5(i::text), repeat('kept', 15) FROM generate_series(1, 2000) i;
SAVEPOINT c;
UPDATE changes SET pad = 'gone again' WHERE id % 5 = 0;
ROLLBACK TO c;
SAVEPOINT d;
DELETE FROM changes WHERE id % 7 = 0;
UPDATE changes SET t = t || 'changed' WHERE id % 2 = 0;
RELEASE d;
COMMIT;
SQL
	arrives("$transport, subtransactions that abort");

	# Two at once, of which one aborts as a whole.
	my @sessions = map { $node->background_psql('postgres') } 1 .. 2;
	$_->query('BEGIN') for @sessions;
	for my $part (1 .. 4)
	{
		for my $s (0, 1)
		{
			my $first = $n + 400000 + 100000 * $s + 5000 * $part;
			$sessions[$s]->query("INSERT INTO changes SELECT $first + i, md5(i::text), repeat('w', i % 90) FROM generate_series(1, 3000) i");
		}
	}
	ok( wait_for(
			'files of changes on donors',
			sub {
				$node->safe_psql('postgres',
					"SELECT count(*) FROM remote_bp_temp_files WHERE file LIKE '%.fileset/%.changes.%' AND remote_bytes > 0") >= 2;
			},
			30),
		"$transport, two transactions: their changes are on donors");
	$sessions[0]->query('ROLLBACK');
	$sessions[1]->query('COMMIT');
	$_->quit for @sessions;
	arrives("$transport, two transactions");

	my $after = spill_counters($node);
	cmp_ok($after->{'spill.writes'}, '>', $before->{'spill.writes'}, "$transport: blocks went to donors");
	cmp_ok($after->{'spill.reads'}, '>', $before->{'spill.reads'}, "$transport: blocks came from donors");
	# The worker keeps its set's directory, and nothing else.
	ok( wait_for(
			'no file to be known',
			sub { counter($node, 'spill.pages + spill.files') == 0 }),
		"$transport: all is given back");
	ok(!grep({ /\.fileset\/./ } temp_paths($node)), "$transport: no file is left");
}
$node->safe_psql('there', 'ALTER SUBSCRIPTION s DISABLE');
ok(wait_for('the worker to end', sub { !server_process($node, 'logical replication worker for subscription') }), 'the worker ends');
$node->safe_psql('there', 'DROP SUBSCRIPTION s');
spill_is_clean($node, 'in the end');
$node->stop;

done_testing();
