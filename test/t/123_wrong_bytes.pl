# A donor that answers in time, with wrong bytes: it is down before long, for longer
# each time, and the log and the view say why; the other donor is used as ever.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use RemoteBP;
use RemoteBP::Spill;
use Test::More;

need_test_build();
set_faults();
my $broker = start_broker();
my @donors = map { start_donor($broker, id => $_, memory => '48MB', region_size => '2MB') } qw(bad good);

# "state|last_error" of the donor
sub donor
{
	my ($node, $donor) = @_;
	return $node->safe_psql('postgres', "SELECT state, last_error FROM remote_bp_stat_donors WHERE donor = '$donor'");
}

sub is_told
{
	my ($node, $name, $use) = @_;
	my $size = log_size($node);
	ok(wait_for('the donor to be down', sub { $use->(); donor($node, 'bad') =~ /^down\|it returned wrong bytes over / }, 120),
		"$name: the view says that the donor is down, and why")
	  or diag(donor($node, 'bad'));
	is(donor($node, 'good'), 'ok|', "$name: the other one is in use");
	log_tells($node, $size, qr/LOG:  remote_bp: donor "bad" is down: it returned wrong bytes over /, "$name: so does the log");
	return;
}

for my $transport ('tcp', 'shm')
{
	my $node = new_cluster(
		"wrong_$transport",
		broker => $broker,
		transport => $transport,
		tier => '32MB',
		test_build => 1,
		conf => "remote_bp.io_timeout = '2s'\n");
	wait_leased($node, 32) or BAIL_OUT('no memory');
	make_table($node, 't', 12);
	my $right = content($node, 't');
	ok(warm($node, 't'), "$transport: the tier has the table");
	my $pages_of_bad = "SELECT used_bytes / 8192 FROM remote_bp_stat_donors WHERE donor = 'bad'";
	cmp_ok($node->safe_psql('postgres', $pages_of_bad), '>', 400, "$transport: much of it is there");

	set_faults('donor bad read corrupt');
	my $began = time;
	is_told($node, $transport, sub { is(content($node, 't'), $right, "$transport: no query sees them") });
	for my $round (1 .. 10)
	{
		is(content($node, 't'), $right, "$transport: round $round");
		evict_buffers($node);
	}
	# 16 bring it down, each time for twice as long; some are read at the same time.
	my $times = 3 + log(1 + time - $began) / log(2);
	cmp_ok(counter($node, 'hash_failures'), '<', 32 * $times, "$transport: it was rarely asked");
	like($node->safe_psql('postgres', 'SELECT ok, problem FROM remote_bp_health'),
		qr/^f\|.*\d+ reads from donors whose content did not match its hash/, "$transport: it is a problem");
	set_faults();
	ok(wait_for('the donor', sub { content($node, 't'); evict_buffers($node); donor($node, 'bad') =~ /^ok\|/ }, 180),
		"$transport: it is used again when it has had its time");
	is_clean($node, $transport, hash_failures => 1);
	$node->stop;
}

# Temporary data, with two copies
{
	my $node = spill_cluster(
		'wrong_spill',
		broker => $broker,
		transport => 'tcp',
		temp => '32MB',
		buffer => '8MB',
		test_build => 1,
		conf => "remote_bp.temp_mirror = on\nremote_bp.temp_io_timeout = '5s'\n");
	spill_data($node, rows => 12000);
	my $query = q{SELECT md5(string_agg(t || pad, '')) FROM (SELECT t, pad FROM big ORDER BY t OFFSET 0) s};
	my $right = $node->safe_psql('postgres', "SET work_mem = '64MB'; $query");
	# nothing of the buffer tier is read meanwhile
	$node->safe_psql('postgres', q{ALTER SYSTEM SET remote_bp.enabled = off});
	$node->reload;
	ok(wait_for('spilled blocks', sub { my $n = counter($node, 'spill.writes'); $node->safe_psql('postgres', $query); counter($node, 'spill.writes') > $n }),
		'temporary data: donors are used');
	set_faults('donor bad read corrupt');
	is_told($node, 'temporary data', sub { is($node->safe_psql('postgres', $query), $right, 'temporary data: the other copy is read') });
	cmp_ok(counter($node, 'spill.hash_failures'), '>=', 16, 'temporary data: they were counted');
	like($node->safe_psql('postgres', 'SELECT ok, problem FROM remote_bp_health'),
		qr/^f\|.*\d+ copies of temporary blocks that did not match their hash/, 'temporary data: they are a problem');
	set_faults();
	is_clean($node, 'temporary data', no_compare => 1);
	$node->stop;
}

done_testing();
