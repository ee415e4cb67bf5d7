# Two standbys follow one server, which looks for its hot pages once for both.  A server
# whose extension is too old is followed from when it is upgraded.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use RemoteBP;
use RemoteBP::Follow;
use Test::More;
use Time::HiRes qw(stat time);

need_test_build();
my $broker = start_broker();
my $donor = start_donor($broker, memory => '256MB');
my $primary = follow_primary('primary', $broker, test_build => 1, conf => "max_wal_senders = 5\nlog_connections = on\n");
my @standbys = map { new_standby($primary, $_) } 'first', 'second';
my ($first, $second) = @standbys;

#---- an upgrade -----------------------------------------------------------------

# Each follows by a database of its own, whose extensions differ.
$primary->safe_psql('postgres', 'CREATE DATABASE old');
$primary->safe_psql('old', q{CREATE EXTENSION remote_bp VERSION '1.1'});
evict_tables($_, 't', 't_id') for @standbys;
my $offset = log_size($second);
follow($first, conninfo($primary));
follow($second, $primary->connstr('old'));
ok(wait_for('an error', sub { followed($second)->{last_error} =~ /older version of the extension/ }, 120), 'an old version: it is not followed');
ok(wait_up_to_date($first), 'another standby follows the same server');
is(followed($second)->{pages_read}, 0, 'an old version: nothing is read');
my $follower = server_process($second, 'remote_bp follower');
$primary->safe_psql('old', 'ALTER EXTENSION remote_bp UPDATE');
ok(wait_up_to_date($second), 'upgraded: it is followed');
is(server_process($second, 'remote_bp follower'), $follower, 'upgraded: by the same follower');
log_tells($second, $offset, qr/older version of the extension.*remote_bp: following server/s, 'upgraded: the log tells of both');
for my $standby (@standbys)
{
	ok(wait_for('pages', sub { held($standby, 't') >= held($primary, 't') }), $standby->name . ': the pages are there');
	same_content($primary, $standby, 't', $standby->name . ': they are right');
}

#---- one scan for both -------------------------------------------------------------

# A scan takes a second from now on, so none begins for twenty.  Each that is done leaves another file.
my $list = $primary->data_dir . '/pg_stat_tmp/remote_bp_hot_pages.stat';
$primary->safe_psql('postgres', q{ALTER SYSTEM SET remote_bp.injection_point = 'few-hot-pages'});
$primary->reload;
$primary->poll_query_until('postgres', 'SHOW remote_bp.injection_point', 'few-hot-pages');
ok(wait_for('such a list', sub { $primary->safe_psql('postgres', 'SELECT complete FROM remote_bp_hot_pages_info()') eq 'f' }, 120), 'a scan takes long');
follow($first, conninfo($primary), interval => '1s');
follow($second, $primary->connstr('old'), interval => '1s');
my $began = time;
my %scans;
$offset = log_size($primary);
# times that a follower has asked
my $asked = sub {
	my ($database) = @_;
	return scalar(() = log_since($primary, $offset) =~ /connection authorized: user=\S+ database=$database application_name=remote_bp follower/g);
};
ok( wait_for(
		'lists',
		sub {
			my @file = stat($list);
			$scans{"$file[1] $file[9]"} = 1 if @file;
			return $asked->('postgres') >= 5 && $asked->('old') >= 5;
		},
		120),
	'both standbys ask for lists');
cmp_ok(scalar keys %scans, '<=', 2 + (time - $began) / 20, 'a scan serves both, as long as none may begin');
$primary->safe_psql('postgres', q{ALTER SYSTEM RESET remote_bp.injection_point});
$primary->reload;

is_clean($_, $_->name) for @standbys;
$_->stop for @standbys, $primary;

done_testing();
