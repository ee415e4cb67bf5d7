# Long sequential reads that come from the file, because donors are slower: the
# tier is no longer asked about each page.  Rows stay right while they are
# written, and a session that sets read_from to donor reads from there at once.

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
		read_from => 'auto',
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
	# the table; scans come from the file, and soon do not ask about each page.
	set_faults($slow);
	my $session = $node->background_psql('postgres');
	my $count = 'SELECT hits, misses, hits + staged_hits + disk_reads + page_cache_reads FROM remote_bp_stat_backend()';
	my $wrong = 0;
	my $moved = sub {
		my ($sql) = @_;
		my @before = split /\|/, $session->query_safe($count);
		my $answer = $session->query_safe($sql);
		my @after = split /\|/, $session->query_safe($count);
		$wrong++ if $sql eq $scan && $answer ne $expected;
		return map { $after[$_] - $before[$_] } 0 .. $#after;
	};
	$session->query_safe('SET remote_bp.use_tier = read');
	ok(wait_for('scans that come from the file', sub { my ($hits, $misses, $known) = $moved->($scan); return $misses > 0.9 * $pages && $known < 0.5 * $pages }),
		"$transport: slow donors: scans come from the file, of which most is not asked about");
	is($wrong, 0, "$transport: the rows are right");

	# The next scan of the session comes from donors, as far as they have it,
	# even while what began before it is not over.
	my @out = split /\n/, $session->query_safe(
		"SELECT count(v) FROM t WHERE ctid < '($head,0)'; SET remote_bp.read_from = donor; $count; $scan; $count");
	is($out[2], $expected, "$transport: with donor, the rows are right");
	my ($hits, $hits2) = map { (split /\|/)[0] } @out[ 1, 3 ];
	cmp_ok($hits2 - $hits, '>', $head - 150, "$transport: with donor, donors serve what they have");
	$session->quit;

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
	my (undef, $min, $max) = split /\|/, $node->safe_psql('postgres', "SET remote_bp.read_from = donor; $scan");
	is("$min|$max", '4|4', "$transport: with donor, the last values are read");
	is($wrong, 0, "$transport: $scans readers have seen one version each");
	is_clean($node, $transport);
	$node->stop;
}

done_testing();
