# pg_rewind between a stop and the next start: killed midway, when nothing but the files it has
# changed tells of it, and whole.  No page in the tier is other than the file.
# Timeout: 1800

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use File::Copy;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use RemoteBP;
use RemoteBP::Kept;
use RemoteBP::Preload;
use Test::More;
use Time::HiRes ();

my $broker = start_broker();
my $donor = start_donor($broker, memory => '256MB');
my $node = kept_cluster('target', broker => $broker, transport => 'shm', tier => '128MB', streaming => 1,
	conf => "wal_log_hints = on\nwal_keep_size = 1GB\n");
my $data = $node->data_dir;
my $image = "$data/pgsql_tmp_remote_bp.image";
make_table($node, 'others', 8);
evict_buffers($node);
my $path = $node->safe_psql('postgres', q{SELECT pg_relation_filepath('others')});

# Another server goes its own way from here on.
$node->backup('start');
my $source = PostgreSQL::Test::Cluster->new('source');
$source->init_from_backup($node, 'start', has_streaming => 1);
$source->append_conf('postgresql.conf', "shared_preload_libraries = ''\n");
$source->start;
$node->wait_for_catchup($source, 'replay', $node->lsn('insert'));
$source->promote;
$source->safe_psql('postgres', 'UPDATE others SET v = v + 1000');
$source->safe_psql('postgres', 'VACUUM others');
$source->safe_psql('postgres', 'CHECKPOINT');
my $theirs = content($source, 'others');
$source->stop;

# The shutdown checkpoint is in a file of which the other server has none.
$node->safe_psql('postgres', 'UPDATE others SET v = v + 1; VACUUM others');
$node->safe_psql('postgres', 'SELECT pg_logical_emit_message(false, $$x$$, $$x$$), pg_switch_wal()') for 1 .. 5;

sub warm_others
{
	my ($name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	ok(warm($node, 'others', part => 0.8), "$name: the table is in the tier");
	return tier_pages($node, 'others');
}

# The stop, and then pg_rewind, which is told to be slow in writing that, and stopped by the sub.
# It brings the settings of the other server along.
sub rewind
{
	my ($name, $slow, $killed) = @_;
	my $before = state_of($node);
	$node->stop;
	ok(-e $image, "$name: there is an image");
	copy("$data/$_", "$data.$_") or die $! for 'postgresql.conf', 'postgresql.auto.conf';
	my $orders = PostgreSQL::Test::Utils::tempdir() . '/slow';
	append_to_file($orders, $slow) if $slow;
	my $pid = fork() // die "fork: $!";
	if (!$pid)
	{
		$ENV{LD_PRELOAD} = preload_library('slow_files');
		$ENV{RBP_SLOW_FILES} = $orders;
		exec 'pg_rewind', '--no-sync', '--target-pgdata', $data, '--source-pgdata', $source->data_dir;
	}
	if ($killed)
	{
		$killed->();
		is(kill('KILL', $pid), 1, "$name: pg_rewind is killed");
	}
	waitpid($pid, 0);
	is($?, $killed ? 9 : 0, "$name: it ends so");
	copy("$data.$_", "$data/$_") or die $! for 'postgresql.conf', 'postgresql.auto.conf';
	return $before;
}

sub changed { return (Time::HiRes::stat("$data/$path"))[10] }

# Midway.  Who starts such a server has lost it, but the tier does not know.
my $had = warm_others('midway');
my $control;
my $before = rewind(
	'midway',
	"200000 $path",
	sub {
		my $then = changed();
		$control = slurp_file("$data/global/pg_control");
		ok(wait_for('a file to change', sub { changed() != $then }), 'midway: a file has changed');
	});
is(slurp_file("$data/global/pg_control"), $control, 'midway: pg_control has not changed');
ok(!-e "$data/backup_label", 'midway: there is no backup_label');
ok(-e $image, 'midway: the image is there');
$node->start;
log_tells($node, $before->{offset}, qr/going on with what donors have; [1-9]\d* of \d+ files have changed/, 'midway: the tier goes on, but for that file');
is_kept($node, $before, 'midway');
cmp_ok(tier_pages($node, 'others'), '<', 0.3 * $had, 'midway: its pages are gone');
# it need not be a table any more
$node->psql('postgres', 'SELECT sum(v), count(pad) FROM others');
is(counter($node, 'mismatches'), 0, 'midway: no page is different from the disk');

# As a whole; now it is the other server.
$before = rewind('whole');
$node->append_conf('standby.signal', '');
$node->start;
ok(!glob("$image*"), 'whole: there is none after the start');
is_empty($node, $before, 'whole');
is(content($node, 'others'), $theirs, 'whole: the table is that of the other server');
is(counter($node, 'mismatches'), 0, 'whole: no page is different from the disk');
# A standby leaves no image, and gives its memory back.
my $offset = log_size($node);
$node->stop;
log_tells($node, $offset, qr/gave the leased memory back/, 'standby: its stop gives the memory back');
ok(!-e $image, 'standby: there is no image');
$node->start;
ok(wait_leased($node, 64, 120), 'standby: it has memory again');
$node->promote;
warm_others('promoted');
is(content($node, 'others'), $theirs, 'promoted: the table is right');
is_kept_by_restart();
is_clean($node);
$node->stop;

# From then on it is a primary as any other.
sub is_kept_by_restart
{
	my $before = state_of($node);
	$node->restart;
	is_kept($node, $before, 'in the end');
	return;
}

done_testing();
