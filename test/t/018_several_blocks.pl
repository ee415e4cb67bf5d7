# Reads of several blocks by one call, since PostgreSQL 17: blocks that are in
# shared buffers, in the tier and only on disk lie beside each other, and each of
# them is read from where it is.  Before 17, the same reads take a call for each
# block.

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
my $node = new_cluster(
	'blocks',
	broker => $broker,
	shared_buffers => '8MB',
	# A donor that is late is not what is tested.  With more processes, each may
	# pin so few of the buffers that the server reads block by block.
	conf => "remote_bp.io_timeout = '5s'\nmax_connections = 15\nmax_wal_senders = 0\n");
ok(wait_leased($node, 64), 'memory is leased');
my $version = int($node->safe_psql('postgres', 'SHOW server_version_num') / 10000);
make_table($node, 't', 8);
my $pages = $node->safe_psql('postgres', q{SELECT pg_relation_size('t') / 8192});
my $query = 'SELECT count(*), sum(v), sum(hashtext(t::text)::bigint) FROM t';
my $content = $node->safe_psql('postgres', "SET remote_bp.use_tier = off; $query");

# Groups of consecutive blocks of all sizes, the first of every other one: the
# tier gets these, and shared buffers get some from both kinds.
sub groups
{
	my @groups;
	for (my ($from, $n) = (0, 1); $from + 2 * $n <= $pages; $from += 2 * $n, $n = $n % 19 + 1)
	{
		push @groups, [ $from, $from + $n - 1 ];
	}
	return @groups;
}

sub prepare
{
	my $held = 0;
	$node->safe_psql('postgres', q{SELECT remote_bp_evict('t')});
	evict_buffers($node);
	$node->safe_psql('postgres', q{SELECT remote_bp_evict('t')});
	$held += $_ for split /\n/, $node->safe_psql('postgres', join('; ', map { "SELECT remote_bp_prewarm('t', first_block => $_->[0], last_block => $_->[1])" } groups()));
	evict_buffers($node);
	return $held;
}

# How many blocks a call reads, on average; unknown before 18.
sub blocks_per_read
{
	return $node->safe_psql('postgres', q{SELECT sum(read_bytes) / sum(reads) / 8192 FROM pg_stat_io WHERE object = 'relation' AND context IN ('normal', 'bulkread') AND backend_type IN ('client backend', 'io worker')});
}

my @methods = $version >= 18 ? ('worker', 'sync') : ('');
for my $method (@methods)
{
	for my $combine ($version >= 17 ? ('8kB', '128kB', '256kB') : (''))
	{
		my $name = $version >= 17 ? join(' ', "up to $combine", $method || ()) : 'block by block';
		$node->append_conf('postgresql.conf', "io_method = $method\n") if $method;
		$node->append_conf('postgresql.conf', "io_combine_limit = '$combine'\n") if $combine;
		$node->append_conf('postgresql.conf', "autovacuum_worker_slots = 1\n") if $version >= 18;
		$node->append_conf('postgresql.conf', "io_max_combine_limit = '$combine'\n") if $combine && $version >= 18;
		$node->restart;
		wait_leased($node, 64) or BAIL_OUT('no memory');
		my $held = prepare();
		is($held, sum_of(groups()), "$name: the tier has every other group of blocks");
		my @in_buffers = grep { $_ % 7 == 0 } 0 .. $pages - 1;
		$node->safe_psql('postgres', 'SELECT count(v) FROM t WHERE ctid = ANY (ARRAY[' . join(',', map { "'($_,1)'" } @in_buffers) . ']::tid[])');
		$node->safe_psql('postgres', q{SELECT pg_stat_reset_shared('io')}) if $version >= 18;
		# By one session, which has read the catalogs before.
		my $counted = 'SELECT hits + staged_hits, misses FROM remote_bp_stat';
		my @answer = split /\n/, $node->safe_psql('postgres', "SET remote_bp.use_tier = read; $counted; EXPLAIN (COSTS off) $query; $counted; $query; $counted");
		is($answer[-2], $content, "$name: each block is right");
		my ($before, $after) = map { [ split /\|/ ] } @answer[-3, -1];
		my ($hit, $missed) = map { $after->[$_] - $before->[$_] } 0, 1;
		my %in_buffers = map { $_ => 1 } @in_buffers;
		my %in_tier = map { $_ => 1 } map { $_->[0] .. $_->[1] } groups();
		my $in_tier = grep { $in_tier{$_} && !$in_buffers{$_} } 0 .. $pages - 1;
		# the scan may have needed a buffer of the others
		ok($hit >= $in_tier && $hit <= $in_tier + @in_buffers, "$name: what the tier has is read from there") or diag("$hit of $in_tier");
		cmp_ok($missed, '>=', $pages - @in_buffers - $in_tier, "$name: the rest is read from disk");
		if ($version >= 18)
		{
			# a session reports what it has done when it has ended
			my $blocks;
			wait_for('the statistics', sub { $blocks = blocks_per_read(); $combine eq '8kB' ? $blocks == 1 : $blocks > 1 });
			cmp_ok($blocks, $combine eq '8kB' ? '==' : '>', 1, "$name: $blocks blocks by a call");
		}
		is($node->safe_psql('postgres', $query), $content, "$name: and again, with what is in shared buffers now");
	}
}

sub sum_of
{
	my $sum = 0;
	$sum += $_->[1] - $_->[0] + 1 for @_;
	return $sum;
}

is_clean($node);
$node->stop;

done_testing();
