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
	compare => 0,
	io_workers => 0,
	conf => "remote_bp.io_timeout = '5s'\nremote_bp.temp_tier_size = '64MB'\nmax_parallel_workers = 8\n");
ok(wait_leased($node, 128), 'memory is leased');

my %megabytes = (a => 6, b => 6, c => 8, d => 6);
make_table($node, $_, $megabytes{$_}) for sort keys %megabytes;
$node->safe_psql('postgres', 'ALTER TABLE c SET (parallel_workers = 2)');
warm($node, $_, part => 0.3) for qw(a c);

my @items = qw(hits staged_hits misses page_cache_reads disk_reads spill_reads spill_staged_reads spill_writes);

# Sessions with something to do, and one that looks.
my %sql = (
	a => 'SELECT count(*), sum(hashtext(pad)) FROM a',
	b => q{SET remote_bp.read_from = cache; SELECT count(*), sum(hashtext(pad)) FROM b},
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
	my $columns = join(', ', "'all', to_jsonb(t) || jsonb_build_object('spill_reads', s.reads, 'spill_staged_reads', s.staged_reads, 'spill_writes', s.writes)",
		map { "'$_', p_$_" } @names);
	my $out = $observer->query("SELECT jsonb_build_object($columns) FROM remote_bp_stat t, remote_bp_stat_spill s, $list");
	return decode_json($out);
}

sub moved
{
	my ($before, $after, $name) = @_;
	return map { $_ => $after->{$name}{$_} - $before->{$name}{$_} } @items;
}

