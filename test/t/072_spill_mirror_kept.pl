# A block of temporary data that goes to two donors, of which one does not
# take it, while the real file cannot be written either: the copy that has
# arrived is kept, and nothing is lost.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use RemoteBP;
use RemoteBP::Spill;
use Test::More;

my $node = spill_cluster('kept');
spill_data($node);
create_rows_of($node);

# One file, which grows as rows are fetched for the first time.
my $declare = 'DECLARE c SCROLL CURSOR FOR WITH w AS MATERIALIZED (SELECT id, t, pad FROM big) SELECT * FROM w';

sub begin
{
	my $session = $node->background_psql('postgres', on_error_stop => 0);
	$session->query('BEGIN');
	$session->query($declare);
	$session->query('MOVE 10000 FROM c');
	return $session;
}

# Bytes on donors, and how many of them are there twice.
sub bytes
{
	my ($session) = @_;
	return split /\|/, $session->query('SELECT sum(remote_bytes), sum(mirrored_bytes) FROM remote_bp_temp_files');
}

my $plain = begin();
my $expected = $plain->query(q{SELECT rows_of('c')});
$plain->quit;
like($expected, qr/^40000 -?\d+$/, 'stock: the rows');

my $broker = start_broker();
my @donors = map { start_donor($broker, id => "donor$_", memory => '32MB', region_size => '4MB') } 1 .. 2;
ok( spill_mode(
		$node,
		broker => $broker,
		transport => 'tcp',
		temp => '32MB',
		# nothing but these writes shall find out about a donor
		conf => "remote_bp.buffer_tier_size = 0\nremote_bp.temp_mirror = on\nremote_bp.io_timeout = '500ms'\n"),
	'memory is leased');

# Each has the first copy of some blocks, and the second one of others.
for my $donor (@donors)
{
	my $name = $donor->{name};
	my ($session, $remote, $mirrored);
	ok( wait_for(
			'both donors to be used',
			sub {
				$session = begin();
				($remote, $mirrored) = bytes($session);
				return 1 if $remote > 0 && $mirrored == $remote;
				$session->quit;
				return 0;
			}),
		"$name: blocks are on both donors");
	my $pid = $session->query('SELECT pg_backend_pid()');
	my @files = map { $node->data_dir . "/$_" } grep { /pgsql_tmp$pid\./ } temp_paths($node);
	is(scalar @files, 1, "$name: there is a real file");
	is(chmod(0400, @files), 1, "$name: the real file cannot be opened for writing");

	my $offset = log_size($node);
	$donor->freeze;
	$session->query('MOVE 10000 FROM c');
	$donor->thaw;
	($remote, $mirrored) = bytes($session);
	cmp_ok($mirrored, '<', $remote, "$name: blocks that the file did not take are kept on the other donor");
	is($session->query(q{SELECT rows_of('c')}), $expected, "$name: all rows are right");
	is($session->{stderr}, '', "$name: without an error");
	unlike(log_since($node, $offset), qr/is lost|was lost/, "$name: no block is lost");
	$session->quit;
	spill_is_idle($node, $name);
}
spill_is_clean($node, 'in the end');
$node->stop;

done_testing();
