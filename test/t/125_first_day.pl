# The first day: where pages came from is told in the same words everywhere, and reads
# for which the page cache was not asked are not said to be the disk's; the advice says
# when it knows too little, and how well it knows, and looks at sizes that make sense
# for what is read.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use JSON::PP;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use RemoteBP;
use Test::More;

my $MB = 1024 * 1024;
my $broker = start_broker();
my $donor = start_donor($broker, memory => '64MB');
my $node = new_cluster('first_day', broker => $broker, tier => '16MB', compare => 0, io_workers => 0, read_from => 'cache');
ok(wait_leased($node, 16), 'memory is leased');
my $server = $node->connstr('postgres');

# Returns the exit status, and what it prints.
sub run_ctl
{
	my $out = '';
	IPC::Run::run([ rbp_program('ctl'), '--dbname', $server, @_ ], '<', '/dev/null', '>&', \$out, IPC::Run::timeout(120));
	my $status = $? >> 8;
	note("remote_bp_ctl @_: exit $status\n$out");
	return ($status, $out);
}

#---- where pages came from ------------------------------------------------------

# Counters, calls of each operation, and what follows from the counters.
sub look
{
	my $now = decode_json($node->safe_psql('postgres', q{
		SELECT to_jsonb(s) || (SELECT jsonb_object_agg('calls of ' || operation, calls) FROM remote_bp_stat_latency) FROM remote_bp_stat s}));
	$now->{file} = $now->{misses} - $now->{page_cache_reads} - $now->{disk_reads};
	$now->{all} = $now->{hits} + $now->{staged_hits} + $now->{misses};
	return $now;
}

