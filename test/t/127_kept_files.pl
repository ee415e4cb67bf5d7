# Files that come and go right before a crash, in open transactions, prepared ones and by
# redo: what the tier kept of those before is not read as that of those after.
# Timeout: 1800

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use RemoteBP;
use RemoteBP::Kept;
use Test::More;

my $broker = start_broker();
my $donor = start_donor($broker, memory => '256MB');
# Not minimal: then PostgreSQL itself loses databases made by wal_log over a crash.
my $node = kept_cluster('files', broker => $broker, tier => '224MB',
	conf => "max_prepared_transactions = 5\nwal_level = replica\n");
my $dir = PostgreSQL::Test::Utils::tempdir();
my $by_index = 'SET enable_seqscan = off; SET enable_bitmapscan = off;';

two_templates($node);

sub filled
{
	my ($t, $v, $rows) = @_;
	return "INSERT INTO $t SELECT i, $v, rpad(i::text, 980, 'x') FROM generate_series(1, $rows) i;";
}

# The sum and number of rows, by scan and by index
sub sums
{
	my ($t, $db) = @_;
	return join(' ', map { $node->safe_psql($db // 'postgres', "$_ SELECT sum(v), count(*) FROM $t WHERE id > 0") } '', $by_index);
}

sub sums_are
{
	my ($t, $v, $rows, $name, $db) = @_;
	my $expected = $rows == 0 ? '|0' : $v * $rows . "|$rows";
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return is(sums($t, $db), "$expected $expected", $name);
}

sub warm_all
{
	my ($name, @tables) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is(join(' ', grep { !warm($node, $_) } @tables), '', "$name: the tier has all tables");
	return;
}

for my $writes ('on', 'off')
{
	my $name = "full_page_writes $writes";
	my $rows = 4096;
	set_and_wait($node, full_page_writes => $writes);

	# What is not changed any more before the crash
	for my $t (qw(truncated in_place shrunk dropped open_truncated open_dropped prepared_dropped prepared_truncated rewritten moved))
	{
		$node->safe_psql('postgres', "DROP TABLE IF EXISTS $t");
		make_table($node, $t, 4);
	}
	$node->safe_psql('postgres', 'DROP TABLE IF EXISTS quick');
	make_table($node, 'quick', 4, kind => 'UNLOGGED');
	mkdir "$dir/space_$writes" or die $!;
	$node->safe_psql('postgres', "CREATE TABLESPACE space_$writes LOCATION '$dir/space_$writes'");
	for my $strategy ('file_copy', 'wal_log')
	{
		$node->safe_psql('postgres', "DROP DATABASE IF EXISTS $strategy");
		$node->safe_psql('postgres', "CREATE DATABASE $strategy TEMPLATE one STRATEGY $strategy OID " . ($strategy eq 'wal_log' ? 70000 : 70001));
		ok(warm($node, 't', db => $strategy), "$name: the tier has a database made by $strategy");
	}
	warm_all($name, qw(truncated in_place shrunk dropped open_truncated open_dropped prepared_dropped prepared_truncated rewritten moved quick));
	my $before = state_of($node);

	# Committed, and left to redo: there is no checkpoint from here on, but those of
	# databases that come and go.
	for my $strategy ('file_copy', 'wal_log')
	{
		$node->safe_psql('postgres', "DROP DATABASE $strategy");
		$node->safe_psql('postgres', "CREATE DATABASE $strategy TEMPLATE two STRATEGY $strategy OID " . ($strategy eq 'wal_log' ? 70000 : 70001));
	}
	$node->safe_psql('postgres', "TRUNCATE truncated; " . filled('truncated', 1, $rows));
	$node->safe_psql('postgres', "BEGIN; TRUNCATE in_place; " . filled('in_place', 1, $rows) . " SELECT sum(length(pad)) FROM in_place; TRUNCATE in_place; " . filled('in_place', 2, $rows) . ' COMMIT');
	$node->safe_psql('postgres', "DELETE FROM shrunk WHERE id > 100");
	$node->safe_psql('postgres', "VACUUM (TRUNCATE on) shrunk");
	cmp_ok($node->safe_psql('postgres', q{SELECT pg_relation_size('shrunk') / 8192}), '<', 20, "$name: VACUUM has truncated a table");
	$node->safe_psql('postgres', 'DELETE FROM shrunk; ' . filled('shrunk', 5, $rows));
	$node->safe_psql('postgres', "DROP TABLE dropped; CREATE TABLE dropped (id int, v int, pad text); CREATE INDEX dropped_id ON dropped (id); " . filled('dropped', 6, $rows));
	$node->safe_psql('postgres', "UPDATE rewritten SET v = 7");
	$node->safe_psql('postgres', "CLUSTER rewritten USING rewritten_id");
	$node->safe_psql('postgres', "UPDATE moved SET v = 8");
	$node->safe_psql('postgres', "ALTER TABLE moved SET TABLESPACE space_$writes");
	$node->safe_psql('postgres', "BEGIN; DROP TABLE prepared_dropped; PREPARE TRANSACTION 'dropped'");
	$node->safe_psql('postgres', "BEGIN; TRUNCATE prepared_truncated; " . filled('prepared_truncated', 9, $rows) . " PREPARE TRANSACTION 'truncated'");

	# Open, in a session that is killed
	my $session = $node->background_psql('postgres', on_error_stop => 0);
	my $pid = $session->query('SELECT pg_backend_pid()');
	$session->query("BEGIN; DROP TABLE open_dropped; TRUNCATE open_truncated; " . filled('open_truncated', 4, 1000) . ' SELECT count(*) FROM open_truncated');
	$before->{offset} = log_size($node);
	is(kill_process($pid, whole => 1), 1, "$name: the backend is killed");
	recovered($node, $before->{offset}, $name);
	eval { $session->quit };
	is_kept($node, $before, $name);

	# Rows before any other write; then, with files that come anew, after it.
	for my $turn ('after redo', 'after all of it has left the buffers')
	{
		sums_are('truncated', 1, $rows, "$name, $turn: truncated");
		sums_are('in_place', 2, $rows, "$name, $turn: truncated in place");
		sums_are('shrunk', 5, $rows, "$name, $turn: truncated by VACUUM, and grown");
		sums_are('dropped', 6, $rows, "$name, $turn: dropped and created");
		sums_are('rewritten', 7, $rows, "$name, $turn: rewritten");
		sums_are('moved', 8, $rows, "$name, $turn: moved");
		sums_are('open_truncated', 0, $rows, "$name, $turn: truncation not committed");
		sums_are('open_dropped', 0, $rows, "$name, $turn: drop not committed");
		sums_are('t', 3, $rows, "$name, $turn: database made by $_", $_) for 'file_copy', 'wal_log';
		sums_are('quick', 0, 0, "$name, $turn: unlogged");
		is(counter($node, 'mismatches'), 0, "$name, $turn: no page is different from the disk");
		evict_buffers($node);
	}
	$node->safe_psql('postgres', "COMMIT PREPARED 'truncated'");
	$node->safe_psql('postgres', "COMMIT PREPARED 'dropped'");
	sums_are('prepared_truncated', 9, $rows, "$name: truncated by a prepared transaction");
	is($node->safe_psql('postgres', q{SELECT to_regclass('prepared_dropped') IS NULL}), 't', "$name: dropped by a prepared transaction");
	$node->safe_psql('postgres', filled('quick', 3, $rows));
	for my $turn (1 .. 2)
	{
		evict_buffers($node);
		sums_are('quick', 3, $rows, "$name: unlogged, and filled again");
	}
	is(counter($node, 'mismatches + hash_failures'), 0, "$name: no page is different or broken in the end");

	# A database that is being made when its maker is killed, and made again
	for my $strategy ('file_copy', 'wal_log')
	{
		my $maker = $node->background_psql('postgres', on_error_stop => 0);
		my $maker_pid = $maker->query('SELECT pg_backend_pid()');
		my $made = "half_$strategy";
		my $offset = log_size($node);
		my $held = counter($node, 'remote_pages');
		$maker->query_until(qr/begun/, "\\echo begun\nCREATE DATABASE $made TEMPLATE one STRATEGY $strategy;\n");
		wait_for("$made", sub { $node->safe_psql('postgres', "SELECT count(*) FROM pg_stat_activity WHERE pid = $maker_pid AND query ~ '^CREATE DATABASE'") });
		is(kill_process($maker_pid, whole => 1), 1, "$name: the maker of a database is killed ($strategy)");
		recovered($node, $offset, "$name, $strategy");
		eval { $maker->quit };
		cmp_ok(counter($node, 'remote_pages'), '>', 0.5 * $held, "$name: pages are kept ($strategy)");
		$node->safe_psql('postgres', "DROP DATABASE IF EXISTS $made");
		$node->safe_psql('postgres', "CREATE DATABASE $made TEMPLATE two STRATEGY $strategy");
		for my $turn (1 .. 2)
		{
			sums_are('t', 3, $rows, "$name: made again ($strategy)", $made);
			evict_buffers($node, $made);
		}
		$node->safe_psql('postgres', "DROP DATABASE $made");
	}
	is(counter($node, 'mismatches + hash_failures'), 0, "$name: nothing is different or broken then");
}

# All of it is sound, through the tier and on disk.
my @amcheck = ('pg_amcheck', '--all', '--install-missing', '--heapallindexed', '--host', $node->host, '--port', $node->port);
$node->command_ok([@amcheck], 'pg_amcheck finds nothing through the tier');
is_clean($node);
$node->safe_psql('postgres', 'ALTER SYSTEM SET remote_bp.enabled = off');
$node->restart;
$node->command_ok([@amcheck], 'nor on disk');
$node->stop;

done_testing();
