# Reads that give wrong bits at random, under many writers and readers, with
# data checksums: each is an error in one statement at most.  Later, when reads
# are good again, every page is right at once: none was kept.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use RemoteBP;
use RemoteBP::BadRead;
use Test::More;

my $broker = start_broker();
my $donor = start_donor($broker, memory => '128MB');
my $bad = RemoteBP::BadRead->new;
my $node = $bad->preloaded(
	sub {
		new_cluster(
			'bad_reads_load',
			broker => $broker,
			checksums => 1,
			compare => 0,
			shared_buffers => '512kB',
			tier => '32MB');
	});
wait_leased($node, 32) or die 'no memory';
my $rows = make_table($node, 't', 8);
$node->safe_psql('postgres', 'CREATE EXTENSION amcheck');

# Statements on rows at random; how many there are of them.
sub script
{
	my ($n) = @_;
	return "SET enable_seqscan = off; SET enable_bitmapscan = off;\n" . join('', map {
		my $id = 1 + int(rand($rows));
		$_ % 3 ? "SELECT count(*), sum(length(pad)) FROM t WHERE id BETWEEN $id AND $id + 40;\n"
		  : "UPDATE t SET v = v + 1 WHERE id = $id;\n"
	} 1 .. $n);
}

my $updates = 0;
my $errors = 0;
for my $round (1 .. 3)
{
	$node->safe_psql('postgres', q{SELECT remote_bp_evict('t')});
	$bad->spoil_any(5);
	my @runs;
	for my $session (1 .. 4)
	{
		my $run = { script => script(300), out => '', err => '' };
		$run->{harness} = IPC::Run::start(
			[ 'psql', '-XAt', '-d', $node->connstr('postgres'), '-f', '-' ],
			'<', \$run->{script}, '>', \$run->{out}, '2>', \$run->{err}, IPC::Run::timeout(300));
		push @runs, $run;
	}
	$_->{harness}->finish for @runs;
	$bad->spoil_any;

	for my $run (@runs)
	{
		$updates += () = $run->{out} =~ /^UPDATE 1$/mg;
		$errors += () = $run->{err} =~ /ERROR:  invalid page in block/g;
		my @other = grep { /(ERROR|FATAL|PANIC):/ && !/invalid page in block/ } split(/\n/, $run->{err});
		is(scalar @other, 0, "round $round: nothing else went wrong") or diag("@other[0 .. ($#other > 3 ? 3 : $#other)]");
	}
	for my $time (1, 2)
	{
		is_deeply(
			[ $bad->outcomes($node, 'SELECT count(*), sum(v) FROM t', q{SELECT bt_index_check('t_id', true)}) ],
			[ "$rows|$updates", '' ],
			"round $round: the table and its index are right, $time");
		evict_buffers($node);
	}
}
note("$updates updates, $errors errors");
cmp_ok($errors, '>', 0, 'some reads were bad');
cmp_ok($updates, '>', 0, 'some rows were updated');
my $c = counters($node);
cmp_ok($c->{hits} + $c->{staged_hits}, '>', 0, 'there are hits');
is($c->{hash_failures}, 0, 'there is no hash failure');
$node->stop;
$node->command_ok([ 'pg_checksums', '--check', '-D', $node->data_dir ], 'checksums on disk are right');

done_testing();
