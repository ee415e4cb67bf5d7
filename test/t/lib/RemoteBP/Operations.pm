# What operators do each day, beside open cursors whose data is spilled, and beside a
# tier that holds pages: no query fails, nothing is lost.
#
# One server, one broker and two donors, each of which has room for all, live through
# all rows of a table.  Before each row a session has two cursors, of which it has read
# a part: one in a transaction, by a sort, and one WITH HOLD.  After it, both return
# the rest of the right rows, the leases are the same and are renewed, and the tier has
# the pages that it had.

package RemoteBP::Operations;

use strict;
use warnings;

use Exporter 'import';
use IO::Socket::INET;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use RemoteBP;
use RemoteBP::Daemon;
use RemoteBP::Ingress;
use RemoteBP::Preload;
use RemoteBP::Spill;
use Test::More;
use Time::HiRes qw(sleep time);

our @EXPORT = qw(run_operations);

my $MB = 1024 * 1024;
my ($TIER, $TEMP, $TTL) = (16, 64, 20);

# All of it: the broker, its donors in order, the server, files by name, the rows that
# the cursors have to return, the word of the credentials.
my ($broker, @donors, $node, %file, $expected, $token);

#---- what runs --------------------------------------------------------------

sub write_file
{
	my ($name, $text) = @_;
	open(my $out, '>', "$file{$name}.new") or die $!;
	print $out $text;
	close $out;
	chmod 0600, "$file{$name}.new";
	return rename("$file{$name}.new", $file{$name});
}

sub step_clock
{
	my ($who, $seconds) = @_;
	note("the clock of the $who is off by $seconds s");
	return write_file("clock_$who", "$seconds\n");
}

# What a program of that kind has in its environment.
sub environment
{
	my ($who) = @_;
	return (
		LD_PRELOAD => join(' ', map { preload_library($_) } qw(names clock slow_files)),
		RBP_NAMES_DIR => $file{names},
		RBP_CLOCK => $file{"clock_$who"},
		RBP_SLOW_FILES => $file{"full_$who"});
}

# The names of the donors and the broker lead to where they are.
sub tell_names
{
	my ($host) = $broker->address =~ /^(.*):/;
	for my $name ([ 'broker', $host ], map { [ $_->{id}, $_->{host} ] } @donors)
	{
		$file{name} = "$file{names}/$name->[0].test";
		write_file('name', "$name->[1]\n");
	}
	return 1;
}

sub run_broker
{
	my ($listen) = @_;
	local %ENV = (%ENV, environment('broker'));
	$broker = start_broker(
		listen => $listen,
		token => $token,
		pipe => 1,
		args => [ '--credentials', $file{credentials} ]);
	return tell_names();
}

# The donor is a hash of id, host, port, and what runs.
sub run_donor
{
	my ($d, %opt) = @_;
	tell_names();
	(my $url = $broker->url) =~ s/127\.0\.0\.\d+/broker.test/;
	local %ENV = (%ENV, environment('donor'));
	$d->{daemon} = start_donor(
		$broker,
		url => $url,
		id => $d->{id},
		memory => '96MB',
		region_size => '4MB',
		listen => "$d->{host}:$d->{port}",
		advertise => "$d->{id}.test:$d->{port}",
		pipe => 1,
		args => [ '--token-file', $file{donor_token}, '--reclaim-grace', '300' ],
		%opt);
	return 1;
}

