# A donor that is drained, and a file whose blocks the disk does not take: the
# blocks of other files in the same memory are moved all the same, and those
# of this one when the disk takes them again.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use RemoteBP;
use RemoteBP::Spill;
use Test::More;

my $broker = start_broker();
# One region, so that both files have their blocks in the same extent.
my $donor = start_donor($broker, memory => '4MB', region_size => '1MB', args => [ '--reclaim-grace', '600' ]);
my $node = spill_cluster(
	'others',
	broker => $broker,
	transport => 'tcp',
	temp => '1MB',
	# little staging: blocks are on the donor, and not on their way there
	conf => "remote_bp.buffer_tier_size = 0\nremote_bp.temp_staging_size = '128kB'\n");
spill_data($node);
create_rows_of($node);

# The rows that its cursor has fetched so far are in one file.
sub begin
{
	my (@settings) = @_;
	my $session = $node->background_psql('postgres', on_error_stop => 0);
	$session->query($_) for @settings;
	$session->query('BEGIN');
	$session->query('DECLARE c SCROLL CURSOR FOR WITH w AS MATERIALIZED (SELECT id, t, pad FROM big) SELECT * FROM w');
	$session->query('MOVE 3200 FROM c');
	return $session;
}

sub blocks
{
	my ($pid) = @_;
	return $node->safe_psql('postgres', "SELECT coalesce(sum(remote_bytes) / 8192, 0)::int FROM remote_bp_temp_files WHERE owner = $pid");
}

my $stock = begin('SET remote_bp.spill_temp_files = off');
my $expected = $stock->query(q{SELECT rows_of('c', at_most => 3200)});
$stock->quit;
like($expected, qr/^3200 -?\d+$/, 'the rows');

my @sessions = map { begin() } 1 .. 2;
my @pids = map { scalar $_->query('SELECT pg_backend_pid()') } @sessions;
my @before = map { blocks($_) } @pids;
cmp_ok($before[$_], '>', 20, "session $_: blocks are on the donor") for 0, 1;

my @files = map { $node->data_dir . "/$_" } grep { /pgsql_tmp$pids[0]\./ } temp_paths($node);
is(chmod(0400, @files), 1, 'the first session\'s file cannot be opened for writing');
is((ctl($broker, 'drain', $donor->{name}))[0], 0, 'the donor is drained');
ok(wait_for('the other blocks to be moved', sub { blocks($pids[1]) == 0 }), 'the second session\'s blocks are moved');
is(blocks($pids[0]), $before[0], 'the first one\'s are where they were');
is($_->query(q{SELECT rows_of('c', at_most => 3200)}), $expected, 'its rows are right') for @sessions;

is(chmod(0600, @files), 1, 'the file can be written');
ok(wait_for('the first session\'s blocks to be moved', sub { blocks($pids[0]) == 0 }), 'blocks are moved when their file can be written again');
ok(wait_for('the memory to be given back', sub { temp_leased($node) == 0 }), 'all memory is given back');
is($_->query(q{SELECT rows_of('c', at_most => 3200)}), $expected, 'its rows are right') for @sessions;
is($_->{stderr}, '', 'no error') for @sessions;
$_->quit for @sessions;
spill_is_clean($node, 'in the end');
$node->stop;

done_testing();
