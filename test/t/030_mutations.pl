# Would the tests notice?  Each rule that keeps the tier coherent is switched
# off alone, in a test build, and a scenario made for it must show that.  The
# same scenario with all rules in force must be clean.
# Timeout: 900

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use RemoteBP;
use RemoteBP::BadRead;
use Test::More;
use Time::HiRes qw(sleep time);

need_test_build();
set_faults();
my $broker = start_broker();
my $donor = start_donor($broker, memory => '128MB');
my $by_index = 'SET enable_seqscan = off; SET enable_bitmapscan = off;';

sub mutate
{
	my ($node, $name) = @_;
	$node->safe_psql('postgres', "ALTER SYSTEM SET remote_bp.injection_point = '$name'");
	$node->reload;
	$node->poll_query_until('postgres', 'SHOW remote_bp.injection_point', $name)
	  or die "injection point $name is not attached";
	# Workers read it in their own time: wait until the pusher must have.
	sleep 0.3;
	return;
}

# A server whose tables t (4 MB) are at hand; every test starts with one.
sub server
{
	my ($name, %opt) = @_;
	my $node = new_cluster(
		$name,
		broker => $broker,
		test_build => 1,
		shared_buffers => '512kB',
		tier => '32MB',
		%opt,
		# A page that comes late is not what is tested.
		conf => "remote_bp.io_timeout = '5s'\n" . ($opt{conf} // ''));
	wait_leased($node, 32) or die 'no memory';
	return $node;
}

# Run the scenario without and with the mutation.  It returns how often what
# must not happen did, and how often the rule was put to the test.
sub noticed
{
	my ($mutation, $node, $scenario, %opt) = @_;
	for my $name ('', $mutation)
	{
		mutate($node, $name);
		reset_counters($node);
		my ($wrong, $chances) = $scenario->($node, $name);
		my $c = counters($node);
		note("$mutation, " . ($name ? "attached" : "not attached") . ": " . join(', ', map { "$_ $c->{$_}" } grep { ($c->{$_} // '') =~ /^[1-9]\d*$/ } sort keys %$c));
		if ($name eq '')
		{
			is($wrong, 0, "$mutation: without it, nothing is wrong");
			cmp_ok($chances, '>', 0, "$mutation: and the scenario is what it should be");
		}
		else
		{
			cmp_ok($wrong, '>', 0, "$mutation: it is noticed");
		}
	}
	mutate($node, '');
	$node->stop;
	return;
}

# A write does not drop the page's entry: what is read later is old.
{
	my $node = server('no-invalidate');
	make_table($node, 't', 4);
	noticed(
		'no-invalidate', $node,
		sub {
			warm($node, 't') or die;
			my $disk_writes = counter($node, 'disk_writes');
			$node->safe_psql('postgres', 'UPDATE t SET v = v + 1');
			evict_buffers($node);
			$node->psql('postgres', 'SELECT sum(v) FROM t');
			return (counter($node, 'mismatches'), counter($node, "disk_writes - $disk_writes"));
		});
}

# A file that is taken away does not take the entries of its pages along: a database
# made by file copy, with the same object id, has the old one's content.
{
	my $node = server('no-removal');
	two_templates($node);
	noticed(
		'no-removal', $node,
		sub {
			$node->safe_psql('postgres', 'CREATE DATABASE again TEMPLATE one STRATEGY file_copy OID 70000');
			warm($node, 't', db => 'again') or die;
			$node->safe_psql('postgres', 'DROP DATABASE again');
			$node->safe_psql('postgres', 'CREATE DATABASE again TEMPLATE two STRATEGY file_copy OID 70000');
			$node->psql('again', 'SELECT sum(v) FROM t');
			my @result = (counter($node, 'mismatches'), counter($node, 'generations'));
			$node->psql('postgres', 'DROP DATABASE again');
			return @result;
		});
}

# Nor does a file of more than 1,024 blocks kill them.  Blocks that come back drop them one
# by one, so what is seen is that they are there for a table that is not.
{
	my $node = server('no-generation');
	evict_buffers($node);
	noticed(
		'no-generation', $node,
		sub {
			make_table($node, 'large', 10, index => 0);
			warm($node, 'large') or die;
			my $pages = tier_pages($node, 'large');
			$node->safe_psql('postgres', 'DROP TABLE large; CHECKPOINT');
			return ($node->safe_psql('postgres', q{SELECT coalesce(sum(pages), 0) FROM remote_bp_relations WHERE relation IS NULL}), $pages);
		});
}

# The victim is not hashed again: hint bits that were set without the page
# becoming dirty, as happens when they need WAL and the relation has none,
# make it differ from the disk.
{
	my $node = server('no-capture-hash', conf => "wal_log_hints = on\nwal_level = minimal\nmax_wal_senders = 0\n");
	evict_buffers($node);
	noticed(
		'no-capture-hash', $node,
		sub {
			$node->safe_psql('postgres', <<"SQL");
BEGIN;
CREATE TABLE h (id int, pad text);
SAVEPOINT s;
INSERT INTO h SELECT i, repeat('h', 1000) FROM generate_series(1, 4000) i;
ROLLBACK TO s;
$by_index
SELECT count(pad) FROM rbp_ballast WHERE id > 0;
SELECT remote_bp_evict('h');
SELECT count(*) FROM h;
SELECT count(pad) FROM rbp_ballast WHERE id > 0;
SELECT count(*) FROM h;
ROLLBACK;
SQL
			return (counter($node, 'mismatches'), counter($node, 'skips_changed'));
		});
}

# The victim's stamp and generation are not looked at: a frame still has the
# page of a database that is gone, and whose name another one has now.
{
	my $node = server('no-capture-stamp', shared_buffers => '16MB', staging => '16MB');
	two_templates($node);
	$node->safe_psql('postgres', 'CREATE TABLE big AS SELECT i, repeat(\'b\', 4000) AS pad FROM generate_series(1, 8000) i; CREATE INDEX big_i ON big (i); VACUUM big');
	noticed(
		'no-capture-stamp', $node,
		sub {
			$node->safe_psql('postgres', 'CREATE DATABASE again TEMPLATE one STRATEGY file_copy OID 70000');
			# It is in the buffers, and not in the tier.
			$node->safe_psql('again', "$by_index SELECT sum(v) FROM t WHERE id > 0; SELECT remote_bp_evict('t')");
			$node->safe_psql('postgres', 'DROP DATABASE again');
			$node->safe_psql('postgres', 'CREATE DATABASE again TEMPLATE two STRATEGY file_copy OID 70000');
			$node->safe_psql('postgres', "$by_index SELECT count(pad) FROM big WHERE i > 0");
			$node->psql('again', 'SELECT sum(v) FROM t');
			my @result = (counter($node, 'mismatches'), counter($node, 'skips_stale'));
			$node->psql('postgres', 'DROP DATABASE again');
			return @result;
		});
}

# Published before the slot is written: reads meanwhile find something else.
{
	my $node = server('publish-early');
	make_table($node, 't', 4);
	noticed(
		'publish-early', $node,
		sub {
			my ($node, $name) = @_;
			my ($wrong, $chances) = (0, 0);
			for my $try (1 .. 20)
			{
				$node->safe_psql('postgres', q{SELECT remote_bp_evict('t')});
				$node->safe_psql('postgres', "SET max_parallel_workers_per_gather = 0; $by_index "
					  . 'SELECT sum(v) FROM t WHERE id > 0; ' x 20);
				$wrong = counter($node, 'hash_failures + mismatches');
				$chances = counter($node, 'hits');
				last if $name eq '' ? $try >= 3 && $chances : $wrong;
			}
			return ($wrong, $chances);
		});
}

# Published though the page was written meanwhile: pushes take long, and the
# table is changed while they are under way.
{
	my $node = server('no-publish-check', transport => 'tcp');
	make_table($node, 't', 4);
	evict_buffers($node);
	noticed(
		'no-publish-check', $node,
		sub {
			my ($node, $name) = @_;
			my ($wrong, $chances) = (0, 0);
			for my $try (1 .. 10)
			{
				$node->safe_psql('postgres', q{SELECT remote_bp_evict('t')});
				set_faults('write delay_us 300000');
				sleep 0.05;
				# Staged and on its way; then changed, evicted, and read.
				$node->safe_psql('postgres', "$by_index SELECT sum(v) FROM t WHERE id <= 600; SELECT sum(v) FROM t WHERE id > 3000;"
					  . 'UPDATE t SET v = v + 1 WHERE id <= 600; SELECT sum(v) FROM t WHERE id > 3000; CHECKPOINT');
				set_faults();
				wait_for('the pusher', sub { counter($node, 'staged_pages') == 0 }, 20);
				evict_buffers($node);
				$node->psql('postgres', 'SELECT sum(v) FROM t');
				$wrong = counter($node, 'mismatches + hash_failures');
				$chances = counter($node, 'pushes_stale');
				last if $name eq '' ? $chances : $wrong;
			}
			return ($wrong, $chances);
		});
}

# What comes back is not compared to its hash: a flipped bit goes through.
{
	my $node = server('no-verify');
	make_table($node, 't', 4);
	noticed(
		'no-verify', $node,
		sub {
			warm($node, 't') or die;
			# Without the mutation, wrong bytes have taken the donor out of use.
			wait_donors_used($node) or die;
			set_faults('read corrupt');
			$node->psql('postgres', 'SELECT sum(v) FROM t');
			my @result = (counter($node, 'mismatches'), counter($node, 'hits + hash_failures'));
			set_faults();
			return @result;
		});
}

# Reads into private memory are served: those of pg_prewarm, as those of a
# base backup would be, do not see the disk.
{
	my $node = server('serve-private');
	make_table($node, 't', 4);
	$node->safe_psql('postgres', 'CREATE EXTENSION pg_prewarm');
	noticed(
		'serve-private', $node,
		sub {
			warm($node, 't') or die;
			# The first run may read catalogs; the second is all there is.
			my $session = $node->background_psql('postgres');
			$session->query(q{SELECT pg_prewarm('t', 'read'); SELECT hits + staged_hits FROM remote_bp_stat});
			my $before = $session->query('SELECT hits + staged_hits FROM remote_bp_stat');
			my $pages = $session->query(q{SELECT pg_prewarm('t', 'read')});
			my $hits = $session->query('SELECT hits + staged_hits FROM remote_bp_stat') - $before;
			$session->quit;
			note("$hits hits for $pages pages");
			return ($hits > $pages / 3 ? $hits : 0, $pages);
		});
}

# The checksum is not set on what is captured from a frame that the checkpointer
# wrote.  (A backend captures the copy that it writes, which has it.)
{
	my $node = server('no-checksum', checksums => 1);
	make_table($node, 't', 4);
	noticed(
		'no-checksum', $node,
		sub {
			$node->safe_psql('postgres', q{SELECT remote_bp_evict('t')});
			# few enough at a time for the shared buffers
			$node->safe_psql('postgres',
				join('', map { "$by_index UPDATE t SET v = v + 1 WHERE id > " . $_ * 64 . ' AND id <= ' . ($_ + 1) * 64 . ";\nCHECKPOINT;\n" } 0 .. 15));
			evict_buffers($node);
			$node->psql('postgres', "$by_index SELECT sum(v) FROM t WHERE id > 0");
			evict_buffers($node);
			$node->psql('postgres', "$by_index SELECT sum(v) FROM t WHERE id > 0");
			return (counter($node, 'mismatches'), counter($node, 'hits + staged_hits'));
		});
}

# What one read gave is believed: a page that the server refused is kept, and
# is given back at the next try.
{
	my $bad = RemoteBP::BadRead->new;
	my $node = $bad->preloaded(sub { server('trust-reads', checksums => 1, compare => 0) });
	make_table($node, 't', 4);
	noticed(
		'trust-reads', $node,
		sub {
			evict_buffers($node);
			$node->safe_psql('postgres', q{SELECT remote_bp_evict('t')});
			# With room in staging the victim is not dropped.
			wait_for('the pusher', sub { counter($node, 'staged_pages') == 0 }, 20) or die;
			$bad->spoil($node, 't', 100, 7204);
			my ($first, @again) = $bad->outcomes($node, (q{SELECT v FROM t WHERE ctid = '(100,1)'}) x 3);
			return (scalar(grep { $_ ne '0' } @again), $bad->struck && $first eq 'error');
		});
}

# Prewarm does not lock the page that it reads: a write is under way, whose stamp has
# moved already.
{
	my $node = server('prewarm-unlocked', shared_buffers => '8MB');
	make_table($node, 't', 1);
	noticed(
		'prewarm-unlocked', $node,
		sub {
			my $prewarm = $node->background_psql('postgres');
			my $prewarmed = 0;
			for my $try (1 .. 10)
			{
				$node->safe_psql('postgres', 'UPDATE t SET v = v + 1');
				my $writer = $node->background_psql('postgres');
				my $offset = log_size($node);
				$writer->query_until(qr/begun/, "\\echo begun\nCHECKPOINT;\n");
				wait_for('the checkpoint', sub { log_since($node, $offset) =~ /checkpoint starting/ }, 60) or die;
				$prewarmed += $prewarm->query(q{SELECT remote_bp_prewarm('t')}) for 1 .. 20;
				$writer->quit;
				evict_buffers($node);
				$node->psql('postgres', 'SELECT sum(v) FROM t');
				last if counter($node, 'mismatches');
			}
			$prewarm->quit;
			return (counter($node, 'mismatches'), $prewarmed);
		});
}

# What was read ahead is used, though the directory has another version of the
# page by then: another session changes the table while it is scanned.
{
	my $node = server('read-ahead-no-lookup', transport => 'tcp', io_workers => 0, conf => "remote_bp.read_ahead = 64\n");
	make_table($node, 't', 4);
	noticed(
		'read-ahead-no-lookup', $node,
		sub {
			warm($node, 't') or die;
			my $session = $node->background_psql('postgres');
			$session->query('BEGIN; DECLARE c CURSOR FOR SELECT v FROM t; MOVE 400 FROM c');
			$node->safe_psql('postgres', 'UPDATE t SET v = v + 1');
			evict_buffers($node);
			$session->query('MOVE ALL FROM c; COMMIT');
			$session->quit;
			return (counter($node, 'mismatches'), counter($node, 'read_ahead'));
		});
}

# Likewise, after a truncation: the table has the same blocks again, with other
# rows.
{
	my $node = server('prefetch-old-generation', transport => 'tcp', io_workers => 0, conf => "remote_bp.read_ahead = 64\n");
	make_table($node, 'other', 1);
	evict_buffers($node);
	noticed(
		'prefetch-old-generation', $node,
		sub {
			my $session = $node->background_psql('postgres');
			# so many blocks are void by their generation
			my $rows = sub { "INSERT INTO t SELECT i, $_[0], rpad(i::text, 980, 'x') FROM generate_series(1, 10000) i" };
			my $elsewhere = "SET LOCAL enable_seqscan = off; SELECT count(pad) FROM rbp_ballast WHERE id > 0; SET LOCAL enable_seqscan = on";
			# In place, since the table is new to the transaction.
			$session->query('BEGIN; CREATE TABLE t (id int, v int, pad text); ALTER TABLE t ALTER pad SET STORAGE plain');
			$session->query($rows->(1) . "; $elsewhere");
			wait_for('the pusher', sub { counter($node, 'staged_pages') == 0 }, 20) or die;
			$session->query('DECLARE c CURSOR FOR SELECT v FROM t; MOVE 400 FROM c; CLOSE c');
			my $ahead = counter($node, 'read_ahead');
			# Without a read of anything else: copies that are not used for long give way.
			$session->query('TRUNCATE t; ' . $rows->(2) . '; SELECT sum(v) FROM t');
			my @result = (counter($node, 'mismatches'), $ahead);
			$session->query('ROLLBACK');
			$session->quit;
			return @result;
		});
}

# The deadline is not looked at: with the lease worker hanging, which would
# see to it as well, and a donor that hangs, which would withdraw its memory,
# that is read after the lease has ended.
{
	my $node = server('no-lease-check', transport => 'shm', conf => "remote_bp.lease_ttl = '2s'\n");
	make_table($node, 't', 4);
	noticed(
		'no-lease-check', $node,
		sub {
			my ($worker, $session);
			for my $try (1 .. 10)
			{
				wait_leased($node, 32) or die;
				warm($node, 't') or die;
				$worker = server_process($node, 'remote_bp lease worker') or die;
				kill('STOP', $worker) == 1 or die;
				# One session for all: another one could not connect to the donor, and
				# everybody would avoid it then.
				$session = $node->background_psql('postgres');
				$session->query("$by_index SELECT sum(v) FROM t WHERE id > 0; SELECT count(pad) FROM rbp_ballast WHERE id > 0") for 1 .. 3;
				$donor->freeze;
				# or the donor may have fenced it by its own clock
				last if $session->query(q{SELECT min(expires_in) > interval '0' FROM remote_bp_leases}) eq 't';
				die 'the lease ends before the donor is frozen' if $try == 10;
				$donor->thaw;
				kill('CONT', $worker);
				$session->quit;
			}
			wait_for(
				'the deadline',
				sub { $session->query(q{SELECT max(expires_in) < interval '-0.2 s' FROM remote_bp_leases}) eq 't' },
				20) or die;
			my $done = 'SELECT hits + bytes_written FROM remote_bp_stat';
			my $before = $session->query($done);
			$session->query('SELECT sum(v) FROM t WHERE id > 0; SELECT count(pad) FROM rbp_ballast WHERE id > 0') for 1 .. 2;
			my $after = $session->query($done);
			$donor->thaw;
			kill('CONT', $worker);
			$session->quit;
			wait_for('a lease', sub { counter($node, 'usable') eq 't' }, 30);
			return ($after - $before, $before);
		});
}

done_testing();
