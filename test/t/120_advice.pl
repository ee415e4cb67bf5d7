# The advice: a server without a broker estimates the hit ratios that tiers of ten
# sizes would have, and a tier of that size then has them.  What the page cache
# has, what a session keeps to itself and what was dropped is told apart.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use RemoteBP;
use Test::More;

my $MB = 1024 * 1024;
my $READS = 15_000;
my $PAGES = 3072;

my $node = new_cluster(
	'advice',
	shared_buffers => '1MB',
	tier => '32MB',
	staging => '48MB',
	compare => 0,
	conf => "remote_bp.advice = on\nremote_bp.advice_max_size = '32MB'\nbgwriter_lru_maxpages = 0\nremote_bp.io_timeout = '5s'\n");

# Rows of the view, by size in MB
sub advice
{
	my $rows = $node->safe_psql('postgres', 'SELECT row_to_json(a) FROM remote_bp_advice a');
	return { map { ($_->{tier_size} / $MB => $_) } map { JSON::PP::decode_json($_) } split /\n/, $rows };
}

sub blocks_read
{
	return $node->safe_psql('postgres', 'SELECT sum(blks_read) FROM pg_stat_database');
}

sub set_setting
{
	my ($name, $value) = @_;
	$node->safe_psql('postgres', "ALTER SYSTEM SET remote_bp.$name = '$value'");
	$node->reload;
	return;
}

# All simulated tiers are empty.
sub start_afresh
{
	set_setting('advice', 'off');
	wait_for('the observation to end', sub { !%{ advice() } }) or BAIL_OUT('reload');
	set_setting('advice', 'on');
	wait_for('the observation to begin', sub { %{ advice() } }) or BAIL_OUT('reload');
	return;
}

