# Transfers of temporary data that are wrong, short, late, lost or cut: a
# query gives the right result or fails with SQLSTATE 58030, and is never
# wrong; one that only wrote while donors failed does not fail; with two
# copies, single faults are not felt.

use strict;
use warnings;

use FindBin;
use List::Util 'sum';
use lib "$FindBin::RealBin/lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use RemoteBP;
use RemoteBP::Spill;
use Test::More;

need_test_build();
set_faults();
my $node = spill_cluster('spill_faults', settings => "statement_timeout = '100s'\n");
spill_data($node, rows => 12000);

my @queries = (
	q{SELECT md5(string_agg(t || pad, '')) FROM (SELECT t, pad FROM big ORDER BY t OFFSET 0) s},
	q{SELECT sum(hashtext(a.t || b.t)::bigint) FROM big a JOIN big b USING (id)},
	q{SELECT md5(string_agg(x, '')) FROM (SELECT lag(t, 900) OVER (ORDER BY t, id) AS x FROM big) s},
	q{WITH c AS MATERIALIZED (SELECT id, t, pad FROM big) SELECT sum(hashtext(a.t || b.pad)::bigint) FROM c a JOIN c b ON a.id = b.id + 2},
	q{TRUNCATE f; INSERT INTO f SELECT * FROM big; UPDATE f SET k = k + 1 WHERE id % 3 = 0; SELECT sum(hashtextextended(f::text, 0)::numeric) FROM f});
my $prelude = q{SET enable_mergejoin = off; SET remote_bp.spill_temp_tables = on; SET temp_buffers = '800kB'; CREATE TEMP TABLE f AS SELECT * FROM big};

sub new_session
{
	my $session = $node->background_psql('postgres', on_error_stop => 0);
	$session->query('\set VERBOSITY sqlstate');
	$session->query($prelude);
	return $session;
}

my $plain = new_session();
my @right = map { scalar $plain->query($_) } @queries;
$plain->quit;
is(scalar(grep { length > 5 } @right), scalar @queries, 'stock: results to compare with');

