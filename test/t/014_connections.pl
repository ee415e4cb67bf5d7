# The number of a server's connections to a donor is bounded, and known,
# whatever becomes of the backends; who is beyond the bound reads from disk;
# connections that are idle are closed, and made again when needed.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use RemoteBP;
use Test::More;
use Time::HiRes qw(sleep time);

# What the donor itself counts, its pusher's included, as the broker heard it.
sub donor_connections
{
	my ($broker, $id) = @_;
	my ($donor) = grep { $_->{id} eq $id } @{ http_json($broker, 'GET', '/v1/donors')->{donors} };
	return $donor->{stats}{connections};
}

# A session that has read through the tier, and so is connected.
sub reader
{
	my ($node) = @_;
	my $session = $node->background_psql('postgres', on_error_stop => 0);
	read_some($session);
	return $session;
}

sub read_some
{
	my ($session) = @_;
	return $session->query_safe(
		'SET enable_seqscan = off; SET enable_bitmapscan = off; SELECT count(filler) FROM pgbench_accounts WHERE aid % 7 = 0 AND aid > 0');
}

sub set_limit
{
	my ($node, $limit) = @_;
	$node->safe_psql('postgres', "ALTER SYSTEM SET remote_bp.max_connections = $limit");
	$node->reload;
	# The pusher reads it in its own time, and then it is in force: wait for what follows.
	return;
}

# While there are fewer, the sessions read.
sub wait_connections
{
	my ($node, $want, $name, @sessions) = @_;
	my $n;
	ok(wait_for("$want connections", sub { $n = connections($node); read_some($_) for $n < $want ? @sessions : (); return $n == $want }), $name)
	  or diag("there are $n");
	return;
}

