# Whoever runs a query that needs a lost temporary block is told which block it
# was, on which donor, and why it could not be read, and what to do, not only that
# a file could not be read, as if a disk had failed; a handler sees it too, and goes
# on in the same transaction.  The log has one line of it for a query.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use RemoteBP;
use RemoteBP::Spill;
use Test::More;

my $broker = start_broker(args => ['--donor-timeout=2']);
my $node = spill_cluster('reason');
spill_data($node);
my $sorted = 'SELECT id, t, pad FROM big ORDER BY t';

# The rest of a cursor's rows, and how that failed.
$node->safe_psql('postgres', <<'SQL');
CREATE FUNCTION rest_of(c refcursor, OUT state text, OUT message text, OUT hint text, OUT waits text) LANGUAGE plpgsql AS $$
BEGIN
	MOVE ALL FROM c;
	state := 'none';
EXCEPTION WHEN io_error THEN
	GET STACKED DIAGNOSTICS state = RETURNED_SQLSTATE, message = MESSAGE_TEXT, hint = PG_EXCEPTION_HINT;
	SELECT wait_event INTO waits FROM pg_stat_activity WHERE pid = pg_backend_pid();
END
$$;
SQL

my $n = 0;
my $hint = qr{^HINT:  The block was in memory of that donor, not on a disk\. Run the query again\.}m;

# Lines of the log since then about blocks that could not be read.
sub told
{
	my ($offset) = @_;
	return scalar grep { /could not read block/ } split /\n/, log_since($node, $offset);
}

# A donor, sessions that have put blocks there, and the end of the donor.
sub lose
{
	my (@sessions) = @_;
	my $donor = start_donor($broker, id => 'donor' . ++$n, memory => '64MB', region_size => '4MB');
	spill_mode($node, broker => $broker, transport => 'tcp', temp => '32MB') or BAIL_OUT('no memory is leased');
	my @open;
	for my $statements (@sessions)
	{
		my $session = $node->background_psql('postgres', on_error_stop => 0);
		$session->query($_) for '\set VERBOSITY verbose', @$statements;
		push @open, $session;
	}
	cmp_ok($node->safe_psql('postgres', 'SELECT sum(remote_bytes) FROM remote_bp_temp_files'), '>', 3000000 * @sessions, 'blocks are on the donor');
	my $address = $donor->address;
	$donor->kill9;
	return ($donor->{name}, $address, @open);
}

{
	my @cursor = ('SET client_min_messages = log', 'BEGIN', "DECLARE c CURSOR FOR $sorted", 'FETCH 1 FROM c');
	my ($donor, $address, $session, $handler) = lose(\@cursor, \@cursor);
	my $why = qr{could not read block \d+ of temporary file "base/pgsql_tmp/pgsql_tmp\d+\.\d+" from donor "$donor" \(\Q$address\E\): \S+};

	my $offset = log_size($node);
	$session->{stderr} = '';
	$session->query('MOVE ALL FROM c');
	like($session->{stderr}, qr{ERROR:  58030: $why}, 'a sort: the error names the donor and the reason');
	like($session->{stderr}, $hint, 'a sort: a hint says what to do');
	log_tells($node, $offset, qr{ERROR:  $why}, 'a sort: the log names the donor and the reason');
	is(told($offset), 1, 'a sort: the log has one line of it');
	unlike($session->{stderr}, qr{LOG: .*remote_bp}, 'a sort: the client gets no line of the log');
	$session->query('ROLLBACK');
	is($session->query('SELECT count(*) FROM big'), $node->safe_psql('postgres', 'SELECT count(*) FROM big'), 'a sort: the session goes on');
	$session->quit;

	my $told = $handler->query(q{SELECT * FROM rest_of('c')});
	like($told, qr{^58030\|$why[^|]*\|[^|]*Run the query again}, 'a handler: the exception has the reason and the hint');
	like($told, qr{\|$}, 'a handler: nothing is waited for after the error');
	is($handler->query('SELECT 2; COMMIT; SELECT 3'), "2\n3", 'a handler: its transaction goes on');
	$handler->quit;
	spill_is_clean($node, 'sorts', lost => 1);
}

