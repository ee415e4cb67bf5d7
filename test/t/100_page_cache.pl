# Page cache first: a page that the operating system's page cache has is read
# from the file, though a donor has it, and what the page cache has lost comes
# from the donor; in each way in which the page cache can be asked, and where it
# cannot be asked at all.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use RemoteBP;
use RemoteBP::Preload;
use Test::More;

my $broker = start_broker();
my $donor = start_donor($broker, memory => '64MB');
# In a fixed order: on a busy machine, the measured costs may favour the file.  Without the
# background writer: of the pages that it has written before an extension takes
# their frames, none is captured, so it would matter how long an UPDATE takes.
my $node = new_cluster(
	'cached',
	start => 0,
	broker => $broker,
	transport => 'tcp',
	tier => '64MB',
	staging => '16MB',
	conf => "remote_bp.io_timeout = '2s'\nbgwriter_lru_maxpages = 0\n");
my $pages;

# The files of the relation leave the page cache.
sub drop_from_page_cache
{
	my ($rel) = @_;
	$node->safe_psql('postgres', 'CHECKPOINT');
	my $file = $node->data_dir . '/' . $node->safe_psql('postgres', "SELECT pg_relation_filepath('$rel')");
	system('dd', "of=$file", 'oflag=nocache', 'conv=notrunc,fdatasync', 'count=0', 'status=none') == 0 or BAIL_OUT('dd');
	return;
}

# How the counters move while the query runs.
sub moved
{
	my ($setting, $query) = @_;
	evict_buffers($node);
	my $before = counters($node);
	my $answer = $node->safe_psql('postgres', "SET remote_bp.read_from = $setting; $query");
	my $after = counters($node);
	return ($answer, { map { $_ => $after->{$_} - $before->{$_} } grep { /^(hits|staged_hits|misses|page_cache|disk_reads|bypassed|skips_cached)/ && $_ ne 'page_cache_asked_by' } keys %$after });
}

my $content = 'SELECT count(*), sum(v), sum(hashtext(t::text)::bigint) FROM t';
my $expected;

sub start
{
	my ($how, %env) = @_;
	start_preloaded($node, 'page_cache', %env);
	create_extension($node) unless $expected;
	if (!$expected)
	{
		make_table($node, 't', 8, index => 0);
		$pages = $node->safe_psql('postgres', q{SELECT pg_relation_size('t') / 8192});
		$expected = content($node, 't');
	}
	wait_leased($node);
	is($node->safe_psql('postgres', 'SELECT page_cache_asked_by FROM remote_bp_stat'), $how, "$how: the view shows how the page cache is asked");
	ok(warm($node, 't', part => 0.9), "$how: the tier has the table");
	return;
}

#---- both ways to ask ---------------------------------------------------------

for my $how ('cachestat', 'mincore')
{
	# a kernel without cachestat() has only the other
	my ($range, $counts) = (pack('Q2', 0, 4096), "\0" x 40);
	open(my $self, '<', $0) or die $!;
	my $has = syscall(451, fileno($self), $range, $counts, 0) == 0;
	close $self;
	if ($how eq 'cachestat' && !$has)
	{
		note('this kernel has no cachestat()');
		next;
	}
	start($how, RBP_CACHE => $how eq 'mincore' ? 'nocachestat' : '');

	my ($answer, $moved) = moved('cache', $content);
	is($answer, $expected, "$how, cache, cached: the rows are right");
	cmp_ok($moved->{page_cache_first}, '>=', $pages * 0.8, "$how, cache, cached: pages come from the page cache, though a donor has them");
	cmp_ok($moved->{hits}, '<', $pages * 0.1, "$how, cache, cached: pages do not come from the donor");
	cmp_ok($moved->{page_cache_reads}, '>=', $moved->{page_cache_first}, "$how, cache, cached: reads are counted as page_cache_reads, too");

	# without comparing, which would read the file, and the kernel ahead of it
	drop_from_page_cache('t');
	($answer, $moved) = moved('cache', "SET remote_bp.compare_with_disk = off; $content");
	is($answer, $expected, "$how, cache, dropped: the rows are right");
	# what is on tmpfs cannot be dropped
	if (`stat -f -c %T "${\ $node->data_dir}"` !~ /^(tmpfs|ramfs)/)
	{
		cmp_ok($moved->{hits} + $moved->{staged_hits}, '>=', $pages * 0.8, "$how, cache, dropped: pages come from the donor");
		cmp_ok($moved->{page_cache_first}, '<', $pages * 0.2, "$how, cache, dropped: few pages come from the page cache");
	}

	($answer, $moved) = moved('donor', $content);
	is($answer, $expected, "$how, donor: the rows are right");
	is($moved->{page_cache_first} + $moved->{page_cache_reads} + $moved->{disk_reads}, 0, "$how, donor: the page cache is not asked");
	cmp_ok($moved->{hits} + $moved->{staged_hits}, '>=', $pages * 0.8, "$how, donor: pages come from the donor");

	# by what it costs: over and over in one session, whichever it chooses
	$node->safe_psql('postgres', "CREATE EXTENSION IF NOT EXISTS pg_prewarm");
	$node->safe_psql('postgres', "SELECT pg_prewarm('t', 'read')");
	($answer, $moved) = moved('auto', join('; ', ($content) x 8));
	is($answer, join("\n", ($expected) x 8), "$how, auto: the rows are right");
	cmp_ok($moved->{page_cache_reads}, '>', 0, "$how, auto: the page cache was asked");

	if ($how eq 'mincore')
	{
		# A file that is gone is not kept by its mapping.
		$node->safe_psql('postgres', 'CREATE TABLE gone AS SELECT * FROM t; CHECKPOINT');
		my $session = $node->background_psql('postgres');
		$session->query('SET remote_bp.read_from = cache');
		$session->query('SELECT count(*) FROM gone') for 1 .. 2;
		my $pid = $session->query('SELECT pg_backend_pid()');
		my $maps = slurp_file("/proc/$pid/maps");
		my ($path) = $node->safe_psql('postgres', q{SELECT pg_relation_filepath('gone')});
		ok($maps =~ m{/\Q$path\E$}m, 'mincore: the file is mapped');
		$node->safe_psql('postgres', 'DROP TABLE gone');
		$session->query('SELECT count(*) FROM pg_class');
		ok(slurp_file("/proc/$pid/maps") !~ m{/\Q$path\E}, 'mincore: the file is not mapped when it was dropped');
		$session->quit;
	}
	is_clean($node, $how);
	$node->stop;
}

