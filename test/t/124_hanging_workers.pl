# A worker hangs: after a while the views say so, another worker warns, and nobody waits
# for it any more; when it goes on, all is as before.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use RemoteBP;
use Test::More;

my $broker = start_broker();
my $donor = start_donor($broker, memory => '128MB');

# All hang at the same time, each in a server of its own.
my %nodes;
my %pids;
for my $worker ('lease worker', 'pusher', 'policy launcher')
{
	(my $name = $worker) =~ s/.* //;
	my $node = $nodes{$worker} = new_cluster(
		$name,
		broker => $broker,
		tier => '24MB',
		staging => '1MB',
		conf => "remote_bp.io_timeout = '2s'\n" . ($worker eq 'lease worker' ? "remote_bp.lease_ttl = '5s'\n" : ''));
	wait_leased($node, 24) or BAIL_OUT('no memory');
	make_table($node, 't', 8, index => 0);
	$node->safe_psql('postgres', q{SELECT remote_bp_evict('t')});
	$pids{$worker} = server_process($node, "remote_bp $worker") or BAIL_OUT("no $worker");
}

my %reason = (
	'lease worker' => q{SELECT usable, unusable_reason FROM remote_bp_stat},
	'pusher' => q{SELECT usable, unusable_reason FROM remote_bp_stat},
	'policy launcher' => q{SELECT 'f', reason FROM remote_bp_policies WHERE relation = 't'::regclass});

# The launcher only while it waits, lest it hang with a lock.
hold_policy_worker($nodes{'policy launcher'});
kill('STOP', $pids{$_}) == 1 or BAIL_OUT($_) for 'lease worker', 'pusher';
my $prewarm = $nodes{pusher}->background_psql('postgres');
$prewarm->query_until(qr/begun/, "\\echo begun\nSELECT remote_bp_prewarm('t');\n");
$nodes{'policy launcher'}->safe_psql('postgres', q{SELECT remote_bp_set_policy('t', 'keep')});

for my $worker (sort keys %nodes)
{
	my $node = $nodes{$worker};
	my $reason;
	ok( wait_for('the reason', sub { $reason = $node->safe_psql('postgres', $reason{$worker}); $reason =~ /^f\|the $worker has not run for \d+ s$/ }, 120),
		"the $worker hangs: the view says so")
	  or diag($reason);
	log_tells($node, 0, qr/WARNING:  remote_bp: the $worker has not run for 30 s/, "the $worker hangs: another one warns");
}
$prewarm->query(q{\echo done});
like($prewarm->{stderr}, qr/WARNING:  prewarm of relation "t" stopped at block \d+: the pusher has not run for/, 'the pusher hangs: prewarm ends');
$prewarm->quit;

kill('CONT', $_) for values %pids;
for my $worker (sort keys %nodes)
{
	my $node = $nodes{$worker};
	my $well = $worker eq 'policy launcher' ? q{SELECT 't', reason FROM remote_bp_policies WHERE relation = 't'::regclass} : $reason{$worker};
	ok(wait_for('all to be well', sub { $node->safe_psql('postgres', $well) eq 't|' }, 120), "the $worker goes on: there is no such reason");
	my @told = slurp_file($node->logfile) =~ /remote_bp: the .* has not run for 30 s/g;
	is(scalar(@told), 1, "the $worker: the log warned once");
	is_clean($node, $worker, no_compare => 1);
	$node->stop;
}

done_testing();