sub run_all
{
	my ($transport) = @_;
	my $dir = PostgreSQL::Test::Utils::tempdir();
	$file{$_} = "$dir/$_" for qw(names credentials donor_token server_token operator_token full_broker full_donor full_server clock_broker clock_donor clock_server);
	mkdir $file{names} or BAIL_OUT("$file{names}: $!");
	$token = 'the-first-one';
	write_credentials($file{credentials}, $token);
	give_token();
	@donors = map { { id => $_, host => '127.0.0.1', port => PostgreSQL::Test::Cluster::get_free_port() } } qw(one two);
	run_broker('127.0.0.1:0');
	run_donor($_) for @donors;

	(my $url = $broker->url) =~ s/127\.0\.0\.\d+/broker.test/;
	$node = new_cluster(
		"operations_$transport",
		start => 0,
		broker => $broker,
		transport => $transport,
		tier => "${TIER}MB",
		conf => <<"CONF");
work_mem = 256kB
remote_bp.broker = '$url'
remote_bp.token_file = '$file{server_token}'
remote_bp.temp_tier_max_size = '${TEMP}MB'
remote_bp.temp_tier_size = '${TEMP}MB'
remote_bp.lease_ttl = '${TTL}s'
# A machine that is busy is not what is tested.
remote_bp.io_timeout = 2s
remote_bp.temp_io_timeout = 30s
CONF
	{
		local %ENV = (%ENV, environment('server'));
		$node->start;
	}
	create_extension($node);
	create_rows_of($node);
	ok(wait_leased($node, $TIER + $TEMP), 'memory is leased');
	make_table($node, 't', 10);
	cmp_ok(fill_tier(), '>=', $TIER * 128 * 0.9, 'the tier is full');
	return;
}

#---- before and after a row ---------------------------------------------------

sub held_pages
{
	return $node->safe_psql('postgres', 'SELECT coalesce(sum(pages), 0) FROM remote_bp_relations');
}

# The table, and what evicts it from shared buffers, are larger than the tier.  Nothing
# is on its way when it returns how many pages there are.
sub fill_tier
{
	my $held = 0;
	wait_for(
		'the tier to be full',
		sub {
			content($node, 't');
			evict_buffers($node);
			return ($held = held_pages()) >= $TIER * 128 * 0.9;
		},
		120);
	wait_for('staging to be empty', sub { counter($node, 'staged_pages') == 0 });
	return held_pages();
}

# One lease for each purpose.
sub leases
{
	my ($purpose) = @_;
	return $node->safe_psql('postgres', "SELECT string_agg(DISTINCT lease, ' ') FROM remote_bp_leases WHERE purpose = '$purpose'");
}

sub begin_cursors
{
	my (@settings) = @_;
	my $session = $node->background_psql('postgres', on_error_stop => 0);
	$session->set_query_timer_restart;
	$session->query('\set VERBOSITY sqlstate');
	$session->query($_)
	  for @settings,
	  'DECLARE held SCROLL CURSOR WITH HOLD FOR SELECT * FROM t ORDER BY pad',
	  'BEGIN',
	  'DECLARE sorted SCROLL CURSOR FOR SELECT * FROM t ORDER BY pad',
	  q{SELECT rows_of('held', false, 100), rows_of('sorted', false, 100)};
	return $session;
}

# The rest of both cursors, or the error.
sub rest
{
	my ($session) = @_;
	$session->{stderr} = '';
	my $answer = $session->query(q{SELECT rows_of('held', false), rows_of('sorted', false)}) // '';
	return $session->{stderr} =~ /(ERROR:\s+\S+)/ ? $1 =~ s/\s+/ /r : $answer;
}

# Who has ended, and how; '' if nobody has.
sub dead
{
	return join(', ', map { "$_->{name}: status $_->{status}" } grep { !$_->alive } $broker, donor_daemons());
}

# As wait_for, but not for what has ended.
sub wait_alive
{
	my ($what, $sub) = @_;
	return wait_for($what, sub { dead() ne '' || $sub->() }) && dead() eq '';
}

# A row that failed must not make the next ones fail.
sub mend
{
	unlink $file{full_server};
	step_clock($_, 0) for qw(broker donor server);
	give_token();
	write_credentials($file{credentials}, $token);
	$_->unblock_log for $broker, map { $_->{daemon} } @donors;
	$broker->kill9 if $broker->alive;
	run_broker($broker->address);
	for my $d (@donors)
	{
		$d->{daemon}->kill9 if $d->{daemon}->alive;
		run_donor($d);
	}
	wait_leased($node, $TIER + $TEMP, 120) or BAIL_OUT('no memory is leased any more');
	return;
}

