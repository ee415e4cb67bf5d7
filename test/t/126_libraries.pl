# Which processes of a server have which libraries: the postmaster and its sessions have
# none of those that only requests to the broker, or RDMA, need.  A library for RDMA that
# is not there is told, and the server does without.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use File::Copy qw(copy);
use File::Path qw(make_path);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use RemoteBP;
use RemoteBP::Preload;
use Test::More;

my @http = qw(libcurl libjansson remote_bp_lease);
my @rdma = qw(libibverbs librdmacm remote_bp_verbs);

# Those of these libraries that the process has.
sub libraries
{
	my ($pid, @names) = @_;
	my $maps = slurp_file("/proc/$pid/maps");
	return join(' ', grep { $maps =~ m{/\Q$_\E\.so} } @names);
}

sub postmaster
{
	my ($node) = @_;
	my ($pid) = slurp_file($node->data_dir . '/postmaster.pid') =~ /^(\d+)/;
	return $pid;
}

#---- who has what ---------------------------------------------------------------

my $broker = start_broker();
my $donor = start_donor($broker, id => 'donor', memory => '64MB');

for my $transport ('shm', 'tcp')
{
	my $node = new_cluster("has_$transport", broker => $broker, transport => $transport, io_workers => 0);
	ok(wait_leased($node, 64), "$transport: there is memory");
	make_table($node, 'pages', 8);
	ok(warm($node, 'pages'), "$transport: pages are on the donor");

	my $session = $node->background_psql('postgres');
	my $pid = $session->query_safe('SELECT pg_backend_pid()');
	my $own = sub {
		$session->query_safe('SELECT count(*) FROM pages');
		return $session->query_safe("SELECT hits FROM remote_bp_stat_backend()") > 0;
	};
	ok(wait_for('hits of the session', $own), "$transport: a session reads from the donor");
	is(libraries($pid, 'remote_bp'), 'remote_bp', "$transport: it has the module");
	is(libraries($pid, @http, @rdma), '', "$transport: and none of the libraries");
	is(libraries(postmaster($node), 'remote_bp', @http, @rdma), 'remote_bp', "$transport: nor has the postmaster");
	is(libraries(server_process($node, 'remote_bp pusher'), @http, @rdma), '', "$transport: nor the pusher");
	is(libraries(server_process($node, 'remote_bp lease worker'), @http, @rdma), "@http", "$transport: the lease worker has those for HTTP");
	$session->quit;
	is_clean($node);
	$node->stop;
}
$donor->stop;
$broker->stop;

#---- a device, but no library ----------------------------------------------------

# An RDMA device, as sysfs shows it, a donor that is reached by nothing else, and who
# must connect to it: the pusher, when a page is evicted.
my $sysfs = PostgreSQL::Test::Utils::tempdir();
make_path("$sysfs/none0/ports/1");
append_to_file("$sysfs/none0/node_type", "1: CA\n");
append_to_file("$sysfs/none0/ports/1/state", "4: ACTIVE\n");
$broker = start_broker(name => 'broker_rdma', args => [ '--donor-timeout', '600' ]);
ok( http_json(
		$broker, 'POST',
		'/v1/donors',
		{   id => 'far',
			host => '127.0.0.1',
			rdma_host => '127.0.0.1',
			rdma_port => 7002,
			transports => ['verbs'],
			region_size => 16 * 1024 * 1024,
			regions => 2,
			instance => 'i'
		}),
	'there is a donor that only RDMA leads to');

# nothing is granted that it has not applied
my $applies = fork // BAIL_OUT("fork: $!");
if ($applies == 0)
{
	for (my $revision = 0;;)
	{
		my $answer = http_json($broker, 'POST', '/v1/donors/far/heartbeat', { instance => 'i', revision => $revision });
		$answer ? ($revision = $answer->{revision}) : sleep 1;
	}
}

my $pkglibdir = `@{[ $ENV{PG_CONFIG} || 'pg_config' ]} --pkglibdir`;
chomp $pkglibdir;
my $installed = $ENV{RBP_MODULE_DIR} || $pkglibdir;
my $without = PostgreSQL::Test::Utils::tempdir();
copy("$installed/$_.so", "$without/$_.so") or BAIL_OUT("$installed/$_.so: $!") for 'remote_bp', 'remote_bp_lease';
chmod 0755, $without, glob("$without/*.so");

my $node = new_cluster('without', broker => $broker, tier => '32MB', transport => 'verbs', start => 0,
	conf => "dynamic_library_path = '$without:\$libdir'\n");
start_preloaded($node, 'sysfs', RBP_SYSFS => $sysfs);
create_extension($node);
ok(wait_leased($node, 32), 'without the library there is memory');
make_table($node, 'pages', 8);
evict_buffers($node);
my $why = qr/could not connect over verbs: the library remote_bp_verbs cannot be loaded/;
my $error = sub { return $node->safe_psql('postgres', 'SELECT last_error FROM remote_bp_stat_donors') };
ok(wait_for('the pusher to try', sub { return $error->() =~ $why }), 'the view tells why the donor is not used') or diag($error->());
log_tells($node, 0, qr/WARNING: .*remote_bp: could not load the library for RDMA: \S*remote_bp_verbs\.so: /, 'the log tells which file, and why');
log_tells($node, 0, qr/HINT: .*librdmacm/, 'and what to do');
like($node->safe_psql('postgres', 'SELECT last_error FROM remote_bp_stat'), qr/library/, 'so does the latest error');
is(libraries(server_process($node, 'remote_bp pusher'), @rdma), '', 'nothing was loaded');
is($node->safe_psql('postgres', 'SELECT count(*) > 0 FROM pages'), 't', 'pages are read from the disk');

#---- it is loaded where it is needed ---------------------------------------------

my $offset = log_size($node);
ok(copy("$installed/remote_bp_verbs.so", "$without/remote_bp_verbs.so"), 'the library is installed');
ok( wait_for(
		'the pusher to have it',
		sub {
			evict_buffers($node);
			return libraries(server_process($node, 'remote_bp pusher'), @rdma) eq "@rdma";
		}),
	'the pusher loads it when it tries again');
is(libraries(postmaster($node), @rdma), '', 'the postmaster does not');
ok(wait_for('another reason', sub { return $error->() !~ $why }), 'and the view tells another reason, for there is no device');
$node->stop;
$broker->stop;

kill 'KILL', $applies;
waitpid $applies, 0;
done_testing();