#---- where it cannot be asked ---------------------------------------------------

{
	start('none', RBP_CACHE => 'nocachestat nomincore');
	my ($answer, $moved) = moved('cache', $content);
	is($answer, $expected, 'none: the rows are right');
	is($moved->{page_cache_first} + $moved->{page_cache_reads} + $moved->{disk_reads}, 0, 'none: nothing is known of the page cache');
	cmp_ok($moved->{hits} + $moved->{staged_hits}, '>=', $pages * 0.8, 'none: pages come from the donor');
	# Nothing tells that memory is plenty: what came from the tier is captured again
	# when it was written, though little else that is written is.
	$node->safe_psql('postgres', 'ALTER SYSTEM SET remote_bp.read_from = cache');
	$node->reload;
	$node->poll_query_until('postgres', 'SHOW remote_bp.read_from', 'cache') or BAIL_OUT('reload');
	my $all_pushed = sub { wait_for('the pusher', sub { counter($node, 'staged_pages') == 0 }, 60) or BAIL_OUT('the pusher') };
	$node->safe_psql('postgres', "SELECT remote_bp_prewarm('t')");
	$all_pushed->();
	$node->safe_psql('postgres', 'UPDATE t SET v = v + 1; CHECKPOINT');
	evict_buffers($node);
	$all_pushed->();
	cmp_ok(tier_pages($node, 't'), '>=', $pages * 0.8, 'none: pages that were written are in the tier again');
	$node->safe_psql('postgres', 'ALTER SYSTEM RESET remote_bp.read_from; UPDATE t SET v = v - 1');
	is(content($node, 't'), $expected, 'none: pages that were written are right');
	is_clean($node, 'none');
	$node->stop;
}

# A mapping for each segment is not ours to make where address space is limited.
{
	system('prlimit', "--pid=$$", '--as=1099511627776:') == 0 or BAIL_OUT('prlimit');
	start_preloaded($node, 'page_cache', RBP_CACHE => 'nocachestat');
	system('prlimit', "--pid=$$", '--as=unlimited:') == 0 or BAIL_OUT('prlimit');
	is($node->safe_psql('postgres', 'SELECT page_cache_asked_by FROM remote_bp_stat'), 'none', 'limited address space: mincore is not used');
	$node->stop;
}

# A filter of system calls that ends the caller ends a child, not the server.
{
	start_preloaded($node, 'page_cache', RBP_CACHE => 'deadlycachestat');
	is($node->safe_psql('postgres', 'SELECT page_cache_asked_by FROM remote_bp_stat'), 'mincore', 'deadly cachestat: the server starts, and uses another way');
	$node->stop;
}

# A file system whose files never show up in the page cache is left alone.
{
	start_preloaded($node, 'page_cache', RBP_CACHE => 'silent nomincore');
	wait_leased($node);
	my $asked_by = $node->safe_psql('postgres', 'SELECT page_cache_asked_by FROM remote_bp_stat');
	ok(warm($node, 't', part => 0.9), "silent ($asked_by): the tier has the table");
	my ($answer, $moved) = moved('cache', $content);
	is($answer, $expected, 'silent: the rows are right');
	is($moved->{page_cache_first} + $moved->{page_cache_reads} + $moved->{disk_reads}, 0, 'silent: the page cache is not asked');
	cmp_ok($moved->{hits} + $moved->{staged_hits}, '>=', $pages * 0.8, 'silent: pages come from the donor');
	is_clean($node, 'silent');
	$node->stop;
}

done_testing();
