# A standby follows the primary: what is hot there comes into its own tier, from its own
# disk; it is right there, and in use when the standby is promoted.  Another standby
# follows that one.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use RemoteBP;
use RemoteBP::Follow;
use Test::More;
use Time::HiRes qw(time);

my $broker = start_broker();
my $donor = start_donor($broker, memory => '512MB');
# so large that no page finds a full partition
my $primary = follow_primary('primary', $broker, tier => '128MB');
make_table($primary, 'cold', 4, index => 0);
$primary->safe_psql('postgres', 'CREATE DATABASE other');
create_extension($primary, 'other');
make_table($primary, 'o', 2, db => 'other', index => 0);
$primary->safe_psql('other', q{SELECT remote_bp_prewarm('o')});
evict_buffers($primary);
my $standby = new_standby($primary, 'standby');

sub size { my ($rel) = @_; return $primary->safe_psql('postgres', "SELECT pg_relation_size('$rel') / 8192"); }

#---- it follows -----------------------------------------------------------------

is(followed($primary)->{state}, 'off', 'without the setting nothing is followed');
is(followed($standby)->{state}, 'off', 'nor on a standby');
is(server_process($standby, 'remote_bp follower'), undef, 'and there is no follower');

# A part of the table has been read on the primary, and a table has left its tier.
$primary->safe_psql('postgres', 'SET enable_seqscan = off; SET enable_bitmapscan = off; SELECT sum(v) FROM t WHERE id BETWEEN 1 AND 4000');
evict_buffers($primary);
evict_tables($primary, 'cold');
evict_tables($standby, 't', 't_id', 'cold');
my $offset = log_size($standby);
follow($standby, conninfo($primary));
ok(wait_up_to_date($standby), 'the standby is up to date after a while');
my $now = followed($standby);
# Pages that are written meanwhile, by restartpoints, come with the next list.
cmp_ok(held($primary, 't'), '>=', size('t') * 0.99, 'the primary has a table in its tier');
ok(wait_for('pages', sub { held($standby, 't') >= held($primary, 't') }), 'all of a table that the primary has in its tier is in that of the standby') or diag(explain(followed($standby)));
cmp_ok(held($standby, 't_id'), '>=', size('t_id') - 2, 'so is its index');
is(held($standby, 'o', 'other'), $primary->safe_psql('other', q{SELECT pg_relation_size('o') / 8192}), 'and a table of another database');
cmp_ok(held($standby, 'cold'), '<', 10, 'a table that is not hot is not');
cmp_ok($now->{pages_read}, '>=', size('t') * 0.9, 'the view tells how many were read');
is($now->{server}, $primary->host . ':' . $primary->port, 'and from where the list is');
cmp_ok($now->{names_small}, '>', 0, 'and how many there are');
cmp_ok($now->{"present_$_"}, '<=', $now->{"names_$_"}, "and how many are present, at most all ($_)") for qw(buffers main small);
log_tells($standby, $offset, qr/LOG: .*remote_bp: following server \S+, which names \d+ hot pages/, 'the log says so');
for my $again ('again', 'and again')
{
	my $list = 'SELECT list_taken_at FROM remote_bp_stat_follow';
	my $last = $standby->safe_psql('postgres', $list);
	ok(wait_for('another list', sub { $standby->safe_psql('postgres', $list) ne $last }, 120), "it is asked $again");
}
is(scalar(() = log_since($standby, $offset) =~ /remote_bp: following server/g), 1, 'the log says it once');
is(server_process($primary, 'remote_bp follower'), undef, 'the primary has no follower');

# Who has which library
my $maps = sub { my ($title) = @_; my $pid = server_process($standby, $title); return $pid ? slurp_file("/proc/$pid/maps") : ''; };
like($maps->('remote_bp follower'), qr/remote_bp_follow.*libpq\.so|libpq\.so.*remote_bp_follow/s, 'the follower has libpq');
unlike($maps->($_), qr/remote_bp_follow|libpq\.so/, "and the $_ has not") for 'remote_bp policy launcher', 'remote_bp pusher';

# What was read there is hot here, too, before anybody has read it: the classes go on.
like(hot_pages_of($primary, 't'), qr/^1 5\d\d, 2 /, 'on the primary, a part of the table was read');
my $class;
ok(wait_for('the list of the standby', sub { $class = hot_pages_of($standby, 't'); $class =~ /\b1 5\d\d\b/ }), 'that part counts as read on the standby') or diag($class);