# The server of 18 raises the error itself, after several calls of a scan that reads
# ahead have failed.
{
	my @table = ('SET remote_bp.spill_temp_tables = on', "SET temp_buffers = '8MB'", 'CREATE TEMP TABLE f AS SELECT * FROM big',
		'INSERT INTO f SELECT * FROM big', 'INSERT INTO f SELECT * FROM big', 'BEGIN', 'DECLARE c CURSOR FOR SELECT * FROM f', 'MOVE 8000 FROM c');
	my ($donor, $address, $session) = lose(\@table);
	my $why = qr{could not read block \d+ of temporary file "base/\d+/t\d+_\d+" from donor "$donor" \(\Q$address\E\): \S+};
	my $offset = log_size($node);
	$session->{stderr} = '';
	$session->query('MOVE ALL FROM c');
	like($session->{stderr}, qr{ERROR:  58030: could not read}, "a temporary table: the query fails");
	like($session->{stderr}, qr{^(?:\S+ ERROR:  58030|CONTEXT:  remote_bp): $why}m, 'a temporary table: the error names the donor and the reason, or its context does');
	like($session->{stderr}, $hint, 'a temporary table: a hint says what to do');
	log_tells($node, $offset, qr{(?:ERROR|LOG):  (?:remote_bp: )?$why}, 'a temporary table: the first line in the log names the donor and the reason');
	my $by_server = () = log_since($node, $offset) =~ /ERROR:  could not read blocks \d+\.\.\d+ in file/g;
	cmp_ok($by_server, '<=', 1, 'a temporary table: the query fails once');
	is(told($offset), 1 + 2 * $by_server, 'a temporary table: the log has one line of it, and the error of the server its own and a context');
	$session->query('ROLLBACK');
	$session->query('BEGIN');
	$session->query(q{DO 'BEGIN PERFORM count(*) FROM f; EXCEPTION WHEN io_error THEN NULL; END'});
	$session->{stderr} = '';
	$session->query('SELECT count(*) FROM f');
	like($session->{stderr}, $hint, 'a temporary table: nor is the hint missing after a handler has caught the first error');
	$session->query('ROLLBACK');
	$session->query('TRUNCATE f');
	is($session->query('SELECT count(*) FROM f'), 0, 'a temporary table: the table can be emptied');
	$session->quit;
	spill_is_clean($node, 'temporary table', lost => 1);
}

# A donor that refuses memory which the broker says is leased: that is given out
# anew, and what it held goes with that.
{
	need_test_build();
	set_faults();
	start_donor($broker, id => 'refuses', memory => '64MB', region_size => '4MB');
	spill_mode($node, broker => $broker, transport => 'tcp', temp => '32MB', test_build => 1) or BAIL_OUT('no memory is leased');
	my $session = $node->background_psql('postgres', on_error_stop => 0);
	$session->query($_) for 'BEGIN', "DECLARE c CURSOR FOR $sorted", 'FETCH 1 FROM c';
	cmp_ok($node->safe_psql('postgres', 'SELECT sum(remote_bytes) FROM remote_bp_temp_files'), '>', 3000000, 'refused: blocks are on the donor');
	my $offset = log_size($node);
	set_faults('read deny');
	$session->{stderr} = '';
	$session->query('MOVE ALL FROM c');
	like($session->{stderr}, qr{ERROR: .*could not read block}, 'refused: the query fails');
	set_faults();
	ok(wait_for('the log', sub { log_since($node, $offset) =~ /LOG: .*\d+ kB of temporary data are lost with \d+ regions?/ }, 60),
		'refused: the log reports how much is lost');
	unlike(log_since($node, $offset), qr/the lease for temporary data has ended/, 'refused: the lease goes on');
	$session->quit;
	spill_is_clean($node, 'refused', lost => 1);
}

done_testing();