# Reads of single pages in random order, the same in each run: each page of the
# table as often as the others, or the first ones more often, or with scans of
# another table in between.  Staging is empty before each sixteenth of it, for what is staged counts as
# in the tier.  All of it in one session, since the last few reads of each are not counted.
# Options: scans, reads ($READS), settings.
sub load
{
	my ($skew, %opt) = @_;
	my $part = int(($opt{reads} // $READS) / 16);
	my $scan = $opt{scans} ? 'SELECT count(*) FROM scanned;' : '';
	my $read = <<"SQL";
SELECT count(t.id) FROM
    (SELECT format('(%s,1)', floor($PAGES * random() ^ $skew))::tid AS page FROM generate_series(1, $part) OFFSET 0) s
    JOIN t ON t.ctid = s.page;
SQL
	my $wait = <<'SQL';
DO $$
BEGIN
    FOR i IN 1..6000 LOOP
        EXIT WHEN (SELECT staged_pages = 0 FROM remote_bp_stat);
        PERFORM pg_sleep(0.01);
    END LOOP;
END
$$;
SQL
	$node->safe_psql('postgres', join("\n", $opt{settings} // '',
			'SET enable_hashjoin = off; SET enable_mergejoin = off; SET enable_material = off; SELECT setseed(0.5);',
			("$read$wait" x 4 . "$scan\n$wait") x 4, 'SELECT pg_stat_force_next_flush();'));
	return;
}

my @loads = (
	{ name => 'uniform', skew => 1 },
	{ name => 'skewed', skew => 3 },
	{ name => 'with scans', skew => 3, scans => 1 });

# 24 MB, and 16 MB; each row fills a page
for my $table (['t', $PAGES], ['scanned', 2048])
{
	my ($name, $rows) = @$table;
	$node->safe_psql('postgres', <<"SQL");
CREATE TABLE $name (id int, filler text);
ALTER TABLE $name ALTER filler SET STORAGE PLAIN;
INSERT INTO $name SELECT i, repeat('x', 7000) FROM generate_series(1, $rows) i;
VACUUM FREEZE $name;
SQL
}
$node->safe_psql('postgres', 'CHECKPOINT');
my $pages = $node->safe_psql('postgres', q{SELECT pg_relation_size('t') / 8192});
is($pages, $PAGES, 'the table has a page for each row');

#---- before there is a broker --------------------------------------------------

is($node->safe_psql('postgres', 'SELECT usable FROM remote_bp_stat'), 'f', 'there is no tier');
for my $load (@loads)
{
	start_afresh();
	load($load->{skew}, scans => $load->{scans});
	my $before = blocks_read();
	$node->safe_psql('postgres', 'SELECT remote_bp_advice_reset()');
	load($load->{skew}, scans => $load->{scans});
	ok(wait_for(
			'the reads that the server has counted',
			sub {
				my ($ours, $server) = ((values %{ advice() })[0]{reads}, blocks_read() - $before);
				note("$load->{name}: $ours reads, the server has counted $server");
				return abs($ours - $server) < $server / 50;
			}),
		"$load->{name}: the number of reads is known");
	$load->{advice} = advice();
	my @rows = map { $load->{advice}{$_} } sort { $a <=> $b } keys %{ $load->{advice} };
	note(join ' ', map { sprintf '%.3f', $_->{hit_ratio} } @rows);
	is(join(' ', map { $_->{tier_size} / $MB } @rows), '2 4 6 8 12 16 20 24 28 32', "$load->{name}: there is a row for each size");
	# a scan that does not fit into the larger one either can take pages away from others
	my @falls = grep { $rows[$_]{hit_ratio} < $rows[ $_ - 1 ]{hit_ratio} - 0.01 } 1 .. $#rows;
	is(scalar(@falls), 0, "$load->{name}: a larger tier is not worse") unless $load->{scans};
	cmp_ok($rows[0]{hit_ratio}, '<', $rows[-1]{hit_ratio} - 0.2, "$load->{name}: it is better");
	cmp_ok($rows[-1]{hit_ratio}, '>', 0.9, "$load->{name}: a reset leaves pages in the simulated tiers") unless $load->{scans};
	is(scalar(grep { $_->{hits} + $_->{first_reads} + $_->{page_cache_reads} + $_->{disk_reads} != $_->{reads} } @rows), 0, "$load->{name}: kinds of reads add up");
	is(scalar(grep { !($_->{hit_ratio_error} >= 0 && $_->{hit_ratio_error} < 0.1) } @rows), 0, "$load->{name}: the error of each row is known");
	cmp_ok($rows[0]{first_reads}, '<', $rows[0]{reads} / 10, "$load->{name}: after a reset, pages that were read before are not new");
	cmp_ok($rows[0]{lost_events}, '<=', $rows[0]{events} / 10, "$load->{name}: few events are lost");
}
my $bytes = $node->safe_psql('postgres', q{SELECT remote_bp_working_set('1 day')});
cmp_ok(abs($bytes / (($PAGES + 2048) * 8192) - 1), '<', 0.15, 'the working set is both tables');
is($node->safe_psql('postgres', q{SELECT remote_bp_working_set('0')}), '0', 'nothing was read within no time');
my $since = $node->safe_psql('postgres', 'SELECT clock_timestamp()');
$node->safe_psql('postgres', q{SET enable_hashjoin = off; SET enable_mergejoin = off; SET enable_material = off;
	SELECT count(t.id) FROM (SELECT format('(%s,1)', i % 1024)::tid AS page FROM generate_series(1, 2048) i OFFSET 0) s JOIN t ON t.ctid = s.page});
$bytes = $node->safe_psql('postgres', "SELECT remote_bp_working_set(clock_timestamp() - '$since')");
cmp_ok(abs($bytes / (1024 * 8192) - 1), '<', 0.25, 'the working set since then is a third of the table, read twice');

#---- what is told apart ----------------------------------------------------------

my $largest = advice()->{32};
cmp_ok($largest->{page_cache_hits}, '>', $largest->{hits} / 2, 'pages that the page cache has are told apart');
cmp_ok($largest->{page_cache_reads}, '<=', $largest->{reads}, 'not all reads need come from the page cache');
is($largest->{donor_measured} . ' ' . $largest->{donor_read_us}, JSON::PP::false . ' 20', 'the time of a donor is assumed');

my $FEW = 4000;
start_afresh();
load(1, reads => $FEW);
my $always = advice()->{32};
start_afresh();
load(1, reads => $FEW, settings => 'SET remote_bp.read_from = auto;');
my $rarely = advice()->{32};
cmp_ok($rarely->{hit_ratio}, '<', $always->{hit_ratio} / 2, 'pages that the page cache has are seldom captured');

start_afresh();
load(1, reads => $FEW, settings => 'SET remote_bp.use_tier = read;');
my $never = advice()->{32};
cmp_ok($never->{reads}, '>', $FEW / 2, 'a session that does not capture is observed');
cmp_ok($never->{hits}, '<', $never->{reads} / 20, '... and its pages are not captured');
start_afresh();
load(1, reads => $FEW, settings => 'SET remote_bp.use_tier = off;');
cmp_ok(advice()->{32}{reads}, '<', $FEW / 4, 'a session that does not use the tier is not observed');

# The files of the table leave the page cache, unless they are on tmpfs.
if (`stat -f -c %T "${\ $node->data_dir}"` !~ /^(tmpfs|ramfs)/)
{
	my $file = $node->data_dir . '/' . $node->safe_psql('postgres', q{SELECT pg_relation_filepath('t')});
	start_afresh();
	load(1, reads => $FEW);
	system('dd', "of=$file", 'oflag=nocache', 'conv=notrunc,fdatasync', 'count=0', 'status=none') == 0 or BAIL_OUT('dd');
	$node->safe_psql('postgres', 'SELECT remote_bp_advice_reset()');
	load(1, reads => $FEW);
	my $row = advice()->{32};
	cmp_ok($row->{hits} - $row->{page_cache_hits}, '>', 0, 'hits save reads from the disk');
	cmp_ok($row->{disk_read_us}, '>', 0, 'a read from the disk was measured');
	ok(defined $row->{saved_ms_per_s}, 'the time that it saves is known');
}

# Pages that were truncated or dropped are forgotten.
sub working_set
{
	return $node->safe_psql('postgres', q{SELECT remote_bp_working_set('1 day')});
}
# A snapshot would stop the truncation.
my $go_on = hold_policy_worker($node);
for my $how (['truncated', 'DELETE FROM copy', 'VACUUM copy'], ['dropped', 'DROP TABLE copy'])
{
	my ($name, @commands) = @$how;
	$node->safe_psql('postgres', 'DROP TABLE IF EXISTS copy');
	$node->safe_psql('postgres', 'CREATE TABLE copy (LIKE scanned INCLUDING STORAGE)');
	$node->safe_psql('postgres', 'INSERT INTO copy SELECT * FROM scanned');
	start_afresh();
	$node->safe_psql('postgres', 'SELECT count(*) FROM copy');
	cmp_ok(working_set(), '>', 12 * $MB, "a table to be $name is read");
	$node->safe_psql('postgres', $_) for @commands;
	cmp_ok(working_set(), '<', 4 * $MB, "when it was $name, it is not in the working set");
}
$go_on->();

#---- turned off; after a crash ------------------------------------------------------

set_setting('advice', 'off');
ok(wait_for('no rows', sub { !%{ advice() } }), 'turned off, it gives no advice');
is($node->safe_psql('postgres', q{SELECT remote_bp_working_set('1 day') IS NULL}), 't', '... and knows of no working set');
set_setting('advice', 'on');
my $pid = $node->safe_psql('postgres', q{SELECT pid FROM pg_stat_activity WHERE backend_type = 'background writer'});
kill 'KILL', $pid;
$node->poll_query_until('postgres', "SELECT count(*) = 1 FROM pg_stat_activity WHERE backend_type = 'background writer' AND pid <> $pid") or BAIL_OUT('restart');
ok(wait_for('rows', sub { %{ advice() } }), 'after a crash, the observation begins anew');
load(1, reads => $FEW);
cmp_ok(advice()->{32}{reads}, '>', $FEW / 2, '... and sees reads');
set_setting('advice_max_size', '16MB');
ok(wait_for('rows', sub { advice()->{1} }), 'the largest size can be changed');
set_setting('advice', 'off');

#---- the truth ----------------------------------------------------------------------

my $broker = start_broker();
my $donor = start_donor($broker, memory => '64MB');
set_setting('broker', $broker->url);
my $size = 16;
set_setting('buffer_tier_size', "${size}MB");
wait_for("a tier of $size MB", sub { counter($node, 'online_pages') == $size * 128 }) or BAIL_OUT('no tier');
for my $load (@loads)
{
	load($load->{skew}, scans => $load->{scans});
	my $before = counters($node);
	load($load->{skew}, scans => $load->{scans});
	my $after = counters($node);
	my %n = map { $_ => $after->{$_} - $before->{$_} } qw(hits staged_hits misses);
	my $hits = $n{hits} + $n{staged_hits};
	my $truth = 100 * $hits / ($hits + $n{misses});
	my $estimate = 100 * $load->{advice}{$size}{hit_ratio};
	note(sprintf('%s: estimate %.1f %%, truth %.1f %%', $load->{name}, $estimate, $truth));
	cmp_ok(abs($estimate - $truth), '<', 10, "$load->{name}: a tier of $size MB has the hit ratio that was estimated");
	is($after->{drops_full}, 0, "$load->{name}: no page was lost as staging was full");
}
set_setting('advice', 'on');
wait_for('rows', sub { %{ advice() } }) or BAIL_OUT('reload');
is(advice()->{16}{donor_measured}, JSON::PP::true, 'the time of a donor is measured');
is_clean($node, 'in the end', no_compare => 1);
$node->stop;
done_testing();
