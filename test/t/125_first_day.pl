# Where pages came from is told in the same words everywhere, and reads for which the
# page cache was not asked are not said to be the disk's.

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
my $node = new_cluster('first_day', broker => $broker, tier => '16MB', compare => 0, io_workers => 0, page_cache_first => 'on');
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
for my $how ([ 'on', 'page_cache_read', 'page_cache_reads' ], [ 'off', 'file_read', 'file' ])
{
	my ($asked, $operation, $counter) = @$how;
	$node->safe_psql('postgres', q{SELECT remote_bp_evict('t')});
	reset_counters($node);
	my $plan = $node->safe_psql('postgres', "SET remote_bp.page_cache_first = $asked; SET remote_bp.use_tier = read; SET track_io_timing = on;
		EXPLAIN (ANALYZE, BUFFERS, COSTS off, TIMING off) SELECT count(pad) FROM t");
	my $now = look();
	my $later = look();
	note(join ', ', map { "$_ $now->{$_}" } grep { /calls of .*(hit|read)|_reads$|^file$|^misses$/ } sort keys %$now);
	cmp_ok($now->{$counter}, '>', 400, "page_cache_first = $asked: most reads are $counter");
	cmp_ok($now->{"calls of $operation"}, '>', 0, "page_cache_first = $asked: their latency is that of $operation");
	cmp_ok($now->{'calls of disk_read'}, '<=', $later->{disk_reads}, "page_cache_first = $asked: latencies of the disk are the disk's");
	cmp_ok($now->{'calls of page_cache_read'}, '<=', $later->{page_cache_reads}, '... those of the page cache its own');
	cmp_ok($now->{'calls of file_read'}, '<=', $later->{file}, '... and those of files for which it was not asked theirs');
	my ($word) = $operation =~ /^(.*)_read$/;
	$word =~ tr/_/ /;
	like($plan, qr/^Remote:.* $word=\d{3}/m, "page_cache_first = $asked: EXPLAIN says $word");
	like($plan, qr/^Remote Timings:.* file=/m, '... and their time') if $word eq 'file';
	unlike($plan, qr/^Remote Timings:.* disk=/m, "... which is not the disk's") unless $now->{disk_reads};
	shows("page_cache_first = $asked", 'page cache', 'page_cache_reads');
	shows("page_cache_first = $asked", 'disk', 'disk_reads');
	shows("page_cache_first = $asked", 'file', 'file');
}

is_clean($node, 'in the end', no_compare => 1);
$node->stop;
done_testing();
