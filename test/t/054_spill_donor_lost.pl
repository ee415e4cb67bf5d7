# What becomes of spilled data when a donor is lost, hangs, is drained or
# revoked, and when the broker is away: a query that needs a lost block fails
# with SQLSTATE 58030, that query alone; nothing is ever wrong; and with a
# second copy, nothing fails.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use RemoteBP;
use RemoteBP::Daemon;
use RemoteBP::Spill;
use Test::More;
use Time::HiRes qw(sleep time);

my $broker;
my $node = spill_cluster('lost', settings => "statement_timeout = '100s'\n");
spill_data($node);
create_rows_of($node);

# A sort, all of it in a file once the first row is there.
my $declare = 'DECLARE c SCROLL CURSOR FOR SELECT id, t, pad FROM big ORDER BY t';
my $all = 'SELECT count(*), md5(string_agg(t, \'\')) FROM (SELECT t, pad FROM big ORDER BY t OFFSET 0) s';
my $join = 'SELECT count(*), sum(hashtext(a.t || b.t)::bigint) FROM big a JOIN big b USING (id)';

sub begin
{
	my ($node, @settings) = @_;
	my $session = $node->background_psql('postgres', on_error_stop => 0);
	$session->query('\set VERBOSITY sqlstate');
	$session->query($_) for @settings;
	$session->query('BEGIN');
	$session->query($declare);
	$session->query('FETCH 1 FROM c');
	return $session;
}

# The rest of its cursor, or its error: "ERROR: 58030".
sub rest
{
	my ($session) = @_;
	$session->{stderr} = '';
	my $answer = $session->query(q{SELECT rows_of('c', false)}) // '';
	return $1 if $session->{stderr} =~ /^(?:psql:\S+ )?(ERROR:\s+\S+)/m;
	return $answer;
}

my $expected = do
{
	my $session = begin($node);
	my $answer = rest($session);
	$session->quit;
	$answer;
};
like($expected, qr/^39999 -?\d+$/, 'stock: the rows');
my $all_right = $node->safe_psql('postgres', $all);
my $join_right = $node->safe_psql('postgres', $join);

# What one that lost its blocks must do: fail so, say where and which file,
# and go on.
sub fails_alone
{
	my ($node, $session, $donor, $name) = @_;
	my $offset = log_size($node);
	my $pid = $session->query('SELECT pg_backend_pid()');
	is(rest($session) =~ s/\s+/ /r, 'ERROR: 58030', "$name: the query fails");
	my $log = log_since($node, $offset);
	like($log, qr{ERROR:  could not read block \d+ of temporary file "base/pgsql_tmp/pgsql_tmp$pid\.\d+" from donor "$donor"}, "$name: the log names donor and file");
	like($log, qr/ERROR:  could not read.*\n(?:.*(?:HINT|CONTEXT): .*\n)*.*STATEMENT: /, "$name: the log names the query that failed");
	goes_on($node, $session, $name);
	return;
}

# The session is as good as any after it.
sub goes_on
{
	my ($node, $session, $name) = @_;
	$session->query('ROLLBACK');
	is($session->query($all), $all_right, "$name: the session goes on");
	$session->query('BEGIN');
	$session->query($declare);
	$session->query('FETCH 1 FROM c');
	is(rest($session), $expected, "$name: the session goes on with such a cursor");
	$session->quit;
	return;
}

