# The server is stopped and started again.  The tier goes on where the stop was clean and
# nobody has changed the files since; otherwise pages are dropped, those of a fork or all,
# and the log says why.  No page is ever another than that on disk.
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
use Test::More;

my $broker = start_broker(noted => 1);
my $donor = start_donor($broker, memory => '256MB');
my $node = kept_cluster('restart', broker => $broker, transport => 'shm', tier => '96MB',
	conf => "wal_level = replica\nmax_wal_senders = 2\n");
my $data = $node->data_dir;
my $image = "$data/pgsql_tmp_remote_bp.image";
make_table($node, 'others', 8);
my $others = content($node, 'others');

sub is_stored
{
	my ($name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	ok(-f $image, "$name: an image is left");
	is((stat _)[2] & 0777, 0600, "$name: nobody else may read it");
	is(join(' ', glob "$image.*"), '', "$name: and nothing else");
	return;
}

# What there was before; the server is started again, unless start => 0.
sub restart
{
	my ($name, $meanwhile, %opt) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $before = state_of($node);
	$opt{first}->() if $opt{first};
	$node->stop($opt{mode} // 'fast');
	is_stored($name) unless $opt{no_image};
	$meanwhile->($before) if $meanwhile;
	return $before if exists $opt{start};
	$node->start;
	ok(wait_for('the image to be used up', sub { !glob "$image*" }), "$name: the image is not there any more");
	return $before;
}

sub is_warm
{
	my ($before, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	log_tells($node, $before->{offset}, qr/remote_bp: going on with what donors have; \d+ of \d+ files have changed/, "$name: the log says so");
	is_kept($node, $before, $name);
	return;
}

# Empty, for that reason.
sub is_cold
{
	my ($before, $name, $why) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	log_tells($node, $before->{offset}, $why, "$name: the log says why");
	is_forgotten($node, $before, $name);
	return;
}

my $unused = 'remote_bp: the tier begins empty, although the last stop has left an image of it: .*';
my $unwritten = 'remote_bp: the next start begins with an empty tier: .*';

#---- it goes on --------------------------------------------------------------

is($node->safe_psql('postgres', q{SELECT boot_val FROM pg_settings WHERE name = 'remote_bp.warm_restart'}), 'on', 'pages are kept over a restart by default');
is_warm(restart('a fast stop'), 'a fast stop');
is_warm(restart('a smart stop', undef, mode => 'smart'), 'a smart stop');
my $old = lease_secret($broker, lease_id($node));
is_warm(restart('once more'), 'once more');
isnt(lease_secret($broker, lease_id($node)), $old, 'once more: the lease has another secret');

# A crash after it, perhaps before all was loaded
my $before = restart('a crash', sub { });
$before->{offset} = log_size($node);
ok(crash($node, 'checkpointer'), 'a crash: a process is killed at once');
recovered($node, $before->{offset}, 'a crash');
ok(wait_usable($node), 'a crash: the tier is used');
is_right($node, $before, 'a crash');
warm($node, 'pages', part => 0.8);

# What is changed and not written yet is written by the stop
$before = restart('dirty', undef, first => sub {
	$node->safe_psql('postgres', 'UPDATE others SET v = v + 1');
	$others = content($node, 'others');
});
is_warm($before, 'dirty');
is(content($node, 'others'), $others, 'dirty: changes are there');

# Other sizes of what is not kept
$before = restart('other settings', sub {
	$node->append_conf('postgresql.conf', "remote_bp.temp_tier_max_size = 64MB\nmax_connections = 50\nremote_bp.staging_size = 2MB\nshared_buffers = 12MB\n");
});
is_warm($before, 'other settings');

# The lease lapses meanwhile, long before its time, so that others may have the memory.
$before = restart('a long stop', sub { ok(wait_for('the lease to lapse', sub { broker_lease($broker)->{lapsed} }, 60), 'a long stop: the lease lapses') });
is_warm($before, 'a long stop');

# The broker is not there at first: nobody uses the memory before it is.
$before = restart('no broker', sub { $broker->kill9 });
ok(!wait_for('use without a broker', sub { counter($node, 'usable') eq 't' }, 3), 'no broker: the tier is not used');
$broker = restart_broker($broker);
is_warm($before, 'no broker');

# What was a primary is a standby now, as after a switchover.
$before = restart('demoted', sub { $node->append_conf('standby.signal', '') });
is($node->safe_psql('postgres', 'SELECT pg_is_in_recovery()'), 't', 'demoted: it is a standby');
is_warm($before, 'demoted');
$node->promote;

#---- files that have changed --------------------------------------------------

my $path = $node->safe_psql('postgres', q{SELECT pg_relation_filepath('others')});
ok(warm($node, 'others', part => 0.8), 'another table is in the tier, too');
my $had = tier_pages($node, 'others');
$before = restart('a file', sub {
	my $bytes = slurp_file("$data/$path");
	open my $file, '>', "$data/$path.copy" or die $!;
	binmode $file;
	print $file $bytes;
	close $file;
	rename "$data/$path.copy", "$data/$path" or die $!;
});
is_warm($before, 'a file');
log_tells($node, $before->{offset}, qr/going on with what donors have; [1-9]\d* of/, 'a file: the log counts it');
cmp_ok(tier_pages($node, 'others'), '<', 0.3 * $had, 'a file that was copied has lost its pages');
is(content($node, 'others'), $others, 'a file: rows are right');

ok(warm($node, 'others', part => 0.8), 'they come back');
$before = restart('a touch', sub { utime undef, undef, "$data/$path" or die $!; });
is_warm($before, 'a touch');
cmp_ok(tier_pages($node, 'others'), '<', 0.3 * $had, 'a file that was touched has lost its pages, too');

#---- nothing goes on -----------------------------------------------------------

$before = restart('immediate', undef, mode => 'immediate', no_image => 1);
is_forgotten($node, $before, 'immediate');

$before = restart('fsync', undef, no_image => 1, first => sub {
	set_and_wait($node, fsync => 'off');
	make_table($node, 'careless', 4);
	set_and_wait($node, fsync => 'on');
});
is_cold($before, 'fsync off', qr/${unwritten}a relation file was written with fsync off/);

$before = restart('settings', sub { $node->append_conf('postgresql.conf', "remote_bp.warm_restart = crash\n") });
is_cold($before, 'warm_restart = crash', qr/${unused}remote_bp.warm_restart is not "on"/);
$before = restart('crash only', sub { $node->append_conf('postgresql.conf', "remote_bp.warm_restart = on\n") }, no_image => 1);
is_forgotten($node, $before, 'warm_restart was crash');

$before = restart('single', sub {
	my $bin = $node->config_data('--bindir');
	run_log([ "$bin/postgres", '--single', '-D', $data, 'postgres' ], '<', \"SELECT 1\n");
	ok(!-e $image, 'single: the image is not there any more');
}, start => 0);
$node->start;
is_forgotten($node, $before, 'a single-user server in between');

# Servers that know nothing of it
for my $what ('without the extension', 'as a standby')
{
	$before = restart($what, sub {
		copy("$data/postgresql.conf", "$data/conf.before") or die $!;
		$node->append_conf('postgresql.conf', "shared_preload_libraries = ''\n");
		$node->append_conf('standby.signal', '') if $what =~ /standby/;
		$node->start;
		$node->safe_psql('postgres', 'UPDATE others SET v = v + 1') unless $what =~ /standby/;
		$node->stop;
		unlink "$data/standby.signal";
		copy("$data/conf.before", "$data/postgresql.conf") or die $!;
	});
	is_cold($before, $what, qr/${unused}the data directory was used, copied or restored since/);
	$others = content($node, 'others');
}

$before = restart('pg_resetwal', sub { command_ok([ 'pg_resetwal', '-D', $data ], 'pg_resetwal') });
is_cold($before, 'pg_resetwal', qr/${unused}the data directory was used, copied or restored since/);

$before = restart('a copy', sub {
	rename $data, "$data.moved" or die $!;
	system('cp', '-a', "$data.moved", $data) == 0 or die;
	system('rm', '-rf', "$data.moved");
});
is_cold($before, 'a copy of the data directory', qr/${unused}the data directory was used, copied or restored since/);

$before = restart('backup_label', sub { $node->append_conf('backup_label', "x\n") }, start => 0);
$node->start(fail_ok => 1);
unlink "$data/backup_label";
$node->start;
is_cold($before, 'backup_label', qr/${unused}the data directory was used, copied or restored since/);

$before = restart('size', sub { $node->append_conf('postgresql.conf', "remote_bp.buffer_tier_max_size = 80MB\nremote_bp.buffer_tier_size = 80MB\n") });
is_cold($before, 'a smaller maximum size', qr/${unused}remote_bp.buffer_tier_max_size is smaller/);
$before = restart('a larger size', sub { $node->append_conf('postgresql.conf', "remote_bp.buffer_tier_max_size = 120MB\nremote_bp.buffer_tier_size = 120MB\n") });
is_warm($before, 'a larger maximum size');
ok(wait_leased($node, 120), 'a larger maximum size: it is leased');
make_table($node, 'more', 16);
ok(warm($node, 'more', part => 0.8) && warm($node, 'pages', part => 0.8), 'a larger maximum size: it is used');
is_warm(restart('the larger size again'), 'the larger size again');
$node->safe_psql('postgres', 'DROP TABLE more');

# The broker has ended the lease.
$before = restart('revoked', sub { ctl($broker, 'revoke', $_[0]->{lease}) });
log_tells($node, $before->{offset}, qr/remote_bp: the lease has ended/, 'revoked: the log says so');
is_empty($node, $before, 'revoked');

#---- damaged images -------------------------------------------------------------

sub damage
{
	my ($at, $bytes) = @_;
	open my $file, '+<', $image or die $!;
	binmode $file;
	seek $file, $at, 0;
	print $file $bytes;
	close $file;
	return;
}

$before = restart('header', sub { damage(100, 'xxxx') });
is_cold($before, 'a damaged header', qr/${unused}it is damaged/);
$before = restart('tables', sub { damage((-s $image) - 20000, 'xxxx') });
is_cold($before, 'damaged tables', qr/${unused}it is damaged/);
$before = restart('entries', sub { damage(20000, 'xxxx' x 20) });
is_warm($before, 'damaged entries');
$before = restart('the end', sub { truncate $image, (-s $image) - 40000 or die $! });
is_cold($before, 'an image that lacks its end', qr/${unused}it could not be read/);

srand(my $seed = $ENV{RBP_SEED} // time);
note("seed $seed");
for my $try (1 .. $ENV{RBP_FUZZ} // 8)
{
	$before = restart("damage $try", sub {
		my $n = int rand 4;
		damage(int rand(-s $image), chr int rand 256) for 0 .. $n;
		truncate $image, int rand(-s $image) if rand() < 0.2;
	});
	ok(wait_usable($node), "damage $try: the tier is used");
	is_right($node, $before, "damage $try");
	warm($node, 'pages', part => 0.8);
}
is(content($node, 'others'), $others, 'rows are right');
is(scalar(log_troubles($node)), 0, 'the log is quiet otherwise');
$node->stop;
done_testing();
