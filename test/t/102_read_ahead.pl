# Reading ahead: pages of a run are on their way before the server asks for them;
# a run that the tier has in part is read as if it had none of it, or all; a
# donor that does not answer is waited for once; and the kernel is asked to read
# ahead what the tier has not, if that is of use.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use RemoteBP;
use RemoteBP::Preload;
use Test::More;

need_test_build();
set_faults();
my $broker = start_broker();
my $donor = start_donor($broker, memory => '128MB');
my $node = new_cluster(
	'ahead',
	broker => $broker,
	transport => 'tcp',
	test_build => 1,
	io_workers => 0,
	# 18 announces as many pages as a process may pin
	shared_buffers => '8MB',
	# late donors are tested by the one that is made so
	conf => "max_connections = 10\nremote_bp.io_timeout = '5s'\nremote_bp.read_ahead = 64\n");
ok(wait_leased($node, 64), 'memory is leased');
make_table($node, 't', 8);
my $pages = $node->safe_psql('postgres', q{SELECT pg_relation_size('t') / 8192});
my $query = 'SELECT count(*), sum(v), sum(hashtext(t::text)::bigint) FROM t';
my $content = $node->safe_psql('postgres', "SET remote_bp.use_tier = off; $query");
my @counted = qw(hits read_ahead read_ahead_used misses fallbacks races);

sub fill
{
	my ($first, $last) = @_;
	$node->safe_psql('postgres', q{SELECT remote_bp_evict('t')});
	evict_buffers($node);
	$node->safe_psql('postgres', q{SELECT remote_bp_evict('t')});
	$node->safe_psql('postgres', "SELECT remote_bp_prewarm('t', first_block => $first, last_block => $last)");
	evict_buffers($node);
	wait_for('the pusher', sub { counter($node, 'staged_pages') == 0 });
	return;
}

# Run a query in a session that captures nothing and has read the catalogs, and
# return how the counters have moved.
sub run
{
	my ($name, $sql, %set) = @_;
	my $expected = $sql eq $query ? $content : 200;
	my $counters = 'SELECT ' . join(', ', @counted) . ' FROM remote_bp_stat';
	my $set = join('', map { "SET $_ = '$set{$_}'; " } sort keys %set);
	my @out = split /\n/, $node->safe_psql('postgres', "SET remote_bp.use_tier = read; $set$counters; EXPLAIN (COSTS off) $sql; $counters; $sql; $counters");
	is($out[-2], $expected, "$name: the rows are right");
	my ($before, $after) = map { [ split /\|/ ] } @out[ -3, -1 ];
	my %moved = map { $counted[$_] => $after->[$_] - $before->[$_] } 0 .. $#counted;
	note("$name: " . join(', ', map { "$_ $moved{$_}" } @counted));
	return \%moved;
}

fill(0, $pages - 1);
my $c = run('a scan', $query);
cmp_ok($c->{read_ahead_used}, '>', 0.9 * $pages, 'a scan: nearly all pages were read ahead');
cmp_ok($c->{read_ahead}, '<', $c->{read_ahead_used} + 2 * 64, 'a scan: hardly more than was used');
cmp_ok($c->{hits}, '>=', $c->{read_ahead_used}, 'a scan: they count as hits');

$c = run('off', $query, 'remote_bp.read_ahead' => 0);
is($c->{read_ahead}, 0, 'off: nothing is read ahead');
cmp_ok($c->{hits}, '>', 0.9 * $pages, 'off: donors serve the pages nevertheless');

# since 17, one read may be of more pages than that
$c = run('few pages', $query, 'remote_bp.read_ahead' => 4, $node->pg_version >= 17 ? (io_combine_limit => 1) : ());
cmp_ok($c->{read_ahead_used}, '>', 0.9 * $pages, 'few pages: as many at once as is set are read ahead');
cmp_ok($c->{read_ahead}, '<', $c->{read_ahead_used} + 2 * 4, 'few pages: hardly more than was used');

# A part of the table
fill(0, int($pages / 2) - 1);
$c = run('half', $query);
cmp_ok($c->{read_ahead_used}, '>', 0.4 * $pages, 'half of it in the tier: that half is read ahead');
cmp_ok($c->{misses}, '>', 0.4 * $pages, 'half of it in the tier: the other half is read from the file');

