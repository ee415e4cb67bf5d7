# Long sequential reads that come from the file, because donors are slower: the
# tier is no longer asked about each page.  Rows stay right while they are
# written, what donors have is counted, pages that the tier has not are captured,
# and a session that switches bypass off reads from donors at once.

use strict;
use warnings;

use FindBin;
use IPC::Run;
use lib "$FindBin::RealBin/lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use RemoteBP;
use Test::More;

need_test_build();
set_faults();
my $broker = start_broker();
my $donor = start_donor($broker, memory => '128MB');

for my $transport ('tcp', 'shm')
{
	# a batch, or a page: far more than the file takes on any machine
	my $slow = 'read delay_us ' . ($transport eq 'tcp' ? 10_000 : 3_000);

	my $node = new_cluster(
		"long_$transport",
		broker => $broker,
		transport => $transport,
		test_build => 1,
		bypass => 'auto',
		io_workers => 0,
		conf => "max_connections = 10\nremote_bp.io_timeout = '10s'\n");
	ok(wait_leased($node, 64), "$transport: memory is leased");
	make_table($node, 't', 24, index => 0);
	my $pages = $node->safe_psql('postgres', q{SELECT pg_relation_size('t') / 8192});
	my $head = int($pages / 2);
	my $scan = 'SELECT count(*), min(v), max(v), sum(hashtext(pad)) FROM t';
	my $expected = $node->safe_psql('postgres', "SET remote_bp.use_tier = off; $scan");

	$node->safe_psql('postgres', q{SELECT remote_bp_evict('t')});
	evict_buffers($node);
	$node->safe_psql('postgres', q{SELECT remote_bp_evict('t')});
	$node->safe_psql('postgres', "SELECT remote_bp_prewarm('t', last_block => $head - 1)");
	evict_buffers($node);

	# Donors are far slower than the file now.  The tier has the first half of
	# the table; some scan goes on from there without asking about the other one.
	set_faults($slow);
	my $session = $node->background_psql('postgres');
	my $count = 'SELECT hits, misses FROM remote_bp_stat_backend()';
	my $wrong = 0;
	$session->query_safe('SET remote_bp.use_tier = read');
	ok( wait_for(
			'pages that are presumed to be at donors',
			sub {
				my $before = counter($node, 'bypassed');
				$wrong++ if $session->query_safe($scan) ne $expected;
				return counter($node, 'bypassed') - $before > 1.3 * $head;
			}),
		"$transport: the tier is not asked about all of the pages");
	is($wrong, 0, "$transport: the rows are right");
	my ($hits, $misses) = split /\|/, $session->query_safe($count);
	$session->query_safe($scan);
	my ($hits2, $misses2) = split /\|/, $session->query_safe($count);
	cmp_ok($misses2 - $misses, '>', 0.9 * $pages, "$transport: all of it is read from the file");

	# The next scan of the session comes from donors, as far as they have it,
	# even while what began before it is not over.
	my @out = split /\n/, $session->query_safe(
		"SELECT count(v) FROM t WHERE ctid < '($head,0)'; SET remote_bp.bypass = off; $count; $scan; $count");
	is($out[2], $expected, "$transport: without bypass, the rows are right");
	($hits, $hits2) = map { (split /\|/)[0] } @out[ 1, 3 ];
	cmp_ok($hits2 - $hits, '>', $head - 150, "$transport: without bypass, donors serve what they have");
	$session->quit;

	# All is captured in time, although the file is faster.
	ok( wait_for(
			'captures',
			sub {
				$wrong++ if $node->safe_psql('postgres', $scan) ne $expected;
				evict_buffers($node);
				return $node->safe_psql('postgres', q{SELECT sum(pages) FROM remote_bp_relations WHERE relation = 't'::regclass}) > 0.9 * $pages;
			}),
		"$transport: what the tier has not is captured");
	is($wrong, 0, "$transport: the rows are right meanwhile");

	# Readers, while all rows are written, again and again.
	my $writer = IPC::Run::start(
		[ 'psql', '-XAtq', '-v', 'ON_ERROR_STOP=1', '-d', $node->connstr('postgres'), '-c',
			q{DO $$ BEGIN FOR i IN 1..4 LOOP UPDATE t SET v = v + 1; COMMIT; END LOOP; END $$} ],
		'<', \undef, '>', \my $out, '2>', \my $err, IPC::Run::timeout(300));
	my $scans = 0;
	while ($writer->pump_nb)
	{
		my ($n, $min, $max, $hash) = split /\|/, $node->safe_psql('postgres', $scan);
		$wrong++ if $min != $max || "$n|$hash" ne join('|', (split /\|/, $expected)[ 0, 3 ]);
		$scans++;
	}
	ok($writer->finish, "$transport: all rows are written") or diag($err);
	set_faults();
	my (undef, $min, $max) = split /\|/, $node->safe_psql('postgres', "SET remote_bp.bypass = off; $scan");
	is("$min|$max", '4|4', "$transport: without bypass, the last values are read");
	is($wrong, 0, "$transport: $scans readers have seen one version each");
	is_clean($node, $transport);
	$node->stop;
}

done_testing();
