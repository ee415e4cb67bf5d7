# A broker that wants credentials: who has one gets memory, who has none, or one of another
# role, gets none,
# and loses nothing but that.

use strict;
use warnings;

use Digest::SHA qw(sha256_hex);
use FindBin;
use lib "$FindBin::RealBin/lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use RemoteBP;
use Test::More;

my $dir = PostgreSQL::Test::Utils::tempdir();
my ($right, $wrong) = ('correct-horse-battery-staple', 'guessed');
write_token("$dir/$_", $right, $_) for qw(server donor operator);
write_token("$dir/wrong", $wrong, 'server');
write_token("$dir/wrong_operator", $wrong, 'operator');
my $broker = start_broker(args => [ '--credentials', write_credentials("$dir/credentials", $right) ], token => $right);
my $donor = start_donor($broker, memory => '64MB', args => [ '--token-file', "$dir/donor" ]);

my $node = new_cluster('token', broker => $broker, conf => "remote_bp.token_file = '$dir/wrong'\n");
make_table($node, 't', 4);
my $content = content($node, 't');
ok(wait_for('a complaint', sub { log_since($node) =~ /remote_bp.*does not accept the credential \(HTTP status 401/ }, 30),
	'a wrong credential is reported');
is(leased_bytes($node), 0, 'with a wrong credential the server gets no memory');
is(content($node, 't'), $content, 'the server works');

$node->append_conf('postgresql.conf', "remote_bp.token_file = '$dir/donor'\n");
$node->reload;
ok(wait_for('a complaint', sub { log_since($node) =~ /does not accept the credential \(HTTP status 403: donor "\*" may not do this: role server may\)/ }, 30),
	'a credential of another role is reported, with the role that would do');
is(leased_bytes($node), 0, 'nor with that');

my ($status, $out) = ctl($broker, '--token-file', "$dir/wrong_operator", 'donors');
isnt($status, 0, 'remote_bp_ctl fails without the credential');
($status, $out) = ctl($broker, '--token-file', "$dir/operator", 'donors');
is($status, 0, 'remote_bp_ctl works with it');
like($out, qr/donor1/, 'remote_bp_ctl shows the donor');

$node->append_conf('postgresql.conf', "remote_bp.token_file = '$dir/server'\n");
$node->reload;
ok(wait_leased($node, 64), 'with the right credential the server gets memory');
ok(warm($node, 't'), 'the server uses this memory');
is(content($node, 't'), $content, 'pages from this memory are right');
my @secrets = map { secret($_) } $right, $wrong;
unlike(log_since($node), qr/$secrets[0]|$secrets[1]/, 'no secret is in the log');
is_clean($node);

$node->stop;

# A credential with a name of its own, for a server with that name.
append_to_file("$dir/credentials", "server db1 @{[ sha256_hex(secret($right)) ]}\n");
$broker->signal('HUP');
write_token("$dir/server", $right, 'server', 'db1');
$node->append_conf('postgresql.conf', "remote_bp.client_name = 'db1/one'\n");
$node->start;
ok(wait_leased($node, 64), 'a server whose name its credential covers gets memory');
is(join(' ', map { $_->{client} } @{ http_json($broker, 'GET', '/v1/leases')->{leases} }), 'db1/one', 'its lease has that name');
$node->stop;
is($donor->stop, 0, 'the donor stops');
is($broker->stop, 0, 'the broker stops');

done_testing();