# Random reads are not read ahead.
fill(0, $pages - 1);
my @at_random = map { ($_ * 389) % $pages } 1 .. 200;
$c = run('at random', 'SELECT count(*) FROM t WHERE ctid = ANY (ARRAY[' . join(',', map { "'($_,1)'" } @at_random) . ']::tid[])');
cmp_ok($c->{hits}, '>=', 200, 'at random: donors serve the pages');
cmp_ok($c->{read_ahead}, '<', 20, 'at random: hardly anything is read ahead');

# What the server announces by posix_fadvise() is requested, in batches.
my @every_sixth = map { 48 * $_ + 1 } 0 .. 169;
$c = run('bitmap scan', 'SELECT count(v) + 30 FROM t WHERE id = ANY (ARRAY[' . join(',', @every_sixth) . '])',
	enable_seqscan => 'off', enable_indexscan => 'off', effective_io_concurrency => 16);
cmp_ok($c->{read_ahead_used}, '>', 100, 'bitmap scan: most of the pages were requested before they were read');
cmp_ok($c->{read_ahead}, '<=', 200, 'bitmap scan: and each of them once');
$c = run('bitmap scan, off', 'SELECT count(v) + 30 FROM t WHERE id = ANY (ARRAY[' . join(',', @every_sixth) . '])',
	enable_seqscan => 'off', enable_indexscan => 'off', effective_io_concurrency => 16, 'remote_bp.read_ahead' => 0);
is($c->{read_ahead}, 0, 'bitmap scan, off: nothing is requested');

# Windows from the file where that is measured to be faster: none is lost.
fill(0, $pages - 1);
$c = run('auto', $query, 'remote_bp.read_from' => 'auto');
cmp_ok($c->{hits} + $c->{misses}, '>', 0.9 * $pages, 'auto: each page comes from somewhere');
cmp_ok($c->{misses}, '>', 0, 'auto: the file is tried');

# What arrives corrupted is read again, and then from disk.
set_faults('read corrupt');
$c = run('corrupt', $query);
set_faults();
# what was on its way before the faults were noticed
cmp_ok($c->{read_ahead_used}, '<', 0.1 * $pages, 'corrupt: hardly anything of it is used');
cmp_ok($c->{races}, '>', 0, 'corrupt: it is read again');
cmp_ok(counter($node, 'hash_failures'), '>=', 16, 'corrupt: and then it is a hash failure, until the donor is out of use');
wait_donors_used($node) or BAIL_OUT('the donor is not used again');
reset_counters($node);

# A donor that does not answer: the first batch is waited for, the rest is read
# from the file.
fill(0, $pages - 1);
{
	my $session = $node->background_psql('postgres');
	$session->query('BEGIN; DECLARE c CURSOR FOR SELECT v FROM t; MOVE 200 FROM c');
	cmp_ok(counter($node, 'read_ahead_used'), '>', 0, 'no answer: before it, pages are read ahead');
	$node->append_conf('postgresql.conf', "remote_bp.io_timeout = '100ms'\n");
	$node->reload;
	wait_for('less patience', sub { $session->query('SHOW remote_bp.io_timeout') eq '100ms' }) or die;
	$donor->freeze;
	$session->query('MOVE ALL FROM c');
	my $timeouts = counter($node, 'timeouts');
	$donor->thaw;
	$session->query('COMMIT');
	$session->quit;
	cmp_ok(counter($node, 'fallbacks'), '>', 0, 'no answer: pages are read from the file');
	# and the pusher's ping
	cmp_ok($timeouts, '>', 0, 'no answer: the donor is noticed to be late');
	cmp_ok($timeouts, '<', 10, 'no answer: it is not waited for again and again');
}
is(counter($node, 'hash_failures'), 0, 'no answer: what was read is right');
is_clean($node);
$node->stop;

# What the kernel is asked for: the holes of a run, unless the server reads past the
# page cache.  Without donors, what a server without the tier asks for.
my $advice = PostgreSQL::Test::Utils::tempdir() . '/advice';
my $slow_files = "$advice.slow_files";
my $bitmap = 'SELECT count(v) + 30 FROM t WHERE id = ANY (ARRAY[' . join(',', @every_sixth) . '])';
my $path = $node->data_dir;

