# Pages and temporary blocks are encrypted before they leave the server: nothing that is
# known of them is in a donor's memory, and what comes back is right, also after a crash, a
# restart, and where a donor returns other bytes.
# Timeout: 1800

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use Digest::MD5 qw(md5_hex);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use RemoteBP;
use RemoteBP::Kept;
use RemoteBP::Preload;
use RemoteBP::Spill;
use Test::More;

my $KNOWN = 1000;
my $by_value = q{SELECT md5(string_agg(t, '')) FROM (SELECT t FROM secrets ORDER BY md5(t), id OFFSET 0) s};

my $broker = start_broker();
my $donor = do
{
	local $ENV{LD_PRELOAD} = preload_library('dumpable');
	start_donor($broker, memory => '128MB');
};

# The files of the donor's regions
sub memory_of
{
	my ($daemon) = @_;
	my @files = grep { (readlink // '') =~ m{^/memfd:} } glob "/proc/$daemon->{pid}/fd/*";
	return @files ? @files : BAIL_OUT("the memory of process $daemon->{pid} cannot be seen");
}

# How many of the strings are there
sub known_strings
{
	my %found;
	for my $file (memory_of($donor))
	{
		open my $fh, '<:raw', $file or die "$file: $!";
		local $/;
		my $bytes = <$fh>;
		while ($bytes =~ /Known~(\d+)~([0-9a-f]{32})/g)
		{
			$found{$1} = 1 if $2 eq md5_hex("string $1");
		}
	}
	return scalar keys %found;
}

# Change one bit of each page, by the donor's mappings: files of huge pages cannot be written.
sub flip_bits
{
	open my $fh, '+<:raw', "/proc/$donor->{pid}/mem" or die "the donor's memory: $!";
	for (split /\n/, slurp_file("/proc/$donor->{pid}/maps"))
	{
		my ($from, $to) = m{^([0-9a-f]+)-([0-9a-f]+) .*/memfd:} or next;
		for (my $at = hex($from) + 4096; $at < hex($to); $at += 8192)
		{
			sysseek $fh, $at, 0;
			sysread $fh, my $byte, 1;
			sysseek $fh, $at, 0;
			(syswrite $fh, chr(ord($byte) ^ 16)) or die "the donor's memory: $!";
		}
	}
	return;
}

sub start_node
{
	my ($name, $transport, $encrypt, %opt) = @_;
	my $node = kept_cluster(
		$name,
		broker => $broker,
		transport => $transport,
		tier => '64MB',
		%opt,
		conf => <<"CONF");
remote_bp.encrypt = '$encrypt'
remote_bp.temp_tier_max_size = 16MB
remote_bp.temp_tier_size = 16MB
remote_bp.temp_io_timeout = 30s
work_mem = 64kB
CONF
	ok(wait_temp_leased($node, 16), "$name: memory is leased for temporary data");
	$node->safe_psql('postgres', <<"SQL");
CREATE TABLE secrets (id int, v int, t text, pad text) WITH (autovacuum_enabled = off);
ALTER TABLE secrets ALTER pad SET STORAGE plain;
INSERT INTO secrets SELECT i, 0, format('Known~%s~%s', i % $KNOWN, md5('string ' || i % $KNOWN)), rpad('', 300, 'p') FROM generate_series(1, 5 * $KNOWN) i;
VACUUM secrets;
CHECKPOINT;
SQL
	ok(warm($node, 'secrets', part => 0.8), "$name: so are pages with known strings");
	return $node;
}

# What a node does, whichever way it goes
sub works
{
	my ($node, $name) = @_;
	my $sorted = $node->safe_psql('postgres', "SET work_mem = '64MB'; $by_value");
	spills($node, $by_value, $sorted, $name);
	my $rows = $node->safe_psql('postgres', q{SELECT count(*), md5(string_agg(t, '' ORDER BY id)) FROM secrets});
	evict_buffers($node);
	is($node->safe_psql('postgres', q{SELECT count(*), md5(string_agg(t, '' ORDER BY id)) FROM secrets}), $rows, "$name: pages are right");
	is(counter($node, 'mismatches + hash_failures + seal_failures'), 0, "$name: none is different or broken");
	is(counter($node, 'spill.hash_failures + spill.seal_failures + spill.lost'), 0, "$name: nor is a temporary block");
	return;
}

# A donor on another machine: with faults, in a test build, no connection is known to lead to this one.
{
	need_test_build();
	set_faults();
	my $node = start_node('elsewhere', 'tcp', 'auto', test_build => 1, warm_restart => 'crash');
	works($node, 'auto, elsewhere');
	is(known_strings(), 0, "auto, elsewhere: no string is in the donor's memory");
	$node->stop;
}

for my $way ([ 'tcp', 'on' ], [ 'shm', 'on' ])
{
	my ($transport, $encrypt) = @$way;
	my $name = "$transport, $encrypt";
	my $node = start_node("sealed_$transport", $transport, $encrypt);
	works($node, $name);
	is($node->safe_psql('postgres', 'SELECT DISTINCT transport FROM remote_bp_stat_donors'), $transport, "$name: over this transport");
	is(known_strings(), 0, "$name: no string is in the donor's memory");

	my $before = state_of($node);
	ok(crash($node, 'client backend'), "$name: a backend is killed");
	recovered($node, $before->{offset}, "$name, a crash");
	is_kept($node, $before, "$name, a crash");
	ok(wait_temp_leased($node, 16), "$name: memory is leased for temporary data again");
	works($node, "$name, after a crash");

	for my $time (1, 2)
	{
		$before = state_of($node);
		$node->restart;
		is_kept($node, $before, "$name, restart $time");
	}
	ok(wait_temp_leased($node, 16), "$name: memory is leased for temporary data again");
	works($node, "$name, after a restart");
	ok(warm($node, 'secrets', part => 0.8), "$name: more pages come");
	is(known_strings(), 0, "$name: still no string is in the donor's memory");

	# The donor changes what it has: nothing of that is believed.
	my $content = content($node, 'pages');
	evict_buffers($node);
	flip_bits();
	is(content($node, 'pages'), $content, "$name: one bit of each page is flipped, and rows are right");
	cmp_ok(counter($node, 'seal_failures'), '>', 0, "$name: it was noticed");
	is(counter($node, 'seal_failures - hash_failures'), 0, "$name: by the seal");
	is(counter($node, 'mismatches'), 0, "$name: no page is different from the disk");
	ok(wait_for('the donor to be down', sub {
			evict_buffers($node);
			content($node, 'pages');
			return $node->safe_psql('postgres', 'SELECT state, last_error FROM remote_bp_stat_donors') =~ /^(?:down|ok)\|it returned wrong bytes over /;
		}), "$name: the donor is to blame")
	  or diag($node->safe_psql('postgres', 'TABLE remote_bp_stat_donors'));

	# Without encryption what was sealed cannot be read: all begins anew, in the clear.
	if ($transport eq 'tcp')
	{
		my $offset = log_size($node);
		$node->append_conf('postgresql.conf', 'remote_bp.encrypt = off');
		$node->restart;
		log_tells($node, $offset, qr/although the last stop has left an image of it: .*remote_bp\.encrypt is off now/, 'off: the log says why the tier is empty');
		ok(wait_leased($node, 64) && wait_temp_leased($node, 16) && wait_usable($node), 'off: memory is leased');
		ok(warm($node, 'secrets', part => 0.8), 'off: pages come');
		works($node, 'off');
		cmp_ok(known_strings(), '>', 0.5 * $KNOWN, "off: strings are in the donor's memory");
		$before = state_of($node);
		$node->append_conf('postgresql.conf', 'remote_bp.encrypt = on');
		$node->restart;
		is_kept($node, $before, 'on again: what is there in the clear');
		works($node, 'on again');
	}
	# It gives back what it holds, so it has to hold it before it is stopped.
	$node->append_conf('postgresql.conf', 'remote_bp.warm_restart = crash');
	$node->restart;
	ok(wait_leased($node, 64, 120) && wait_temp_leased($node, 16), "$name: memory is leased before the last stop");
	$node->stop;
}

# A donor at an address of this machine
{
	my $node = start_node('here', 'tcp', 'auto');
	works($node, 'auto, here');
	cmp_ok(known_strings(), '>', 0.5 * $KNOWN, "auto, here: strings are in the donor's memory");
}

done_testing();
