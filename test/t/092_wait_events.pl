# pg_stat_activity shows what a process waits for: temporary data on a donor.
# From PostgreSQL 17 on by name; before, as a wait for an extension, and not for
# a file.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use IPC::Run ();
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use RemoteBP;
use Test::More;

my $broker = start_broker(args => [ '--donor-timeout', '600' ]);
my $donor = start_donor($broker, id => 'one', memory => '128MB');
my $node = new_cluster(
	'waits',
	broker => $broker,
	transport => 'tcp',
	# Who observes needs the catalogs at hand, and must not wait itself.
	shared_buffers => '8MB',
	conf => "remote_bp.io_timeout = '10s'\nremote_bp.temp_io_timeout = '60s'\n"
	  . "remote_bp.temp_tier_max_size = '32MB'\nremote_bp.temp_tier_size = '32MB'\nwork_mem = '64kB'\n");
ok(wait_leased($node, 64), 'memory is leased');
my $named = $node->safe_psql('postgres', 'SHOW server_version_num') >= 170000;

sub event { my ($name) = @_; return $named ? "Extension|$name" : 'Extension|Extension'; }

# What the processes with such queries or of such a type wait for.
sub waits
{
	my ($condition) = @_;
	return $node->safe_psql('postgres',
		"SELECT DISTINCT wait_event_type || '|' || wait_event FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND $condition");
}

sub in_use
{
	return wait_for('the donor to be used',
		sub { $node->safe_psql('postgres', "SELECT state FROM remote_bp_stat_donors WHERE donor = 'one'") eq 'ok' }, 120);
}

# The statement is run while the donor does not answer, until its process is
# seen to wait for it.  prepare is run before.
sub waits_for
{
	my ($prepare, $statement, $name, $what) = @_;
	my $wanted = event($name);
	my $seen = 0;
	for my $try (1 .. 5)
	{
		my ($in, $out, $err) = ("$prepare\n\\echo prepared\n", '', '');
		my $psql = IPC::Run::start([ 'psql', '-XAtq', '-d', $node->connstr('postgres'), '-f', '-' ], '<', \$in, '>', \$out, '2>', \$err);
		$psql->pump until $out =~ /prepared/;
		waits('true') for 1 .. 2;
		$donor->freeze;
		$in .= "$statement\n\\echo done\n";
		# it ends when the donor is given up
		wait_for(
			"a wait for $name",
			sub {
				$psql->pump_nb;
				$seen = waits(q{query LIKE '%/* waits */%'}) =~ /^\Q$wanted\E$/m;
				return $seen || $out =~ /done/;
			},
			60);
		$donor->thaw;
		$psql->finish;
		in_use();
		last if $seen;
		evict_buffers($node);
	}
	return ok($seen, $what);
}

make_table($node, 't', 16);
cmp_ok(warm($node, 't'), '>', 0, 'pages of a table are on the donor');
# What a held cursor has is temporary data.
ok( wait_for(
		'memory for temporary data',
		sub { $node->safe_psql('postgres', q{SELECT count(*) FROM remote_bp_leases WHERE purpose = 'temp'}) > 0 }, 60),
	'memory for temporary data is leased');
waits_for(
	'BEGIN; DECLARE c CURSOR WITH HOLD FOR SELECT id, pad FROM t; COMMIT;',
	'FETCH ALL c /* waits */;',
	'RemoteBpSpill', 'a read of temporary data is a wait for a donor');
# What was sent before the donor hung may be written when it goes on.
is_clean($node, undef, hash_failures => 1);
$node->stop;

done_testing();
