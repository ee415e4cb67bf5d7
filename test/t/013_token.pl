# A broker that wants a token: who has it gets memory, who has not gets none,
# and loses nothing but that.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use RemoteBP;
use Test::More;

my $dir = PostgreSQL::Test::Utils::tempdir();
for my $token ([ right => 'correct-horse-battery-staple' ], [ wrong => 'guessed' ])
{
	append_to_file("$dir/$token->[0]", "$token->[1]\n");
	chmod 0600, "$dir/$token->[0]";
}
my $broker = start_broker(
	args => [ '--token-file', "$dir/right" ],
	token => 'correct-horse-battery-staple');
my $donor = start_donor($broker, memory => '64MB', args => [ '--token-file', "$dir/right" ]);

my $node = new_cluster('token', broker => $broker, conf => "remote_bp.token_file = '$dir/wrong'\n");
make_table($node, 't', 4);
my $content = content($node, 't');
ok(wait_for('a complaint', sub { log_since($node) =~ /remote_bp.*(token|401|403|[Uu]nauthori[sz]ed)/ }, 30),
	'a wrong token is reported');
is(leased_bytes($node), 0, 'with a wrong token the server gets no memory');
is(content($node, 't'), $content, 'the server works');
unlike(log_since($node), qr/guessed|correct-horse/, 'no token is in the log');

my ($status, $out) = ctl($broker, '--token-file', "$dir/wrong", 'donors');
isnt($status, 0, 'remote_bp_ctl fails without the token');
($status, $out) = ctl($broker, '--token-file', "$dir/right", 'donors');
is($status, 0, 'remote_bp_ctl works with the token');
like($out, qr/donor1/, 'remote_bp_ctl shows the donor');

$node->append_conf('postgresql.conf', "remote_bp.token_file = '$dir/right'\n");
$node->reload;
ok(wait_leased($node, 64), 'with the right token the server gets memory');
ok(warm($node, 't'), 'the server uses this memory');
is(content($node, 't'), $content, 'pages from this memory are right');
is_clean($node);

$node->stop;
is($donor->stop, 0, 'the donor stops');
is($broker->stop, 0, 'the broker stops');

done_testing();
