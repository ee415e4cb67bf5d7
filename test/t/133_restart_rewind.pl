# pg_rewind between a stop and the next start: killed midway, when nothing but the files that it has
# changed tells of it, and killed, and then run as a whole.  No page in the tier is other than the file.
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

# Another server goes its own way from here on, and so does this one; what the other one has in the end.
my $source;

sub diverge
{
	my ($name) = @_;
	$node->backup($name);
	$source = PostgreSQL::Test::Cluster->new($name);
	$source->init_from_backup($node, $name, has_streaming => 1);
	$source->append_conf('postgresql.conf', "shared_preload_libraries = ''\n");
	$source->start;
	$node->wait_for_catchup($source, 'replay', $node->lsn('insert'));
	$source->promote;
	$source->safe_psql('postgres', $_) for 'UPDATE others SET v = v + 1000', 'VACUUM others', 'CHECKPOINT';
	my $theirs = content($source, 'others');
	$source->stop;
	$node->safe_psql('postgres', $_) for 'UPDATE others SET v = v + 1', 'VACUUM others';
	# the shutdown checkpoint is then in a file of which the other server has none
	$node->safe_psql('postgres', 'SELECT pg_logical_emit_message(false, $$x$$, $$x$$), pg_switch_wal()') for 1 .. 5;
	ok(warm($node, 'others', part => 0.8), "$name: the table is in the tier");
	return $theirs;
}

# The stop of a server that leaves an image
sub stop
{
	my ($name) = @_;
	my $before = state_of($node);
	$before->{others} = tier_pages($node, 'others');
	$node->stop;
	ok(-e $image, "$name: there is an image");
	copy("$data/$_", "$data.$_") or die $! for 'postgresql.conf', 'postgresql.auto.conf';
	return $before;
}

# pg_rewind, which is told to be slow in writing that, and killed after the sub.  It brings the
# settings of the other server along.
sub rewind
{
	my ($name, $slow, $until) = @_;
	my $orders = PostgreSQL::Test::Utils::tempdir() . '/slow';
	append_to_file($orders, $slow) if $slow;
	my $pid = fork() // die "fork: $!";
	if (!$pid)
	{
		$ENV{LD_PRELOAD} = preload_library('slow_files');
		$ENV{RBP_SLOW_FILES} = $orders;
		exec 'pg_rewind', '--no-sync', '--target-pgdata', $data, '--source-pgdata', $source->data_dir;
	}
	if ($until)
	{
		$until->();
		is(kill('KILL', $pid), 1, "$name: pg_rewind is killed");
	}
	waitpid($pid, 0);
	is($?, $until ? 9 : 0, "$name: it ends so");
	copy("$data.$_", "$data/$_") or die $! for 'postgresql.conf', 'postgresql.auto.conf';
	return;
}

# Likewise, when it has changed a file, and nothing else tells of that.
sub rewind_midway
{
	my ($name) = @_;
	my $control = slurp_file("$data/global/pg_control");
	rewind(
		$name,
		"200000 $path",
		sub {
			my $then = changed();
			ok(wait_for('a file to change', sub { changed() != $then }), "$name: a file has changed");
		});
	is(slurp_file("$data/global/pg_control"), $control, "$name: pg_control has not changed");
	ok(!-e "$data/backup_label", "$name: there is no backup_label");
	ok(-e $image, "$name: the image is there");
	return;
}

sub changed { return (Time::HiRes::stat("$data/$path"))[10] }

# Killed, and then as a whole: now it is the other server, as a standby at first.
my $theirs = diverge('whole');
my $before = stop('whole');
run_log([ 'cp', '-a', "$data/pg_wal", "$data.wal" ]) && copy($image, "$data.image") or die;
rewind_midway('whole, at first');
# what it has put in the place of this server's WAL does not lead to where they diverged
run_log([ 'rm', '-r', "$data/pg_wal" ]) && run_log([ 'mv', "$data.wal", "$data/pg_wal" ]) or die;
rewind('whole');
# it removes the image, but a restore might bring it back
copy("$data.image", $image) or die $!;
$node->append_conf('standby.signal', '');
$node->start;
log_tells($node, $before->{offset}, qr/the tier begins empty, although .*: the data directory was used, copied or restored since/, 'whole: the image of before is not believed');
ok(!glob("$image*"), 'whole: there is no image after the start');
is_empty($node, $before, 'whole');
is(content($node, 'others'), $theirs, 'whole: the table is that of the other server');
is(counter($node, 'mismatches'), 0, 'whole: no page is different from the disk');

# A standby leaves no image, and gives its memory back.
my $offset = log_size($node);
$node->stop;
log_tells($node, $offset, qr/gave the leased memory back|could not tell the broker that the lease is given back/, 'standby: its stop gives the memory back, unless the broker is slow');
ok(!-e $image, 'standby: there is no image');
$node->start;
ok(wait_leased($node, 64, 120), 'standby: it has memory again');
$node->promote;
ok(warm($node, 'pages', part => 0.8) && warm($node, 'others', part => 0.8), 'promoted: tables are in the tier');
is(content($node, 'others'), $theirs, 'promoted: the table is right');
$before = state_of($node);
$node->restart;
is_kept($node, $before, 'promoted');

# Midway.  Who starts such a server has lost it, but nothing tells the tier: only the files
# do that have changed.
diverge('midway');
$before = stop('midway');
rewind_midway('midway');
$node->start;
log_tells($node, $before->{offset}, qr/going on with what donors have; [1-9]\d* of \d+ files have changed/, 'midway: the tier goes on, but for that file');
is_kept($node, $before, 'midway');
cmp_ok(tier_pages($node, 'others'), '<', 0.3 * $before->{others}, 'midway: its pages are gone');
# it need not be a table any more
$node->psql('postgres', 'SELECT sum(v), count(pad) FROM others');
is(counter($node, 'mismatches'), 0, 'midway: no page is different from the disk');
is_clean($node);
$node->stop;

done_testing();
