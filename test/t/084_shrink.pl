# A tier that shrinks keeps the pages that fit into what is left, on both of
# its donors; a donor that hangs meanwhile is not waited for.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use RemoteBP;
use Test::More;

my $MB = 1024 * 1024;
my $broker = start_broker();
my %donor = map { $_ => start_donor($broker, id => $_, memory => '64MB') } qw(one two);
# A machine that is busy shall not be the ground that a page is not moved.
my $node = new_cluster('shrink', broker => $broker, tier => '128MB', conf => "remote_bp.io_timeout = '2s'\n");
ok(wait_leased($node, 128), 'memory is leased');
make_table($node, 't', 32);
my $content = content($node, 't');

sub resize
{
	my ($size) = @_;
	$node->safe_psql('postgres', "ALTER SYSTEM SET remote_bp.buffer_tier_size = '${size}MB'");
	$node->reload;
	return wait_for("$size MB", sub { leased_bytes($node) == $size * $MB }, 120);
}

sub donors
{
	return $node->safe_psql('postgres',
		'SELECT string_agg(bytes || $$ $$ || donor, $$, $$ ORDER BY donor) FROM (SELECT donor, sum(bytes) AS bytes FROM remote_bp_leases GROUP BY donor) d'
	);
}

# Half full: what there is fits into half of it.
my $before = warm($node, 't', part => 0.9);
cmp_ok($before, '>', 3600, 'the tier holds the table');
ok(resize(64), 'shrunk to a half');
my $after = tier_pages($node, 't');
note(join ' ', map { "$_ " . counter($node, $_) } qw(evictions pushes_failed pushes_no_slot pushes_stale drops_full));
cmp_ok($after, '>=', $before * 0.97, 'pages that fit are kept');
is(donors(), join(', ', 32 * $MB . ' one', 32 * $MB . ' two'), 'both donors keep their share');
evict_buffers($node);
my $c = counters($node);
is(content($node, 't'), $content, 'the table is what it was');
my $d = counters($node);
cmp_ok($d->{hits} + $d->{staged_hits} - $c->{hits} - $c->{staged_hits}, '>=', $before * 0.9, 'the table is read from the tier');

# What does not fit goes; what was read stays, since all of it was.
ok(resize(32), 'shrunk to what is too small');
cmp_ok($node->safe_psql('postgres', 'SELECT remote_pages FROM remote_bp_stat'), '<=', 32 * $MB / 8192, 'no more than there is room for');
cmp_ok(tier_pages($node, 't'), '>', 1000, 'the tier is not empty');
is(donors(), join(', ', 16 * $MB . ' one', 16 * $MB . ' two'), 'both donors lend the rest');
is(content($node, 't'), $content, 'the table is what it was');

# A donor that does not answer: its memory goes back all the same.
ok(resize(128), 'grown again');
warm($node, 't', part => 0.9);
$donor{one}->freeze;
ok(resize(64), 'shrunk while a donor hangs');
$donor{one}->thaw;
is(content($node, 't'), $content, 'the table is what it was');

is_clean($node);
$node->stop;

done_testing();
