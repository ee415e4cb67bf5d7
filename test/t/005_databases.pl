# Whole databases made, dropped and moved: CREATE DATABASE in both strategies,
# with the object id (and so all file names) of one dropped before, DROP
# DATABASE, ALTER DATABASE SET TABLESPACE away and back.  All of it goes past
# the buffers, through plain reads and writes or through files taken away.

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
my $node = new_cluster('databases', broker => $broker, conf => "shared_buffers = '512kB'\n");
ok(wait_leased($node, 64), 'memory is leased');

# Two templates with the same tables, in the same files, with other content.
$node->safe_psql('postgres', 'CREATE DATABASE one');
create_extension($node, 'one');
make_table($node, 't', 4, db => 'one');
evict_buffers($node, 'one');
$node->safe_psql('postgres', 'CREATE DATABASE two TEMPLATE one');
$node->safe_psql('two', 'UPDATE t SET v = 2; VACUUM t');
# All of it again, so that block by block the contents differ
$node->safe_psql('two', 'UPDATE t SET v = 3; VACUUM t; UPDATE t SET v = 4');
$node->safe_psql('postgres', 'CHECKPOINT');
my $one = content($node, 't', 'one');
my $two = content($node, 't', 'two');
like($one, qr/^4096\|0\|/, 'one template');
like($two, qr/^4096\|16384\|/, 'another');
is( $node->safe_psql('one', q{SELECT pg_relation_filenode('t')}),
	$node->safe_psql('two', q{SELECT pg_relation_filenode('t')}),
	'both databases have files of the same name');

sub reads_are
{
	my ($what, $db, $expected) = @_;
	for my $round (1 .. 2)
	{
		is(content($node, 't', $db), $expected, "$what: reads are right");
		is($node->safe_psql($db,
				'SET enable_seqscan = off; SET enable_bitmapscan = off; SELECT count(*), sum(v) FROM t WHERE id > 0'),
			($expected =~ /^(\d+\|\d+)/)[0], "$what: index scans are right");
		evict_buffers($node, $db);
	}
	return;
}

# Files are copied by reads and writes; since 18 also in the kernel.
my @strategies = ('file_copy', 'wal_log');
push @strategies, 'file_copy, cloned' if $node->safe_psql('postgres', 'SHOW server_version_num') >= 180000;

sub create
{
	my ($db, $template, $strategy, $options) = @_;
	local $ENV{PGOPTIONS} = '-c file_copy_method=clone' if $strategy =~ s/, cloned$//;
	$node->safe_psql('postgres', "CREATE DATABASE $db TEMPLATE $template STRATEGY $strategy " . ($options // ''));
	return;
}

# The same object id again, from the other template, by each strategy.
for my $strategy (@strategies)
{
	for my $previous (@strategies)
	{
		my $what = "$strategy after $previous";
		create('again', 'one', $previous, 'OID 70000');
		cmp_ok(warm($node, 't', db => 'again'), '>', 0, "$what: the tier has pages");
		my $generations = counter($node, 'generations');
		$node->safe_psql('postgres', 'DROP DATABASE again');
		cmp_ok(counter($node, 'generations'), '>', $generations, "$what: the drop was noticed");
		create('again', 'two', $strategy, 'OID 70000');
		reads_are($what, 'again', $two);
		cmp_ok(warm($node, 't', db => 'again', part => 0.3), '>', 0, "$what: its own pages come to the tier");
		reads_are("$what, warm", 'again', $two);
		$node->safe_psql('postgres', 'DROP DATABASE again');
	}
}

# Made over and over while the template's pages are in the tier, dirty or not.
for my $strategy (@strategies)
{
	cmp_ok(warm($node, 't', db => 'one'), '>', 0, "$strategy from a warm template");
	$node->safe_psql('one', 'UPDATE t SET v = v + 1 WHERE id % 50 = 0');
	my $expected = content($node, 't', 'one');
	create('copy', 'one', $strategy);
	reads_are("$strategy from a warm template", 'copy', $expected);
	$node->safe_psql('postgres', 'DROP DATABASE copy');
}

# Away and back: the same names in the same place as before, other content.
my $space = PostgreSQL::Test::Utils::tempdir() . '/space';
mkdir $space or die $!;
$node->safe_psql('postgres', "CREATE TABLESPACE elsewhere LOCATION '$space'");
$one = content($node, 't', 'one');
cmp_ok(warm($node, 't', db => 'one'), '>', 0, 'moved: the tier has pages');
$node->safe_psql('postgres', 'ALTER DATABASE one SET TABLESPACE elsewhere');
reads_are('moved away', 'one', $one);
cmp_ok(warm($node, 't', db => 'one'), '>', 0, 'moved: the tier has pages from there');
$node->safe_psql('one', 'UPDATE t SET v = v + 100');
$one = content($node, 't', 'one');
reads_are('changed there', 'one', $one);
$node->safe_psql('postgres', 'ALTER DATABASE one SET TABLESPACE pg_default');
reads_are('moved back', 'one', $one);
cmp_ok(warm($node, 't', db => 'one', part => 0.3), '>', 0, 'moved back: the tier has pages');
$node->safe_psql('one', 'UPDATE t SET v = v + 100');
$one = content($node, 't', 'one');
$node->safe_psql('postgres', 'ALTER DATABASE one SET TABLESPACE elsewhere');
reads_are('moved away again', 'one', $one);

# The originals are as they were.
reads_are('the other template', 'two', $two);
is_clean($node);
$node->stop;

done_testing();
