# What a buffer tier keeps over the crash of a process: a server that keeps it, crashes
# of its processes, recoveries that take as long as a test likes, and what is there
# afterwards.

package RemoteBP::Kept;

use strict;
use warnings;

use Exporter 'import';
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use RemoteBP;
use Test::More;
use Time::HiRes qw(sleep time);

our @EXPORT = qw(
  kept_cluster state_of kill_process crash crash_held go_on recovered wait_usable lease_id broker_lease
  is_right is_kept is_empty is_forgotten is_discarded
);

# Options of new_cluster.  A table "pages" of 24 MB that is never changed, most of it in
# the tier.  What was written with fsync = off, as is usual in tests, would not be kept.
sub kept_cluster
{
	my ($name, %opt) = @_;
	my $node = new_cluster($name, warm_restart => 'on', %opt, conf => <<"CONF" . ($opt{conf} // ''));
fsync = on
checkpoint_timeout = 1h
max_wal_size = 4GB
remote_bp.io_timeout = 2s
CONF
	ok(wait_leased($node, 64, 120), "$name: memory is leased");
	make_table($node, 'pages', 24);
	ok(warm($node, 'pages', part => 0.8), "$name: pages are in the tier");
	return $node;
}

# The buffer tier's lease, as the server knows it.
sub lease_id
{
	my ($node) = @_;
	return $node->safe_psql('postgres', q{SELECT min(lease) FROM remote_bp_leases WHERE purpose = 'buffer'});
}

# The lease of that purpose, as the broker shows it; {} if there is none.
sub broker_lease
{
	my ($broker, $purpose) = @_;
	my $list = http_json($broker, 'GET', '/v1/leases') // {};
	my ($lease) = grep { $_->{purpose} eq ($purpose // 'buffer') } @{ $list->{leases} // [] };
	return $lease // {};
}

# What there is before a crash, for is_kept() and its like.  Nothing is left to redo, and
# all pages that were captured have been pushed.
my %content;

sub state_of
{
	my ($node) = @_;
	$content{ $node->name } //= content($node, 'pages');
	wait_still($node, qw(captures pushes staged_pages));
	$node->safe_psql('postgres', 'CHECKPOINT');
	return {
		lease => lease_id($node),
		pages => tier_pages($node, 'pages'),
		content => $content{ $node->name },
		offset => log_size($node)
	};
}

#---- crashes --------------------------------------------------------------

# Send the signal, after the process has been stopped if whole => 1.  Killed within a
# write, it may leave half of a page written, which a server without full_page_writes
# cannot repair; a process that is stopped is not within a call.
sub kill_process
{
	my ($pid, %opt) = @_;
	if ($opt{whole})
	{
		kill('STOP', $pid) == 1 or return 0;
		wait_for("process $pid to stop", sub { stopped($pid) // 1 });
	}
	return kill($opt{signal} // 'KILL', $pid) == 1;
}

# Whether it has stopped; undef if there is no such process.
sub stopped
{
	my ($pid) = @_;
	my ($state) = (eval { slurp_file("/proc/$pid/stat") } // '') =~ /^\d+ \(.*\) (\S)/s or return undef;
	return $state =~ /[TXZ]/ ? 1 : 0;
}

# Kill a process of that title, or with 'client backend' a session that does nothing.
my @sessions;

sub crash
{
	my ($node, $victim, %opt) = @_;
	my $pid;
	if ($victim eq 'client backend')
	{
		push @sessions, $node->background_psql('postgres', on_error_stop => 0);
		$pid = $sessions[-1]->query('SELECT pg_backend_pid()');
	}
	else
	{
		wait_for($victim, sub { $pid = server_process($node, $victim) }) or return 0;
	}
	return kill_process($pid, %opt);
}

# Kill a backend, or do crash => sub, and stop the startup process before recovery has
# ended, or with redo => 1 while it redoes; without that there may be nothing to redo.  Recovery may be
# quick, so that takes some tries.  Returns the startup process, and how large the log was
# before the crash.
sub crash_held
{
	my ($node, %opt) = @_;
	for my $try (1 .. 10)
	{
		if ($opt{redo})
		{
			$node->safe_psql('postgres', q{SELECT count(pg_logical_emit_message(false, 'x', repeat('x', 1000000))) FROM generate_series(1, 200)});
		}
		my $offset = log_size($node);
		($opt{crash} // sub { crash($node, 'client backend') })->() or return;
		my ($pid, $end) = (undef, time + 120);
		until ($pid || time > $end)
		{
			sleep 0.001;
			my $log = log_since($node, $offset);
			last if $log =~ /database system is ready to accept connections/;
			next if $opt{redo} && $log !~ /redo starts at/;
			my ($startup) = grep { $_->{title} =~ /^postgres: \S+ startup\b/ } server_processes($node);
			$pid = $startup->{pid} if $startup && kill('STOP', $startup->{pid}) == 1;
		}
		if ($pid)
		{
			wait_for('the startup process to stop', sub { stopped($pid) // 1 });
			my $log = log_since($node, $offset);
			return ($pid, $offset) if stopped($pid) && $log !~ /ready to accept connections/ && !($opt{redo} && $log =~ /redo done at/);
			kill('CONT', $pid);
		}
		recovered($node, $offset, "try $try, too late");
	}
	return;
}

# The startup process goes on, and the server is open again.
sub go_on
{
	my ($node, $startup, $offset, $name) = @_;
	is(kill('CONT', $startup), 1, "$name: recovery goes on");
	return recovered($node, $offset, $name);
}

# PostgreSQL 15 hangs if it is told to stop before that.
sub recovered
{
	my ($node, $offset, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $done = ok(
		wait_for(
			'recovery',
			sub {
				return log_since($node, $offset) =~ /database system is ready to accept connections/
				  && $node->psql('postgres', 'SELECT 1') == 0;
			},
			300),
		"$name: the server recovers");
	eval { $_->quit } for splice(@sessions);
	BAIL_OUT('the server does not recover') unless $done;
	return $done;
}

#---- afterwards -----------------------------------------------------------

sub wait_usable
{
	my ($node) = @_;
	return wait_for('the tier to be used', sub { counter($node, 'usable') eq 't' }, 120);
}

# The table is what it was, and the pages that were read were on disk so.
sub is_right
{
	my ($node, $before, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is(content($node, 'pages'), $before->{content}, "$name: rows are right");
	is(counter($node, 'mismatches'), 0, "$name: no page is different from the disk");
	return;
}

# All of it is there after a crash, and used.
sub is_kept
{
	my ($node, $before, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	ok(wait_usable($node), "$name: the tier is used");
	log_tells($node, $before->{offset}, qr/LOG: .*remote_bp: going on with the lease, \d+ MB/, "$name: the lease worker goes on with the lease");
	unlike(log_since($node, $before->{offset}), qr/what was kept over the crash is discarded/, "$name: nothing is discarded");
	is(lease_id($node), $before->{lease}, "$name: the lease is the same");
	cmp_ok(tier_pages($node, 'pages'), '>=', 0.9 * $before->{pages}, "$name: its pages are there");
	my $hits = counter($node, 'hits');
	is_right($node, $before, $name);
	cmp_ok(counter($node, 'hits') - $hits, '>=', 0.5 * $before->{pages}, "$name: they are read");
	is(counter($node, 'hash_failures'), 0, "$name: and are whole");
	return;
}

# Nothing of it is there; the tier has another lease, and works.
sub is_empty
{
	my ($node, $before, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	ok(wait_for('another lease', sub { lease_id($node) ne $before->{lease} && leased_bytes($node) >= 64 * 1024 * 1024 }, 120) && wait_usable($node),
		"$name: memory is leased by another lease");
	cmp_ok(tier_pages($node, 'pages'), '<', 0.1 * $before->{pages}, "$name: the tier begins empty");
	is_right($node, $before, $name);
	cmp_ok(warm($node, 'pages', part => 0.8), '>', 0, "$name: pages come into the tier");
	is_right($node, $before, "$name, again");
	return;
}

# Likewise, and the log has said why, once.
sub is_discarded
{
	my ($node, $before, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $line = qr/LOG: .*remote_bp: what was kept over the crash is discarded: \S/;
	log_tells($node, $before->{offset}, $line, "$name: the log says why nothing is kept");
	is(scalar(() = log_since($node, $before->{offset}) =~ /$line/g), 1, "$name: it says so once");
	is_forgotten($node, $before, $name);
	return;
}

# Nothing of it is there, and nobody has tried to go on with it.
sub is_forgotten
{
	my ($node, $before, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is_empty($node, $before, $name);
	unlike(log_since($node, $before->{offset}), qr/going on with the lease, \d+ MB/, "$name: the lease worker does not go on with the lease");
	return;
}

1;
