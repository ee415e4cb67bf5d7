# Blocks of temporary data that could not be sent: slots that something may
# still arrive in are not used again for a while; and who has to report that a
# block is lost, and cannot write to the log just then, keeps nobody else
# waiting.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use RemoteBP;
use RemoteBP::Spill;
use Test::More;
use Time::HiRes qw(time);

my $FIONREAD = 0x541b;

need_test_build();
set_faults();
my $broker = start_broker();
my $donor = start_donor($broker, memory => '32MB', region_size => '4MB');
my $node = spill_cluster(
	'failed_sends',
	broker => $broker,
	transport => 'tcp',
	test_build => 1,
	temp => '16MB',
	settings => "logging_collector = on\nlog_filename = 'all.log'\n",
	conf => "remote_bp.buffer_tier_size = 0\nremote_bp.io_timeout = '200ms'\nremote_bp.temp_io_timeout = '2s'\n");
spill_data($node);
my $log = $node->data_dir . '/log/all.log';

#---- slots ------------------------------------------------------------------

my $sort = q{SELECT count(*), md5(string_agg(t, '')) FROM (SELECT t, pad FROM big ORDER BY t) s};
my $right = $node->safe_psql('postgres', "SET remote_bp.spill_temp_files = off; $sort");
is($node->safe_psql('postgres', $sort), $right, 'a query that spills');
my $resting = counter($node, 'spill.quarantined_pages');
my $errors = counter($node, 'io_errors');
set_faults('write cut');
# Until the donor is tried.
ok( wait_for(
		'a connection to break',
		sub { $node->safe_psql('postgres', $sort) eq $right or die 'the query is wrong'; return counter($node, 'io_errors') > $errors; }),
	'the connection breaks as blocks are sent: the query is right');
cmp_ok(counter($node, 'spill.quarantined_pages'), '>', $resting, 'the slots that they were for rest');
set_faults();
spill_is_idle($node, 'broken connections');
ok( wait_for(
		'the donor to be used',
		sub {
			my $writes = counter($node, 'spill.writes');
			return $node->safe_psql('postgres', $sort) eq $right && counter($node, 'spill.writes') > $writes;
		}),
	'the donor is used again');

#---- a log that takes nothing -------------------------------------------------

my $session = $node->background_psql('postgres', on_error_stop => 0);
ok( wait_for(
		'blocks on the donor',
		sub {
			$session->query('ROLLBACK; BEGIN');
			$session->query('DECLARE c SCROLL CURSOR FOR WITH w AS MATERIALIZED (SELECT id, t, pad FROM big) SELECT * FROM w');
			$session->query('MOVE 15000 FROM c');
			return $session->query('SELECT coalesce(sum(remote_bytes), 0) FROM remote_bp_temp_files') > 0;
		}),
	'blocks are on the donor');
my $pid = $session->query('SELECT pg_backend_pid()');
my @files = map { $node->data_dir . "/$_" } grep { /pgsql_tmp$pid\./ } temp_paths($node);
is(chmod(0400, @files), 1, 'the real file cannot be opened for writing');

# The pipe to the collector is filled.
my $collector = server_process($node, 'logger');
my $talker = $node->background_psql('postgres');
open(my $pipe, '<', "/proc/$pid/fd/2") or die "cannot open the pipe: $!";
is(kill('STOP', $collector), 1, 'the logging collector is stopped');
$talker->query_until(qr/begins/, "\\echo begins\nDO \$\$ BEGIN RAISE LOG '%', repeat('x', 2000000); END \$\$;\n");
ok( wait_for(
		'the pipe to be full',
		sub { my $n = pack('i', 0); ioctl($pipe, $FIONREAD, $n) or die $!; return unpack('i', $n) > 60000; }),
	'the log takes no more');

# The donor does not answer: after two seconds blocks are lost, and that is to
# be reported.
set_faults('write drop');
$session->query_until(qr/begins/, "\\echo begins\nMOVE 15000 FROM c;\n");
my ($most, $polls, $last, $begun) = (0, 0, 0, time);
my $timed_out = 0;
do
{
	my $staged = '';
	$node->psql('postgres', 'SELECT sum(staged_bytes) FROM remote_bp_temp_files', stdout => \$staged, timeout => 60, timed_out => \$timed_out);
	$last = $timed_out ? 0 : $staged;
	$most = $last if $last > $most;
	$polls++;
} until $timed_out || ($last < $most && time > $begun + 3) || time > $begun + 20;
note("$polls looks, staged bytes: $most at most, $last last");
ok(!$timed_out, 'meanwhile others can look at the file');
set_faults();
is(kill('CONT', $collector), 1, 'the logging collector goes on');
close $pipe;
$session->query('SELECT 1');
wait_for('the collector', sub { slurp_file($log) =~ /\[$pid\] .*is lost:/ });
like(slurp_file($log), qr/\[$pid\] .*remote_bp: block \d+ of temporary file "base\/pgsql_tmp\/pgsql_tmp$pid\.\d+" is lost: .*Permission denied/, 'the log tells what is lost');
$session->{stderr} = '';
$session->query('MOVE ABSOLUTE 0 FROM c; MOVE FORWARD ALL FROM c');
like($session->{stderr}, qr/ERROR: .*could not read block \d+ of temporary file/, 'the query that needs lost blocks fails');
$session->query('ROLLBACK');
is($session->query($sort), $right, 'the session goes on after the failed query');
$_->quit for $session, $talker;
spill_is_idle($node, 'in the end');
$node->stop;

done_testing();
