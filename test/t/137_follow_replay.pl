# A standby that warms itself gives way to replay, to its queries and to its settings: it
# waits while replay lags or waits for a lock, waits for no lock itself, holds none for
# long, and reads no faster than it may.  What redo writes at the same time is right.
# Timeout: 1800

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use RemoteBP;
use RemoteBP::Follow;
use RemoteBP::Preload;
use Test::More;
use Time::HiRes qw(sleep time);

need_test_build();
my $slow_files = PostgreSQL::Test::Utils::tempdir() . '/slow_files';
my $broker = start_broker();
my $donor = start_donor($broker, memory => '256MB');
my $primary = follow_primary('primary', $broker, test_build => 1);
make_table($primary, $_, 2, index => 0) for 'locked', 'rewritten';
make_table($primary, 'written', 1, index => 0);
evict_buffers($primary);
prewarm_unread($primary, 'locked', 'rewritten', 'written');
my $standby = new_standby(
	$primary, 'standby',
	conf => "max_standby_streaming_delay = -1\nshared_buffers = '8MB'\n",
	preload => [ 'slow_files', RBP_SLOW_FILES => $slow_files ]);
my $lsn = sub { return $primary->lsn('insert') };

sub sql { return $standby->safe_psql('postgres', $_[0]); }
sub size { my ($rel) = @_; return sql("SELECT pg_relation_size('$rel') / 8192"); }

sub inject
{
	my ($point) = @_;
	sql("ALTER SYSTEM SET remote_bp.injection_point = '$point'");
	$standby->reload;
	return $standby->poll_query_until('postgres', 'SHOW remote_bp.injection_point', $point);
}

#---- the rate -----------------------------------------------------------------------

# 8 pages in a second, and at most 2 that it has not used before.  A slow machine reads less.
evict_tables($standby, 't', 't_id');
my ($began, $read) = split /\|/, sql('SELECT extract(epoch FROM clock_timestamp()), pages_read FROM remote_bp_stat_follow');
follow($standby, conninfo($primary), rate => '64kB');
ok(wait_for('some pages', sub { followed($standby)->{pages_read} - $read >= 20 }, 300), 'the rate: pages are read');
my ($pages, $seconds) = split /\|/, sql("SELECT pages_read - $read, extract(epoch FROM clock_timestamp()) - $began FROM remote_bp_stat_follow");
cmp_ok($pages, '<=', 8 * $seconds + 2, 'the rate: no more than it permits');
isnt(followed($standby)->{state}, 'up to date', 'the rate: it takes its time');
follow($standby, conninfo($primary));
ok(wait_up_to_date($standby), 'without it, all are read');
is(held($standby, 't'), size('t'), 'all of them');

#---- replay lags ------------------------------------------------------------------------

sql('SELECT pg_wal_replay_pause()');
$primary->safe_psql('postgres', q{SELECT count(pg_logical_emit_message(false, 'x', repeat('x', 1000000))) FROM generate_series(1, 40)});
ok(wait_for('WAL to be received', sub { sql("SELECT pg_last_wal_receive_lsn() - pg_last_wal_replay_lsn() > 20000000") eq 't' }), 'lag: there is some');
evict_tables($standby, 't');
ok(wait_state($standby, 'waiting', qr/^replay lags$/), 'lag: it waits');
$read = followed($standby)->{pages_read};
my $rounds = sql('SELECT list_taken_at FROM remote_bp_stat_follow');
ok(wait_for('another list', sub { sql('SELECT list_taken_at FROM remote_bp_stat_follow') ne $rounds }), 'lag: it asks for lists');
is(followed($standby)->{pages_read}, $read, 'lag: it reads nothing');
sql('SELECT pg_wal_replay_resume()');
ok(wait_up_to_date($standby), 'lag: it goes on afterwards');
is(held($standby, 't'), size('t'), 'lag: all pages are there then');

#---- replay waits for a lock -----------------------------------------------------------

