# Two servers on cloned machines, which have one client name: they are told
# apart, both hold their leases, and both say so.  A server that was killed
# still takes over from its dead self.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use RemoteBP;
use RemoteBP::Preload;
use Test::More;
use Time::HiRes qw(sleep);

my $MB = 1024 * 1024;
my $broker = start_broker();
my $donor = start_donor($broker, memory => '128MB', region_size => '4MB');
my $conf = "remote_bp.temp_tier_max_size = '16MB'\nremote_bp.temp_tier_size = '16MB'\nremote_bp.lease_ttl = '30s'\n";
my %node = (one => new_cluster('one', broker => $broker, transport => 'tcp', tier => '32MB', start => 0, conf => $conf));
my %boot_id;

sub start_clone
{
	my ($name) = @_;
	$boot_id{$name} //= PostgreSQL::Test::Utils::tempdir() . "/boot_id_$name";
	if (!-f $boot_id{$name})
	{
		append_to_file($boot_id{$name}, sprintf("%08x-0000-4000-8000-00000000000%d\n", rand(2**32), scalar keys %boot_id));
	}
	start_preloaded($node{$name}, 'names', RBP_CLONE_DIR => $node{$name}->data_dir, RBP_CLONE_BOOT_ID => $boot_id{$name});
	return;
}

sub leases
{
	my ($name) = @_;
	return $node{$name}->safe_psql('postgres',
		q{SELECT string_agg(DISTINCT purpose || ' ' || lease, ', ' ORDER BY purpose || ' ' || lease) FROM remote_bp_leases WHERE expires_in > interval '0'});
}

sub broker_leases
{
	return @{ http_json($broker, 'GET', '/v1/leases')->{leases} };
}

sub metric
{
	my ($name) = @_;
	my ($n) = HTTP::Tiny->new(timeout => 5)->get($broker->url . '/metrics')->{content} =~ /^remote_bp_${name} (\d+)/m;
	return $n;
}

# The first one, and a copy of it, which is the same but for where it is.
start_clone('one');
create_extension($node{one});
make_table($node{one}, 't', 4);
$node{one}->stop;
my $two = PostgreSQL::Test::Cluster->new('two');
system('cp', '-a', $node{one}->data_dir, $two->data_dir) == 0 or BAIL_OUT('cannot copy');
$two->append_conf('postgresql.conf', 'port = ' . $two->port . "\n");
$node{two} = $two;

start_clone('one');
ok(wait_leased($node{one}, 48), 'the first server leases memory');
ok(warm($node{one}, 't'), 'the first server uses its memory');
my $leases = leases('one');
my $pages = pages_kept_or_evicted($node{one}, 't');
my $offset = log_size($node{one});
my $taken_over = metric('leases_taken_over_total');
start_clone('two');
ok(wait_leased($node{two}, 48), 'its clone leases memory');
is(scalar(keys %{ { map { $_->{client} => 1 } broker_leases() } }), 1, 'the clone has the same client name');
my $before = metric('leases_renewed_total');
ok(wait_for('renewals', sub { metric('leases_renewed_total') >= $before + 20 }, 90), 'leases are renewed');
is(scalar(broker_leases()), 4, 'both servers hold both leases');
is(leases('one'), $leases, 'the leases of the first server are the same');
is(pages_kept_or_evicted($node{one}, 't'), $pages, 'the first server has all its pages');
is(metric('leases_taken_over_total'), $taken_over, 'no lease was taken over');
ok(warm($node{two}, 't'), 'the clone uses its own memory');
for my $name ('one', 'two')
{
	my $count = sub {
		return scalar(() = log_since($node{$name}, $name eq 'one' ? $offset : 0) =~
			  /LOG: .*another server holds a lease(?: for temporary data)? under the name "pg-\S+" of this one/g);
	};
	ok(wait_for('the log', sub { $count->() >= 2 }, 30), "$name says so");
	is($count->(), 2, "$name says it once for each lease");
}
like($broker->log_text, qr/another machine/, 'the broker says so');

# Over a restart of the broker, they are still told apart.
my $twos = leases('two');
$broker->kill9;
$broker = restart_broker($broker);
ok(wait_for('renewals', sub { (metric('leases_renewed_total') // 0) >= 8 }, 60), 'leases are renewed after a restart of the broker');
is(leases('one') . leases('two'), $leases . $twos, 'the leases are the same after a restart of the broker');

# One is killed and started again: it takes over from its dead self, and from
# nobody else.
$node{one}->stop('immediate');
start_clone('one');
ok(wait_leased($node{one}, 48), 'a server that was killed has its memory again');
is(metric('leases_taken_over_total'), 2, 'the restarted server has taken over its own leases');
is(scalar(broker_leases()), 4, 'there are four leases');
is(leases('two'), $twos, 'the clone has kept its own');
for my $name ('one', 'two')
{
	ok(warm($node{$name}, 't'), "$name uses its memory");
	ok(wait_for('hits', sub { content($node{$name}, 't'); counter($node{$name}, 'compared') > 0 }), "$name reads from it");
	is_clean($node{$name}, $name);
}
$_->stop for values %node;
is(scalar(broker_leases()), 0, 'both give their leases back');

done_testing();
