# I/O workers, since PostgreSQL 18: they get pages from donors for the backends,
# close connections that are idle although they end no transactions, and take no
# connection of the backends'.  io_method = io_uring, which would read past us,
# is replaced.

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
my $node = new_cluster(
	'io',
	broker => $broker,
	transport => 'tcp',
	# A donor that is late is not what is tested.
	conf => "remote_bp.io_timeout = '5s'\nremote_bp.max_connections = 3\nremote_bp.idle_connection_timeout = '1s'\n");
ok(wait_leased($node, 64), 'memory is leased');
if ($node->safe_psql('postgres', 'SHOW server_version_num') < 180000)
{
	is($node->safe_psql('postgres', q{SELECT count(*) FROM pg_settings WHERE name = 'io_method'}), 0, 'this server has no I/O workers');
	done_testing();
	exit;
}
make_table($node, 't', 16);

my $most_sockets = 0;

# A sequential scan is served by donors.
sub is_served
{
	my ($name) = @_;
	cmp_ok(warm($node, 't'), '>', 0, "$name: pages are on the donor");
	ok( wait_for(
			'hits',
			sub {
				my $before = counter($node, 'hits');
				my $pages = $node->safe_psql('postgres', q{SELECT count(pad) / 8 FROM t});
				my $sockets = sockets();
				$most_sockets = $sockets if $sockets > $most_sockets;
				return counter($node, 'hits') - $before > $pages / 4;
			}),
		"$name: a sequential scan gets pages from the donor");
	return;
}

# Connections of the I/O workers.
sub sockets
{
	my ($postmaster) = slurp_file($node->data_dir . '/postmaster.pid') =~ /^(\d+)/;
	my @workers = map { /^\s*(\d+) .*io worker/ ? $1 : () } `ps -o pid=,args= --ppid $postmaster`;
	return scalar grep { (readlink($_) // '') =~ /^socket:/ } map { glob("/proc/$_/fd/*") } @workers;
}

is($node->safe_psql('postgres', 'SHOW io_method'), 'worker', 'I/O workers are the default');
is_served('worker');
is(counter($node, 'over_limit'), 0, 'I/O workers do not use up the connections of backends');
cmp_ok($most_sockets, '>', 0, 'they have connections of their own');
ok(wait_for('idle connections to be closed', sub { sockets() == 0 }, 60), 'they close idle connections');

$node->append_conf('postgresql.conf', "io_method = sync\n");
$node->restart;
is_served('sync');

my $offset = log_size($node);
$node->append_conf('postgresql.conf', "io_method = io_uring\n");
$node->restart;
is($node->safe_psql('postgres', 'SHOW io_method'), 'worker', 'io_uring is replaced');
log_tells($node, $offset, qr/WARNING: .*remote_bp: io_method is "worker" instead of "io_uring"/, 'and the log says so');
is_served('io_uring');
is_clean($node);
$node->stop;

done_testing();