my $reader = $standby->background_psql('postgres');
$reader->query_safe(q{BEGIN; SELECT count(*) FROM locked});
$primary->safe_psql('postgres', 'BEGIN; LOCK TABLE locked IN ACCESS EXCLUSIVE MODE; COMMIT');
ok(wait_for('replay to wait', sub { sql(q{SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'startup' AND wait_event_type = 'Lock'}) eq '1' }), 'a lock: replay waits for it');
evict_tables($standby, 't');
ok(wait_state($standby, 'waiting', qr/^replay waits for a lock$/), 'a lock: the follower waits, too');
$reader->query_safe('COMMIT');
$reader->quit;
ok(wait_up_to_date($standby), 'a lock: it goes on afterwards');
is(held($standby, 't'), size('t'), 'a lock: all pages are there then');

#---- it waits for no lock -----------------------------------------------------------------

my $locker = $primary->background_psql('postgres');
$locker->query_safe('BEGIN; LOCK TABLE locked IN ACCESS EXCLUSIVE MODE; SELECT pg_current_wal_flush_lsn()');
$primary->safe_psql('postgres', 'CHECKPOINT');
$primary->wait_for_catchup($standby, 'replay', $lsn->());
$standby->safe_psql('postgres', q{SELECT remote_bp_evict('t')});
ok(wait_for('the lock to be replayed', sub { sql(q{SELECT count(*) FROM pg_locks WHERE relation = 'locked'::regclass AND mode = 'AccessExclusiveLock'}) eq '1' }), 'a locked table: it is locked on the standby');
is(wait_for('pages', sub { held($standby, 't') == size('t') }, 120), 1, 'a locked table: others are read');
is(sql(q{SELECT count(*) FROM pg_locks WHERE NOT granted}), 0, 'a locked table: nobody waits for it');
$locker->query_safe('COMMIT');
$locker->quit;

# Lacking pages of such a table
{
	$standby->safe_psql('postgres', q{SELECT remote_bp_evict('locked')});
	my $busy = followed($standby)->{skipped_busy};
	$locker = $primary->background_psql('postgres');
	my $hold = $standby->background_psql('postgres');
	follow($standby, '');
	ok(wait_state($standby, 'off'), 'a locked table: nothing is followed meanwhile');
	$standby->safe_psql('postgres', q{SELECT remote_bp_evict('locked')});
	$locker->query_safe('BEGIN; LOCK TABLE locked IN ACCESS EXCLUSIVE MODE');
	$primary->wait_for_catchup($standby, 'replay', $lsn->());
	ok(wait_for('the lock to be replayed', sub { sql(q{SELECT count(*) FROM pg_locks WHERE mode = 'AccessExclusiveLock' AND relation = (SELECT oid FROM pg_class WHERE relname = 'locked')}) eq '1' }), 'a locked table: it is locked');
	follow($standby, conninfo($primary));
	ok(wait_for('pages to be skipped', sub { followed($standby)->{skipped_busy} - $busy >= 256 }, 120), 'a locked table: its pages are skipped');
	ok(wait_up_to_date($standby), 'a locked table: the rest is gone through');
	is(sql(q{SELECT count(*) FROM pg_locks WHERE NOT granted}), 0, 'a locked table: nobody waits for it');
	$locker->query_safe('COMMIT');
	$_->quit for $locker, $hold;
	ok(wait_for('its pages', sub { held($standby, 'locked') == size('locked') }, 120), 'a locked table: its pages are read when it is free');
}

#---- it holds none for long ---------------------------------------------------------------

# Each read takes a while, so that all pages of a table take many times what a lock may be held.
{
	follow($standby, '');
	ok(wait_state($standby, 'off'), 'a slow disk: nothing is followed meanwhile');
	$standby->safe_psql('postgres', q{SELECT remote_bp_evict('rewritten')});
	# nothing of it is in shared buffers then
	$standby->stop;
	start_preloaded($standby, 'slow_files', RBP_SLOW_FILES => $slow_files);
	wait_leased($standby, 64) or BAIL_OUT('no memory');
	my $path = sql(q{SELECT pg_relation_filepath('rewritten')});
	open(my $file, '>', $slow_files) or die $!;
	print $file "100000 $path\n";
	close $file;
	follow($standby, conninfo($primary));
	my $all = size('rewritten');
	ok(wait_for('reads', sub { held($standby, 'rewritten') > 0 }, 120), 'a slow disk: pages are read');
	# It is kept, so that no more are read until it is looked.
	my $locker = $primary->background_psql('postgres');
	$locker->query_safe('BEGIN; LOCK TABLE rewritten IN ACCESS EXCLUSIVE MODE');
	$primary->safe_psql('postgres', 'CHECKPOINT');
	ok(wait_for('the lock to be replayed', sub { sql(q{SELECT count(*) FROM pg_locks WHERE relation = 'rewritten'::regclass AND mode = 'AccessExclusiveLock' AND granted}) eq '1' }, 300), 'a slow disk: replay gets a lock');
	cmp_ok(held($standby, 'rewritten'), '<', $all, 'a slow disk: before all pages are read');
	$locker->query_safe('COMMIT');
	$locker->quit;
	unlink $slow_files;
	ok(wait_up_to_date($standby, 300), 'a fast disk: the rest is read');
}

