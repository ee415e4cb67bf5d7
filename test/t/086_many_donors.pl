# More donors than a server uses: the rest is given back, and the log says why.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use RemoteBP;
use Test::More;

my $MB = 1024 * 1024;

my $broker = start_broker();
start_donor($broker, id => sprintf('donor%02d', $_), memory => '1MB', region_size => '1MB', register => 0,
	args => [ '--transports', 'tcp', '--threads', '1', '--min-free', '0' ])
  for 1 .. 80;
ok(wait_for('the donors', sub { 80 == grep { $_->{applied} == $_->{revision} } @{ http_json($broker, 'GET', '/v1/donors')->{donors} } }, 120), '80 donors');
my $node = new_cluster('many', broker => $broker, transport => 'tcp', tier => '80MB');

ok(wait_leased($node, 64, 60), 'memory of 64 donors is leased');
# 16, or fewer if some donors were late to apply the grant
log_tells($node, 0, qr/LOG:  remote_bp: (?:[1-9]|1[0-6]) leased regions? (?:is|are) given back, because a server uses at most 64 donors$/m,
	'the log says that there are too many donors');
unlike(log_since($node), qr/beyond what/, 'and blames no setting');
wait_renewed($node);
is(leased_bytes($node), 64 * $MB, 'the lease keeps what can be used');
is($node->safe_psql('postgres', 'SELECT count(*) FROM remote_bp_stat_donors'), 64, 'the view shows the donors that are used');
$node->stop;

done_testing();
