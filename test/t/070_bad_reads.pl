# A read that gives a wrong byte once, as a bad cable or controller may.  The
# server notices it, if it does, and reads again; so the tier must not keep
# what did not pass, nor give back what did not, and the next try is right,
# as on the stock server.  compare_with_disk is off: it would hide it.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use RemoteBP;
use RemoteBP::BadRead;
use Test::More;

need_test_build();
my $broker = start_broker();
my $donor = start_donor($broker, memory => '128MB');
my $bad = RemoteBP::BadRead->new;

# Of the first row of a page of make_table's: its v, which is 0, or 128 then.
my $DATA = 7204;
# pd_upper, which is beyond the page then.
my $HEADER = 15;

my $block = 100;
my $query = "SELECT v FROM t WHERE ctid = '($block,1)'";

# Pages of t that the tier has, staged ones included.  To look is to read catalogs, which
# may take the frame of the right page: it is not captured.
my $look = "SET remote_bp.use_tier = off;
	SELECT coalesce(sum(pages + staged_pages), 0) FROM remote_bp_relations WHERE relation = 't'::regclass";

# t is neither in the buffers nor, unless the server is the stock one, in the tier.
sub cold
{
	my ($node, $stock) = @_;
	evict_buffers($node);
	$node->safe_psql('postgres', q{SELECT remote_bp_evict('t')}) unless $stock;
	return;
}

# Spoil the next read of the block; the queries give this.
sub gives
{
	my ($node, $what, $byte, $queries, $expected) = @_;
	$bad->spoil($node, 't', $block, $byte);
	is_deeply([ $bad->outcomes($node, @$queries) ], $expected, $what);
	ok($bad->struck, "$what: one read was bad");
	return;
}

# And later, when the buffers have had other pages, all is as ever.
sub recovers
{
	my ($node, $what) = @_;
	for my $time (1, 2)
	{
		evict_buffers($node);
		is_deeply([ $bad->outcomes($node, $query, $query) ], [ 0, 0 ], "$what: right when it was evicted and read, $time");
	}
	return;
}

# What the server notices, by the checksum or by the header, or takes for a
# page that was never used.
sub noticed_by_the_server
{
	my ($node, $what, $byte, $stock) = @_;

	cold($node, $stock);
	gives($node, "$what: tried again at once", $byte, [ $query, $query, $query ], [ 'error', 0, 0 ]);
	recovers($node, "$what: tried again at once");

	# Another page takes the frame of what did not pass.
	cold($node, $stock);
	gives($node, "$what: tried again later", $byte, [$query], ['error']);
	recovers($node, "$what: tried again later");

	# The frame is zeroed and valid.
	cold($node, $stock);
	gives($node, "$what: zeroed", $byte, ["SET zero_damaged_pages = on; SELECT count(*) FROM t WHERE ctid = '($block,1)'"], [0]);
	recovers($node, "$what: zeroed");

	# Nothing but zeros passes, as a page that was never used.
	cold($node, $stock);
	gives($node, "$what: read as zeros", -1, [ $query, $query ], [ '', '' ]);
	recovers($node, "$what: read as zeros");
	return;
}

