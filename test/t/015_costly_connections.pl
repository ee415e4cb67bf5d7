# A backend connects when not being connected has lost it what that takes.
# Transports whose connections are costly, as RDMA's: memory to push from may not
# be pinned; and where such a transport does not lead to the donor, another one is
# used until it does.
# The fault transport plays them: here, shm is costly.

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

need_test_build();
$ENV{RBP_FAULT_COSTLY} = 'shm';
set_faults();
my $broker = start_broker();
my $donor = start_donor($broker, memory => '64MB');
my $by_index = 'SET enable_seqscan = off; SET enable_bitmapscan = off;';

sub transport
{
	my ($node) = @_;
	return $node->safe_psql('postgres', 'SELECT transport FROM remote_bp_stat_donors');
}

sub reads
{
	my ($node, $transport, $name, $seconds) = @_;
	ok( wait_for(
			"reads over $transport",
			sub {
				content($node, 'pages');
				evict_buffers($node);
				return transport($node) eq $transport;
			},
			$seconds // 120),
		$name);
	ok(serves($node), "$name, and pages come from the tier");
	return;
}

# Most reads are hits within some time.
sub serves
{
	my ($node) = @_;
	return wait_for(
		'hits',
		sub {
			my $before = counters($node);
			content($node, 'pages');
			my $after = counters($node);
			evict_buffers($node);
			return $after->{hits} - $before->{hits} > $after->{misses} - $before->{misses};
		});
}

#---- what a connection is worth -------------------------------------------------
for my $costly ('shm', 'tcp')
{
	my $what = $costly eq 'shm' ? 'worth, costly' : 'worth';
	local $ENV{RBP_FAULT_COSTLY} = $costly;
	my $slow_files = PostgreSQL::Test::Utils::tempdir() . '/slow_files';
	my $node = new_cluster(
		"worth_$costly",
		start => 0,
		broker => $broker,
		test_build => 1,
		transport => 'shm',
		shared_buffers => '16MB',
		tier => '64MB',
		compare => 0,
		conf => "remote_bp.idle_connection_timeout = 0\nremote_bp.io_timeout = '2s'\n");
	# what the page cache has does not matter
	start_preloaded($node, 'slow_files page_cache', RBP_SLOW_FILES => $slow_files, RBP_CACHE => 'nocachestat nomincore');
	create_extension($node);
	ok(wait_leased($node, 64), "$what: memory is leased");
	make_table($node, 'pages', 32);
	ok(warm($node, 'pages', part => 0.9), "$what: pages are in the tier");
	my $path = $node->safe_psql('postgres', q{SELECT pg_relation_filepath('pages')});
	my $watch = $node->background_psql('postgres');
	my $look = sub {
		return split / /, $watch->query_safe(q{SELECT below_threshold || ' ' || hits || ' ' || calls
			FROM remote_bp_stat, remote_bp_stat_latency WHERE operation = 'connect'});
	};

	# A session reads catalogs before it knows its own settings, so this is the server's.
	my $read_from = sub {
		my ($source) = @_;
		$node->safe_psql('postgres', "ALTER SYSTEM SET remote_bp.read_from = $source");
		$node->reload;
		$node->poll_query_until('postgres', 'SHOW remote_bp.read_from', $source) or BAIL_OUT('reload');
		return;
	};
	# Rows of pages at random, so many among the first ones
	my $rows = sub {
		my ($n, $first) = @_;
		return "$by_index SET enable_hashjoin = off; SET enable_mergejoin = off; SET enable_material = off;
			SELECT count(v) FROM (SELECT (i * 397) % $first + 1 AS id FROM generate_series(1, $n) i OFFSET 0) s JOIN pages USING (id)";
	};
	# What a session does that reads them; nothing of these is in shared buffers.
	my $session = sub {
		my ($n, $first) = @_;
		$watch->query_safe("$by_index SELECT sum(v) FROM pages WHERE id > 2000");
		my @before = $look->();
		my $count = $node->safe_psql('postgres', $rows->($n, $first));
		my @after = $look->();
		return { right => $count == $n, below => $after[0] - $before[0], hits => $after[1] - $before[1], made => $after[2] - $before[2] };
	};
	$look->() for 1 .. 2;

	# The disk takes 1 ms for a page, and connecting as long as for many: that is
	# learnt from those who connect at once.
	my $slow = sub { append_to_file($slow_files, "1000 $path\n"); };
	$slow->();
	my $moved = $session->(5, 2000);
	is("$moved->{right} $moved->{below} $moved->{made}", '1 0 1', "$what: who is to read from donors connects at once");
	set_faults('connect delay_us 200000');
	$session->(1, 2000) for 1 .. 12;
	set_faults();
	$read_from->('auto');
	ok( wait_for(
			'a session without a connection',
			sub {
				$moved = $session->(5, 2000);
				return $moved->{right} && $moved->{below} > 0 && $moved->{hits} == 0 && $moved->{made} == 0;
			}),
		"$what: a session that reads few pages does not connect, which is counted");
	$moved = $session->(6000, 32768);
	ok($moved->{right}, "$what: a session that reads many reads right");
	cmp_ok($moved->{below}, '>', 0, "$what: its first pages come from the file");
	cmp_ok($moved->{hits}, '>', 1000, "$what: others do not");

	unlink $slow_files;
	$read_from->('donor');
	my $pushes = counter($node, 'pushes');
	$node->safe_psql('postgres', 'UPDATE pages SET v = v + 1 WHERE id % 8 = 0');
	ok( wait_for(
			'pushes',
			sub { content($node, 'pages'); evict_buffers($node); return counter($node, 'pushes') > $pushes }),
		"$what: the pusher connects at once");
	is(counter($node, 'timeouts'), 0, "$what: nobody waits for a costly connection");
	$watch->quit;

	# What is closed for being idle has to be worth it once more.
	$slow->();
	$read_from->('auto');
	my $idle = $node->background_psql('postgres');
	$idle->query_safe($rows->(6000, 32768));
	cmp_ok(connections($node), '>=', 1, "$what: a session is connected");
	$node->safe_psql('postgres', q{ALTER SYSTEM SET remote_bp.idle_connection_timeout = '1s'});
	$node->reload;
	ok(wait_for('idle connections to go', sub { connections($node) == 0 }, 120), "$what: idle connections are closed");
	my $below = counter($node, 'below_threshold');
	$idle->query_safe($rows->(6000, 32768));
	cmp_ok(counter($node, 'below_threshold'), '>', $below, "$what: a connection has to be worth it anew after it was closed");
	$idle->quit;
	is_clean($node, $what, no_compare => 1);
	$node->stop;
}

#---- memory that cannot be pinned --------------------------------------------
for my $transport ('shm', 'tcp')
{
	# Only a costly transport has a device that memory is registered with.
	local $ENV{RBP_FAULT_COSTLY} = $transport;
	set_faults('register refuse');
	my $node = new_cluster("unpinned_$transport", broker => $broker, test_build => 1, transport => $transport);
	wait_leased($node, 64);
	make_table($node, 'pages', 8);
	ok(warm($node, 'pages'), "$transport: pages are pushed from memory that is not pinned");

	# Its next connection is not worth another word.
	set_faults('register refuse', 'write cut');
	$node->safe_psql('postgres', 'UPDATE pages SET v = v + 1');
	my $failed = counter($node, 'pushes_failed');
	ok( wait_for(
			'failed pushes',
			sub { content($node, 'pages'); evict_buffers($node); return counter($node, 'pushes_failed') > $failed }),
		"$transport: the pusher's connection is cut");
	set_faults('register refuse');
	ok(warm($node, 'pages'), "$transport: the pusher's connection is made again");
	my @told = log_since($node) =~ /WARNING: .*could not register the staging region.*: out of memory/g;
	is(scalar @told, 1, "$transport: the log says once that memory is not pinned");
	like(log_since($node), qr/HINT: .*RLIMIT_MEMLOCK/, "$transport: the log says how to let memory be pinned");
	is_clean($node, "$transport, not pinned");
	$node->stop;
}

#---- downgrades ----------------------------------------------------------------
{
	set_faults('shm connect refuse');
	my $node = new_cluster('downgrade', broker => $broker, test_build => 1, conf => "remote_bp.io_timeout = '2s'\n");
	wait_leased($node, 64);
	make_table($node, 'pages', 16);
	reads($node, 'tcp', 'refused over shm: tcp is used');
	like(log_since($node), qr/donor "donor1" cannot be reached over shm \(connection lost\), going on without/,
		'refused over shm: the log says so');
	is($node->safe_psql('postgres', 'SELECT state, failures FROM remote_bp_stat_donors'),
		'ok|0', 'refused over shm: no trouble of the donor');

	set_faults();
	my $offset = log_size($node);
	ok( wait_for(
			'shm to be tried again',
			sub { log_since($node, $offset) =~ /donor "donor1" can be reached over shm again/ },
			180),
		'in reach again: the server tries shm again');
	reads($node, 'shm', 'in reach again: shm is used');

	# It hangs.  A session that reads all the time finds that at the limit of
	# what a connection may take, 6 s, and goes on over tcp; the pusher when it
	# has tried twice.  A session too short for that leaves it to the pusher.
	for ([ 'long', 120, 5 ], [ 'short', 4, 6 ])
	{
		my ($length, $seconds, $setting) = @$_;
		my $what = "hanging over shm, $length session";
		$offset = log_size($node);
		set_faults('shm connect drop');
		my $hits = $node->safe_psql('postgres', "$by_index " . qq{DO \$\$
			BEGIN
				FOR i IN 1..1000000 LOOP
					PERFORM count(v) FROM pages WHERE id > 0;
					EXIT WHEN clock_timestamp() > now() + interval '$seconds s'
						OR (SELECT hits > 0 FROM remote_bp_stat_backend());
				END LOOP;
			END \$\$; SELECT hits FROM remote_bp_stat_backend()});
		cmp_ok($hits, '>', 0, "$what: it goes on over tcp") if $length eq 'long';
		reads($node, 'tcp', "$what: tcp is used");
		ok(wait_for('the log', sub { log_since($node, $offset) =~ /cannot be reached over shm \(timed out\)/ }, 120),
			"$what: the log says so");

		# With other settings, it may work.
		set_faults();
		$node->safe_psql('postgres', "ALTER SYSTEM SET remote_bp.rdma_retry_count = $setting");
		$node->reload;
		reads($node, 'shm', "other settings after a $length session: shm is used");
	}

	# A lease that is denied, and a transport that is named, are no reasons.
	$offset = log_size($node);
	set_faults('shm connect deny', 'shm read cut', 'shm write cut');
	content($node, 'pages');
	evict_buffers($node) for 1 .. 3;
	sleep 3;
	content($node, 'pages');
	unlike(log_since($node, $offset), qr/cannot be reached/, 'denied over shm: the log does not report the donor as unreachable');
	set_faults();
	reads($node, 'shm', 'no longer denied: shm is used');
	$offset = log_size($node);
	$node->safe_psql('postgres', q{ALTER SYSTEM SET remote_bp.transport = 'shm'});
	$node->reload;
	$node->poll_query_until('postgres', 'SHOW remote_bp.transport', 'shm');
	# The pusher knows, too, once it has begun another round.
	for (1 .. 2)
	{
		my $pushes = counter($node, 'pushes');
		$node->safe_psql('postgres', 'UPDATE pages SET v = v + 1');
		wait_for('pushes', sub { content($node, 'pages'); evict_buffers($node); return counter($node, 'pushes') > $pushes });
	}
	set_faults('shm connect refuse', 'shm read cut', 'shm write cut');
	content($node, 'pages');
	evict_buffers($node) for 1 .. 3;
	sleep 3;
	content($node, 'pages');
	unlike(log_since($node, $offset), qr/cannot be reached/, 'shm alone: there is no other way');
	set_faults();
	reads($node, 'shm', 'shm alone: used again');
	is_clean($node, 'downgrades');
	$node->stop;
}

done_testing();