# In percent of all reads, as top says
sub top_shares
{
	my ($status, $out) = run_ctl('--once', 'top');
	my ($line) = $out =~ /^reads, last \d+ s: \d+ a second: (.*)$/m;
	return { reverse(($line // '') =~ /([\d.]+) % ([a-z]+(?: [a-z]+)*)/g) };
}

# top says so between two looks.
sub shows
{
	my ($name, $word, $counter) = @_;
	my $before = look();
	my $shown = top_shares()->{$word} // -1;
	my $after = look();
	my ($least, $most) = (100 * $before->{$counter} / $after->{all}, 100 * $after->{$counter} / $before->{all});
	ok($shown >= $least - 0.1 && $shown <= $most + 0.1, "$name: top tells the share of \"$word\"") or diag("$shown is not from $least to $most");
	return;
}

# Files that were just written are in the page cache; if some is not, that is counted.
make_table($node, 't', 6);
$node->safe_psql('postgres', 'CHECKPOINT');
for my $how ([ 'cache', 'page_cache_read', 'page_cache_reads' ], [ 'donor', 'file_read', 'file' ])
{
	my ($asked, $operation, $counter) = @$how;
	$node->safe_psql('postgres', q{SELECT remote_bp_evict('t')});
	reset_counters($node);
	my $plan = $node->safe_psql('postgres', "SET remote_bp.read_from = $asked; SET remote_bp.use_tier = read; SET track_io_timing = on;
		EXPLAIN (ANALYZE, BUFFERS, COSTS off, TIMING off) SELECT count(pad) FROM t");
	my $now = look();
	my $later = look();
	note(join ', ', map { "$_ $now->{$_}" } grep { /calls of .*(hit|read)|_reads$|^file$|^misses$/ } sort keys %$now);
	cmp_ok($now->{$counter}, '>', 400, "read_from = $asked: most reads are $counter");
	cmp_ok($now->{"calls of $operation"}, '>', 0, "read_from = $asked: their latency is that of $operation");
	cmp_ok($now->{'calls of disk_read'}, '<=', $later->{disk_reads}, "read_from = $asked: latencies of the disk are the disk's");
	cmp_ok($now->{'calls of page_cache_read'}, '<=', $later->{page_cache_reads}, '... those of the page cache its own');
	cmp_ok($now->{'calls of file_read'}, '<=', $later->{file}, '... and those of files for which it was not asked theirs');
	my ($word) = $operation =~ /^(.*)_read$/;
	$word =~ tr/_/ /;
	like($plan, qr/^Remote:.* $word=\d{3}/m, "read_from = $asked: EXPLAIN says $word");
	like($plan, qr/^Remote Timings:.* file=/m, '... and their time') if $word eq 'file';
	unlike($plan, qr/^Remote Timings:.* disk=/m, "... which is not the disk's") unless $now->{disk_reads};
	shows("read_from = $asked", 'page cache', 'page_cache_reads');
	shows("read_from = $asked", 'disk', 'disk_reads');
	shows("read_from = $asked", 'file', 'file');
}

#---- how large the tier should be ----------------------------------------------

# A table of empty pages, which take no room on the disk.
sub make_sparse
{
	my ($name, $megabytes) = @_;
	$node->safe_psql('postgres', "CREATE TABLE $name (id int)");
	my $file = $node->data_dir . '/' . $node->safe_psql('postgres', "SELECT pg_relation_filepath('$name')");
	truncate($file, $megabytes * $MB) or BAIL_OUT("truncate $file: $!");
	return;
}

sub advice
{
	return decode_json($node->safe_psql('postgres', q{SELECT coalesce(json_agg(a ORDER BY tier_size), '[]') FROM remote_bp_advice a}));
}

make_sparse('quarter', 256);
make_sparse('whole', 1024);
is($node->safe_psql('postgres', 'SHOW remote_bp.advice_max_size'), '64GB', 'the largest size is not set');
$node->safe_psql('postgres', 'ALTER SYSTEM SET remote_bp.advice = on');
$node->reload;
ok(wait_for('the advice', sub { @{ advice() } }), 'the advice begins');
is(advice()->[-1]{tier_size} / $MB, 1024, 'as long as little is read, the largest size is 1 GB');
is(advice()->[-1]{hit_ratio}, undef, 'after few reads, there are no estimates');
my ($status, $out) = run_ctl('advice');
is($status, 0, 'advice after few reads');
like($out, qr/\Atoo little was observed to say: \d+ reads, \d+ events of the sample\n\(/, '... says that there were few');
unlike($out, qr/MB|%/, '... and nothing else');
($status, $out) = run_ctl('--once', 'top');
like($out, qr/^too little was observed to say: .*$/m, 'top says so, too');

# Twice: all pages are new at first, and none is then.
$node->safe_psql('postgres', 'SET remote_bp.read_from = donor; SELECT count(*) FROM quarter; SELECT count(*) FROM quarter');
my $rows = advice();
my $largest = $rows->[-1];
note(join ', ', map { "$_ " . ($largest->{$_} // '-') } sort keys %$largest);
cmp_ok($largest->{reads}, '>', 2 * 256 * 128 - 500, 'all reads are counted');
cmp_ok(abs($largest->{first_reads} / $largest->{reads} - 0.5), '<', 0.05, 'first reads are told apart');
cmp_ok(abs($largest->{hit_ratio} - 0.5), '<', 0.05, 'a tier that is large enough has the others');
is(scalar(grep { $_->{hits} + $_->{first_reads} + $_->{page_cache_reads} + $_->{disk_reads} != $_->{reads} } @$rows), 0, 'kinds of reads add up to all reads');
is(scalar(grep { !($_->{hit_ratio_error} >= 0 && $_->{hit_ratio_error} < 0.1) } @$rows), 0, 'each row has its error');
cmp_ok($rows->[0]{disk_reads} + $rows->[0]{page_cache_reads}, '>', $rows->[0]{reads} / 4, 'a small tier has few: the others are read again');
($status, $out) = run_ctl('advice');
like($out, qr/^ *256 MB +[\d.]+ % +[\d.]+ % /m, 'advice shows a size that has a part');
unlike($out, qr/^ *(768 MB|1 GB) /m, '... and none that is no better than one before');
like($out, qr/^\(a larger tier would have no more hits\)$/m, '... and says so');

# More than the largest size
$node->safe_psql('postgres', 'SELECT count(*) FROM whole');
ok(wait_for('a larger range', sub { advice()->[-1]{tier_size} == 2048 * $MB }), 'when more is read, sizes are larger');
cmp_ok(advice()->[-1]{reads}, '<', 1024 * 128, '... and the observation begins anew');

is_clean($node, 'in the end', no_compare => 1);
$node->stop;
done_testing();