my $go_on = hold_policy_worker($node);
look();
# Nobody else counts these: what the server has done is what the sessions have done.
for my $round (1 .. 2)
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
$go_on->();
my $end = look();
cmp_ok($end->{a}{hits}, '>', 0, 'donors served one');
cmp_ok($end->{a}{hit_time}, '>', 0, 'in a time');
cmp_ok($end->{b}{page_cache_reads} + $end->{b}{disk_reads}, '>', 0, 'the file served another');
cmp_ok($end->{d}{spill_writes}, '>', 0, 'another wrote temporary blocks to donors');
cmp_ok($end->{d}{spill_reads}, '>', 0, 'and read them');
cmp_ok($end->{d}{spill_read_time}, '>', 0, 'in a time');
cmp_ok($end->{a}{spill_writes}, '==', 0, 'others did not');
cmp_ok($end->{c}{hits} + $end->{c}{staged_hits} + $end->{c}{misses}, '>=', 2 * ($megabytes{c} * 128 - 256), q{parallel workers' reads count for their leader});

#---- EXPLAIN --------------------------------------------------------------

# The figures of the line of that name: pages by source, and spilled blocks.
sub line
{
	my ($plan, $name) = @_;
	my ($line) = $plan =~ /^$name: ?(.*)$/m;
	return unless defined $line;
	my ($pages, $spill) = $line =~ /^([^s,]?.*?)(?:(?:^|, )?spill (.*))?$/;
	my %figure = $pages =~ /([a-z ]+?)=([\d.]+)/g;
	my %spilled = ($spill // '') =~ /([a-z]+)=([\d.]+)/g;
	s/^ // for my @keys = keys %figure;
	return { (map { (s/^ //r, $figure{$_}) } keys %figure), map { ("spill $_", $spilled{$_}) } keys %spilled };
}

sub total
{
	my ($line) = @_;
	my $sum = 0;
	$sum += $line->{$_} // 0 for 'donor', 'staging', 'page cache', 'disk', 'file';
	return $sum;
}

# The same of a query or a node in the format JSON
sub pages_of
{
	my ($node) = @_;
	my $sum = 0;
	$sum += $node->{"Remote $_ Blocks"} for qw(Donor Staging Disk File), 'Page Cache';
	return $sum;
}

# What the server says of the whole query, at its top node.
sub server_figure
{
	my ($plan, $kind, $figure) = @_;
	my ($line) = $plan =~ /^\s*Buffers: (.*)$/m;
	my ($part) = ($line // '') =~ /$kind([^,]*)/;
	return ($part // '') =~ / $figure=(\d+)/ ? $1 : 0;
}

# While the others read, too
$session{$_}->query_until(qr/begun/, "\\echo begun\n" . "$sql{$_};\n") for qw(b c);
my $explainer = $node->background_psql('postgres');
my $analyze = 'EXPLAIN (ANALYZE, BUFFERS, COSTS off, TIMING off)';
$explainer->query($_)
  for 'SET track_io_timing = on',
  q{CREATE FUNCTION rbp_of_a(text) RETURNS bigint STABLE LANGUAGE plpgsql AS 'BEGIN RETURN (SELECT count(pad) FROM a WHERE pad > $1); END'},
  q{CREATE FUNCTION rbp_explained() RETURNS text LANGUAGE plpgsql AS $$
	DECLARE line text; plan text = '';
	BEGIN
		FOR line IN EXECUTE 'EXPLAIN (ANALYZE, BUFFERS, COSTS off, TIMING off) SELECT count(pad) FROM a'
		LOOP plan := plan || line || E'\n'; END LOOP;
		RETURN plan;
	END $$};
my $plan = $explainer->query("$analyze SELECT count(pad) FROM a");
my $line = line($plan, 'Remote');
cmp_ok($line->{donor}, '>', 0, 'EXPLAIN shows pages from donors');
is(total($line), server_figure($plan, 'shared', 'read'), 'EXPLAIN: all pages that the server read, while others read') or diag($plan);
cmp_ok(line($plan, 'Remote Timings')->{donor}, '>', 0, 'and their time');
is($line->{'spill read'}, undef, 'and nothing of what there was not');

$plan = $explainer->query("SET remote_bp.read_from = cache; SET remote_bp.use_tier = read; $analyze SELECT count(pad) FROM b; RESET remote_bp.read_from; RESET remote_bp.use_tier");
$line = line($plan, 'Remote');
cmp_ok(($line->{'page cache'} // 0) + ($line->{disk} // 0), '>', 0, 'EXPLAIN shows reads of files');
is(total($line), server_figure($plan, 'shared', 'read'), 'EXPLAIN: all of them');

$plan = $explainer->query("SET work_mem = '64kB'; $analyze SELECT pad FROM d ORDER BY pad DESC OFFSET 100000; RESET work_mem");
$line = line($plan, 'Remote');
is($line->{'spill read'} + ($line->{'spill staging'} // 0), server_figure($plan, 'temp', 'read'), 'EXPLAIN shows spilled blocks that were read') or diag($plan);
cmp_ok($line->{'spill written'}, '>', 0, 'EXPLAIN shows spilled blocks that were written');
cmp_ok($line->{'spill written'}, '<=', server_figure($plan, 'temp', 'written'), 'EXPLAIN: not those that needed not be');
is(total($line), server_figure($plan, 'shared', 'read'), 'EXPLAIN: and the pages');

# A function's query is part of the one that calls it, even if it is explained itself.
$plan = $explainer->query("$analyze SELECT rbp_of_a('') + rbp_of_a('x')");
is(total(line($plan, 'Remote')), server_figure($plan, 'shared', 'read'), q{EXPLAIN: queries of functions count}) or diag($plan);
cmp_ok(total(line($plan, 'Remote')), '>', 900, 'EXPLAIN: both of them');
$explainer->query('SELECT rbp_explained()');
$plan = $explainer->query('SELECT rbp_explained()');
is(total(line($plan, 'Remote')), server_figure($plan, 'shared', 'read'), 'EXPLAIN within a function') or diag($plan);
$plan = $explainer->query("$analyze SELECT rbp_explained(), rbp_explained()");
is(total(line($plan, 'Remote')), server_figure($plan, 'shared', 'read'), 'EXPLAIN of a query that explains');
$plan = $explainer->query("$analyze CREATE TABLE rbp_new AS SELECT count(pad) FROM a");
cmp_ok(total(line($plan, 'Remote')), '>=', 256, 'EXPLAIN CREATE TABLE AS');

# Nothing to say, and nowhere to say it.
$plan = $explainer->query("$analyze SELECT 1");
is(line($plan, 'Remote'), undef, 'EXPLAIN of a query that reads nothing');
$plan = $explainer->query('EXPLAIN (ANALYZE, BUFFERS off) SELECT count(pad) FROM a');
is(line($plan, 'Remote'), undef, 'EXPLAIN without buffers');
$plan = $explainer->query('EXPLAIN (BUFFERS) SELECT count(pad) FROM a');
is(line($plan, 'Remote'), undef, 'EXPLAIN without ANALYZE');
my $plans_explained = $node->pg_version >= 18;
$plan = $explainer->query("PREPARE of_a AS SELECT count(pad) FROM a; $analyze EXECUTE of_a");
is(defined line($plan, 'Remote') ? 1 : 0, $plans_explained ? 1 : 0, 'EXPLAIN EXECUTE, as the docs say');
$plan = decode_json($explainer->query('EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) SELECT count(pad) FROM a'))->[0];
if ($plans_explained)
{
	is(pages_of($plan), $plan->{Plan}{'Shared Read Blocks'}, 'EXPLAIN in another format shows all pages');
	cmp_ok($plan->{'Remote Donor Time'}, '>', 0, 'and times');

	# Each node has, with those below it, what the server says that it read.
	$explainer->query("SET work_mem = '64kB'; SET max_parallel_workers_per_gather = 0");
	for my $query (
		'SELECT count(a.pad) FROM a JOIN b USING (id) WHERE b.v >= 0',
		q{SELECT count(*) FROM (SELECT pad FROM d ORDER BY pad DESC OFFSET 1) s},
		q{SELECT count(a.pad), max(rbp_of_a('x')) FROM a WHERE id IN (SELECT id FROM d WHERE pad > '')},
		'SELECT (SELECT count(pad) FROM a), (SELECT max(b.pad) FROM b WHERE b.id > x) FROM generate_series(1, 2) x',
		'SELECT count(pad) FROM a WHERE id BETWEEN 1000 AND 9000 OR id < 500')
	{
		$plan = decode_json($explainer->query("EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) $query"))->[0];
		my $seen = 0;
		my @todo = $plan->{Plan};
		while (my $n = shift @todo)
		{
			push @todo, @{ $n->{Plans} // [] };
			next unless defined $n->{'Remote Donor Blocks'};
			my $read = pages_of($n);
			is($read, $n->{'Shared Read Blocks'}, "EXPLAIN: all that a $n->{'Node Type'} read");
			is($n->{'Remote Spill Read Blocks'} + $n->{'Remote Spill Staging Blocks'}, $n->{'Temp Read Blocks'}, "EXPLAIN: all spilled blocks that a $n->{'Node Type'} read");
			$seen += $read;
		}
		cmp_ok($seen, '>', 256, 'EXPLAIN: nodes have read pages') or diag($query);
	}
	$plan = $explainer->query("$analyze SELECT count(*) FROM (SELECT pad FROM d ORDER BY pad DESC OFFSET 1) s; RESET work_mem");
	like($plan, qr/^ +Remote: .*^Remote: /ms, 'EXPLAIN shows nodes in text, too');
}
else
{
	is_deeply([ grep { /^Remote/ } keys %$plan ], [], 'EXPLAIN in another format is as the server made it');
}

# An error in between
{
	my ($ret, $out, $err) = $node->psql('postgres', "$analyze SELECT 1 / (count(pad) - count(*)) FROM a; $analyze SELECT count(pad) FROM a", on_error_stop => 0);
	like($err, qr/division by zero/, 'a query fails');
	is(total(line($out, 'Remote')), server_figure($out, 'shared', 'read'), 'EXPLAIN of the next one');
}

# Workers read more than the nodes of the plan know: the catalogs, at their start.
$session{c}->query('SELECT 1');
my ($of_c) = $sql{c} =~ /(SELECT count.*)/;
my $before = look();
$plan = $session{c}->query("$analyze $of_c");
my $after = look();
like($plan, qr/Workers Launched: [12]/, 'workers are there');
$line = line($plan, 'Remote');
cmp_ok(total($line), '>=', server_figure($plan, 'shared', 'read'), 'EXPLAIN of a parallel query: all that its nodes read') or diag($plan);
my %own = moved($before, $after, 'c');
cmp_ok(total($line), '<=', $own{hits} + $own{staged_hits} + $own{misses}, 'EXPLAIN of a parallel query: nothing else');
if ($plans_explained)
{
	$plan = decode_json($session{c}->query("EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) $of_c"))->[0]{Plan};
	$plan = $plan->{Plans}[0] until !$plan || $plan->{'Node Type'} eq 'Gather';
	cmp_ok(pages_of($plan), '>=', $plan->{'Shared Read Blocks'}, 'EXPLAIN: a Gather has what workers read');
	cmp_ok(pages_of($plan->{Plans}[0]), '<=', $plan->{Plans}[0]{'Shared Read Blocks'}, 'EXPLAIN: a node below has what the leader read');
}
$explainer->quit;
$session{b}->query('SELECT 1');

# What is counted for a process by its workers before it counts something itself: the
# second one finds all catalogs in shared buffers.
for my $time (1, 2)
{
	my $leader = $node->background_psql('postgres');
	my $leader_pid = $leader->query('SELECT pg_backend_pid()');
	$leader->query("SET parallel_leader_participation = off; $sql{c}");
	cmp_ok($observer->query("SELECT hits + staged_hits + misses FROM remote_bp_stat_backend($leader_pid)"), '>=', $megabytes{c} * 128 - 256,
		'a process has what its first workers read');
	$leader->quit;
}

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
is_clean($node, '', no_compare => 1);
$node->stop;

done_testing();
