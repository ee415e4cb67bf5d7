# What costs less: pages are read from the disk while donors are slower, and
# temporary blocks are written to files; from donors and to them again when that
# has changed.  All of it is shown, and logged.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use RemoteBP;
use RemoteBP::Preload;
use Test::More;

# Far more than any machine needs for the other way
my $SLOW_US = 20_000;

need_test_build();
set_faults();
my $slow_files = PostgreSQL::Test::Utils::tempdir() . '/slow_files';
my $broker = start_broker();
my $donor = start_donor($broker, memory => '128MB');
my $node = new_cluster(
	'bypass',
	start => 0,
	broker => $broker,
	transport => 'tcp',
	tier => '32MB',
	compare => 0,
	bypass => 'auto',
	test_build => 1,
	conf => "remote_bp.io_timeout = '10s'\nremote_bp.temp_tier_max_size = '64MB'\nremote_bp.temp_tier_size = '64MB'\nwork_mem = '64kB'\n");
start_preloaded($node, 'slow_files', RBP_SLOW_FILES => $slow_files);
create_extension($node);
wait_leased($node);
wait_for('memory for temporary data', sub { counter($node, 'temp_online_pages') > 0 });
make_table($node, 't', 1, index => 0);
my $content = content($node, 't');
my $pages = $node->safe_psql('postgres', q{SELECT pg_relation_size('t') / 8192});
my $sort = q{SELECT md5(string_agg(v::text, ',')) FROM (SELECT v FROM t ORDER BY md5(v::text), v) s};
my $sorted = $node->safe_psql('postgres', "SET work_mem = '64MB'; $sort");

sub make_files_slow
{
	my ($slow) = @_;
	unlink $slow_files;
	return unless $slow;
	append_to_file("$slow_files.new", "$SLOW_US\n");
	rename("$slow_files.new", $slow_files) or die $!;
	return;
}

sub make_donor_slow
{
	my ($slow) = @_;
	set_faults($slow ? ("read delay_us $SLOW_US", "write delay_us $SLOW_US") : ());
	return;
}

# Which of both ways moved more while the sub ran; in one session, that learns.
sub moved
{
	my ($sub, $one, $other) = @_;
	my $before = counters($node);
	$sub->();
	my $after = counters($node);
	return $after->{$one} - $before->{$one} > $after->{$other} - $before->{$other};
}

#---- temporary blocks -----------------------------------------------------------

my $wrong = 0;

sub sort_it
{
	$wrong++ if $node->safe_psql('postgres', $sort) ne $sorted;
	return;
}

sub goes_to
{
	my ($where) = @_;
	my @counters = $where eq 'files' ? qw(spill_bypassed spill_writes) : qw(spill_writes spill_bypassed);
	return wait_for("temporary blocks to go to $where", sub { moved(\&sort_it, @counters) }, 300);
}

my $from = log_size($node);
make_donor_slow(1);
ok(goes_to('files'), 'a slow donor: temporary blocks go to files');
my $c = counters($node);
cmp_ok($c->{spill_file_us}, '>', 0, 'what a block costs there is shown');
cmp_ok($c->{spill_donor_us}, '>', $c->{spill_file_us}, '... and that it is more at donors');
ok(wait_for('the log', sub { log_since($node, $from) =~ /temporary blocks are written to files, where one costs [\d.]+ us and at donors [\d.]+ us/ }), 'it is logged');

$from = log_size($node);
make_donor_slow(0);
make_files_slow(1);
ok(goes_to('donors'), 'a slow disk: they go to donors');
ok(wait_for('the log', sub { log_since($node, $from) =~ /temporary blocks are written to donors again/ }, 300), 'it is logged');
is($wrong, 0, 'each sort gave the same');

#---- pages ------------------------------------------------------------------------

make_files_slow(0);
ok(warm($node, 't', part => 0.9), 'the tier has the table');
my $session = $node->background_psql('postgres');
$wrong = 0;

sub read_it
{
	evict_buffers($node);
	$wrong++ if $session->query($content->{query} // 'SELECT 1') eq '';
	return;
}
done_testing();