my $since = 0;
sub start
{
	my ($transport, $name, %opt) = @_;
	$since = log_size($node);
	ok( spill_mode(
			$node,
			broker => $broker,
			transport => $transport,
			temp => '32MB',
			%opt,
			conf => "remote_bp.io_timeout = '1s'\n" . ($opt{conf} // '')),
		"$name: memory is leased");
	return;
}

# A broker of its own for each part, that does not know of donors that were
# killed before.
my $brokers = 0;
sub new_broker
{
	$broker->kill9 if $broker;
	$broker = start_broker(name => 'broker' . ++$brokers, args => [@_]);
	return;
}

my $donors = 0;
sub new_donor
{
	return start_donor($broker, id => 'donor' . ++$donors, memory => '64MB', region_size => '4MB', @_);
}

# A donor that is of no more use in the next part.
sub dismiss
{
	for my $donor (@_)
	{
		$donor->thaw;
		$donor->kill9;
	}
	return;
}

#---- killed ---------------------------------------------------------------

for my $transport ('tcp', 'shm')
{
	my $name = "$transport, killed";
	# given up after 6 s, instead of 30
	new_broker('--donor-timeout=2');
	my $donor = new_donor();
	start($transport, $name, buffer => '16MB');
	make_table($node, 'buffered', 6);
	my $buffered = content($node, 'buffered');
	my $session = begin($node);
	my $other = begin($node, 'SET remote_bp.spill_temp_files = off');
	my $blocks = $session->query('SELECT sum(remote_bytes) FROM remote_bp_temp_files');
	cmp_ok($blocks, '>', 3000000, "$name: blocks are on the donor");
	$donor->kill9;
	if ($transport eq 'tcp')
	{
		fails_alone($node, $session, $donor->{name}, $name);
	}
	else
	{
		# Its memory may live for as long as it is mapped.
		my $answer = rest($session) =~ s/\s+/ /r;
		ok($answer eq $expected || $answer eq 'ERROR: 58030', "$name: the query is right, or fails ($answer)");
		goes_on($node, $session, $name);
	}
	is(rest($other), $expected, "$name: a query of another session does not fail");
	$other->quit;
	is(content($node, 'buffered'), $buffered, "$name: a query that reads pages of the buffer tier does not fail");
	is($node->safe_psql('postgres', $join), $join_right, "$name: a later query does not fail");
	spill_is_idle($node, $name);

	# Another donor, and it is as it was.
	my $next = new_donor();
	ok( wait_for(
			'memory of another donor',
			sub {
				$node->safe_psql('postgres',
					"SELECT sum(bytes) FROM remote_bp_leases WHERE donor = '$next->{name}' AND purpose = 'temp'") eq 32 * 1024 * 1024;
			}),
		"$name: memory of another donor is leased");
	$session = begin($node);
	is(rest($session), $expected, "$name: a query is right with memory of another donor");
	$session->quit;
	spills($node, $all, $all_right, $name);
	is(counter($node, 'spill.lost_pages'), 0, "$name: no page counts as lost any more");
	spill_is_clean($node, $name, offset => $since, lost => 1);
	$node->safe_psql('postgres', 'DROP TABLE buffered');
	$node->stop;
	dismiss($next);
}

# A temporary table whose blocks are lost can be dropped.
{
	my $name = 'tcp, temporary table';
	new_broker();
	my $donor = new_donor();
	start('tcp', $name);
	my $session = $node->background_psql('postgres', on_error_stop => 0);
	$session->query('\set VERBOSITY sqlstate');
	$session->query($_)
	  for 'SET remote_bp.spill_temp_tables = on', "SET temp_buffers = '800kB'", 'CREATE TEMP TABLE f AS SELECT * FROM big';
	cmp_ok($session->query('SELECT sum(remote_bytes) FROM remote_bp_temp_files WHERE temp_relation'), '>', 2000000, "$name: blocks are on the donor");
	$donor->kill9;
	my $offset = log_size($node);
	$session->query('SELECT count(*), max(t) FROM f');
	like($session->{stderr}, qr/ERROR:\s+58030/, "$name: a read of it fails");
	like($node->safe_psql('postgres', 'SELECT ok, problem FROM remote_bp_health'),
		qr/^f\|.*\d+ reads of temporary blocks that failed/, "$name: it is a problem");
	log_tells($node, $offset, qr{could not read block \d+ of temporary file "base/\d+/t\d+_\d+" from donor "$donor->{name}"}, "$name: the log names donor and file after a read of the table");
	$session->query('DROP TABLE f');
	$session->query('CREATE TEMP TABLE f AS SELECT * FROM big');
	is($session->query('SELECT count(*), max(t) FROM f'), '40000|fffe9f664c2ddba4a37bcd35936c7422', "$name: the table can be made anew");
	$session->query('TRUNCATE f');
	$session->quit;
	spill_is_clean($node, $name, offset => $since, lost => 1);
	$node->stop;
}

# Two copies: whatever becomes of one donor, nothing fails.
for my $transport ('tcp', 'shm')
{
	my $name = "$transport, two copies";
	new_broker();
	my @two = (new_donor(), new_donor());
	start($transport, $name, temp => '64MB', conf => "remote_bp.temp_mirror = on\n");
	my $session = begin($node);
	my $second = begin($node);
	my ($remote, $mirrored) = split /\|/, $session->query('SELECT sum(remote_bytes), sum(mirrored_bytes) FROM remote_bp_temp_files');
	cmp_ok($remote, '>', 6000000, "$name: blocks are on donors");
	is($mirrored, $remote, "$name: all of them twice");

	# Queries that write and read all the while, with a check of each result.
	my $log = PostgreSQL::Test::Utils::tempdir() . "/load_$transport.log";
	my $script = PostgreSQL::Test::Utils::tempdir() . "/load_$transport.sql";
	my ($count, $sum) = split /\|/, $join_right;
	append_to_file($script, "SELECT 1 / (count(*) = $count AND sum(hashtext(a.t || b.t)::bigint) = $sum)::int FROM big a JOIN big b USING (id);\n");
	my $load = RemoteBP::Daemon->start(
		name => 'load',
		log => $log,
		listens => 0,
		command => [ 'pgbench', '-n', '-T', '8', '-c', '3', '-j', '1', '-f', $script, $node->connstr('postgres') ]);
	my $writes = counter($node, 'spill.writes');
	wait_for('it to spill', sub { counter($node, 'spill.writes') > $writes });
	my $offset = log_size($node);
	$two[0]->kill9;
	is(rest($session), $expected, "$name: a query reads on when one is killed");
	is($load->wait_end(60), 0, "$name: queries that wrote and read meanwhile did not fail")
	  or diag($load->log_text);
	is(scalar(grep { /ERROR:/ } split /\n/, log_since($node, $offset)), 0, "$name: no other query fails when one donor is killed");
	cmp_ok(counter($node, 'spill.mirror_reads'), '>', 0, "$name: blocks came from the second copy")
	  if $transport eq 'tcp';
	is(counter($node, 'spill.lost'), 0, "$name: no block was lost");

	# The other one hangs now, and with it all that is left, until it goes on.
	if ($transport eq 'tcp')
	{
		my $third = new_donor();
		ok(wait_temp_leased($node, 64), "$name: a third donor is used");
		my $mirrored_again = begin($node);
		$third->freeze;
		is(rest($mirrored_again), $expected, "$name: a query reads on when one hangs");
		$third->thaw;
		$mirrored_again->quit;
		push @two, $third;
	}
	is(rest($second), $expected, "$name: a cursor from before is right");
	$_->quit for $session, $second;
	spill_is_clean($node, $name, offset => $since, hash_failures => 1);
	$node->stop;
	dismiss(@two);
}

#---- hanging --------------------------------------------------------------

{
	my $name = 'tcp, hanging';
	new_broker();
	my $donor = new_donor();
	start('tcp', $name, conf => "remote_bp.temp_io_timeout = '2s'\n");
	my $session = begin($node);
	$donor->freeze;
	fails_alone($node, $session, $donor->{name}, $name);
	$donor->thaw;

	# It goes on in time.
	$node->append_conf('mode.conf', "remote_bp.temp_io_timeout = '60s'");
	$node->reload;
	ok( wait_for(
			'the donor to be used again',
			sub {
				my $writes = counter($node, 'spill.writes');
				$node->safe_psql('postgres', $all);
				return counter($node, 'spill.writes') > $writes;
			}),
		"$name: the donor is used again");
	$session = begin($node);
	cmp_ok($session->query('SELECT sum(remote_bytes) FROM remote_bp_temp_files'), '>', 3000000, "$name: blocks are there again");
	$donor->freeze;
	$session->{stderr} = '';
	$session->query_until(qr/begins/, "\\echo begins\nSELECT rows_of('c', false);\n");
	sleep 3;
	$donor->thaw;
	like($session->query('SELECT 1'), qr/^\Q$expected\E\n1$/, "$name: a donor that goes on in time fails no query");
	$session->quit;

	# It hangs while queries write: these blocks go to the disk, or it goes
	# on in time.
	my $writer = $node->background_psql('postgres');
	$writer->query("SET enable_mergejoin = off");
	$writer->query_until(qr/begins/, "\\echo begins\n$all;\n$join;\n");
	sleep 0.1;
	$donor->freeze;
	sleep 2;
	$donor->thaw;
	is($writer->query('SELECT 1'), "$all_right\n$join_right\n1", "$name: a donor that goes on in time fails no query that writes");
	$writer->quit;
	spill_is_clean($node, $name, offset => $since, lost => 1);
	$node->stop;
	dismiss($donor);
}

#---- leases that end ------------------------------------------------------

for my $transport ('tcp', 'shm')
{
	my $name = "$transport, revoked";
	new_broker();
	my $donor = new_donor();
	start($transport, $name);
	my $session = begin($node);
	my $other = begin($node, 'SET remote_bp.spill_temp_files = off');
	my $lease = $node->safe_psql('postgres', q{SELECT DISTINCT lease FROM remote_bp_leases WHERE purpose = 'temp'});
	my $buffer_lease = q{SELECT DISTINCT lease FROM remote_bp_leases WHERE purpose = 'buffer'};
	my $before = $node->safe_psql('postgres', $buffer_lease);
	my ($status) = ctl($broker, 'revoke', $lease);
	is($status, 0, "$name: the lease is revoked");
	fails_alone($node, $session, $donor->{name}, $name);
	is(rest($other), $expected, "$name: a query of another session does not fail");
	$other->quit;
	ok( wait_for(
			'another lease',
			sub {
				temp_leased($node) > 0
				  && $node->safe_psql('postgres', q{SELECT DISTINCT lease FROM remote_bp_leases WHERE purpose = 'temp'}) ne $lease;
			}),
		"$name: another one comes");
	ok(wait_temp_leased($node, 32), "$name: the new lease has all memory");
	is($node->safe_psql('postgres', $buffer_lease), $before, "$name: the lease for buffer pages is the same");
	$session = begin($node);
	is(rest($session), $expected, "$name: the new lease is used");
	$session->quit;
	is(counter($node, 'spill.lost_pages'), 0, "$name: no page counts as lost any more");
	spill_is_clean($node, $name, offset => $since, lost => 1);
	$node->stop;
	dismiss($donor);
}

{
	my $name = 'broker away';
	new_broker();
	my $donor = new_donor();
	start('tcp', $name, conf => "remote_bp.lease_ttl = '20s'\n");
	my $session = begin($node);
	$broker->kill9;
	is(rest($session), $expected, "$name: nothing fails before the lease ends");
	$session->query('ROLLBACK');
	$session->query('BEGIN');
	$session->query($declare);
	$session->query('FETCH 1 FROM c');
	my $still = $session->query('SELECT coalesce(sum(remote_bytes), 0) FROM remote_bp_temp_files');
	ok( wait_for(
			'the lease to end',
			sub {
				$node->safe_psql('postgres', q{SELECT count(*) FROM remote_bp_leases WHERE purpose = 'temp' AND expires_in > interval '0'}) == 0;
			},
			120),
		"$name: the lease ends");
	cmp_ok($still, '>', 3000000, "$name: blocks are on the donor before the lease ends");
	fails_alone($node, $session, $donor->{name}, $name);
	is($node->safe_psql('postgres', $join), $join_right, "$name: queries use the disk then");
	$broker = restart_broker($broker);
	ok(wait_temp_leased($node, 32), "$name: there is a lease again when the broker is back");
	spills($node, $all, $all_right, $name);
	spill_is_clean($node, $name, offset => $since, lost => 1);
	$node->stop;
	dismiss($donor);
}

#---- memory that is asked back ----------------------------------------------

for my $transport ('tcp', 'shm')
{
	# To other donors, where there are any, else to the disk.
	my $name = "$transport, drained";
	new_broker();
	my @two = (new_donor());
	start($transport, $name, temp => '48MB', leased => '40MB', buffer => '4MB');
	push @two, new_donor();
	my @sessions = (begin($node), begin($node, 'SET work_mem = 200'));
	my $table = $node->background_psql('postgres');
	$table->query($_)
	  for 'SET remote_bp.spill_temp_tables = on', "SET temp_buffers = '800kB'", 'CREATE TEMP TABLE f AS SELECT * FROM big';
	my $sum = $table->query('SELECT count(*), sum(hashtextextended(f::text, 0)::numeric) FROM f');
	cmp_ok(counter($node, 'spill.pages') * 8192, '>', 9000000, "$name: blocks are on donors");
	for my $donor (@two)
	{
		my ($status) = ctl($broker, 'drain', $donor->{name});
		is($status, 0, "$name: $donor->{name} is drained");
		ok( wait_for(
				'its memory to come back',
				sub {
					$node->safe_psql('postgres', "SELECT count(*) FROM remote_bp_leases WHERE donor = '$donor->{name}'") == 0;
				}),
			"$name: the drained donor gets its memory back");
		is($table->query('SELECT count(*), sum(hashtextextended(f::text, 0)::numeric) FROM f'), $sum, "$name: a temporary table is right");
	}
	cmp_ok(counter($node, 'spill.evacuated'), '>', 1000, "$name: blocks have moved");
	is($node->safe_psql('postgres', 'SELECT sum(remote_bytes) FROM remote_bp_temp_files'), 0, "$name: all blocks have moved");
	is($_->stop, 0, "$name: $_->{name} stops cleanly") for @two;
	is(rest($_), $expected, "$name: queries go on") for @sessions;
	is($node->safe_psql('postgres', $join), $join_right, "$name: a new query is right");
	$_->quit for @sessions, $table;
	spill_is_clean($node, $name, offset => $since);
	$node->stop;

	# The server gives it back itself, while queries write.
	$name = "$transport, lowered to nothing";
	new_broker();
	my $donor = new_donor();
	start($transport, $name);
	my $session = begin($node);
	$session->query('MOVE 10000 FROM c');
	my $writer = $node->background_psql('postgres');
	$writer->query('SET enable_mergejoin = off');
	$writer->query_until(qr/begins/, "\\echo begins\n$join;\n$all;\n$join;\n");
	$node->append_conf('mode.conf', 'remote_bp.temp_tier_size = 0');
	$node->reload;
	ok(wait_for('the memory to be given back', sub { temp_leased($node) == 0 }), "$name: nothing is leased");
	is($writer->query('SELECT 1'), join("\n", $join_right, $all_right, $join_right, 1), "$name: queries meanwhile are right");
	$session->query('MOVE ABSOLUTE 1 FROM c');
	is(rest($session), $expected, "$name: a cursor from before is right");
	cmp_ok(counter($node, 'spill.evacuated'), '>', 0, "$name: blocks have moved");
	$_->quit for $session, $writer;
	spill_is_clean($node, $name, offset => $since);
	$node->stop;
	dismiss($donor);
}

done_testing();
