# max_worker_processes is used up by others: whichever worker is missing, the views say
# so, the log warns, and nobody waits for it.

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
my $node = new_cluster(
	'missing',
	broker => $broker,
	tier => '32MB',
	staging => '1MB',
	# the server's launcher of subscriptions would take one
	conf => "max_logical_replication_workers = 0\nmax_worker_processes = 4\n"
	  . "remote_bp.temp_tier_max_size = '8MB'\nremote_bp.temp_tier_size = '8MB'\nremote_bp.policy_interval = '1s'\n");
wait_leased($node, 32) or BAIL_OUT('no memory');
make_table($node, 't', 8);

sub sql { return $node->safe_psql('postgres', $_[0]); }

# The server with so many workers, with no page in shared buffers or the tier.
sub restart_with
{
	my ($workers) = @_;
	my $size = log_size($node);
	$node->append_conf('postgresql.conf', "max_worker_processes = $workers");
	$node->restart;
	return log_since($node, $size);
}

sub wait_reason
{
	my ($query, $pattern, $name) = @_;
	my $reason = '';
	ok(wait_for($name, sub { $reason = sql($query); $reason =~ $pattern }, 60), $name) or diag("reason: $reason");
	return;
}

my $tier = 'SELECT usable, unusable_reason FROM remote_bp_stat';
my $temp = 'SELECT usable, unusable_reason FROM remote_bp_stat_spill';
my $policy = q{SELECT reason FROM remote_bp_policies WHERE relation = 't'::regclass};

sub prewarm_says
{
	my ($pattern, $name) = @_;
	my (undef, undef, $err) = $node->psql('postgres', q{SET statement_timeout = '100s'; SELECT remote_bp_prewarm('t')});
	like($err, $pattern, $name);
	return;
}

my %missing = map { $_ => qr/no background worker is free for the \Q$_\E: raise max_worker_processes/ } 'lease worker', 'pusher', 'policy launcher';
my %warns = map { $_ => qr/WARNING:  remote_bp: no background worker is free for the \Q$_\E\n.*DETAIL:.*\n.*HINT:  Raise max_worker_processes/ } keys %missing;

my $log = restart_with(0);
wait_reason($tier, qr/^f\|$missing{'lease worker'}$/, 'no lease worker: the tier is not usable for that reason');
wait_reason($temp, qr/^f\|$missing{'lease worker'}$/, 'no lease worker: nor is memory for temporary data');
prewarm_says(qr/there is no tier to prewarm: $missing{'lease worker'}/, 'no lease worker: prewarm says so');
like($log, $warns{$_}, "no $_: the log warns") for sort keys %missing;

$log = restart_with(1);
wait_reason($tier, qr/^f\|$missing{'pusher'}$/, 'no pusher: the tier is not usable for that reason');
wait_reason($temp, qr/^t\|$/, 'no pusher: temporary data can be written to donors');
prewarm_says(qr/there is no tier to prewarm: $missing{'pusher'}/, 'no pusher: prewarm does not wait for it');
unlike($log, $warns{'lease worker'}, 'no pusher: the log does not warn of the lease worker');
like($log, $warns{$_}, "no $_: the log warns") for 'pusher', 'policy launcher';

$log = restart_with(2);
wait_reason($tier, qr/^t\|$/, 'no policy launcher: the tier is usable');
prewarm_says(qr/^$/, 'no policy launcher: it can be prewarmed');
sql(q{SELECT remote_bp_evict('t'), remote_bp_set_policy('t', 'keep')});
wait_reason($policy, qr/^$missing{'policy launcher'}$/, 'no policy launcher: the policy is not applied for that reason');
unlike($log, $warns{'pusher'}, 'no policy launcher: the log does not warn of the pusher');
like($log, $warns{'policy launcher'}, 'no policy launcher: the log warns');

my $size = log_size($node);
restart_with(3);
wait_reason($policy, qr/^no background worker is free to apply it: raise max_worker_processes$/, 'no policy worker: the policy is not applied for that reason');
log_tells($node, $size, qr/WARNING:  remote_bp: no background worker is free to apply policies/, 'no policy worker: the log warns');

$log = restart_with(4);
wait_reason("$tier WHERE usable", qr/^t\|$/, 'enough workers: the tier is usable');
wait_reason($policy, qr/^$/, 'enough workers: the policy is applied');
unlike($log, qr/WARNING/, 'enough workers: the log does not warn');
is_clean($node, '', no_compare => 1);
$node->stop;

done_testing();
