# Two brokers, each of which is killed, stopped, or lost with its machine while a server is
# under load and spills: no query fails, the tier stays usable, and no page of it is lost.
# A broker that wakes up does no harm.
# Timeout: 1800

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use RemoteBP;
use Test::More;
use Time::HiRes qw(sleep);

# seconds; the soak takes few, but a busy machine needs more
my $ttl = $ENV{RBP_SOAK} ? 10 : 20;
my $rounds = $ENV{RBP_BROKERS_LOST} // ($ENV{RBP_SOAK} ? 24 : 4);
my @brokers = map { start_broker(name => "broker$_") } 1, 2;
my $urls = join ',', map { $_->url } @brokers;
my @donors = map { start_donor($brokers[0], url => $urls, id => "d$_", memory => '128MB') } 1, 2;
my $node = new_cluster('brokers', urls => $urls, transport => 'tcp', tier => '96MB', max_tier => '96MB',
	conf => "remote_bp.lease_ttl = ${ttl}s\nremote_bp.temp_tier_max_size = 96MB\nremote_bp.temp_tier_size = 96MB\nwork_mem = 1MB\n");
RemoteBP::Load->prepare($node, 3);
wait_leased($node, 192);
$node->safe_psql('postgres', q{SELECT remote_bp_prewarm('pgbench_accounts', include_indexes => true)});

sub in_use { return $node->safe_psql('postgres', q{SELECT string_agg(DISTINCT broker, ' ') FROM remote_bp_leases}); }
sub lease { return $node->safe_psql('postgres', q{SELECT string_agg(DISTINCT purpose || lease, ' ' ORDER BY purpose || lease) FROM remote_bp_leases}); }
# regions of donors that know them, at that broker
sub follow { my ($broker) = @_; return wait_for('all to follow ' . $broker->url, sub { in_use() eq $broker->url && 2 == grep { $_->{state} eq 'up' } @{ (http_json($broker, 'GET', '/v1/donors') // {})->{donors} // [] } }, 120); }

ok(follow($brokers[0]), 'all follow the first broker');
my $lease = lease();
my $pages = counter($node, 'remote_pages');
my $load = start_load($node, clients => 2, seconds => 10, scripts => [ '-b', 'select-only', '-f', spill_script() ]);

sub spill_script
{
	my $file = PostgreSQL::Test::Utils::tempdir() . '/spill.sql';
	append_to_file($file, "SELECT count(*) FROM (SELECT g, md5(g::text) FROM generate_series(1, 60000) g ORDER BY 2) s;\n");
	return "$file\@1";
}

sub is_whole
{
	my ($name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is(counter($node, 'usable'), 't', "$name: the tier is usable");
	is(lease(), $lease, "$name: the leases are the same");
	cmp_ok(counter($node, 'remote_pages'), '>=', $pages, "$name: no page is lost");
	is(counter($node, 'spill.lost'), 0, "$name: nor temporary data");
	return;
}

for my $round (1 .. $rounds)
{
	# the first one is killed, and comes back with nothing
	$brokers[0]->kill9;
	ok(follow($brokers[1]), "round $round: killed: all follow the second broker");
	is_whole("round $round: killed");
	$brokers[0] = restart_broker($brokers[0]);
	ok(follow($brokers[0]), "round $round: back: all follow the first broker");
	is_whole("round $round: back");
	$brokers[1] = restart_broker($brokers[1]);
}

# the one in use, each 5 s for 2 minutes, without a wait for anybody
for my $kill (1 .. ($ENV{RBP_SOAK} ? 24 : 0))
{
	my $n = in_use() =~ /\Q@{[ $brokers[1]->url ]}/ ? 1 : 0;
	$brokers[$n]->kill9;
	sleep 2;
	is_whole("kill $kill, of broker " . ($n + 1));
	$brokers[$n] = restart_broker($brokers[$n]);
	sleep 3;
}
ok(follow($brokers[0]), 'they are killed no more: all follow the first broker');
is_whole('they are killed no more');

# three TTLs
kill 'STOP', $brokers[0]->pid;
ok(follow($brokers[1]), 'stopped: all follow the second broker');
sleep 3 * $ttl;
is_whole('stopped');
kill 'CONT', $brokers[0]->pid;
ok(follow($brokers[0]), 'it wakes up: all follow the first broker');
ok(wait_for('its word', sub { $brokers[0]->log_text =~ /the broker did not run for \d+ ms, and forgets/ }), 'it begins anew');
sleep $ttl + 2;
is_whole('it wakes up');

# a shorter stop, after which it still knows everything
kill 'STOP', $brokers[0]->pid;
ok(follow($brokers[1]), 'shortly stopped: all follow the second broker');
kill 'CONT', $brokers[0]->pid;
ok(follow($brokers[0]), 'it is back: all follow the first broker');
sleep $ttl + 2;
is_whole('it is back');

# both are gone for a part of the TTL
$_->kill9 for @brokers;
sleep 3;
@brokers = map { restart_broker($_) } @brokers;
ok(follow($brokers[0]), 'both are back: all follow the first broker');
ok(wait_renewed($node), 'both are back: the leases are renewed');
is_whole('both are back');

# a list that has others does not leave a broker that stays in it
my $offset = -s $node->logfile;
$node->append_conf('postgresql.conf', "remote_bp.broker = '" . $brokers[1]->url . '/, ' . $brokers[0]->url . "'");
$node->reload;
ok(wait_for('the order to be as the list has it', sub { in_use() =~ /\S/ && lease() eq $lease && slurp_file($node->logfile, $offset) =~ /parameter "remote_bp.broker" changed/ }), 'another order is set');
sleep 3;
is_whole('another order');
unlike(slurp_file($node->logfile, $offset), qr/switching from broker/, 'another order: no broker is left');

$load->finish_ok('the load');
is_clean($node, 'at the end');
$node->stop;
done_testing();
