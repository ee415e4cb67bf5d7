# Two servers that follow each other change places, again and again, under load and with
# DDL on the primary: the new primary's pages are in its tier, and none is ever another
# than that on disk.  Then the primary is lost.
# Timeout: 2700

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use RemoteBP;
use RemoteBP::Follow;
use Test::More;
use Time::HiRes qw(sleep);

my $rounds = $ENV{RBP_SWITCHOVERS} // 10;
my $broker = start_broker();
my $donor = start_donor($broker, memory => '256MB');
my $space = PostgreSQL::Test::Utils::tempdir();
my $a = follow_primary('a', $broker, conf => "allow_in_place_tablespaces = on\nmax_wal_senders = 5\n");
RemoteBP::Load->prepare($a, 2);
$a->safe_psql('postgres', q{SET allow_in_place_tablespaces = on; CREATE TABLESPACE place LOCATION ''});
my $b = new_standby($a, 'b');
# both name both
my $hosts = 'host=' . join(',', map { $_->host } $a, $b) . ' port=' . join(',', map { $_->port } $a, $b) . ' dbname=postgres target_session_attrs=read-write';
follow($_, $hosts) for $a, $b;

my @ddl = (
	'VACUUM FULL moved',
	'TRUNCATE moved; INSERT INTO moved SELECT i, 1, repeat(\'m\', 400) FROM generate_series(1, 4000) i',
	'ALTER TABLE moved SET TABLESPACE place',
	'ALTER TABLE moved SET TABLESPACE pg_default',
	'DROP TABLE moved; CREATE TABLE moved (id int, v int, pad text); INSERT INTO moved SELECT i, 2, repeat(\'n\', 400) FROM generate_series(1, 4000) i',
	'DROP DATABASE IF EXISTS again',
	'CREATE DATABASE again TEMPLATE postgres2 STRATEGY file_copy OID 71000',
	'DROP DATABASE again',
	'CREATE DATABASE again TEMPLATE postgres2 STRATEGY wal_log OID 71000',
	'REINDEX TABLE t');
$a->safe_psql('postgres', 'CREATE TABLE moved (id int, v int, pad text)');
$a->safe_psql('postgres', 'CREATE DATABASE postgres2');
$a->safe_psql('postgres2', q{CREATE TABLE t AS SELECT i AS id, repeat('2', 500) AS pad FROM generate_series(1, 4000) i});

my ($primary, $standby) = ($a, $b);
my $compared = 0;
for my $round (1 .. $rounds)
{
	my $load = start_load($primary, seconds => 4, clients => 2);
	for my $ddl (@ddl)
	{
		$primary->safe_psql('postgres', $_) for split /; /, $ddl;
		$primary->safe_psql('postgres', q{SELECT remote_bp_prewarm('moved')});
		flush_standby($standby);
		$standby->safe_psql('postgres', $_) for 'SELECT sum(abalance) FROM pgbench_accounts WHERE aid % 7 = 0', q{SELECT remote_bp_evict('t')};
	}
	$load->finish_ok("round $round: load");
	$primary->safe_psql('postgres', q{SELECT remote_bp_prewarm('t')});
	ok(wait_up_to_date($standby, 300), "round $round: the standby is up to date");
	same_content($primary, $standby, $_, "round $round: $_ is the same") for 't', 'moved';
	my $sums = 'SELECT sum(abalance), sum(hashtext(a::text)::bigint) FROM pgbench_accounts a WHERE aid > 0';
	is($standby->safe_psql('postgres', $sums), $primary->safe_psql('postgres', $sums), "round $round: accounts are the same");
	my $expected = content($primary, 't');
	ok(switch_over($primary, $standby), "round $round: switched over");
	($primary, $standby) = ($standby, $primary);
	my $before = counter($primary, 'hits + staged_hits');
	evict_buffers($primary);
	is(content($primary, 't'), $expected, "round $round: the new primary has the table");
	cmp_ok(counter($primary, 'hits + staged_hits') - $before, '>=', 0.8 * $primary->safe_psql('postgres', q{SELECT pg_relation_size('t') / 8192}), "round $round: and its pages in its tier");
	is(followed($primary)->{state}, 'primary', "round $round: it follows nobody");
	ok(wait_up_to_date($standby, 300), "round $round: the former primary follows it");
	for my $node ($a, $b)
	{
		$compared += counter($node, 'compared');
		is_clean($node, "round $round: " . $node->name, no_compare => 1);
		reset_counters($node) unless counter($node, 'mismatches');
	}
}
note("$compared hits compared");
cmp_ok($compared, '>', 1000 * $rounds, 'many hits were compared with the disk');

# The primary's machine is lost.
my $expected = content($primary, 't');
$primary->wait_for_catchup($standby, 'replay', $primary->lsn('insert'));
kill 'KILL', map { $_->{pid} } server_processes($primary);
$primary->kill9;
$standby->promote;
$standby->poll_query_until('postgres', 'SELECT NOT pg_is_in_recovery()');
my $before = counter($standby, 'hits + staged_hits');
evict_buffers($standby);
is(content($standby, 't'), $expected, 'a failover: the table is there');
cmp_ok(counter($standby, 'hits + staged_hits') - $before, '>=', 0.8 * $standby->safe_psql('postgres', q{SELECT pg_relation_size('t') / 8192}), 'a failover: its pages come from the tier');
is_clean($standby, 'a failover');
$standby->stop;

done_testing();
