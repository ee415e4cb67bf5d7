# What a process does, and what its parallel workers do for it, is counted for it to
# the block while others read other relations; a query shows it in EXPLAIN.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use JSON::PP;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use RemoteBP;
use Test::More;

my $broker = start_broker();
my $donor = start_donor($broker, memory => '256MB');
# Donors on a busy machine are late, which is not what is tested.
my $node = new_cluster(
	'usage',
	broker => $broker,
	transport => 'tcp',
	shared_buffers => '2MB',
	io_workers => 0,
	conf => "remote_bp.io_timeout = '5s'\nremote_bp.temp_tier_size = '64MB'\nmax_parallel_workers = 8\n");
ok(wait_leased($node, 128), 'memory is leased');

my %megabytes = (a => 8, b => 12, c => 16, d => 6);
make_table($node, $_, $megabytes{$_}) for sort keys %megabytes;
$node->safe_psql('postgres', 'ALTER TABLE c SET (parallel_workers = 2)');
warm($node, $_, part => 0.3) for qw(a c);

my @items = qw(hits staged_hits misses page_cache_reads disk_reads spill_reads spill_writes);

# Sessions with something to do, and one that looks.
my %sql = (
	a => 'SELECT count(*), sum(hashtext(pad)) FROM a',
	b => q{SET remote_bp.page_cache_first = on; SELECT count(*), sum(hashtext(pad)) FROM b},
	c => q{SET max_parallel_workers_per_gather = 2; SET parallel_setup_cost = 0; SET parallel_tuple_cost = 0;
		SELECT count(*), sum(hashtext(pad)) FROM c},
	d => q{SET work_mem = '64kB'; SELECT count(*) FROM (SELECT pad FROM d ORDER BY pad DESC OFFSET 1) s});
my %session = map { $_ => $node->background_psql('postgres') } keys %sql;
my $observer = $node->background_psql('postgres');
my %pid = map { $_ => scalar $session{$_}->query('SELECT pg_backend_pid()') } keys %sql;
$pid{observer} = $observer->query('SELECT pg_backend_pid()');
my @names = sort keys %pid;

# The counters of the server, and those of the sessions, at one moment.
sub look
{
	my $list = join(', ', map { "remote_bp_stat_backend($pid{$_}) AS p_$_" } @names);
	my $columns = join(', ', "'all', to_jsonb(t) || jsonb_build_object('spill_reads', s.reads, 'spill_writes', s.writes)",
		map { "'$_', p_$_" } @names);
	my $out = $observer->query("SELECT jsonb_build_object($columns) FROM remote_bp_stat t, remote_bp_stat_spill s, $list");
	return decode_json($out);
}

sub moved
{
	my ($before, $after, $name) = @_;
	return map { $_ => $after->{$name}{$_} - $before->{$name}{$_} } @items;
}

look();
# Nobody else counts these: what the server has done is what the sessions have done.
for my $round (1 .. 3)
{
	my $before = look();
	$session{$_}->query_until(qr/begun/, "\\echo begun\n$sql{$_};\n") for sort keys %sql;
	$session{$_}->query('SELECT 1') for sort keys %sql;
	my $after = look();
	my %all = moved($before, $after, 'all');
	my %sum = map { $_ => 0 } @items;
	for my $name (@names)
	{
		my %own = moved($before, $after, $name);
		$sum{$_} += $own{$_} for @items;
		note("round $round, $name: " . join(', ', map { "$_ $own{$_}" } @items));
	}
	is_deeply(\%sum, \%all, "round $round: what the server did is what these processes did");
}
my $end = look();
cmp_ok($end->{a}{hits}, '>', 0, 'donors served one');
cmp_ok($end->{a}{hit_time}, '>', 0, 'in a time');
cmp_ok($end->{b}{page_cache_reads} + $end->{b}{disk_reads}, '>', 0, 'the file served another');
cmp_ok($end->{d}{spill_writes}, '>', 0, 'another wrote temporary blocks to donors');
cmp_ok($end->{d}{spill_reads}, '>', 0, 'and read them');
cmp_ok($end->{d}{spill_read_time}, '>', 0, 'in a time');
cmp_ok($end->{a}{spill_writes}, '==', 0, 'others did not');
cmp_ok($end->{c}{hits} + $end->{c}{staged_hits} + $end->{c}{misses}, '>=', 3 * 16 * 1024 / 8 - 512, q{parallel workers' reads count for their leader});

# A process has another one's place in shared memory, but not what it did there.
is($node->safe_psql('postgres', "SELECT count(*) FROM remote_bp_stat_backend($pid{a}) WHERE hits > 0"), 1, 'seen by others');
$session{$_}->quit for keys %session;
ok(wait_for('sessions to end', sub {
			$node->safe_psql('postgres', "SELECT count(*) FROM pg_stat_activity WHERE pid IN ($pid{a}, $pid{b}, $pid{c}, $pid{d})") eq '0';
		}), 'the sessions end');
is($node->safe_psql('postgres', "SELECT count(hits) FROM remote_bp_stat_backend($pid{a})"), 0, 'a process that ended has done nothing');
my @new = map { $node->background_psql('postgres') } 1 .. 6;
cmp_ok($_->query('SELECT greatest(hits + staged_hits + misses, spill_writes) FROM remote_bp_stat_backend()'), '<', 400, 'a new process begins with nothing')
	for @new;
$_->quit for @new;
is($node->safe_psql('postgres', q{SELECT count(*) FROM pg_stat_activity, LATERAL remote_bp_stat_backend(pid) s
	WHERE backend_type IN ('checkpointer', 'background writer') AND s.hits >= 0}), 2, 'auxiliary processes are known, too');

$observer->quit;
is_clean($node);
$node->stop;

done_testing();
