# The server that is followed is away, cold, of another cluster, of another version, or says
# nothing: the standby's pages and queries, and its stop, do not depend on it; the view
# and the log say what is wrong, once.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use IO::Socket::INET;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use RemoteBP;
use RemoteBP::Follow;
use Test::More;
use Time::HiRes qw(time);

my $broker = start_broker();
# so large that no page finds a full partition
my $donor = start_donor($broker, memory => '384MB');
my $primary = follow_primary('primary', $broker, tier => '128MB', conf => "listen_addresses = '127.0.0.1'\n");
my $standby = new_standby($primary, 'standby');

# In the log since then: lines with that, when there were some more tries
sub told
{
	my ($offset, $pattern) = @_;
	my $tries = sub { return $standby->safe_psql('postgres', 'SELECT last_error_at FROM remote_bp_stat_follow'); };
	my $last = $tries->();
	wait_for('more tries', sub { $tries->() ne $last }, 120) or diag('there are no more tries');
	return scalar(() = log_since($standby, $offset) =~ /$pattern/g);
}

# It cannot follow that, for this reason.
sub cannot_follow
{
	my ($conninfo, $why, $name) = @_;
	my $offset = log_size($standby);
	my $read = followed($standby)->{pages_read};
	follow($standby, $conninfo);
	my $error = '';
	ok(wait_for('the reason', sub { $error = followed($standby)->{last_error}; $error =~ $why }, 120), "$name: the view says why") or diag($error);
	is(told($offset, qr/LOG: .*remote_bp: could not get names of hot pages: .*$why/), 1, "$name: the log says it once");
	is(followed($standby)->{pages_read}, $read, "$name: nothing is read");
	return;
}

#---- what cannot be followed ---------------------------------------------------------

my $stranger = new_cluster('stranger', broker => $broker, tier => '32MB');
make_table($stranger, 't', 4);
$primary->safe_psql('postgres', 'CREATE DATABASE bare; CREATE ROLE nobody LOGIN');
$primary->wait_for_catchup($standby);

cannot_follow(conninfo($stranger), qr/the server is of another cluster/, 'another cluster');
cannot_follow($primary->connstr('bare'), qr/the database does not have the extension remote_bp/, 'no extension');
cannot_follow(conninfo($primary, 'user=nobody'), qr/permission denied/, 'no privilege');
cannot_follow(conninfo($primary, 'port=1'), qr/connection to server .*failed/, 'no server');
cannot_follow("password=secret that is not quoted", qr/remote_bp\.follow is no valid connection string/, 'a string that is none');
unlike(followed($standby)->{last_error}, qr/secret/, 'what is in it is not shown');
cannot_follow('host=127.0.0.1 port=' . $primary->port . ' dbname=postgres target_session_attrs=standby', qr/session is not|is not in hot standby|standby/, 'a server that is not meant');
$stranger->stop;

# Functions that are not ours, in an extension that looks like it: rows that cannot be
$primary->safe_psql('postgres', 'CREATE DATABASE liar');
create_extension($primary, 'liar');
$primary->safe_psql('liar', q{DROP EXTENSION remote_bp; CREATE EXTENSION remote_bp VERSION '1.1'});
cannot_follow($primary->connstr('liar'), qr/older version of the extension/, 'an older version');
$primary->safe_psql('liar', <<'SQL');
CREATE FUNCTION remote_bp_hot_pages_info(OUT system_identifier bigint, OUT timeline int, OUT format int, OUT age_ms bigint, OUT complete bool)
	RETURNS record LANGUAGE sql AS 'SELECT system_identifier, 1, 1, 0::bigint, true FROM pg_control_system()';
CREATE FUNCTION remote_bp_hot_pages(OUT tablespace oid, OUT database oid, OUT relfilenode oid, OUT fork text, OUT part int, OUT class int, OUT bitmap bytea)
	RETURNS SETOF record LANGUAGE sql AS 'SELECT 1663::oid, 5::oid, 16384::oid, ''main'', 1, 0, ''\x01''::bytea FROM generate_series(1, 2)';
SQL
cannot_follow($primary->connstr('liar'), qr/rows are not in order/, 'a list that is not in order');
$primary->safe_psql('liar', q{CREATE OR REPLACE FUNCTION remote_bp_hot_pages(OUT tablespace oid, OUT database oid, OUT relfilenode oid, OUT fork text, OUT part int, OUT class int, OUT bitmap bytea)
	RETURNS SETOF record LANGUAGE sql AS 'SELECT 1663::oid, 5::oid, 16384::oid, ''main'', i, 0, decode(repeat(''ff'', 1024), ''hex'') FROM generate_series(0, 100000) i'});