# All queries so many times: how many were right, how many failed.
sub run_queries
{
	my ($name, $times) = @_;
	my %n = (right => 0, failed => 0, wrong => 0, other => 0);
	for my $round (1 .. $times)
	{
		# Another session each time: what a temporary table has lost stays lost.
		my $session = new_session();
		for my $i (0 .. $#queries)
		{
			$session->{stderr} = '';
			my $answer = $session->query($queries[$i]) // '';
			my $err = $session->{stderr} =~ s/background_psql: \S+ \d+:\n?//gr;
			if ($err =~ /ERROR:\s+(\S+)/)
			{
				my $which = $1 eq '58030' ? 'failed' : 'other';
				$n{$which}++;
				diag("$name: $err") if $which eq 'other';
			}
			elsif ($answer eq $right[$i])
			{
				$n{right}++;
			}
			else
			{
				$n{wrong}++;
				diag("$name, query $i: $answer instead of $right[$i]");
			}
		}
		$session->quit;
	}
	note("$name: " . join(', ', map { "$_ $n{$_}" } sort keys %n));
	is($n{wrong}, 0, "$name: no result is wrong");
	is($n{other}, 0, "$name: nothing fails in another way");
	return \%n;
}

# name, counters of which one must move, may queries fail, faults; a donor
# that failed is down for a while, and blocks are local then
my @cases = (
	[ 'corrupted replies', 'spill.hash_failures', 1, 'read corrupt 0.03' ],
	[ 'short replies', 'spill.hash_failures', 1, 'read truncate 0.03' ],
	[ 'corrupted writes', 'spill.hash_failures', 1, 'write corrupt 0.005' ],
	[ 'short writes', 'spill.hash_failures', 1, 'write truncate 0.005' ]);
my @network = (
	[ 'late replies', undef, 0, 'read delay_us 20000 0.02', 'write delay_us 20000 0.02' ],
	[ 'lost replies', 'timeouts', 1, 'read drop 0.005' ],
	[ 'cut connections', 'io_errors', 1, 'read cut 0.005' ],
	[ 'lost writes', 'spill.rescued spill.local', 0, 'write drop 0.02' ],
	[ 'cut connections of writes', 'spill.rescued spill.local', 0, 'write cut 0.02' ],
	[ 'refused connections', undef, 0, 'connect refuse' ]);

my $broker = start_broker();
my @donors = map { start_donor($broker, id => "donor$_", memory => '48MB', region_size => '2MB') } 1 .. 2;
for my $transport ('tcp', 'shm')
{
	ok( spill_mode(
			$node,
			broker => $broker,
			transport => $transport,
			test_build => 1,
			temp => '32MB',
			conf => "remote_bp.io_timeout = '200ms'\n"),
		"$transport: memory is leased");
	for my $case (@cases, $transport eq 'tcp' ? @network : ())
	{
		my ($what, $counter, $may_fail, @faults) = @$case;
		my $name = "$transport, $what";
		# A query that may not fail is not to fail because the machine is busy.
		set_and_wait($node, 'remote_bp.temp_io_timeout' => $may_fail ? '1s' : '1min');
		my $writes;
		ok( wait_for(
				'donors to be used',
				sub {
					my $before = counter($node, 'spill.writes');
					$node->safe_psql('postgres', $queries[0]);
					return counter($node, 'spill.writes') > $before;
				}),
			"$name: donors are used before");
		my $before = counters($node);
		set_faults(@faults);
		my $failed = 0;
		# Faults come by chance: until one happens.
		for my $round (1 .. 10)
		{
			$failed += run_queries("$name, round $round", 2)->{failed};
			last if !$counter || sum(map { counter($node, $_) } split / /, $counter) > sum(map { $before->{$_} } split / /, $counter);
		}
		set_faults();
		my $after = counters($node);
		note(join(', ', map { "$_ +" . ($after->{$_} - $before->{$_}) } grep { /^spill\.|timeouts|io_errors/ && ($after->{$_} // '') =~ /^\d+$/ && $after->{$_} > $before->{$_} } sort keys %$after));
		cmp_ok(sum(map { $after->{$_} } split / /, $counter), '>', sum(map { $before->{$_} } split / /, $counter), "$name: they happened")
		  if $counter;
		is($failed, 0, "$name: no query fails") unless $may_fail;
		is($after->{'spill.lost'} - $before->{'spill.lost'} > 0, $failed > 0, "$name: failed reads are counted, and nothing else");
		spill_is_idle($node, $name);
	}
	spill_is_clean($node, $transport, lost => 1, offset => log_size($node));

	# Single faults do nothing to what is there twice: those of one donor, for
	# what comes by chance hits both copies of one block now and then.
	ok( spill_mode(
			$node,
			broker => $broker,
			transport => $transport,
			test_build => 1,
			temp => '48MB',
			conf => "remote_bp.temp_mirror = on\nremote_bp.io_timeout = '200ms'\n"),
		"$transport, two copies: memory is leased");
	set_and_wait($node, 'remote_bp.temp_io_timeout' => '1min');
	for my $case ([ 'corrupted replies', 'donor donor1 read corrupt 0.05' ], [ 'corrupted writes', 'donor donor1 write corrupt 0.02' ])
	{
		my ($what, @faults) = @$case;
		my $name = "$transport, two copies, $what";
		my $before = counters($node);
		set_faults(@faults);
		my $failed = 0;
		# Faults come by chance, and may hit what is not read: until one tells.
		for my $round (1 .. 15)
		{
			$failed += run_queries("$name, round $round", 4)->{failed};
			last if counter($node, $what eq 'corrupted writes' ? 'spill.mirror_reads' : 'spill.hash_failures') >
			  $before->{ $what eq 'corrupted writes' ? 'spill.mirror_reads' : 'spill.hash_failures' };
		}
		set_faults();
		my $after = counters($node);
		is($failed, 0, "$name: no query fails");
		cmp_ok($after->{'spill.hash_failures'}, '>', $before->{'spill.hash_failures'}, "$name: hash failures happen");
		cmp_ok($after->{'spill.mirror_reads'}, '>', $before->{'spill.mirror_reads'}, "$name: second copies were read")
		  if $what eq 'corrupted writes';
		spill_is_idle($node, $name);
	}
	spill_is_clean($node, "$transport, two copies", hash_failures => 1, offset => log_size($node));
}
$node->stop;

done_testing();
