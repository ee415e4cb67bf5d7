# What may happen to a server's files, its clock and its lease between a stop and the
# next start, and how a stop may go wrong.  Nothing of that makes a page in the tier one
# that the file does not hold: each hit is compared with the disk.
# Timeout: 1800

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use RemoteBP;
use RemoteBP::Kept;
use RemoteBP::Preload;
use Test::More;

my $broker = start_broker(noted => 1);
my $donor = start_donor($broker, memory => '256MB');
my $dir = PostgreSQL::Test::Utils::tempdir();
mkdir "$dir/space" or die $!;
my $node = kept_cluster('files', broker => $broker, tier => '128MB',
	conf => "wal_level = replica\nmax_wal_senders = 4\nwal_sender_timeout = 0\narchive_mode = on\narchive_command = 'true'\n");
my $data = $node->data_dir;
my $image = "$data/pgsql_tmp_remote_bp.image";
$node->safe_psql('postgres', "CREATE TABLESPACE elsewhere LOCATION '$dir/space'");
make_table($node, 'moved', 8);
$node->safe_psql('postgres', 'ALTER TABLE moved SET TABLESPACE elsewhere');

# Stop the server in that way, do that, and start it again.
sub restart
{
	my ($name, $meanwhile, %opt) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $before = state_of($node);
	$opt{stop} ? $opt{stop}->($before) : $node->stop;
	is(-e $image ? 1 : 0, $opt{image} // 1, "$name: there is " . ($opt{image} // 1 ? 'an image' : 'no image'));
	$meanwhile->($before) if $meanwhile;
	$node->start;
	return $before;
}

sub is_warm
{
	my ($before, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	log_tells($node, $before->{offset}, qr/remote_bp: going on with what donors have/, "$name: the log says so");
	is_kept($node, $before, $name);
	return;
}

# Rows are right, by pages that are those on disk; the tier works.
sub is_sound
{
	my ($before, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	ok(wait_usable($node), "$name: the tier is used");
	is_right($node, $before, $name);
	ok(warm($node, 'pages', part => 0.8), "$name: pages are in the tier");
	is_right($node, $before, "$name, again");
	return;
}

sub run_ok
{
	my ($name, @command) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return ok(run_log(\@command), $name);
}

#---- files ---------------------------------------------------------------------

# Left over by a stop or a start that was killed
my $before = restart('left over', sub { append_to_file("$image.$_", 'x') for 'new', 'used' });
is_warm($before, 'left over');
ok(wait_for('files to be removed', sub { !glob "$image*" }), 'left over: the files are gone');

# A tablespace that is put back to what it was is not what pages in the tier are of.
ok(warm($node, 'moved', part => 0.8), 'a table of another tablespace is in the tier');
$node->stop;
run_ok('the tablespace is saved', 'cp', '-a', "$dir/space", "$dir/saved");
$node->start;
$node->safe_psql('postgres', 'UPDATE moved SET v = v + 1; CHECKPOINT; VACUUM moved');
ok(warm($node, 'moved', part => 0.8), 'it has changed, and is in the tier');
my $had = tier_pages($node, 'moved');
$before = restart('tablespace', sub {
	run_ok('the tablespace is put back', 'sh', '-c', "for f in \$(cd '$dir/saved' && find . -type f); do cp -p '$dir/saved'/\$f '$dir/space'/\$f; done");
});
is_warm($before, 'tablespace');
cmp_ok(tier_pages($node, 'moved'), '<', 0.3 * $had, 'tablespace: its pages are gone');
$node->psql('postgres', 'SELECT sum(v), count(pad) FROM moved');
is(counter($node, 'mismatches'), 0, 'tablespace: no page is different from the disk');
$node->safe_psql('postgres', $_) for 'DROP TABLE moved', 'DROP TABLESPACE elsewhere';

# pg_checksums changes all files, or as many as it comes to.
for my $how ('killed', 'whole')
{
	my $to = $how eq 'killed' ? '--enable' : $node->safe_psql('postgres', 'SHOW data_checksums') eq 'on' ? '--disable' : '--enable';
	$before = restart("pg_checksums $how", sub {
		my $pid = fork() // die "fork: $!";
		if (!$pid)
		{
			open STDOUT, '>', '/dev/null';
			open STDERR, '>', '/dev/null';
			exec 'pg_checksums', $to, '-D', $data;
		}
		if ($how eq 'killed')
		{
			my $path = "$data/" . ($_[0]{path});
			my $changed = (stat $path)[10];
			wait_for('a file to change', sub { (stat $path)[10] != $changed || waitpid($pid, 1) == $pid }, 30);
			kill 'KILL', $pid;
		}
		waitpid($pid, 0);
	}, stop => sub {
		$_[0]{path} = $node->safe_psql('postgres', q{SELECT pg_relation_filepath('pg_class')});
		$node->stop;
	});
	is_sound($before, "pg_checksums $how");
}

# A backup that is put in place of the data directory
$node->backup('saved');
$before = restart('backup', sub {
	rename $data, "$data.old" or die $!;
	run_ok('a backup is restored', 'cp', '-a', $node->backup_dir . '/saved', $data);
	for my $file ('postgresql.conf', 'pg_hba.conf') { run_ok($file, 'cp', '-p', "$data.old/$file", "$data/$file") }
	ok(!-e $image, 'backup: it has no image');
	run_ok('its image is brought along', 'cp', '-p', "$data.old/pgsql_tmp_remote_bp.image", $image);
});
is_sound($before, 'backup');
log_tells($node, $before->{offset}, qr/the tier begins empty, although .*: the data directory was used, copied or restored since/, 'backup: the log says why');
run_ok('the old one is removed', 'rm', '-rf', "$data.old");

#---- the lease ------------------------------------------------------------------

# Another copy of the server has renewed it.
$before = restart('a clone', sub {
	my $secret = lease_secret($broker, $_[0]{lease});
	ok(http_json($broker, 'POST', "/v1/leases/$_[0]{lease}/renew",
			{ secret => $secret, new_secret => 'ab' x 32, bytes => 128 * 1024 * 1024 }), 'a clone: another server renews the lease');
});
log_tells($node, $before->{offset}, qr/remote_bp: the lease has ended/, 'a clone: the lease is not ours any more');
is_empty($node, $before, 'a clone');

# The server is killed before it has renewed, while the broker does not answer.
$before = restart('twice', sub { $broker->kill9 });
ok($node->kill9 || 1, 'twice: killed before the lease is renewed');
wait_for('the server to end', sub { !-e "$data/postmaster.pid" || !kill(0, (split /\n/, slurp_file("$data/postmaster.pid"))[0]) });
$broker = restart_broker($broker);
$node->start;
is_sound($before, 'twice');

#---- stops that go wrong ---------------------------------------------------------

# An archiver that hangs: the server is told to stop at once, after its checkpoint.
$before = state_of($node);
set_and_wait($node, archive_command => 'sleep 1000');
$node->safe_psql('postgres', q{SELECT pg_logical_emit_message(false, 'x', 'x'); SELECT pg_switch_wal()});
wait_for('the archiver to hang', sub { grep { $_->{title} =~ /archiver.*archiving/ } server_processes($node) });
my $hung = log_size($node);
run_log([ 'pg_ctl', '-D', $data, '-m', 'fast', '-W', 'stop' ]);
wait_for('the checkpoint', sub { log_since($node, $hung) =~ /checkpoint complete/ });
$node->stop('immediate');
$node->append_conf('postgresql.auto.conf', "archive_command = 'true'\n");
$node->start;
is_sound($before, 'a hanging archiver');

# A process that is killed after the checkpoint of the stop, while it waits for a client that
# does not read what it is sent
my $received = "$dir/received";
mkdir $received or die $!;
$before = restart('a killed walsender', undef, image => 0, stop => sub {
	my $receiver = fork() // die "fork: $!";
	if (!$receiver)
	{
		open STDOUT, '>', '/dev/null';
		open STDERR, '>', '/dev/null';
		exec 'pg_receivewal', '-D', $received, '-h', $node->host, '-p', $node->port;
	}
	wait_for('WAL to be received', sub { $node->safe_psql('postgres', 'SELECT count(*) FROM pg_stat_replication WHERE write_lsn IS NOT NULL') });
	kill 'STOP', $receiver;
	my $offset = log_size($node);
	my ($walsender) = map { $_->{pid} } grep { $_->{title} =~ /walsender/ } server_processes($node);
	run_log([ 'pg_ctl', '-D', $data, '-m', 'fast', '-W', 'stop' ]);
	ok(wait_for('the checkpoint', sub { `pg_controldata -D $data` =~ /cluster state: +shut down\n/ }), 'a killed walsender: the server is shut down but for it');
	ok(-e "$data/postmaster.pid" && kill('KILL', $walsender), 'a killed walsender: it is killed');
	wait_for('the server to end', sub { !-e "$data/postmaster.pid" }, 120);
	log_tells($node, $offset, qr/abnormal database system shutdown/, 'a killed walsender: the stop counts as a crash');
	kill 'KILL', $receiver;
	waitpid($receiver, 0);
	$node->_update_pid(0);
});
is_sound($before, 'a killed walsender');

# One that dies before it
$before = restart('a crash while stopping', undef, image => 0, stop => sub {
	my $offset = log_size($node);
	my $stopped = server_process($node, 'walwriter');
	kill 'STOP', $stopped;
	system('pg_ctl', '-D', $data, '-m', 'fast', '-W', 'stop');
	wait_for('the stop to begin', sub { log_since($node, $offset) =~ /received fast shutdown request/ });
	kill 'KILL', $stopped;
	wait_for('the server to end', sub { !-e "$data/postmaster.pid" }, 120);
	$node->_update_pid(0);
});
is_sound($before, 'a crash while stopping');

# The image cannot be written: the stop goes on.
$before = restart('no room', sub { rmdir "$image.new" or die $! }, image => 0, stop => sub {
	mkdir "$image.new" or die $!;
	$node->stop;
});
log_tells($node, $before->{offset}, qr/the next start begins with an empty tier: could not write/, 'no room: the log says why');
is_sound($before, 'no room');

# A clock that is behind when the server stops: nobody knows whether a file will have changed.
my $clock = "$dir/clock";
$node->stop;
start_preloaded($node, 'clock', RBP_CLOCK => $clock);
ok(warm($node, 'pages', part => 0.8), 'clock: pages are in the tier');
$before = restart('clock', undef, stop => sub {
	append_to_file($clock, "-7200\n");
	$node->stop;
	unlink $clock;
});
log_tells($node, $before->{offset}, qr/going on with what donors have; ([1-9]\d*) of \1 files have changed/, 'clock: all files may have changed');
is_sound($before, 'clock');

is_clean($node);
$node->stop;
done_testing();