#---- another file --------------------------------------------------------------------------

# The table gets another file after its relation was found, and before it is locked: two seconds, which a
# busy machine may miss.
for my $try (1 .. 10)
{
	prewarm_unread($primary, 'rewritten') if $try > 1;
	follow($standby, '');
	ok(wait_state($standby, 'off'), 'another file: nothing is followed meanwhile');
	$standby->safe_psql('postgres', q{SELECT remote_bp_evict('rewritten')});
	my $unknown = followed($standby)->{skipped_unknown};
	inject('slow-lookup');
	follow($standby, conninfo($primary), interval => '1h');
	my $old = $primary->safe_psql('postgres', q{SELECT pg_relation_filenode('rewritten')});
	ok(wait_for('the lookup', sub { sql("SELECT count(*) FROM pg_stat_activity WHERE query ~ '^reading hot pages.*/$old\$' AND state = 'active'") eq '1' }, 120), 'another file: the relation is being looked for');
	$primary->safe_psql('postgres', 'VACUUM FULL rewritten');
	$primary->wait_for_catchup($standby, 'replay', $lsn->());
	inject('');
	ok(wait_up_to_date_once(), 'another file: the list is gone through');
	cmp_ok(held($standby, 'rewritten'), '<', 10, 'another file: pages of the new one are not read by the names of the old one');
	next if followed($standby)->{skipped_unknown} == $unknown && $try < 10;
	cmp_ok(followed($standby)->{skipped_unknown} - $unknown, '>', 0, 'another file: pages of the old one are not known');
	follow($standby, conninfo($primary));
	last;
}

#---- redo writes what is read ---------------------------------------------------------------

# Rule 11 of coherence: without the lock on the buffer, a page that redo writes slowly
# is taken as it was before.
for my $point ('slow-writes', 'prewarm-unlocked')
{
	my $mutation = $point eq 'prewarm-unlocked';
	my $wrong = 0;
	$primary->safe_psql('postgres', q{SELECT remote_bp_prewarm('written')});
	ok(wait_up_to_date($standby), "'$point': it follows");
	inject($point);
	$standby->safe_psql('postgres', 'SELECT remote_bp_stat_reset()');
	my $read = followed($standby)->{pages_read};
	for my $try (1 .. ($mutation ? 20 : 4))
	{
		$primary->safe_psql('postgres', 'UPDATE written SET v = v + 1; SELECT remote_bp_prewarm(\'written\'); CHECKPOINT');
		$primary->wait_for_catchup($standby, 'replay', $lsn->());
		my $writer = $standby->background_psql('postgres');
		$writer->query_until(qr/begun/, "\\echo begun\nCHECKPOINT;\n");
		for my $pass (1 .. 3)
		{
			sql(q{SELECT remote_bp_evict('written')});
			wait_up_to_date($standby);
		}
		$writer->quit;
		flush_standby($standby);
		sql('SELECT sum(v) FROM written');
		$wrong = counter($standby, 'mismatches');
		last if $wrong;
	}
	cmp_ok(followed($standby)->{pages_read} - $read, '>', 0, "'$point': pages are read that redo writes");
	is($wrong > 0 ? 1 : 0, $mutation ? 1 : 0, $mutation ? 'a page that is read without the lock is noticed' : 'no page is wrong');
	inject('');
	$primary->safe_psql('postgres', 'VACUUM FULL written') if $mutation;
}

$standby->stop;
$primary->stop;

done_testing();

# The list that there is has been gone through.
sub wait_up_to_date_once { return wait_state($standby, 'up to date'); }