# Do one row: who, what, how, and after => a sub that ends what it began; loses => 'pages'
# if the tier may have fewer: a full tier has no room for those of the first regions that
# a donor gets back; 'lease' if it may also have another lease.
sub do_row
{
	my ($who, $what, $operate, %row) = @_;
	my $name = "$who, $what";
	my $started = time;
	my $fine = 1;
	my $point = sub { $fine &= $_[0] ? 1 : 0 };
	my $held = fill_tier();
	my $session = begin_cursors();
	my $spilled = $session->query('SELECT coalesce(sum(remote_bytes), 0) FROM remote_bp_temp_files');
	cmp_ok($spilled, '>', 12 * $MB, "$name: both cursors are on donors before");
	my %lease = map { $_ => leases($_) } qw(buffer temp);
	my $offset = log_size($node);
	my $before = counters($node);

	$point->(ok(eval { $operate->() } || 0, "$name: it can be done")) or diag($@);
	$point->(ok(wait_renewed($node, 2, sub { dead() ne '' || leases('temp') ne $lease{temp} }), "$name: leases are renewed"));
	$point->(ok(donors_are_heard(), "$name: the broker hears of its donors"));
	$point->(is(dead(), '', "$name: all daemons live"));
	if ($fine)
	{
		$point->(is(leases('temp'), $lease{temp}, "$name: the lease for temporary data is the same"));
		my $loses = $row{loses} // '';
		$point->(is(leases('buffer'), $lease{buffer}, "$name: the lease of the tier is the same")) if $loses ne 'lease';
		$point->(cmp_ok(held_pages(), '>=', int($held * 0.97), "$name: the tier has its $held pages")) if $loses ne 'lease';
	}
	$point->(is(rest($session), $expected, "$name: the cursors return all rows"));
	eval { $session->quit };
	$point->(is(content($node, 't'), $file{content}, "$name: the table is right"));
	$point->(ok(eval { $row{after}->() } || 0, "$name: it can be ended")) if $row{after};
	my $said = join("\n", grep { /remote_bp:|ERROR|WARNING/ } split /\n/, log_since($node, $offset));
	my $after = counters($node);
	my @counted = map { "$_ " . ($after->{$_} - $before->{$_}) }
	  grep { ($before->{$_} // '') =~ /^\d+$/ && ($after->{$_} // '') =~ /^\d+$/ && $after->{$_} != $before->{$_} } sort keys %$after;
	note(sprintf("%s: %.1f s; counted %s; the log:\n%s", $name, time - $started, "@counted", $said));
	mend() unless $fine;
	return $fine;
}

#---- operations -----------------------------------------------------------------

sub donor_daemons
{
	return map { $_->{daemon} } @donors;
}

# What the broker says about the donor.
sub heard
{
	my ($id) = @_;
	my $list = http_json($broker, 'GET', '/v1/donors') or return undef;
	my ($d) = grep { $_->{id} eq $id } @{ $list->{donors} };
	return $d;
}

# Until the broker has heard of each donor since this was called.
sub donors_are_heard
{
	my $since = time;
	return !grep {
		my $id = $_->{id};
		!wait_alive("the broker to hear of $id", sub { my $h = heard($id); $h && defined $h->{heard_ms} && $h->{heard_ms} < (time - $since) * 1000 })
	} @donors;
}

sub signal_donors
{
	my ($signal) = @_;
	return (grep { $_->signal($signal) } donor_daemons()) == @donors;
}

my @WORKERS = ('remote_bp lease worker', 'remote_bp pusher', 'remote_bp policy launcher');

sub signal_workers
{
	my ($signal) = @_;
	return kill($signal, map { server_process($node, $_) // die "no $_" } @WORKERS) == @WORKERS;
}

# An hour on, and two hours back.
sub step_clock_twice
{
	my ($who) = @_;
	return step_clock($who, 3600) && wait_renewed($node, 2) && step_clock($who, -3600);
}

sub terminate_worker
{
	my ($name) = @_;
	my $pid = server_process($node, $name) // die "no $name";
	kill('TERM', $pid) or return 0;
	return wait_for("another $name", sub { my $p = server_process($node, $name); defined $p && $p != $pid });
}

# At another address of this host, 127.0.0.2 after 127.0.0.1, and back.
sub elsewhere
{
	my ($host) = @_;
	return $host eq '127.0.0.1' ? '127.0.0.2' : '127.0.0.1';
}

# Stop it, and start it there.
sub restart_broker_at
{
	my ($address) = @_;
	my $status = $broker->stop;
	$broker->kill9 if $broker->alive;
	return run_broker($address) && defined $status && $status == 0;
}

sub move_broker
{
	my ($host, $port) = $broker->address =~ /^(.*):(\d+)$/;
	return restart_broker_at(elsewhere($host) . ":$port");
}

# Something else answers where the broker was, until all have asked it, and again; then
# the broker is back.
sub ingress_answers
{
	my ($status, $text) = @_;
	my $address = $broker->address;
	$broker->kill9;
	my $ingress = RemoteBP::Ingress->start($address, $status, $text, tls());
	my $asked = wait_for(
		'all to ask',
		sub {
			return 1 if grep { !$_->alive } donor_daemons();
			my $log = $ingress->log_text;
			my $leases = () = $log =~ m{ /v1/leases}g;
			my $donors = () = $log =~ m{ /v1/donors}g;
			return $leases >= 4 && $donors >= 6 && 2 == grep { $log =~ m{ /v1/donors/$_->{id}/} } @donors;
		});
	note('the ingress was asked: ' . $ingress->log_text);
	$ingress->kill9;
	return run_broker($address) && $asked;
}

# To donors, server and operator
sub give_token
{
	write_token($file{"${_}_token"}, $token, $_) for qw(donor server operator);
	return;
}

# The broker's file has credentials with these secrets.
sub broker_takes
{
	my (@tokens) = @_;
	write_credentials($file{credentials}, @tokens);
	$broker->signal('HUP') or return 0;
	$token = $broker->{token} = $tokens[0];
	return wait_alive('the broker to take the credential', sub { http_json($broker, 'GET', '/v1/donors') });
}

sub refuses
{
	my ($old) = @_;
	return wait_alive(
		'the old credentials to be refused',
		sub { http_client(default_headers => { Authorization => 'Bearer ' . credential($old, 'operator') })->get($broker->url . '/v1/donors')->{status} == 401 });
}

# The broker takes both, the others are told, the broker takes the new one.
sub rotate_token
{
	my ($old, $new) = ($token, 'the-second-one');
	broker_takes($new, $old) or return 0;
	give_token();
	$_->signal('HUP') for donor_daemons();
	$node->reload;
	wait_renewed($node, 2, \&dead) && donors_are_heard() or return 0;
	broker_takes($new);
	return refuses($old) && donors_are_heard();
}

# All at once, and nobody else is told.
sub replace_token
{
	my ($old, $new) = ($token, 'the-third-one');
	write_token($file{"${_}_token"}, $new, $_) for qw(donor server operator);
	broker_takes($new) or return 0;
	return refuses($old) && donors_are_heard();
}

# Messages that differ in the address of who is refused; what is logged once is not
# logged again soon.
my @STRANGERS = map { "127.0.0.$_" } 11 .. 16;
my $LAST_STRANGER = '127.0.0.17';

sub bother_broker
{
	my (@strangers) = @_;
	for my $address (@strangers)
	{
		my $http = http_client(timeout => 20, local_address => $address, default_headers => { Authorization => 'Bearer guessed' });
		return 0 if $http->get($broker->url . '/v1/donors')->{status} != 401;
	}
	return 1;
}

# Sends no greeting; true when the donor has closed each connection.
sub bother_donor
{
	my ($donor, @strangers) = @_;
	my @sockets = map {
		IO::Socket::INET->new(PeerAddr => $donor->address, LocalAddr => $_, Proto => 'tcp', Timeout => 20)
		  // die "$donor->{name}: $!"
	} @strangers;
	syswrite($_, 'GET / HTTP/1.0' . "\r\n" x 40) for @sockets;
	my $closed = 0;
	for my $s (@sockets)
	{
		$s->blocking(0);
		$closed += wait_for("$donor->{name} to close", sub { my $n = sysread($s, my $data, 4096); return defined $n ? $n == 0 : !$!{EAGAIN} }, 20) ? 1 : 0;
		last unless $closed;
	}
	return $closed == @sockets;
}

sub block_logs_of_donors
{
	$_->block_log for donor_daemons();
	return (grep { bother_donor($_, @STRANGERS) } donor_daemons()) == @donors && donors_are_heard();
}

sub unblock_logs_of_donors
{
	$_->unblock_log for donor_daemons();
	return 1;
}

sub stop_broker_with_full_pipe
{
	$broker->block_log;
	my $answers = bother_broker(@STRANGERS);
	return restart_broker_at($broker->address) && $answers;
}

# Rename its log, as logrotate does, and tell it so.
sub rotate_log
{
	my ($daemon) = @_;
	rename($daemon->{log}, "$daemon->{log}.1") or return 0;
	return $daemon->signal('HUP');
}

# What it says is in one of the two files.
sub rotated_log_has
{
	my ($daemon) = @_;
	return wait_for('the message', sub { grep { -f $_ && slurp_file($_) =~ /refused a .* from \Q$LAST_STRANGER\E:/ } $daemon->{log}, "$daemon->{log}.1" });
}

# Sorts go on beside it, by donors.
sub fill_servers_disk
{
	write_file('full_server', "0 pgsql_tmp\n");
	my $session = begin_cursors();
	my $answer = rest($session);
	$session->quit;
	return $answer eq $expected;
}

# Each donor is drained, stopped and started, one after the other, as operators are told
# to.  Pages of the full tier go to the other donor, temporary data also to the disk.
sub restart_donors
{
	my (%opt) = @_;
	for my $d (@donors)
	{
		return 0 if (ctl($broker, '--token-file', $file{operator_token}, 'drain', $d->{id}))[0] != 0;
		wait_for("$d->{id} to be empty", sub { $node->safe_psql('postgres', "SELECT count(*) FROM remote_bp_leases WHERE donor = '$d->{id}'") == 0 }, 120)
		  or return 0;
		my $status = $d->{daemon}->stop(120);
		return 0 unless defined $status && $status == 0;
		$d->{host} = elsewhere($d->{host}) if $opt{moves};
		run_donor($d);
	}
	return 1;
}

# No new session from now on; the one that is open reads on, for longer than the lease
# would last without a renewal.  A lease worker that ends changes nothing.
sub shut_down_smartly
{
	my $name = 'server, smart shutdown';
	my $session = begin_cursors();
	my $until = q{SELECT min(extract(epoch FROM clock_timestamp() + expires_in)) FROM remote_bp_leases WHERE purpose = 'temp'};
	my $deadline = $session->query($until);
	my $worker = server_process($node, 'remote_bp lease worker');
	my $offset = log_size($node);
	my ($postmaster) = slurp_file($node->data_dir . '/postmaster.pid') =~ /^(\d+)/;
	kill('TERM', $postmaster);
	log_tells($node, $offset, qr/received smart shutdown request/, "$name: it is told");
	kill('TERM', $worker);
	ok( wait_for(
			'renewals',
			sub { ($session->query($until) || 0) > $deadline + $TTL + 2 },
			120),
		"$name: the lease is renewed while sessions are open");
	is(rest($session), $expected, "$name: the cursors return all rows");
	$session->quit;
	ok(wait_for('the server to end', sub { !kill(0, $postmaster) }, 120), "$name: it ends when the session does");
	is(scalar @{ (http_json($broker, 'GET', '/v1/leases') // {})->{leases} // ['?'] }, 0, "$name: all memory is given back");
	is(join("\n", log_troubles($node)), '', 'the log is quiet');
	$node->stop('fast', fail_ok => 1);
	return;
}

# All rows, in this order.
sub rows
{
	my @rows;
	for my $signals ('HUP', 'USR1 USR2 ALRM')
	{
		my @signals = split / /, $signals;
		push @rows,
		  [ 'broker', $signals, sub { !grep { !$broker->signal($_) } @signals } ],
		  [ 'donors', $signals, sub { !grep { !signal_donors($_) } @signals } ],
		  [ 'workers', $signals, sub { !grep { !signal_workers($_) } @signals } ];
	}
	push @rows, [ 'server', 'reload', sub { $node->reload; 1 } ];
	push @rows, map { my $who = $_; [ $who, 'clock an hour on, then back', sub { step_clock_twice($who) }, after => sub { step_clock($who, 0) } ] }
	  qw(broker donor server);
	push @rows,
	  [ 'broker', 'killed and started', sub { $broker->kill9; run_broker($broker->address) } ],
	  [ 'broker', 'stopped and started', sub { restart_broker_at($broker->address) } ],
	  [ 'broker', 'at another address', \&move_broker ],
	  [ 'broker', 'and back', \&move_broker ],
	  [ 'broker', 'an ingress that does not reach it', sub { ingress_answers(404, "default backend - 404\n") } ],
	  [ 'broker', 'an ingress with a conflict', sub { ingress_answers(409, "conflict\n") } ],
	  [ 'broker', 'token rotated', \&rotate_token ],
	  [ 'broker', 'token replaced', \&replace_token ],
	  [ 'broker', 'log pipe full', sub { $broker->block_log; bother_broker(@STRANGERS) }, after => sub { $broker->unblock_log } ],
	  [ 'broker', 'stopped while its log pipe is full', \&stop_broker_with_full_pipe ],
	  [ 'broker', 'log rotated', sub { rotate_log($broker) }, after => sub { bother_broker($LAST_STRANGER) && rotated_log_has($broker) } ],
	  [ 'donors', 'drained, restarted at another address', sub { restart_donors(moves => 1) } ],
	  [ 'donors', 'log pipe full', \&block_logs_of_donors, after => \&unblock_logs_of_donors ],
	  [ 'donors', 'drained and restarted while log pipes are full', sub { block_logs_of_donors() && restart_donors() } ],
	  [ 'donors', 'log rotated', sub { (grep { rotate_log($_) } donor_daemons()) == @donors },
		after => sub { bother_donor($donors[0]{daemon}, $LAST_STRANGER) && rotated_log_has($donors[0]{daemon}) } ],
	  [ 'server', 'disk full for temporary files', \&fill_servers_disk, after => sub { unlink $file{full_server} } ],
	  [ 'server', 'pusher terminated', sub { terminate_worker('remote_bp pusher') } ],
	  [ 'server', 'policy launcher terminated', sub { terminate_worker('remote_bp policy launcher') } ],
	  [ 'server', 'lease worker terminated', sub { terminate_worker('remote_bp lease worker') && wait_leased($node, $TIER + $TEMP) },
		loses => 'lease' ];
	return @rows;
}

# RBP_OPERATIONS, a pattern, is for trying some of them.
sub run_operations
{
	my ($transport) = @_;
	run_all($transport);
	my $session = begin_cursors(q{SET work_mem = '64MB'});
	$expected = rest($session);
	$session->quit;
	like($expected, qr/^10140 -?\d+\|10140 -?\d+$/, 'without temporary files: the rows');
	$file{content} = content($node, 't');

	my $only = $ENV{RBP_OPERATIONS} // '.';
	my @failed = grep { !do_row(@$_) } grep { "$_->[0], $_->[1]" =~ /$only/ } rows();
	note('failed: ' . join('; ', map { "$_->[0], $_->[1]" } @failed));
	is(counter($node, 'spill.lost'), 0, 'no temporary block was lost');
	is(counter($node, 'spill.hash_failures'), 0, 'no temporary block was different');
	spill_is_idle($node, 'at the end');
	is_clean($node);
	shut_down_smartly();
	return;
}

1;
