# More databases than the dictionary of spaces has room for: those beyond are read from disk, by
# names that are not another's, over a crash and a restart, too.  The rest goes on.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use RemoteBP;
use RemoteBP::Kept;
use Test::More;

need_test_build();
my $broker = start_broker();
my $donor = start_donor($broker, memory => '128MB');
my $node = kept_cluster('full', broker => $broker, test_build => 1, conf => "full_page_writes = off\n");

# Three databases with the same tables, in the same files, with other content
two_templates($node);
my %content = map { $_ => content($node, 't', $_) } 'one', 'two';
ok(warm($node, 't', db => $_), "the tier has database $_") for 'one', 'two';
set_and_wait($node, 'remote_bp.injection_point' => 'full-dictionary');
$node->safe_psql('postgres', 'CREATE DATABASE beyond TEMPLATE one STRATEGY file_copy');

# Its pages are read and written, and nothing is said of them.
sub change
{
	$node->safe_psql('beyond', 'UPDATE t SET v = v + 7; VACUUM t; UPDATE t SET v = v + 1; VACUUM t');
	$content{beyond} = content($node, 't', 'beyond');
	return;
}

# All three, by pages that are those on disk.
sub are_right
{
	my ($name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	for my $turn (1 .. 2)
	{
		for my $db (sort keys %content)
		{
			is(content($node, 't', $db), $content{$db}, "$name: rows of $db are right");
			evict_buffers($node, $db);
		}
	}
	wait_still($node, qw(captures pushes staged_pages));
	is(counter($node, 'mismatches + hash_failures'), 0, "$name: no page is different from the disk, or broken");
	return;
}

sub is_beyond
{
	my ($name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	are_right($name);
	is(tier_pages($node, 't', 'beyond'), 0, "$name: the tier has nothing of that database");
	cmp_ok(tier_pages($node, 't', $_), '>', 300, "$name: it has $_") for 'one', 'two';
	return;
}

change();
is_beyond('beyond');
my $hits = counter($node, 'hits + staged_hits');
content($node, 't', 'beyond') for 1 .. 2;
cmp_ok(counter($node, 'hits + staged_hits') - $hits, '<', 100, 'beyond: a scan of it is no hit');

# What a user may ask for
is($node->safe_psql('beyond', q{SELECT remote_bp_evict('t')}), 0, 'there is nothing to evict');
my $refused;
is($node->psql('beyond', q{SELECT remote_bp_prewarm('t')}, stderr => \$refused), 3, 'prewarm fails');
like($refused, qr/relation "t" is excluded from the tier/, 'and says why');
is($node->psql('beyond', $_), 0, $_)
  for q{SELECT remote_bp_set_policy('t', 'keep')},
  q{SELECT remote_bp_set_database_limit('beyond', 1024 * 1024)}, 'SELECT * FROM remote_bp_databases', 'SELECT * FROM remote_bp_policies',
  'SELECT count(*) FROM remote_bp_relations', q{SELECT remote_bp_set_policy('t', 'default')}, q{SELECT remote_bp_set_database_limit('beyond', NULL)};
is_beyond('a policy and a limit');

# A crash
my $before = state_of($node);
change();
ok(crash($node, 'checkpointer', whole => 1), 'a crash: a process is killed');
recovered($node, $before->{offset}, 'a crash');
is_kept($node, $before, 'a crash');
is_beyond('a crash');

# A restart, after which it has a number
change();
$before = state_of($node);
$node->stop;
$node->append_conf('postgresql.auto.conf', "remote_bp.injection_point = ''\n");
$node->start;
log_tells($node, $before->{offset}, qr/remote_bp: going on with what donors have/, 'a restart: the log says so');
is_kept($node, $before, 'a restart');
cmp_ok(tier_pages($node, 't', $_), '>', 300, "a restart: the tier has $_") for 'one', 'two';
is(tier_pages($node, 't', 'beyond'), 0, 'a restart: and nothing of the third database');
are_right('a restart');
ok(warm($node, 't', db => 'beyond'), 'there is room now: the tier has it');
change();
are_right('room');

is_clean($node);
$node->stop;
done_testing();