cannot_follow($primary->connstr('liar'), qr/the list is too long/, 'a list that is too long');
# in memory, since a server that writes it to a temporary file first may be taken for one that does not answer
$primary->safe_psql('liar', q{ALTER DATABASE liar SET work_mem = '1GB'});
$primary->safe_psql('liar', q{CREATE OR REPLACE FUNCTION remote_bp_hot_pages(OUT tablespace oid, OUT database oid, OUT relfilenode oid, OUT fork text, OUT part int, OUT class int, OUT bitmap bytea)
	RETURNS SETOF record LANGUAGE sql AS 'SELECT 1663::oid, 5::oid, 16384::oid, ''main'', 1, 0, convert_to(repeat(''x'', 280000000), ''UTF8'')'});
cannot_follow($primary->connstr('liar'), qr/memory/, 'a row of absurd size');
$primary->safe_psql('liar', q{CREATE OR REPLACE FUNCTION remote_bp_hot_pages_info(OUT system_identifier bigint, OUT timeline int, OUT format int, OUT age_ms bigint, OUT complete bool)
	RETURNS record LANGUAGE sql AS 'SELECT system_identifier, 1, 2, 0::bigint, true FROM pg_control_system()'});
cannot_follow($primary->connstr('liar'), qr/another version of the extension/, 'another format');

# Names of things that are not there cost nothing, and take up nothing.
$primary->safe_psql('liar', q{CREATE OR REPLACE FUNCTION remote_bp_hot_pages_info(OUT system_identifier bigint, OUT timeline int, OUT format int, OUT age_ms bigint, OUT complete bool)
	RETURNS record LANGUAGE sql AS 'SELECT system_identifier, 1, 1, 0::bigint, true FROM pg_control_system()'});