# The server knows, and goes on with the page all the same.
sub ignored_by_the_server
{
	my ($node) = @_;
	cold($node);
	gives($node, 'ignored', $DATA, ["SET ignore_checksum_failure = on; $query"], [128]);
	# Some are evicted by a session that would let it pass, too.
	$node->safe_psql('postgres', "SET ignore_checksum_failure = on; SET enable_seqscan = off; SET enable_bitmapscan = off;
		SELECT count(pad) FROM rbp_ballast WHERE id > 0");
	recovers($node, 'ignored');
	return;
}

# The tier has what does not pass, however it came there: with the rule
# switched off, a bad read is the way.  The next try may be read straight from
# the file: then, too, the tier gives up what the server refused.
sub served_by_the_tier
{
	my ($node, $what, $byte, $next) = @_;
	$node->safe_psql('postgres', q{ALTER SYSTEM SET remote_bp.injection_point = 'trust-reads'});
	$node->reload;
	$node->poll_query_until('postgres', 'SHOW remote_bp.injection_point', 'trust-reads') or die;
	cold($node);
	# With room in staging the victim is not dropped.
	pushed($node);
	gives($node, "$what: kept", $byte, [$query], ['error']);
	evict_buffers($node);
	pushed($node);
	is(tier_pages($node, 't'), 1, "$what: the donor has it");
	$node->safe_psql('postgres', 'ALTER SYSTEM RESET remote_bp.injection_point');
	$node->reload;
	$node->poll_query_until('postgres', 'SHOW remote_bp.injection_point', '') or die;
	reset_counters($node);
	my @given = $bad->outcomes($node, $query, $next, $query, $look);
	my $left = pop @given;
	is_deeply(\@given, [ 'error', 0, 0 ], "$what: what the donor gives does not pass, and the next try reads the disk");
	is($left, 0, "$what: the donor has it no more");
	cmp_ok(counter($node, 'hits'), '>', 0, "$what: the donor returned the bad page");
	recovers($node, "$what: page of the donor");
	return;
}

# Nobody can notice it: it goes where the page goes, as with a page cache, and
# comparing with the disk ends it.
sub noticed_by_nobody
{
	my ($node) = @_;
	cold($node);
	gives($node, 'no checksums: a row', $DATA, [$query], [128]);
	evict_buffers($node);
	my $compared = "SET remote_bp.compare_with_disk = on; $query";
	is_deeply([ $bad->outcomes($node, $compared) ], [0], 'no checksums: a row: right when it is compared');
	recovers($node, 'no checksums: a row');
	return;
}

sub pushed
{
	my ($node) = @_;
	wait_for('the pusher', sub { counter($node, 'staged_pages') == 0 }) or die;
	return;
}

sub restarted
{
	my ($node) = @_;
	$bad->preloaded(sub { $node->restart });
	return;
}

for my $checksums (1, 0)
{
	my $name = $checksums ? 'checksums' : 'no checksums';
	my $byte = $checksums ? $DATA : $HEADER;
	my $node = $bad->preloaded(
		sub {
			new_cluster(
				'bad_reads' . $checksums,
				broker => $broker,
				transport => 'shm',
				checksums => $checksums,
				compare => 0,
				test_build => 1,
				shared_buffers => '512kB',
				tier => '32MB',
				# A page that comes late is not what is tested.
				conf => "remote_bp.io_timeout = '5s'\n");
		});
	wait_leased($node, 32) or die 'no memory';
	make_table($node, 't', 4);

	$node->append_conf('postgresql.conf', "shared_preload_libraries = ''");
	restarted($node);
	noticed_by_the_server($node, "$name: stock server", $byte, 1);

	$node->append_conf('postgresql.conf', "shared_preload_libraries = 'remote_bp'");
	restarted($node);
	wait_leased($node, 32) or die 'no memory';
	# The policy worker would read catalogs into the frames of pages that did not pass, and
	# capture none of them.
	my $go_on = hold_policy_worker($node);
	noticed_by_the_server($node, "$name: nothing in the tier", $byte);
	ok(warm($node, 't'), "$name: the tier has pages");
	noticed_by_the_server($node, "$name: the tier in use", $byte);
	$checksums ? ignored_by_the_server($node) : noticed_by_nobody($node);
	served_by_the_tier($node, $name, $byte, $query);
	served_by_the_tier($node, "$name: straight", $byte, "SET remote_bp.read_from = file; $query");

	is($node->safe_psql('postgres', 'SELECT count(*), sum(v) FROM t'), '4096|0', "$name: the table is right");
	is(counter($node, 'hash_failures'), 0, "$name: no hash failure");
	$go_on->();
	$node->stop;
}

done_testing();
