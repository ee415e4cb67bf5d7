# A donor with as many connections as a lease may have: who gets none reads from
# disk, the log says why, and nobody takes the donor for down.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use RemoteBP;
use Test::More;

my $broker = start_broker();
# The pusher has one of them.
my $donor = start_donor($broker, memory => '64MB', args => [ '--lease-connections', 3 ]);
my $node = new_cluster(
	'full',
	broker => $broker,
	transport => 'tcp',
	io_workers => 0,
	conf => "remote_bp.io_timeout = '2s'\n");
make_table($node, 't', 4);
ok(warm($node, 't'), 'the donor is used');
my $content = content($node, 't');

my @sessions = map { $node->background_psql('postgres', on_error_stop => 0) } 1 .. 5;

sub all_read
{
	return map { $_->query_safe('SET enable_seqscan = off; SET enable_bitmapscan = off; SELECT count(pad) FROM t WHERE id > 0') } @sessions;
}

my $offset = log_size($node);
ok(wait_for('two connections', sub { all_read(); return connections($node) == 2 }), 'two of five sessions have a connection');
my $hits = counter($node, 'hits');
is(join(' ', all_read()), join(' ', (4096) x 5), 'all read what there is');
cmp_ok(counter($node, 'hits'), '>', $hits, 'those with a connection read from the donor');
ok( wait_for(
		'the log',
		sub {
			all_read();
			return log_since($node, $offset) =~ /donor "donor1" cannot be used: could not connect over tcp: the donor accepts no more connections/;
		}),
	'the log says why the others do not');
like($donor->log_text, qr/refused a client from 127\.0\.0\.1: its lease has all the connections that it may have/, "so does the donor's");
is($node->safe_psql('postgres', 'SELECT state, failures, last_error FROM remote_bp_stat_donors'),
	'ok|0|could not connect over tcp: the donor accepts no more connections', 'the donor is well');
unlike(log_since($node, $offset), qr/is down/, 'and was all the time');

(shift @sessions)->quit for 1 .. 3;
ok(wait_for('two connections', sub { all_read(); return connections($node) == 2 }), 'others get the connections of sessions that end');
is(content($node, 't'), $content, 'the content is right');
is_clean($node);
$_->quit for @sessions;

$node->stop;
is($donor->stop, 0, 'the donor stops');
is($broker->stop, 0, 'the broker stops');

done_testing();