for my $transport ('tcp', 'shm')
{
	my $broker = start_broker(name => "broker_$transport");
	my $id = "donor_$transport";
	my $donor = start_donor($broker, id => $id, memory => '128MB');
	# With patience: late answers are not what is tested.
	my $node = busy_cluster(
		"conns_$transport",
		broker => $broker,
		transport => $transport,
		conf => "remote_bp.max_connections = 3\nremote_bp.idle_connection_timeout = '1h'\nremote_bp.io_timeout = '2s'\n");

	# More clients than places.
	reset_counters($node);
	my $load = start_load($node, seconds => 8, clients => 8);
	my ($max, $samples) = (0, 0);
	my ($least, $most) = (time + 8, time + 120);
	while (time < $least || $max < 3 && time < $most)
	{
		my $n = connections($node);
		$max = $n if $n > $max;
		$samples++;
		sleep 0.02;
	}
	ok(wait_for('those beyond', sub { counter($node, 'over_limit') > 0 }), "$transport: reads of backends beyond the limit are counted");
	cmp_ok($max, '<=', 3, "$transport: in $samples looks, never more connections than there may be");
	is($max, 3, "$transport: the limit is reached");
	$load->finish_ok("$transport, more clients than connections");
	my $c = counters($node);
	cmp_ok($c->{over_limit}, '<=', $c->{fallbacks}, "$transport: reads beyond the limit are counted as reads from disk");
	cmp_ok($c->{hits}, '>', 0, "$transport: backends within the limit have hits");
	is($c->{io_errors}, 0, "$transport: nothing failed");
	wait_connections($node, 0, "$transport: no connection is left when the clients are gone");

	# Ends that are not the client's.
	set_limit($node, 100);
	my @sessions = map { reader($node) } 1 .. 4;
	wait_connections($node, 4, "$transport: a connection for each session", @sessions);
	cmp_ok(donor_connections($broker, $id), '>=', 4, "$transport: the donor says so, too")
	  if wait_for('the donor to tell', sub { donor_connections($broker, $id) >= 4 });
	$node->safe_psql('postgres', q{SELECT pg_terminate_backend(pid) FROM pg_stat_activity
		WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()});
	wait_connections($node, 0, "$transport: no connection is left when backends were terminated");
	$_->{run}->kill_kill for @sessions;

	@sessions = map { reader($node) } 1 .. 2;
	wait_connections($node, 2, "$transport: two sessions");
	my $offset = log_size($node);
	my $pid = $sessions[0]->query_safe('SELECT pg_backend_pid()');
	is(kill('KILL', $pid), 1, "$transport: one is killed");
	ok(wait_for('recovery', sub { log_since($node, $offset) =~ /database system is ready to accept connections/ }),
		"$transport: the server recovers");
	$_->{run}->kill_kill for @sessions;
	wait_connections($node, 0, "$transport: no connection is left after a crash");
	ok(wait_leased($node, 128), "$transport: memory is leased again");
	ok(serves_again($node), "$transport: the tier serves pages after a crash");

	# Settings that change, and those that do not.
	my $session = reader($node);
	my $made = q{SELECT calls FROM remote_bp_stat_latency WHERE operation = 'connect'};
	$node->safe_psql('postgres', 'ALTER SYSTEM SET geqo_seed = 0.5');
	my $before = $session->query_safe($made);
	$node->reload;
	wait_for('the session to have read it', sub { $session->query_safe('SHOW geqo_seed') eq '0.5' });
	read_some($session);
	is($session->query_safe($made), $before, "$transport: a reload that changes nothing of theirs leaves connections alone");
	$node->safe_psql('postgres', 'ALTER SYSTEM SET remote_bp.rdma_retry_count = 5');
	$before = $session->query_safe($made);
	$node->reload;
	wait_for('the session to have read it', sub { $session->query_safe('SHOW remote_bp.rdma_retry_count') eq '5' });
	read_some($session);
	cmp_ok($session->query_safe($made), '>', $before, "$transport: a reload with other settings makes connections anew");
	$session->quit;

	# A bound that is lowered: those that are idle, and those that are not.
	@sessions = map { reader($node) } 1 .. 5;
	wait_connections($node, 5, "$transport: five idle sessions");
	set_limit($node, 2);
	wait_connections($node, 2, "$transport: idle sessions give way when the bound is lowered");
	read_some($_) for @sessions;
	is(connections($node), 2, "$transport: sessions that gave way do not connect again");
	set_limit($node, 5);
	ok( wait_for(
			'all to be connected',
			sub { read_some($_) for @sessions; return connections($node) == 5 }),
		"$transport: sessions connect again when the bound is raised");
	$_->quit for @sessions;
	wait_connections($node, 0, "$transport: no connection is left when the sessions end");

	$load = start_load($node, seconds => 8, clients => 6);
	ok(wait_for('connections', sub { connections($node) > 3 }), "$transport: busy clients are connected");
	set_limit($node, 2);
	ok(wait_for('fewer connections', sub { connections($node) <= 2 }),
		"$transport: busy clients give way when the bound is lowered");
	sleep 1;
	cmp_ok(connections($node), '<=', 2, "$transport: busy clients keep to the lowered bound");
	ok(wait_for('both to be used', sub { connections($node) == 2 }), "$transport: busy clients use all connections that are allowed");
	$load->finish_ok("$transport, bound lowered");
	set_limit($node, 100);

	# Idle sessions.
	@sessions = map { reader($node) } 1 .. 3;
	$sessions[1]->query_safe('BEGIN');
	read_some($sessions[1]);
	wait_connections($node, 3, "$transport: three sessions before they are idle", @sessions);
	$node->safe_psql('postgres', q{ALTER SYSTEM SET remote_bp.idle_connection_timeout = '1s'});
	$node->reload;
	wait_connections($node, 1, "$transport: idle connections are closed, but not within a transaction");
	sleep 2.5;
	is(connections($node), 1, "$transport: an idle connection stays open as long as its transaction");
	ok( wait_for('the donor to tell', sub { donor_connections($broker, $id) <= 2 }),
		"$transport: the donor has only that connection and the pusher's");
	$sessions[1]->query_safe('COMMIT');
	wait_connections($node, 0, "$transport: the idle connection is closed at the end of the transaction");
	my $hits = counter($node, 'hits');
	read_some($_) for @sessions;
	cmp_ok(counter($node, 'hits'), '>', $hits, "$transport: sessions connect again for their next reads");
	wait_connections($node, 0, "$transport: these connections are closed when they are idle again");

	# An error ends all timers of the backend.
	my $failed = reader($node);
	$failed->query('SELECT 1 / 0');
	wait_connections($node, 0, "$transport: idle connections are closed after an error, too");
	$failed->quit;

	# A donor that goes leaves no connection behind, though nobody uses it.
	$node->safe_psql('postgres', q{ALTER SYSTEM SET remote_bp.idle_connection_timeout = 0});
	$node->reload;
	my $other = start_donor($broker, id => "other_$transport", memory => '128MB');
	read_some($_) for @sessions;
	wait_connections($node, 3, "$transport: connected once more", @sessions);
	is($donor->stop(60), 0, "$transport: the donor stops");
	wait_connections($node, 0, "$transport: no connection is left to a donor that stopped");

	is_clean($node, $transport);
	$_->quit for @sessions;
	$node->stop;
	$other->stop;
	$broker->stop;
}

done_testing();
