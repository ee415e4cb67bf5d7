# A dirty page is written from the staging slot in which it then goes to the
# tier.  If the write fails, the page is not in the tier, and the slot is free
# again: there are fewer slots than failures here.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use RemoteBP;
use RemoteBP::Preload;
use Test::More;

my $full_disk = PostgreSQL::Test::Utils::tempdir() . '/slow_files';
my $broker = start_broker();
my $donor = start_donor($broker, memory => '128MB');
my $node = new_cluster(
	'full_disk',
	start => 0,
	broker => $broker,
	shared_buffers => '512kB',
	staging => '128kB',
	# A donor that is late is not what is tested.  Nobody else writes pages.
	conf => "remote_bp.io_timeout = '5s'\ncheckpoint_timeout = '1h'\nmax_wal_size = '4GB'\nbgwriter_lru_maxpages = 0\n");
start_preloaded($node, 'slow_files', RBP_SLOW_FILES => $full_disk);
create_extension($node);
ok(wait_leased($node, 64), 'memory is leased');
make_table($node, 't', 8);
evict_buffers($node);
cmp_ok(warm($node, 't'), '>', 0, 'its pages are on the donor');

# The disk is full for that table, whose pages are changed until one must be
# written.
my $path = $node->safe_psql('postgres', q{SELECT pg_relation_filepath('t')});
my $failures = 0;
append_to_file("$full_disk.new", "0 $path\n");
rename("$full_disk.new", $full_disk) or die $!;
for my $try (1 .. 60)
{
	my (undef, undef, $err) = $node->psql('postgres',
		'SET enable_seqscan = off; SET enable_bitmapscan = off; BEGIN; UPDATE t SET v = v + 1 WHERE id > 0; ROLLBACK');
	$failures++ if $err =~ /No space left on device/;
}
cmp_ok($failures, '>', 2 * 16, 'more writes failed than there are staging slots');
unlink $full_disk;

# It has room again: pages that are written go to the tier.
my $before = counters($node);
$node->safe_psql('postgres', 'UPDATE t SET v = v + 1');
evict_buffers($node);
my $after = counters($node);
cmp_ok($after->{captures}, '>', $before->{captures}, 'pages are captured again: the slots are free');
cmp_ok(warm($node, 't'), '>', 0, 'the pages are on the donor again');
is($node->safe_psql('postgres', 'SELECT DISTINCT v FROM t'), 1, 'the table has what was committed');
my @wrong = grep { !/could not (write|extend)|No space left/ } log_troubles($node);
is(scalar @wrong, 0, 'nothing else went wrong') or diag(join("\n", @wrong));
is(counters($node)->{mismatches}, 0, 'no page was different from the disk');
$node->stop;

done_testing();
