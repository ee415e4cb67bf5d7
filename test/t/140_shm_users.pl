# A donor on the server's own machine that does not admit the server's user to shared
# memory (--shm-users): the server uses TCP, and both logs say why.  With remote_bp.transport
# = shm it reads from disk, and the donor is not down.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use RemoteBP;
use Test::More;

my $broker = start_broker();
my $donor = start_donor($broker, memory => '64MB', args => [ '--shm-users', $> + 1 ]);
my $node = new_cluster('users', broker => $broker, io_workers => 0);
make_table($node, 't', 4);
ok(warm($node, 't'), 'the donor is used');
my $content = content($node, 't');
my $state = sub { $node->safe_psql('postgres', 'SELECT state, transport FROM remote_bp_stat_donors') };
is($state->(), 'ok|tcp', 'over TCP');
like($donor->log_text, qr/refused a client from this host, user $>: --shm-users does not have it/, "the donor's log says whom it refused");
log_tells(
	$node, 0,
	qr/donor "donor1" cannot be reached over shm \(the donor does not admit this server's user \(--shm-users\)\), going on without/,
	"the server's log says that it goes on without shared memory");

$node->append_conf('postgresql.conf', "remote_bp.transport = 'shm'\n");
$node->reload;
ok( wait_for(
		'the error',
		sub {
			content($node, 't');
			return $node->safe_psql('postgres', 'SELECT last_error FROM remote_bp_stat_donors') eq
			  "could not connect over shm: the donor does not admit this server's user (--shm-users)";
		}),
	'where only shared memory is wanted, the view says why there is none');
is(content($node, 't'), $content, 'the content is right');
is((split /\|/, $state->())[0], 'ok', 'the donor is not down');
is_clean($node);

$node->stop;
is($donor->stop, 0, 'the donor stops');
is($broker->stop, 0, 'the broker stops');

done_testing();
