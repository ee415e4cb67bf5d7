# Processes of the server are killed: a backend, the pusher, the lease worker.
# The server starts anew, as it does, with what was in the tier, under load; another
# server on the same donor sees nothing of it.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use RemoteBP;
use Test::More;
use Time::HiRes qw(sleep);

my $broker = start_broker();
my $donor = start_donor($broker, memory => '192MB');
my $other = busy_cluster('other', broker => $broker, tier => '64MB', scale => 2);
my $node = busy_cluster('killed', broker => $broker, tier => '128MB', conf => "fsync = on\n");
my $sums = q{SELECT (SELECT sum(abalance) FROM pgbench_accounts) = (SELECT coalesce(sum(delta), 0) FROM pgbench_history),
	(SELECT sum(tbalance) FROM pgbench_tellers) = (SELECT sum(bbalance) FROM pgbench_branches)};

my $undisturbed = start_load($other, seconds => 40, clients => 2);
for my $victim ('client backend', 'remote_bp pusher', 'remote_bp lease worker')
{
	# This load's clients lose their connections; that is as it must be.
	my $load = start_load($node, seconds => 60, clients => 3, scripts => [ '-b', 'tpcb-like' ]);
	my $pid = $victim eq 'client backend'
	  ? $node->safe_psql('postgres', q{SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid() LIMIT 1})
	  : server_process($node, $victim);
	like($pid, qr/^\d+$/, "$victim: is there") or next;
	my $offset = log_size($node);
	is(kill('KILL', $pid), 1, "$victim: the process is killed");
	ok( wait_for(
			'recovery',
			sub { log_since($node, $offset) =~ /database system is ready to accept connections/ }),
		"$victim: the server recovers");
	$load->{daemon}->wait_end(30);
	ok(wait_leased($node, 120), "$victim: memory is leased");
	log_tells($node, $offset, qr/going on with the lease, \d+ MB/, "$victim: by the lease of before");
	ok(serves_again($node), "$victim: pages come from the tier again");
	is($node->safe_psql('postgres', $sums), 't|t', "$victim: balances agree");
	my $after = start_load($node, seconds => 4, clients => 2);
	$after->finish_ok("$victim: a load after it works");
	is(counter($node, 'mismatches'), 0, "$victim: no page is different from the disk");
}
is(scalar grep({ !/signal 9/ } log_troubles($node)), 0, 'the log is quiet otherwise');
$undisturbed->finish_ok('the other server');
is_clean($other, 'the other server');
$node->stop;
$other->stop;

done_testing();
