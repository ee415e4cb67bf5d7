# Standbys that warm themselves by what is hot on another server: a pair of them, what
# remote_bp_stat_follow says, and a switchover.

package RemoteBP::Follow;

use strict;
use warnings;

use Exporter 'import';
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use RemoteBP;
use RemoteBP::Preload;
use Test::More;
use Time::HiRes qw(sleep time);

our @EXPORT = qw(
  follow_primary prewarm_unread new_standby conninfo follow followed wait_state wait_up_to_date evict_tables
  held hot_pages_of flush_standby switch_over same_content
);

# A primary with streaming and a table t of 16 MB, all of it in the tier, and another one to
# flush buffers with.  Options of new_cluster.
sub follow_primary
{
	my ($name, $broker, %opt) = @_;
	my $node = new_cluster(
		$name,
		broker => $broker,
		streaming => 1,
		shared_buffers => '2MB',
		tier => '64MB',
		%opt,
		conf => "remote_bp.io_timeout = '5s'\nremote_bp.policy_interval = '5s'\nwal_keep_size = '1GB'\n" . ($opt{conf} // ''));
	ok(wait_leased($node, 64), "$name: there is memory");
	make_table($node, 't', 16);
	evict_buffers($node);
	prewarm_unread($node, 't', 't_id');
	return $node;
}

# Have the relations in the tier, as pages that nobody has read there.  The first time, pages that were
# there before they were written come to the main queue.
sub prewarm_unread
{
	my ($node, @relations) = @_;
	for (1 .. 2)
	{
		evict_tables($node, @relations);
		$node->safe_psql('postgres', join '', map { "SELECT remote_bp_prewarm('$_');" } @relations);
		wait_still($node, qw(captures pushes staged_pages));
	}
	return;
}

# Options: conf, preload => [ names, environment ]
sub new_standby
{
	my ($of, $name, %opt) = @_;
	$of->backup("for_$name");
	my $standby = PostgreSQL::Test::Cluster->new($name);
	$standby->init_from_backup($of, "for_$name", has_streaming => 1);
	$standby->append_conf('postgresql.conf', "remote_bp.follow = ''\n" . ($opt{conf} // ''));
	if ($opt{preload})
	{
		start_preloaded($standby, @{ $opt{preload} });
	}
	else
	{
		$standby->start;
	}
	ok(wait_leased($standby, 64), "$name: there is memory");
	return $standby;
}

sub conninfo
{
	my ($node, $rest) = @_;
	return $node->connstr('postgres') . ($rest ? " $rest" : '');
}

# Have the node follow another one, or with '' none; other settings of remote_bp.follow_*.
sub follow
{
	my ($node, $conninfo, %settings) = @_;
	my %all = (interval => '5s', rate => '1GB', %settings);
	(my $quoted = $conninfo) =~ s/'/''/g;
	$node->safe_psql('postgres', "ALTER SYSTEM SET remote_bp.follow = '$quoted'");
	$node->safe_psql('postgres', "ALTER SYSTEM SET remote_bp.follow_$_ = '$all{$_}'") for keys %all;
	$node->reload;
	return;
}

sub followed
{
	my ($node) = @_;
	my %row;
	my @columns = qw(state reason server names_buffers names_main names_small present_buffers present_main present_small pages_read
	  skipped_unknown skipped_busy skipped_excluded skipped_full skipped_beyond skipped_error last_error);
	@row{@columns} = split /\|/, $node->safe_psql('postgres', 'SELECT ' . join(', ', @columns) . ' FROM remote_bp_stat_follow'), -1;
	return \%row;
}

# Wait for a state, and its reason if one is given.
sub wait_state
{
	my ($node, $state, $reason, $seconds) = @_;
	my $now;
	return wait_for(
		"state $state",
		sub {
			$now = followed($node);
			return $now->{state} =~ /^(?:$state)$/ && (!defined $reason || $now->{reason} =~ $reason);
		},
		$seconds // 300) || (diag(join ', ', map { "$_ '$now->{$_}'" } sort keys %$now), 0)[1];
}

# Wait until a list that is taken from now on has been gone through.  A reload has it fetched at
# once, so that all of follow_interval is left for that; on a busy machine the other server may
# still give an older one.
sub wait_up_to_date
{
	my ($node, $seconds) = @_;
	my $since = $node->safe_psql('postgres', 'SELECT clock_timestamp()');
	$node->reload;
	return wait_for(
		'the standby to be up to date',
		sub {
			my ($done, $new) = split /\|/, $node->safe_psql('postgres', "SELECT state = 'up to date', list_taken_at > '$since' FROM remote_bp_stat_follow");
			$node->reload if $done eq 't' && $new ne 't';
			return $done eq 't' && $new eq 't';
		},
		$seconds // 300) || (diag(explain(followed($node))), 0)[1];
}

sub evict_tables
{
	my ($node, @tables) = @_;
	$node->safe_psql('postgres', join '', map { "SELECT remote_bp_evict('$_');" } @tables);
	return;
}

# Pages of the relation's main fork that the tier has.  On a standby, staged pages count, too.
sub held
{
	my ($node, $rel, $db) = @_;
	return $node->safe_psql($db // 'postgres', "SELECT coalesce(sum(pages + staged_pages), 0) FROM remote_bp_relations WHERE relation = '$rel'::regclass AND fork = 'main'");
}

# 'class pages, ...' of the relation's main fork, in the newest list of the node.
sub hot_pages_of
{
	my ($node, $rel) = @_;
	return $node->safe_psql('postgres', <<"SQL");
SELECT string_agg(class || ' ' || n, ', ' ORDER BY class) FROM (SELECT class, count(*) AS n
	FROM remote_bp_hot_pages(), generate_series(0, 8 * length(bitmap) - 1) i
	WHERE get_bit(bitmap, i) = 1 AND relfilenode = pg_relation_filenode('$rel') AND fork = 'main' GROUP BY class) c
SQL
}

# Read something else until the buffers of a standby have nothing of before: the table
# comes from the primary, whose buffers must have been evicted once.
sub flush_standby
{
	my ($standby, $db) = @_;
	$standby->safe_psql($db // 'postgres', 'SET enable_seqscan = off; SET enable_bitmapscan = off; SELECT count(pad) FROM rbp_ballast WHERE id > 0');
	return;
}

# A test point: the table is the same on both, when all is replayed, read from the tier as
# far as it is there.  The second may be the standby of another one.
sub same_content
{
	my ($primary, $standby, $rel, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $lsn = $primary->lsn('insert');
	wait_for('replay', sub { $standby->safe_psql('postgres', "SELECT pg_last_wal_replay_lsn() >= '$lsn'") eq 't' }, 300);
	flush_standby($standby);
	return is(content($standby, $rel), content($primary, $rel), $name);
}

# Stop the primary, promote the standby, and start the former primary as its standby.
sub switch_over
{
	my ($primary, $standby) = @_;
	$primary->wait_for_catchup($standby, 'replay', $primary->lsn('insert'));
	$primary->stop('fast');
	$standby->promote;
	$standby->poll_query_until('postgres', 'SELECT NOT pg_is_in_recovery()') or return 0;
	(my $conninfo = $standby->connstr) =~ s/'/''/g;
	$primary->append_conf('postgresql.conf', "primary_conninfo = '$conninfo'\n");
	$primary->append_conf('standby.signal', '');
	$primary->start;
	return wait_leased($primary, 64);
}

1;
