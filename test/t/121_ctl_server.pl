# remote_bp_ctl shows a server: the advice as a table and as JSON, and
# top, on a terminal and without one.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use RemoteBP;
use Test::More;

my $broker = start_broker();
my $donor = start_donor($broker, memory => '64MB');
my $node = new_cluster('shown', shared_buffers => '1MB', tier => '32MB', broker => $broker,
	conf => "remote_bp.advice_max_size = '16MB'\n");
wait_for('a tier of 32 MB', sub { counter($node, 'online_pages') == 32 * 128 }) or BAIL_OUT('no tier');
my $server = $node->connstr('postgres');

# Returns exit status, output and errors.
sub run_ctl
{
	my (@args) = @_;
	my ($stdout, $stderr) = ('', '');
	IPC::Run::run([ rbp_program('ctl'), @args ], '<', '/dev/null', '>', \$stdout, '2>', \$stderr, IPC::Run::timeout(120));
	my $status = $? >> 8;
	note("remote_bp_ctl @args: exit $status\n$stdout$stderr");
	return ($status, $stdout, $stderr);
}

# Lines for sizes, and 10 if it is said that the others would be the same.
sub lines
{
	my ($out, $line) = @_;
	my $n = () = $out =~ /$line/g;
	return $n >= 1 && $n < 10 && $out =~ /^\(a larger tier would have no more hits\)$/m ? 10 : $n;
}

sub fails
{
	my ($status, $error, $name, @args) = @_;
	my @got = run_ctl(@args);
	is($got[0], $status, "$name: exit status $status");
	like($got[2], $error, "$name: the reason");
	return;
}

#---- while there is no advice -------------------------------------------------

fails(1, qr/none while remote_bp\.advice is off/, 'no advice', '--dbname', $server, 'advice');
my ($status, $text) = run_ctl('--dbname', $server, '--json', 'advice');
is("$status $text", "0 []\n", 'no advice, as JSON');
($status, $text) = run_ctl('--dbname', $server, '--once', 'top');
is($status, 0, 'top --once');
like($text, qr/^no advice: remote_bp\.advice is off$/m, 'top tells that there is no advice');

$node->safe_psql('postgres', 'ALTER SYSTEM SET remote_bp.advice = on');
$node->reload;
wait_for('the advice', sub { $node->safe_psql('postgres', 'SELECT count(*) FROM remote_bp_advice') == 10 }) or BAIL_OUT('reload');

#---- with advice ----------------------------------------------------------------

$node->safe_psql('postgres', <<'SQL');
CREATE TABLE t AS SELECT i AS id, repeat('x', 1000) AS filler FROM generate_series(1, 8000) i;
SQL
ok( wait_for(
		'reads that are observed, and hits',
		sub {
			$node->safe_psql('postgres', 'SELECT count(filler) FROM t');
			$node->safe_psql('postgres', 'SELECT max(hit_ratio) > 0 AND (SELECT hits > 0 FROM remote_bp_stat) FROM remote_bp_advice') eq 't';
		}),
	'there are reads');

($status, $text) = run_ctl('--dbname', $server, 'advice');
is($status, 0, 'advice');
like($text, qr/^TIER SIZE +HIT RATIO +ERROR +HITS +FIRST READS +PAGE CACHE +DISK +SAVED\n/, 'advice has a head');
my $advice_line = qr/^ *\d+ MB +\d+\.\d % +\d+\.\d % +\d+ +\d+ +\d+ +\d+ +(?:\d+\.\d ms\/s|-)$/m;
is(lines($text, $advice_line), 10, 'advice has a line for each size, as long as they differ');
like($text, qr/^\(\d+ reads since .*; one page in 4 is observed; .* from a donor\)$/m, 'advice tells how it was made');
($status, $text) = run_ctl('--dbname', $server, '--json', 'advice');
my $rows = JSON::PP::decode_json($text);
is(join(' ', map { $_->{tier_size} / 1024 / 1024 } @$rows), '1 2 3 4 6 8 10 12 14 16', 'advice --json has all rows');

#---- top --------------------------------------------------------------------------