$primary->safe_psql('liar', sprintf(q{CREATE OR REPLACE FUNCTION remote_bp_hot_pages(OUT tablespace oid, OUT database oid, OUT relfilenode oid, OUT fork text, OUT part int, OUT class int, OUT bitmap bytea)
	RETURNS SETOF record LANGUAGE sql AS 'SELECT (20000 + i)::oid, d.oid, i::oid, ''main'', 0, 0, ''\xff''::bytea FROM pg_database d, generate_series(1, 40000) i WHERE datname = ''postgres''
	UNION ALL SELECT t.oid, d.oid, pg_relation_filenode, ''main'', 1000, 1, ''\x03''::bytea FROM pg_database d, pg_tablespace t, (VALUES (%s::oid)) r (pg_relation_filenode) WHERE datname = ''postgres'' AND spcname = ''pg_default'''},
		$primary->safe_psql('postgres', q{SELECT pg_relation_filenode('t')})));
$primary->wait_for_catchup($standby);
my $before = followed($standby);
follow($standby, $primary->connstr('liar'));
ok(wait_up_to_date($standby, 300), 'names of nothing: the list is gone through');
my $now = followed($standby);
cmp_ok($now->{skipped_unknown} - $before->{skipped_unknown}, '>=', 320000, 'names of nothing: they are skipped');
cmp_ok($now->{skipped_beyond} - $before->{skipped_beyond}, '>=', 2, 'blocks beyond the file are skipped');
is($now->{pages_read}, $before->{pages_read}, 'nothing is read for them');

# A database that comes later is in the tier all the same.
$primary->safe_psql('postgres', 'CREATE DATABASE fresh');
create_extension($primary, 'fresh');
make_table($primary, 't', 1, db => 'fresh', index => 0);
$primary->safe_psql('fresh', q{SELECT remote_bp_prewarm('t')});
$primary->wait_for_catchup($standby);
# pages that redo has just made come to the tier when they are on disk
$standby->safe_psql('postgres', 'CHECKPOINT');
is(held($primary, 't', 'fresh'), 128, 'the primary has a table of another database in its tier');
follow($standby, conninfo($primary));
ok(wait_for('pages of a new database', sub { held($standby, 't', 'fresh') == 128 }, 300), 'names of nothing: there is room for the names of another database');

#---- it is away for a while ------------------------------------------------------------

evict_tables($standby, 't', 't_id');
follow($standby, conninfo($primary));
ok(wait_up_to_date($standby), 'the primary can be followed after all that');
ok(wait_for('pages', sub { held($standby, 't') >= held($primary, 't') }, 300), 'its pages are read');
my $pages = held($standby, 't');
cmp_ok($pages, '>', 1900, 'and these are many');
my $offset = log_size($standby);
$primary->stop;
ok(wait_for('an error', sub { followed($standby)->{last_error} =~ /connection to server/ }), 'away: the view says so');
is(told($offset, qr/could not get names of hot pages/), 1, 'away: the log says it once');
evict_tables($standby, 't');
cmp_ok(held($standby, 't'), '<', $pages, 'away: pages have left the tier');
ok(wait_for('pages', sub { held($standby, 't') >= $pages * 0.98 }, 300),
	'away: the last list is used');
$primary->start;
wait_leased($primary, 64) or BAIL_OUT('no memory');
ok(wait_up_to_date($standby), 'back: it is followed again, though it is cold');
cmp_ok(held($standby, 't'), '>=', $pages * 0.98, 'back: a short list takes nothing away');
log_tells($standby, $offset, qr/could not get names.*remote_bp: following server/s, 'back: the log says so');

#---- it says nothing ---------------------------------------------------------------------

# A machine that does not even refuse a connection, as if it were off: the queue of its port is full.
my $deaf = IO::Socket::INET->new(LocalAddr => '127.0.0.1', Proto => 'tcp', Listen => 1) or die;
my @queue;
while (my $socket = IO::Socket::INET->new(PeerAddr => '127.0.0.1', PeerPort => $deaf->sockport, Timeout => 1))
{
	push @queue, $socket;
}
follow($standby, 'host=127.0.0.1,127.0.0.1 port=' . join(',', $deaf->sockport, $primary->port) . ' dbname=postgres');
ok(wait_up_to_date($standby), 'a machine is dead: the next one is followed');
is(followed($standby)->{server}, '127.0.0.1:' . $primary->port, 'a machine is dead: the view tells which one that is');
close $_ for @queue, $deaf;

my $proxy = start_proxy();
$proxy->lead_to('127.0.0.1:' . $primary->port);
my $through = "host=127.0.0.1 dbname=postgres port=" . ($proxy->address =~ /:(\d+)/)[0];
follow($standby, $through);
ok(wait_up_to_date($standby), 'through a network: it is followed');
$proxy->silence;
ok(wait_for('an error', sub { followed($standby)->{last_error} =~ /the server does not answer/ }, 120), 'silent: it is given up');
my $pid = server_process($standby, 'remote_bp follower');
kill 'TERM', $pid;
ok(wait_for('the follower to end', sub { !kill(0, $pid) }), 'silent: the follower ends when it is told to');
ok(wait_for('another one', sub { (server_process($standby, 'remote_bp follower') // $pid) != $pid }, 120), 'silent: the launcher starts another one');
$proxy->mend;
ok(wait_up_to_date($standby, 300), 'it answers again: it is followed');

# In the middle of a row, which is refused if all of it comes.
$primary->safe_psql('liar', q{CREATE OR REPLACE FUNCTION remote_bp_hot_pages(OUT tablespace oid, OUT database oid, OUT relfilenode oid, OUT fork text, OUT part int, OUT class int, OUT bitmap bytea)
	RETURNS SETOF record LANGUAGE sql AS 'SELECT 1663::oid, 5::oid, 16384::oid, ''main'', i, 0, ''\x01''::bytea FROM generate_series(1, 10) i UNION ALL SELECT 1663::oid, 5::oid, 16384::oid, repeat(''x'', 1000000), 1000, 0, ''\x01''::bytea'});
(my $liar = $through) =~ s/dbname=postgres/dbname=liar/;
follow($standby, $liar);
ok(wait_for('an error', sub { followed($standby)->{last_error} =~ /a fork is invalid/ }, 120), 'silent in a row: a row that comes is refused');
$proxy->silence_after(500000);
ok(wait_for('an error', sub { followed($standby)->{last_error} =~ /the server does not answer/ }, 120), 'silent in a row: it is given up');
# the standby stops, whatever the follower waits for
$standby->stop('fast');
ok(!-e $standby->data_dir . '/postmaster.pid', 'silent: the standby stops');
$proxy->mend;
$standby->start;
wait_leased($standby, 64) or BAIL_OUT('no memory');
follow($standby, $through);
ok(wait_up_to_date($standby), 'a start: it follows');

#---- another follower -------------------------------------------------------------------

$pid = server_process($standby, 'remote_bp follower');
my $launcher = server_process($standby, 'remote_bp policy launcher');
kill 'TERM', $launcher;
ok(wait_for('another launcher', sub { (server_process($standby, 'remote_bp policy launcher') // $launcher) != $launcher }, 120), 'the launcher is started again');
ok(wait_up_to_date($standby), 'another launcher: it follows');
is(scalar(grep { $_->{title} =~ /remote_bp follower/ } server_processes($standby)), 1, 'another launcher: there is one follower');
is_clean($standby);
$standby->stop;
$primary->stop;

done_testing();