same_content($primary, $standby, 't', 'the standby reads what the primary has');
cmp_ok(counter($standby, 'hits + staged_hits'), '>=', size('t') * 0.9, 'from its tier');
is_clean($standby, 'standby');

#---- what is gone comes again; what is excluded does not ------------------------------

evict_tables($standby, 't');
ok(wait_up_to_date($standby), 'it goes on');
ok(wait_for('pages', sub { held($standby, 't') >= held($primary, 't') }), 'pages that have left the tier are read again');
$primary->safe_psql('postgres', q{SELECT remote_bp_set_policy('t_id', 'none')});
$primary->wait_for_catchup($standby);
ok(wait_for('the policy', sub { held($standby, 't_id') == 0 }), 'a policy excludes the index');
ok(wait_up_to_date($standby), 'and it goes on');
is(held($standby, 't_id'), 0, 'excluded pages are not read');
$primary->safe_psql('postgres', q{SELECT remote_bp_set_policy('t_id', 'default')});

#---- a full tier ---------------------------------------------------------------------

# 24 MB of room for a table of 16 MB and its like; what is there was read, so it stays.
$primary->safe_psql('postgres', q{SELECT remote_bp_prewarm('t')});
$standby->safe_psql('postgres', q{ALTER SYSTEM SET remote_bp.buffer_tier_size = '8MB'});
$standby->reload;
ok(wait_for('a small tier', sub { leased_bytes($standby) == 8 * 1024 * 1024 }, 120), 'the standby has a small tier');
ok(wait_up_to_date($standby), 'a small tier: it is up to date');
$now = followed($standby);
cmp_ok($now->{skipped_full}, '>', 0, 'a small tier: pages that nobody has read there find no room');
my $read = $now->{pages_read};
ok(wait_up_to_date($standby), 'a small tier: it goes on');
cmp_ok(followed($standby)->{pages_read} - $read, '<', 1024, 'a small tier: it does not read the same pages again and again');
$standby->safe_psql('postgres', q{ALTER SYSTEM RESET remote_bp.buffer_tier_size});
$standby->reload;
ok(wait_leased($standby, 64), 'the standby has its memory back');

#---- a cascading standby --------------------------------------------------------------

my $second = new_standby($standby, 'second', conf => "hot_standby_feedback = off\n");
follow($second, conninfo($standby));
ok(wait_up_to_date($standby) && wait_up_to_date($second), 'cascading: both are up to date');
ok(wait_for('pages', sub { held($second, 't') >= held($standby, 't') }), 'cascading: pages come to the second standby');
same_content($primary, $second, 't', 'cascading: they are right');
is_clean($second, 'second');

#---- off, and on again ------------------------------------------------------------------

follow($standby, '');
ok(wait_state($standby, 'off'), 'without the setting it is off');
ok(wait_for('the follower to end', sub { !server_process($standby, 'remote_bp follower') }), 'the follower ends');
follow($standby, conninfo($primary));
ok(wait_up_to_date($standby), 'with the setting it follows again');

#---- promotion ----------------------------------------------------------------------

evict_tables($standby, 'cold');
$primary->wait_for_catchup($standby, 'replay', $primary->lsn('insert'));
my $content = content($primary, 't');
$primary->stop('immediate');
flush_standby($standby);
my $before = counter($standby, 'hits + staged_hits');
$standby->promote;
$standby->poll_query_until('postgres', 'SELECT NOT pg_is_in_recovery()');
is(content($standby, 't'), $content, 'promoted: the table is right');
cmp_ok(counter($standby, 'hits + staged_hits') - $before, '>=', $standby->safe_psql('postgres', q{SELECT pg_relation_size('t') / 8192}) * 0.9, 'promoted: its pages come from the tier at once');
is(followed($standby)->{state}, 'primary', 'promoted: it is a primary');
ok(wait_for('the follower to end', sub { !server_process($standby, 'remote_bp follower') }), 'promoted: the follower has ended');
is($standby->safe_psql('postgres', 'SELECT timeline FROM remote_bp_hot_pages_info()'), 2, 'promoted: a list tells the timeline');
ok(wait_up_to_date($second), 'promoted: the second standby goes on');
is_clean($_, $_->name) for $standby, $second;
$second->stop;
$standby->stop;

done_testing();