($status, $text) = run_ctl('--dbname', $server, '--once', 'top');
is($status, 0, 'top --once with advice');
like($text, qr/^remote_bp on PostgreSQL \d+/, 'top names the server');
like($text, qr/^tier: usable, 32 MB leased, \S+ \S+ in use$/m, 'top shows the tier');
like($text, qr/^reads, last \d+ s: \d+ a second: [\d.]+ % donors, [\d.]+ % staging, [\d.]+ % page cache, [\d.]+ % disk, [\d.]+ % file \(not asked\)$/m, 'top shows the hit ratio');
like($text, qr/^hit +\d+ +\d+\.\d us +\d+\.\d us/m, 'top shows latencies');
is(lines($text, $advice_line), 10, 'top shows the advice');
like($text, qr/^\S+ +ok +\w+ +32 MB +/m, 'top shows donors');
like($text, qr/^\S+ +buffer +\d+ +32 MB +/m, 'top shows leases');
unlike($text, qr/broker/, 'top asks no broker');
($status, $text) = run_ctl('--dbname', $server, '--broker', $broker->url, '--once', 'top');
is($status, 0, 'top --once with a broker');
like($text, qr/^the broker's:\nDONOR .*^\(1 donor, 64 MB, of which 32 MB leased\)\n.*^\(1 lease\)\n/ms, 'top shows what the broker has');
fails(1, qr/not everybody has answered/, 'top without a server', '--dbname', "host=$ENV{TESTDIR} port=1", '--once', 'top');
fails(1, qr/not everybody has answered/, 'top without the broker', '--dbname', $server, '--broker', 'http://127.0.0.1:1', '--once', 'top');
fails(1, qr/advice: the database "template1" has no extension remote_bp; use CREATE EXTENSION there/, 'a database without the extension', '--dbname', $node->connstr('template1'), 'advice');
$node->safe_psql('postgres', 'CREATE ROLE nobody LOGIN; CREATE SCHEMA "Else where"; ALTER EXTENSION remote_bp SET SCHEMA "Else where"');
fails(1, qr/advice: the user lacks the privilege to use the schema/, 'a user who may not use the schema', '--dbname', "$server user=nobody", 'advice');
$node->safe_psql('postgres', 'GRANT USAGE ON SCHEMA "Else where" TO nobody');
fails(1, qr/advice: the user lacks the privilege to read remote_bp's views; grant it pg_monitor/, 'a user without the privilege', '--dbname', "$server user=nobody", 'advice');
($status, $text) = run_ctl('--dbname', $server, 'advice');
is($status, 0, 'the extension is found in another schema');
$node->safe_psql('postgres', 'ALTER EXTENSION remote_bp SET SCHEMA public');

#---- health -------------------------------------------------------------------------

($status, $text) = run_ctl('--dbname', $server, 'health');
is($status, 0, 'health');
like($text, qr/\Awell: tier usable, 32 MB leased, \S+ \S+ in use$/m, 'health tells that all is well');
like($text, qr/^[\d.]+ % of \d+ reads a second came from donors and staging, which saved -?[\d.]+ ms a second$/m, 'health tells what the tier is good for');
like($text, qr/^temporary data stays in files: remote_bp\.temp_tier_size is 0$/m, 'what is switched off is told, too');
($status, $text) = run_ctl('--dbname', $server, '--broker', $broker->url, '--json', 'health');
my $health = JSON::PP::decode_json($text);
is(join(' ', $status, map { "$_:" . (ref $health->{$_} eq 'ARRAY' ? scalar @{ $health->{$_} } : $health->{$_}) } qw(ok problems summary)),
	'0 ok:1 problems:0 summary:2', 'health of broker and server, as JSON');
fails(3, qr/advice: /, 'advice of no server', '--dbname', "host=$ENV{TESTDIR} port=1", 'advice');
($status, $text) = run_ctl('--dbname', "host=$ENV{TESTDIR} port=1", 'health');
like("$status $text", qr/\A4 not well: server: /, 'health of no server');

# Refreshed until a signal ends it: on a terminal, which script gives to the command, or not.
sub start_top
{
	my ($on_terminal, @args) = @_;
	my $run = { in => '', out => '' };
	my @command = (rbp_program('ctl'), '--dbname', $server, '--interval', '1', @args, 'top');
	@command = ('script', '-qec', join(' ', map { "'$_'" } @command), '/dev/null') if $on_terminal;
	$run->{harness} = IPC::Run::start(\@command, '<', \$run->{in}, '>', \$run->{out}, '2>&1', IPC::Run::timeout(300));
	return $run;
}

sub shows
{
	my ($run, $what) = @_;
	$run->{out} = '';
	return wait_for("top to show $what", sub { $run->{harness}->pump_nb; $run->{out} =~ $what });
}

is_clean($node, 'before a restart');
my $top = start_top(1);
ok(shows($top, qr/\e\[H\e\[2J.*tier: usable.*HIT RATIO.*PURPOSE/s), 'top fills the terminal');
ok(shows($top, qr/reads, last [\d.]+ s: .*reads, last [\d.]+ s: /s), 'top shows the reads since the last refresh');
$node->stop;
ok(shows($top, qr/does not answer/), 'top shows that the server is gone');
$node->start;
ok(shows($top, qr/remote_bp on PostgreSQL/), 'top shows the server again');
$top->{in} .= "\cC";
$top->{harness}->finish;
is($top->{harness}->result(0), 128 + 2, 'Ctrl-C ends it');

# The connection stays, and nobody answers.
$top = start_top(0, '--broker', $broker->url);
ok(shows($top, qr/remote_bp on PostgreSQL.*the broker's:/s), 'top shows a server and a broker');
my ($postmaster) = slurp_file($node->data_dir . '/postmaster.pid') =~ /^(\d+)/;
my @stopped = ($postmaster);
kill 'STOP', $postmaster;
push @stopped, split ' ', `ps -o pid= --ppid $postmaster`;
kill 'STOP', @stopped;
my $shown = eval { shows($top, qr/the server does not answer: .*the broker's:.* leases?\)/s) };
kill 'CONT', @stopped;
ok($shown, 'top shows that a stopped server does not answer, and what the broker has');
ok(shows($top, qr/remote_bp on PostgreSQL/), 'top shows the server when it goes on');
unlike($top->{out}, qr/\e/, 'top without a terminal moves no cursor');
$top->{harness}->signal('TERM');
eval { $top->{harness}->finish };

#---- usage -------------------------------------------------------------------------

fails(2, qr/--broker is required/, 'donors without a broker', 'donors');
fails(2, qr/donors does not take --dbname/, 'donors with --dbname', '--broker', $broker->url, '--dbname', $server, 'donors');
fails(2, qr/advice does not take --once/, 'advice with --once', '--once', 'advice');
fails(2, qr/top does not take --json/, 'top with --json', '--json', 'top');
fails(2, qr/not a number from 1 to 3600/, 'an interval of nothing', '--interval', '0', 'top');

is_clean($node, 'in the end', no_compare => 1);
$node->stop;
done_testing();
