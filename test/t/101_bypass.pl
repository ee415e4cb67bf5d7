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
my $SLOW_US = 5_000;

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
	read_from => 'auto',
	test_build => 1,
	conf => "remote_bp.io_timeout = '10s'\nremote_bp.temp_tier_max_size = '64MB'\nremote_bp.temp_tier_size = '64MB'\nwork_mem = '64kB'\n");
# what the page cache has does not matter
start_preloaded($node, 'slow_files page_cache', RBP_SLOW_FILES => $slow_files, RBP_CACHE => 'nocachestat nomincore');
create_extension($node);
wait_leased($node, 32);
wait_for('memory for temporary data', sub { counter($node, 'spill.online_pages') > 0 });
make_table($node, 't', 1, index => 0);
my $content = content($node, 't');
my $sort = q{SELECT md5(string_agg(k, ',')) FROM (SELECT md5(i::text) || repeat('x', 60) AS k FROM generate_series(1, 20000) i ORDER BY 1) s};
my $sorted = $node->safe_psql('postgres', "SET work_mem = '64MB'; $sort");

# Files whose path has the text in it are slow from now on, or, with 0, the disk is
# full for them; none: no files are.
sub make_files_slow
{
	my ($part, $us) = @_;
	unlink $slow_files;
	return unless defined $part;
	append_to_file("$slow_files.new", ($us // $SLOW_US) . " $part\n");
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
	my @counters = $where eq 'files' ? qw(spill.bypassed spill.writes) : qw(spill.writes spill.bypassed);
	return wait_for("temporary blocks to go to $where", sub { moved(\&sort_it, @counters) }, 300);
}

my $from = log_size($node);
make_donor_slow(1);
ok(goes_to('files'), 'a slow donor: temporary blocks go to files');
my $c = counters($node);
cmp_ok($c->{'spill.file_us'}, '>', 0, 'a slow donor: the view shows the time of a block in files');
cmp_ok($c->{'spill.donor_us'}, '>', $c->{'spill.file_us'}, 'a slow donor: the view shows a longer time at donors');
ok(wait_for('the log', sub { sort_it(); log_since($node, $from) =~ /temporary blocks are written to files\n.*DETAIL: .*takes [\d.]+ us there, and [\d.]+ us at donors/ }, 300), 'a slow donor: the log reports that blocks go to files');

make_files_slow('pgsql_tmp', 0);
my $full = counters($node);
ok(wait_for('a file to refuse a block', sub { sort_it(); -e "$slow_files.full" }, 300), 'a full disk: the files take nothing');
cmp_ok(counter($node, 'spill.writes'), '>', $full->{'spill.writes'}, 'a full disk: donors take blocks that cost less in files');

my $from_again = log_size($node);
make_donor_slow(0);
make_files_slow('pgsql_tmp');
ok(goes_to('donors'), 'a slow disk: temporary blocks go to donors');
is($wrong, 0, 'each sort gave the same');

#---- pages ------------------------------------------------------------------------

make_files_slow(undef);
cmp_ok($node->safe_psql('postgres', q{SELECT remote_bp_prewarm('t')}), '>', 0, 'the tier has the table');
my $session = $node->background_psql('postgres');

sub read_it
{
	evict_buffers($node);
	$wrong++ if $session->query('SELECT count(*), sum(v), sum(hashtext(t::text)::bigint) FROM t') ne $content;
	return;
}

$from = log_size($node);
make_donor_slow(1);
# It is connected: with the file being so fast, it would not do that by itself.
$session->query('SET remote_bp.read_from = donor; SELECT count(v) FROM t; RESET remote_bp.read_from');
ok(wait_for('pages to come from the disk', sub { moved(\&read_it, qw(bypassed hits)) }, 300), 'a slow donor: pages are read from disk');
my $donors = $node->safe_psql('postgres', 'SELECT sum(bypassed) FROM remote_bp_stat_donors');
cmp_ok($donors, '>', 0, 'a slow donor: pages are read from disk although the donor has them');
is( $node->safe_psql(
		'postgres', q{SELECT bool_or(d.run_us > f.run_us OR d.page_us > f.page_us) FROM remote_bp_stat_sources d, remote_bp_stat_sources f
WHERE d.device IS NULL AND f.source = 'file' AND f.device IS NOT NULL}),
	't', 'a slow donor: its costs are shown');
ok(wait_for('the log', sub { read_it(); log_since($node, $from) =~ /donor "\S+" is slower than the disk/ }, 300), 'a slow donor: the log reports it');

make_donor_slow(0);
# those that evict_buffers() reads, too
make_files_slow('base/', 1_000);
ok(wait_for('pages to come from the donor', sub { moved(\&read_it, qw(hits bypassed)) }, 300), 'a slow disk: pages come from the donor');
is($wrong, 0, 'the rows were right each time');
$session->quit;

ok(wait_for('the log', sub { sort_it(); log_since($node, $from_again) =~ /temporary blocks are written to donors again/ }, 300), 'the log reports that temporary blocks go to donors again');
is(counter($node, 'hash_failures'), 0, 'no hash failure');
is_deeply([ log_troubles($node, 0) ], [], 'the log is quiet');
$node->stop;
done_testing();
