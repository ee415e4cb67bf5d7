# Donors have less memory than the leases want.  The first lease takes all; a
# temp lease of the same server, and another server's lease, get their share of
# it all the same, and what one gives up goes to the others.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use RemoteBP;
use RemoteBP::Spill qw(spills);
use Test::More;

my $broker = start_broker();
my $donor = start_donor($broker, memory => '128MB', region_size => '8MB');

# Megabytes of each lease, as the servers know them.
sub megabytes
{
	my ($node, $purpose) = @_;
	return $node->safe_psql('postgres',
		"SELECT coalesce(sum(bytes), 0)::bigint / 1024 / 1024 FROM remote_bp_leases WHERE purpose = '$purpose'");
}

sub shares
{
	my (@leases) = @_;
	return join(' ', map { megabytes(@$_) } @leases);
}

sub come_to
{
	my ($wanted, $name, @leases) = @_;
	my $got;
	ok(wait_for($wanted, sub { ($got = shares(@leases)) eq $wanted }, 90), $name)
	  or diag("got $got, wanted $wanted");
	return;
}

my %size = (broker => $broker, tier => '128MB', shared_buffers => '4MB');
my $one = new_cluster('one', %size, conf => "remote_bp.temp_tier_max_size = '64MB'\nwork_mem = '64kB'\n");
my @buffer1 = ($one, 'buffer');
my @temp1 = ($one, 'temp');
come_to('128', 'the first server gets all there is', \@buffer1);
make_table($one, 'pages', 60);
my $content = content($one, 'pages');
ok(warm($one, 'pages'), 'the first server uses the memory');

$one->safe_psql('postgres', "ALTER SYSTEM SET remote_bp.temp_tier_size = '64MB'");
$one->reload;
come_to('64 64', 'its temporary data gets an equal share', \@buffer1, \@temp1);
like(
	log_since($one),
	qr/remote_bp: gave \d+ regions of donor "donor1" back, as the broker asked\n.*DETAIL: .*other leases have less than their share/,
	'the log tells what was given back, and to whom it may be due');
is(content($one, 'pages'), $content, 'the pages are what they were');
my $sorted = 'SELECT md5(string_agg(id::text, $$,$$ ORDER BY pad, id)) FROM pages';
my $sum = $one->safe_psql('postgres', "SET remote_bp.spill_temp_files = off; $sorted");
spills($one, $sorted, $sum, 'leased');

my $two = new_cluster('two', %size);
my @buffer2 = ($two, 'buffer');
come_to('32 64 32', 'a second server gets its share of what temporary data leaves', \@buffer1, \@temp1, \@buffer2);
is(content($one, 'pages'), $content, 'the first still has its pages');
is($one->safe_psql('postgres', $sorted), $sum, 'the first server sorts');
is(counter($one, 'spill.lost'), 0, 'nothing was lost');
make_table($two, 'pages', 20);
ok(warm($two, 'pages'), 'the second uses its share');

$two->stop;
come_to('64 64', 'when it has gone the others have its share', \@buffer1, \@temp1);
is_clean($one);
$one->stop;
like($broker->log_text, qr/lease \S+ of \S+ has more than its share of 64 MB: 8 regions are asked back for others/, 'the broker tells');
$donor->kill9;
$broker->kill9;

done_testing();
