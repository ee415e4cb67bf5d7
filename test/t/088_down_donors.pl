# Whatever keeps a donor from being used is told, by the log in one line and
# by the views: it does not answer, it is gone, there is no way to it by
# remote_bp.transport, all connections to it are taken, somebody else is at its
# address; and that it is used again.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use IO::Socket::INET;
use POSIX ();
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use RemoteBP;
use Test::More;

sub donor_row
{
	my ($node, $id) = @_;
	my $row = $node->safe_psql('postgres',
		"SELECT row_to_json(d) FROM (SELECT *, state_since BETWEEN pg_postmaster_start_time() AND clock_timestamp() AS since_ok, last_error_at BETWEEN pg_postmaster_start_time() AND clock_timestamp() AS error_at_ok FROM remote_bp_stat_donors) d WHERE donor = '$id'");
	return $row eq '' ? {} : JSON::PP::decode_json($row);
}

sub wait_state
{
	my ($node, $id, $state, $name) = @_;
	my $row;
	ok( wait_for(
			"$id to be $state",
			sub {
				content($node, 't');
				evict_buffers($node);
				$row = donor_row($node, $id);
				return ($row->{state} // '') eq $state;
			}),
		$name) or diag(explain($row));
	return $row;
}

sub wait_log
{
	my ($node, $offset, $pattern, $name) = @_;
	return ok(wait_for("the line $pattern", sub { log_since($node, $offset) =~ $pattern }, 150), $name);
}

sub lines
{
	my ($node, $offset, $pattern) = @_;
	return scalar grep { $_ =~ $pattern } split /\n/, log_since($node, $offset);
}

sub set
{
	my ($node, $name, $value) = @_;
	$node->safe_psql('postgres', "ALTER SYSTEM SET remote_bp.$name = $value");
	$node->reload;
	return;
}

#---- a donor that does not answer, and one that is gone ----------------------

# A donor that is late because the machine is busy is not what is tested, nor
# one that the broker gives up.
my $patience = "remote_bp.io_timeout = '200ms'\n";
my $broker = start_broker(args => [ '--donor-timeout', '600' ]);
my $donor = start_donor($broker, id => 'slow', memory => '32MB');
my $node = new_cluster('down', broker => $broker, tier => '32MB', transport => 'tcp',
	conf => $patience);
wait_leased($node, 32);
make_table($node, 't', 6);
ok(warm($node, 't'), 'pages come from the donor');
my $row = donor_row($node, 'slow');
is($row->{state}, 'ok', 'the donor is in use');
ok($row->{since_ok}, "the donor's state has a valid time");
is($node->safe_psql('postgres', 'SELECT usable, unusable_reason IS NULL FROM remote_bp_stat'),
	't|t', 'the tier is usable, and there is no reason against it');

my $offset = log_size($node);
$donor->freeze;
$row = wait_state($node, 'slow', 'down', 'a stopped donor is down');
like($row->{last_error}, qr/over tcp.*timed out/, 'the view shows why the donor is down');
ok($row->{since_ok}, 'the view shows since when the donor is down');
like(
	$node->safe_psql('postgres', q(SELECT ok, problem, since = (SELECT state_since FROM remote_bp_stat_donors WHERE state = 'down') FROM remote_bp_health)),
	qr/^f\|.*donor slow is down: .*timed out.*\|t$/, 'the donor is a problem');
ok($row->{error_at_ok}, 'the view shows when the error was');
wait_log($node, $offset, qr/remote_bp: donor "slow" is down: .*over tcp.*timed out/, 'the log reports that the donor is down');
like(
	$node->safe_psql('postgres', 'SELECT usable, unusable_reason FROM remote_bp_stat'),
	qr/^f\|.*"slow".*timed out/,
	'no donor is left: the tier is not usable, for that reason');
like($node->safe_psql('postgres', 'SELECT last_error FROM remote_bp_stat'),
	qr/"slow".*timed out/, 'the reason is the last error of the tier, too');
is(lines($node, $offset, qr/donor "slow" is down/), 1, 'once');

$donor->thaw;
$row = wait_state($node, 'slow', 'ok', 'the donor goes on, and is used again');
wait_log($node, $offset, qr/remote_bp: donor "slow" is used again/, 'the log reports that the donor is used again');
ok(defined $row->{last_error}, 'the view still shows the last error');
ok(wait_for('the tier', sub { counter($node, 'usable') eq 't' }), 'the tier is usable again');

$offset = log_size($node);
$donor->kill9;
$row = wait_state($node, 'slow', 'down', 'a killed donor is down');
wait_for('the donor to refuse', sub { donor_row($node, 'slow')->{last_error} =~ /could not connect over tcp/ });
like(donor_row($node, 'slow')->{last_error}, qr/could not connect over tcp/, 'a donor that refuses connections has another reason');
wait_log($node, $offset, qr/remote_bp: donor "slow" is down: .*over tcp/,
	'the log reports another reason, though the last line is less than a minute old');
$node->stop;
$broker->stop;

#---- no way to the donor -----------------------------------------------------

$broker = start_broker(name => 'broker_ways', args => [ '--donor-timeout', '600' ]);
$donor = start_donor($broker, id => 'plain', memory => '48MB', args => [ '--transports', 'tcp' ]);
$node = new_cluster('ways', broker => $broker, tier => '32MB', transport => 'verbs',
	conf => "${patience}remote_bp.temp_tier_max_size = '8MB'\nremote_bp.temp_tier_size = '8MB'\n");
wait_leased($node, 32);
make_table($node, 't', 6);
for my $transport ('verbs', 'shm')
{
	my $why = $transport eq 'verbs' ? qr/no RDMA device|does not offer verbs/ : qr/does not offer shm/;
	if ($transport ne 'verbs')
	{
		$offset = log_size($node);
		set($node, 'transport', "'$transport'");
	}
	else
	{
		$offset = 0;
	}
	ok( wait_for('the donor to be down', sub { donor_row($node, 'plain')->{state} eq 'down' && (donor_row($node, 'plain')->{last_error} // '') =~ $why }),
		"$transport: a donor that this transport does not lead to is down");
	like(donor_row($node, 'plain')->{last_error}, $why, "$transport: the view shows the reason");
	wait_log($node, $offset, qr/remote_bp: donor "plain" is down: .*($why)/, "$transport: the log reports the reason");
	my ($usable, $reason, $temp_reason) = split /\|/,
	  $node->safe_psql('postgres', 'SELECT t.usable, t.unusable_reason, s.unusable_reason FROM remote_bp_stat t, remote_bp_stat_spill s');
	is($usable, 'f', "$transport: the tier is not usable");
	like($reason, $why, "$transport: the tier has that reason");
	like($temp_reason, $why, "$transport: the memory for temporary data has that reason");
	my $lines = lines($node, $offset, qr/donor "plain" is down/);
	content($node, 't');
	evict_buffers($node);
	content($node, 't');
	is(donor_row($node, 'plain')->{state}, 'down', "$transport: the donor stays down under a load");
	is(lines($node, $offset, qr/donor "plain" is down/), $lines, "$transport: the log does not report it again");
	$offset = log_size($node);
	set($node, 'transport', "'tcp'");
	wait_state($node, 'plain', 'ok', "$transport: the donor is used with another transport");
	wait_log($node, $offset, qr/remote_bp: donor "plain" is used again/, "$transport: the log reports that the donor is used again");
	ok(warm($node, 't'), "$transport: pages come from the donor");
	is($node->safe_psql('postgres', 'SELECT t.usable, t.unusable_reason IS NULL, s.usable, s.unusable_reason IS NULL
		FROM remote_bp_stat t, remote_bp_stat_spill s'),
		't|t|t|t', "$transport: no reason is left");
}

#---- no connection left --------------------------------------------------------

$offset = log_size($node);
set($node, 'max_connections', 1);
my @sessions = map { $node->background_psql('postgres') } 1 .. 3;
ok( wait_for(
		'a session to be one too many',
		sub {
			$_->query_safe('SELECT count(pad) FROM t') for @sessions;
			evict_buffers($node);
			return counter($node, 'over_limit') > 0;
		}),
	'more sessions read than there may be connections');
wait_log($node, $offset, qr/remote_bp: all connections to donor "plain" are taken/, 'the log tells');
wait_log($node, $offset, qr/remote_bp\.max_connections/, 'the log names the setting that limits connections');
$_->quit for @sessions;
is_clean($node);
$node->stop;

#---- somebody else at its address ------------------------------------------------

# What is there says this to a HELLO, and that to an AUTH.  Returns its port.
my @rogues;

sub start_rogue
{
	my ($to_hello, $to_auth) = @_;
	my $listener = IO::Socket::INET->new(Listen => 16, LocalAddr => '127.0.0.1') or BAIL_OUT("listen: $!");
	my $pid = fork // BAIL_OUT("fork: $!");
	if ($pid == 0)
	{
		alarm 600;
		$SIG{PIPE} = 'IGNORE';
		while (my $client = $listener->accept)
		{
			syswrite $client, $to_hello if read($client, my $hello, 64) == 64;
			syswrite $client, $to_auth if $to_auth && read($client, my $auth, 72) == 72;
		}
		POSIX::_exit(0);
	}
	push @rogues, $pid;
	return $listener->sockport;
}

my $challenge = pack('CCvVa32', 2, 0, 0, 32, 'a nonce');
my %rogue = (
	liar => [ start_rogue($challenge, pack('CCvVVVQ<a32', 4, 0, 0, 48, 4, 0, 8 << 20, 'no MAC')), 'it has not proved that it is this donor' ],
	old => [ start_rogue(pack('CCvVx16', 4, 0, 3, 16)), 'it speaks another version of the protocol' ]);
$node = new_cluster('rogues', broker => $broker, tier => '64MB', transport => 'tcp');
$donor->stop;
for my $id (sort keys %rogue)
{
	start_donor($broker, id => $id, memory => '32MB', advertise => "127.0.0.1:$rogue{$id}[0]", args => [ '--transports', 'tcp' ]);
}
make_table($node, 't', 6);
for my $id (sort keys %rogue)
{
	my $why = "could not connect over tcp: $rogue{$id}[1]";
	$row = wait_state($node, $id, 'down', "$id: a donor that somebody else stands in for is down");
	is($row->{last_error}, $why, "$id: the view shows why");
	wait_log($node, 0, qr/remote_bp: donor "$id" is down: \Q$why\E/, "$id: so does the log");
}
is($node->safe_psql('postgres', q{SELECT sum(reads) FROM remote_bp_stat_donors WHERE donor IN ('liar', 'old')}), 0, 'no page came from them');
is_clean($node, 'rogues', no_compare => 1);
kill 'KILL', @rogues;
$node->stop;

done_testing();