sub start_noting
{
	my (%set) = @_;
	$node->append_conf('postgresql.conf', join('', map { "$_ = '$set{$_}'\n" } sort keys %set));
	start_preloaded($node, 'advice slow_files', RBP_ADVICE => $advice, RBP_SLOW_FILES => $slow_files);
	return;
}

# The number of times that the kernel is asked for a part of the table, and of
# pages that were read ahead
sub advised
{
	my ($sql, %set) = @_;
	evict_buffers($node);
	unlink $advice;
	my $used = counter($node, 'read_ahead_used');
	my $set = join('', map { "SET $_ = '$set{$_}'; " } sort keys %set);
	$node->safe_psql('postgres', "SET remote_bp.compare_with_disk = off; $set$sql");
	my @lines = -e $advice ? split(/\n/, slurp_file($advice)) : ();
	return (scalar(grep { index($_, $path) == 0 } @lines), counter($node, 'read_ahead_used') - $used);
}

start_noting('remote_bp.io_timeout' => '5s');
$path .= '/' . $node->safe_psql('postgres', q{SELECT pg_relation_filepath('t')}) . ' ';
my @read = ('remote_bp.use_tier' => 'read');
my @by_bitmap = (enable_seqscan => 'off', enable_indexscan => 'off', effective_io_concurrency => 16);

sub fill_every_other
{
	ok(wait_leased($node, 64), 'memory is leased');
	$node->safe_psql('postgres', q{SELECT remote_bp_evict('t')});
	evict_buffers($node);
	$node->safe_psql('postgres', qq{SELECT remote_bp_evict('t');
		SELECT sum(remote_bp_prewarm('t', first_block => g * 16, last_block => least(g * 16 + 7, $pages - 1))) FROM generate_series(0, ($pages - 1) / 16) g});
	return;
}

fill_every_other();
my ($n, $used) = advised($query, @read);
cmp_ok($used, '>', 0.3 * $pages, 'every other eight pages: these are read ahead');
cmp_ok($n, '>', 0.8 * $pages / 16, 'every other eight pages: the kernel is asked for the others');
$node->stop;
if ($node->pg_version >= 16)
{
	start_noting(debug_io_direct => 'data');
	fill_every_other();
	($n, $used) = advised($query, @read);
	cmp_ok($used, '>', 0.3 * $pages, 'past the page cache: pages are read ahead');
	is($n, 0, 'past the page cache: the kernel is asked for nothing');
	$node->stop;
	$node->append_conf('postgresql.conf', "debug_io_direct = ''\n");
}
start_noting();
fill_every_other();
my ($stock) = advised($bitmap, @by_bitmap, 'remote_bp.use_tier' => 'off');
cmp_ok($stock, '>', 100, 'without the tier: the server asks the kernel for the pages of a bitmap scan');

# Announced pages that the kernel reads are in the page cache when they are read, so
# that no read of them would ever be worth a connection.  What the disk reads takes long,
# also where donors do: on a busy machine.
$node->safe_psql('postgres', q{SELECT remote_bp_prewarm('t'); CHECKPOINT});
my $file = substr($path, 0, -1);
system('dd', "of=$file", 'oflag=nocache', 'conv=notrunc,fdatasync', 'count=0', 'status=none') == 0 or BAIL_OUT('dd');
append_to_file($slow_files, "2000 $file\n");
cmp_ok((advised($bitmap, @by_bitmap, @read, 'remote_bp.read_from' => 'auto'))[0], '<', $stock / 2,
	'a bitmap scan of a new session connects, and asks the kernel for no more of it');
unlink $slow_files;
$donor->kill9;
ok(wait_for('the loss of the donor', sub { $node->safe_psql('postgres', "SET remote_bp.use_tier = read; $query"); return $node->safe_psql('postgres', q{SELECT count(*) FROM remote_bp_stat_donors WHERE state = 'ok'}) == 0 }),
	'no donor: that is noticed');
is((advised($query, @read))[0], 0, 'no donor: the kernel is asked for no more of a scan than without the tier');
is((advised($bitmap, @by_bitmap, @read))[0], $stock, 'no donor: nor of a bitmap scan');
$node->stop;

done_testing();
