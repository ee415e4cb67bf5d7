# A donor with as many connections as a lease may have: who gets none reads from
# disk, the log says why, and nobody takes the donor for down.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use RemoteBP;
use RemoteBP::Preload;
use Test::More;

my $broker = start_broker();
# The pusher has one of them.
my $donor = start_donor($broker, memory => '64MB', args => [ '--lease-connections', 3 ]);
my $node = new_cluster(
	'full',
	broker => $broker,
	transport => 'tcp',
	test_build => 1,
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
like($donor->log_text, qr/refused a client from 127\.0\.0\.1: lease \S+ of server "[^"]+" has all the connections that its server may have/, "so does the donor's");
is($node->safe_psql('postgres', 'SELECT state, failures, last_error FROM remote_bp_stat_donors'),
	'ok|0|could not connect over tcp: the donor accepts no more connections', 'the donor is well');
unlike(log_since($node, $offset), qr/is down/, 'and was all the time');

(shift @sessions)->quit for 1 .. 3;
ok(wait_for('two connections', sub { all_read(); return connections($node) == 2 }), 'others get the connections of sessions that end');
is(content($node, 't'), $content, 'the content is right');
is_clean($node);
$_->quit for @sessions;
$node->stop;

# Who gets none has the kernel read what a bitmap scan announces, as without the tier.
my $advice = PostgreSQL::Test::Utils::tempdir() . '/advice';
start_preloaded($node, 'advice', RBP_ADVICE => $advice);
ok(warm($node, 't'), 'the donor is used again');
my $path = $node->data_dir . '/' . $node->safe_psql('postgres', q{SELECT pg_relation_filepath('t')}) . ' ';
@sessions = map { $node->background_psql('postgres', on_error_stop => 0) } 1 .. 2;
$_->query_safe('SET remote_bp.read_from = donor') for @sessions;
ok(wait_for('two connections', sub { evict_buffers($node); all_read(); return connections($node) == 2 }), 'the donor has all connections that it may have');

sub advised
{
	my ($use) = @_;
	evict_buffers($node);
	unlink $advice;
	is( $node->safe_psql(
			'postgres', qq{SET remote_bp.use_tier = $use; SET remote_bp.read_from = donor; SET remote_bp.compare_with_disk = off; SET effective_io_concurrency = 16;
			SET enable_seqscan = off; SET enable_indexscan = off;
			SELECT count(pad) FROM t WHERE id = ANY (ARRAY(SELECT i * 24 FROM generate_series(1, 150) i))}),
		150, "$use: the rows are right");
	return scalar(grep { index($_, $path) == 0 } -e $advice ? split(/\n/, slurp_file($advice)) : ());
}

my $stock = advised('off');
cmp_ok($stock, '>', 100, 'without the tier: the server asks the kernel for the pages of a bitmap scan');
is(advised('read'), $stock, 'so it does for a session that gets no connection');
is_clean($node);
$_->quit for @sessions;

$node->stop;
is($donor->stop, 0, 'the donor stops');
is($broker->stop, 0, 'the broker stops');

done_testing();
