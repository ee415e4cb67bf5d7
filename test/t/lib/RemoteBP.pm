# Helpers for the TAP tests: real brokers and donors on ports of the system's
# choice, clusters that use them, counters, waits with a bound, loads that
# must not fail, and a TCP proxy that can cut a network.

package RemoteBP;

use strict;
use warnings;

use Cwd ();
use Digest::SHA qw(sha256_hex);
use Exporter 'import';
use File::Temp;
use HTTP::Tiny;
use IO::Select;
use IO::Socket::INET;
use JSON::PP;
use POSIX ();
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep time);

use RemoteBP::Daemon;
use RemoteBP::Load;
use RemoteBP::Proxy;

our @EXPORT = qw(
  rbp_program start_broker start_donor restart_broker serve_requests lease_secret http_json ctl ctl_json
  wait_for set_faults new_cluster test_build need_test_build build_module tls http_client secret credential write_token write_credentials create_extension set_and_wait
  counters counter reset_counters connections leased_bytes wait_leased wait_donors_used wait_renewed wait_still wait_hits
  tier_pages pages_kept_or_evicted warm make_table two_templates content evict_buffers
  log_size log_since log_tells log_troubles is_clean server_processes server_process hold_policy_worker start_load start_proxy busy_cluster serves_again
);

my $MB = 1024 * 1024;

# The program called broker, donor or ctl: from the environment, the build
# directory or where the server's programs are.
sub rbp_program
{
	my ($name) = @_;
	my $from_env = $ENV{ 'RBP_' . uc $name };
	return $from_env if $from_env;
	(my $top = __FILE__) =~ s{[^/]*$}{../../..};
	for my $dir ("$top/build", split(/:/, $ENV{PATH}), pg_bindir())
	{
		return "$dir/remote_bp_$name" if -x "$dir/remote_bp_$name";
	}
	BAIL_OUT("remote_bp_$name is nowhere to be found");
}

sub pg_bindir
{
	my $pg_config = $ENV{PG_CONFIG} || 'pg_config';
	chomp(my $dir = `$pg_config --bindir`);
	return $dir;
}

# Call the sub until it is true; false if it is not after the time (seconds).
# What is waited for is told when it does not come.
sub wait_for
{
	my ($what, $sub, $seconds) = @_;
	my $end = time + ($seconds // 60);
	my $pause = 0.05;
	my $result;
	until ($result = $sub->())
	{
		if (time > $end)
		{
			diag("waited in vain for $what");
			return $result;
		}
		sleep $pause;
		# Most ask by a session of their own, which on a busy machine is what all wait for.
		$pause *= 1.5 if $pause < 0.3;
	}
	return $result;
}

#---- programs -------------------------------------------------------------

# Options of start_broker: name, listen, noted => 1 (see lease_secret), args => [further arguments], pipe => 1
# (see RemoteBP::Daemon), token => the word of credentials that it accepts (see secret).
sub start_broker
{
	my (%opt) = @_;
	my $name = $opt{name} // 'broker';
	my $tls = grep { $_ eq '--credentials' } @{ $opt{args} // [] };
	my $broker = RemoteBP::Daemon->start(
		name => $name,
		log => log_path($name),
		pipe => $opt{pipe},
		tls => $tls,
		command => [
			rbp_program('broker'), '--listen',
			$opt{listen} // '127.0.0.1:0',
			($tls ? ('--tls-cert', tls()->{cert}, '--tls-key', tls()->{key}) : ()), @{ $opt{args} // [] }
		]);
	$broker->{args} = $opt{args};
	$broker->{noted} = $opt{noted} && (ref $opt{noted} ? $opt{noted} : note_renewals($broker->url));
	$broker->{token} = $opt{token};
	wait_for(
		'the broker to answer',
		sub { http_client(timeout => 5)->get($broker->url . '/healthz')->{success} })
	  or BAIL_OUT('the broker does not answer: ' . $broker->log_text);
	return $broker;
}

# Clusters reach this broker through here, and renewals that it has granted are noted: only
# the holder and the broker know a lease's secret.
sub note_renewals
{
	my ($url) = @_;
	my $file = PostgreSQL::Test::Utils::tempdir() . '/renewals';
	my $listener = IO::Socket::INET->new(Listen => 64, LocalAddr => '127.0.0.1', ReuseAddr => 1) or die $!;
	my $parent = $$;
	append_to_file($file, '');
	my $pid = fork() // die $!;
	return { url => 'http://127.0.0.1:' . $listener->sockport, file => $file } if $pid;
	serve_requests(
		$listener, $parent,
		sub {
			my ($method, $path, $body) = @_;
			my $answer = http_client(timeout => 10)->request($method, $url . $path,
				{ content => $body, headers => { 'Content-Type' => 'application/json' } });
			append_to_file($file, "$path $body\n") if $path =~ /renew/ && $answer->{status} == 200;
			return $answer;
		});
	POSIX::_exit(0);
}

# In the place of a broker, until the parent is gone: the sub gets method, path and body of each
# request, and returns an answer as HTTP::Tiny's.  For status 599 (nobody was reached) the connection is only closed.
sub serve_requests
{
	my ($listener, $parent, $sub) = @_;
	$SIG{PIPE} = 'IGNORE';
	while (getppid() == $parent)
	{
		my $conn = IO::Select->new($listener)->can_read(1) && $listener->accept or next;
		my ($head, $body) = ('', '');
		while (my $line = <$conn>) { $head .= $line; last if $line =~ /^\r?\n$/ }
		read($conn, $body, $1) if $head =~ /^Content-Length: *(\d+)/mi;
		my ($method, $path) = $head =~ /^(\S+) (\S+)/ or next;
		my $answer = $sub->($method, $path, $body);
		print $conn "HTTP/1.1 $answer->{status} Answer\r\nRemote-BP-Broker: played\r\nConnection: close\r\n"
		  . 'Content-Length: ' . length($answer->{content}) . "\r\n\r\n$answer->{content}"
		  if $answer->{status} != 599;
		close $conn;
	}
	return;
}

# The secret by which a lease of a broker that was started with noted => 1 was renewed last.
sub lease_secret
{
	my ($broker, $lease) = @_;
	return wait_for(
		'the lease to be renewed',
		sub {
			my ($last) = reverse(slurp_file($broker->{noted}{file}) =~ m{^/v1/leases/\Q$lease\E/renew (.*)$}mg);
			return undef unless $last;
			my $renewal = decode_json($last);
			return $renewal->{new_secret} // $renewal->{secret};
		});
}

# Another process on the same address.
sub restart_broker
{
	my ($old) = @_;
	$old->kill9 if $old->alive;
	return start_broker(
		name => $old->{name},
		listen => $old->address,
		token => $old->{token},
		noted => $old->{noted},
		pipe => $old->{pipe},
		args => $old->{args});
}

# Options of start_donor: memory, listen, id, region_size, advertise, url (of
# the broker), args => [...], pipe => 1, register => 0 not to wait for the broker to know it.
# A donor that was killed is replaced at its address: the broker takes it at once.
my %last_donor;

sub start_donor
{
	my ($broker, %opt) = @_;
	my $id = $opt{id} // 'donor1';
	my $last = $last_donor{$id};
	my $address = $last && !$last->alive ? $last->address : undef;
	my $donor = RemoteBP::Daemon->start(
		name => $id,
		log => log_path($id),
		pipe => $opt{pipe},
		command => [
			rbp_program('donor'), '--broker', $opt{url} // $broker->url, '--listen',
			$opt{listen} // $address // '127.0.0.1:0', '--id', $id, '--memory',
			$opt{memory} // '128MB', '--region-size',
			$opt{region_size} // '8MB',
			($opt{advertise} ? ('--advertise', $opt{advertise}) : ()),
			@{ $opt{args} // [] }
		]);
	$last_donor{$id} = $donor;
	return $donor if defined $opt{register} && !$opt{register};
	wait_for(
		"donor $id to be registered",
		sub {
			my $list = http_json($broker, 'GET', '/v1/donors');
			return $list && grep { $_->{id} eq $id } donors_of($list);
		}) or BAIL_OUT("donor $id did not register: " . $donor->log_text);
	return $donor;
}

# A list from the broker may come bare or as {"donors": [...]}.
sub donors_of
{
	my ($list) = @_;
	return ref $list eq 'ARRAY' ? @$list : @{ $list->{donors} // [] };
}

# A file for a program's messages, another one for each start.
my %starts;

sub log_path
{
	my ($name) = @_;
	my ($test) = $0 =~ m{([^/]*?)(\.[^./]*)?$};
	my $n = ++$starts{$name};
	return "$PostgreSQL::Test::Utils::log_path/${test}_$name"
	  . ($n > 1 ? ".$n" : '') . '.log';
}

# The decoded answer, or undef when there is none or it is an error.
sub http_json
{
	my ($broker, $method, $path, $body) = @_;
	my %headers;
	$headers{Authorization} = 'Bearer ' . credential($broker->{token}, 'operator') if $broker->{token};
	my %args = (headers => \%headers);
	$args{content} = encode_json($body) if $body;
	my $res =
	  http_client(timeout => 10)->request($method, $broker->url . $path, \%args);
	return undef unless $res->{success};
	return {} if $res->{content} eq '';
	return eval { decode_json($res->{content}) };
}

# Run remote_bp_ctl; returns exit status and output.  Donors of a busy machine may be late to apply a revocation or a
# drain, which is done all the same (4).
sub ctl
{
	my ($broker, @args) = @_;
	my $out = '';
	IPC::Run::run([ rbp_program('ctl'), '--broker', $broker->url, @args ],
		'<', \'', '>&', \$out);
	my $status = $? >> 8;
	$status = 0 if $status == 4 && grep { /^(revoke|drain)$/ } @args;
	note("remote_bp_ctl @args: exit $status\n$out");
	return ($status, $out);
}

sub ctl_json
{
	my ($broker, @args) = @_;
	my ($status, $out) = ctl($broker, '--json', @args);
	return $status ? undef : eval { decode_json($out) };
}

sub start_proxy
{
	return RemoteBP::Proxy->start(@_);
}

# Faults of the transport (see test/fault/fault.c), for servers of the test
# build that are started after the first call.  No lines: no faults.
sub set_faults
{
	my (@lines) = @_;
	my $file = $ENV{RBP_FAULT_FILE} //= PostgreSQL::Test::Utils::tempdir() . '/faults';
	note('faults: ' . (join('; ', @lines) || 'none'));
	open(my $out, '>', "$file.new") or die $!;
	print $out "$_\n" for @lines;
	close $out;
	rename("$file.new", $file) or die $!;
	return;
}

#---- clusters -------------------------------------------------------------

# The directory of the test build's module, which has injection points and the fault
# transport, or undef.
sub test_build
{
	(my $top = __FILE__) =~ s{[^/]*$}{../../..};
	for my $dir ($ENV{RBP_TEST_MODULE_DIR}, "$top/build/test")
	{
		return Cwd::abs_path($dir) if $dir && -f "$dir/remote_bp.so";
	}
	return undef;
}

sub need_test_build
{
	BAIL_OUT('no test build: set RBP_TEST_MODULE_DIR or run "make test-build"')
	  unless test_build();
	return;
}

# The certificate and key of brokers that have credentials, for this host, and its pin.
my $tls;

sub tls
{
	return $tls if $tls;
	my $dir = PostgreSQL::Test::Utils::tempdir();
	my %made = (cert => "$dir/broker.crt", key => "$dir/broker.key");
	my $out = '';
	IPC::Run::run(
		[   qw(openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 30 -subj /CN=broker),
			'-addext', 'subjectAltName=DNS:localhost,IP:127.0.0.1', '-keyout', $made{key}, '-out', $made{cert} ],
		'>&', \$out)
	  && IPC::Run::run([ qw(openssl x509 -noout -pubkey -in), $made{cert} ], '|', [qw(openssl pkey -pubin -outform DER)], '>', \my $public)
	  or BAIL_OUT("openssl: $out");
	chmod(0600, $made{key}) or die $!;
	$made{pin} = sha256_hex($public);
	return $tls = \%made;
}

sub http_client
{
	return HTTP::Tiny->new(verify_SSL => 0, @_);
}

# Secrets are made from words.
sub secret
{
	my ($word) = @_;
	return sha256_hex($word);
}

# A credential with that secret, for any name unless one is given, and the broker's pin
# unless another one is.
sub credential
{
	my ($word, $role, $name, $pin) = @_;
	return join('.', $role, $name // '*', secret($word), $pin // tls()->{pin});
}

# A file with that text, all at once, also in the place of another; its path.
sub write_secret_file
{
	my ($path, $text) = @_;
	open(my $file, '>', "$path.new") or die $!;
	chmod(0600, $file) or die $!;
	print $file "$text\n";
	close $file;
	rename("$path.new", $path) or die $!;
	return $path;
}

# A token file.
sub write_token
{
	my ($path, @credential) = @_;
	return write_secret_file($path, credential(@credential));
}

# A broker's file, which accepts credentials of all roles with these secrets.
sub write_credentials
{
	my ($path, @words) = @_;
	return write_secret_file($path,
		join("\n", map { my $hash = sha256_hex(secret($_)); map { "$_ * $hash" } qw(server donor operator monitor) } @words));
}

# Compile a library of test/modules with these further arguments for make, in
# a directory of the test's own; its path without ".so".
sub build_module
{
	my ($name, @args) = @_;
	my $dir = PostgreSQL::Test::Utils::tempdir();
	(my $modules = __FILE__) =~ s{[^/]*$}{../../modules};
	for my $file ('Makefile', "$name.c")
	{
		my $text = slurp_file("$modules/$name/$file");
		open(my $out, '>', "$dir/$file") or BAIL_OUT("$dir/$file: $!");
		print $out $text;
		close $out;
	}
	my $said = '';
	my $pg_config = $ENV{PG_CONFIG} || 'pg_config';
	IPC::Run::run([ 'make', '-C', $dir, "PG_CONFIG=$pg_config", 'WERROR=1', @args ], '<', \'', '>&', \$said)
	  or BAIL_OUT("the module $name does not compile: $said");
	return "$dir/$name";
}

# The module is the installed one, or that of RBP_MODULE_DIR.
# Options of new_cluster: broker (none: the tier is off), conf (more
# settings), shared_buffers (1MB), tier (64MB), transport (auto), checksums,
# test_build, warm_restart (crash: a stop gives memory back), streaming, extension => 0 not to create it, start => 0 not to
# start, io_workers => 0 to let backends read by themselves (18 and later: I/O
# workers read in batches, and nothing ahead).  Every hit is compared with the disk unless compare => 0.  Donors on a
# busy machine answer late, which is not what is tested: there is patience, unless conf says otherwise.
sub new_cluster
{
	my ($name, %opt) = @_;
	my $node = PostgreSQL::Test::Cluster->new($name);
	$node->init(
		allows_streaming => $opt{streaming} // 0,
		extra => [
			'--no-locale', '--encoding=UTF8',
			($opt{checksums} ? '--data-checksums' : ())
		]);
	configure($node, %opt);
	return $node if defined $opt{start} && !$opt{start};
	$node->start;
	create_extension($node) unless defined $opt{extension} && !$opt{extension};
	return $node;
}

# The setting that finds the module, when it is not the installed one.
sub module_path
{
	my ($test_build) = @_;
	my $dir = $test_build ? test_build() : $ENV{RBP_MODULE_DIR};
	return $dir ? "dynamic_library_path = '$dir:\$libdir'\n" : '';
}

# Over tcp tests have pages encrypted, as those for donors on other machines are.
sub encrypt
{
	my (%opt) = @_;
	return ($opt{transport} // '') eq 'tcp' ? 'on' : 'auto';
}

sub configure
{
	my ($node, %opt) = @_;
	my $broker = $opt{urls} // (!$opt{broker} ? '' : $opt{broker}{noted} ? $opt{broker}{noted}{url} : $opt{broker}->url);
	my $tier = $opt{tier} // '64MB';
	my $max = $opt{max_tier} // $tier;
	my $compare = ($opt{compare} // 1) ? 'on' : 'off';
	my $conf = <<"CONF";
shared_preload_libraries = 'remote_bp'
shared_buffers = '@{[ $opt{shared_buffers} // '1MB' ]}'
max_connections = 60
log_statement = none
log_min_messages = info
autovacuum = off
synchronize_seqscans = off
max_parallel_workers_per_gather = 0
restart_after_crash = on
remote_bp.broker = '$broker'
remote_bp.transport = '@{[ $opt{transport} // 'auto' ]}'
remote_bp.encrypt = '@{[ encrypt(%opt) ]}'
remote_bp.buffer_tier_max_size = '$max'
remote_bp.buffer_tier_size = '$tier'
remote_bp.staging_size = '@{[ $opt{staging} // '4MB' ]}'
remote_bp.compare_with_disk = $compare
remote_bp.warm_restart = '@{[ $opt{warm_restart} // 'crash' ]}'
remote_bp.read_from = '@{[ $opt{read_from} // 'donor' ]}'
remote_bp.io_timeout = '1s'
CONF
	$conf .= module_path($opt{test_build});
	$conf .= "io_method = sync\n" if !($opt{io_workers} // 1) && $node->pg_version >= 18;
	# RBP_EXTRA_CONF: to try a test with a rule switched off, for example.
	$node->append_conf('postgresql.conf',
		$conf . ($opt{conf} // '') . ($ENV{RBP_EXTRA_CONF} // '') . "\n");
	return;
}

sub create_extension
{
	my ($node, $db) = @_;
	$node->safe_psql($db // 'postgres', 'CREATE EXTENSION remote_bp');
	return;
}

# Change settings, to values as SHOW shows them; new sessions have them when it returns.
sub set_and_wait
{
	my ($node, %settings) = @_;
	for my $name (sort keys %settings)
	{
		$node->safe_psql('postgres', "ALTER SYSTEM SET $name = '$settings{$name}'");
	}
	$node->reload;
	for my $name (sort keys %settings)
	{
		wait_for(
			"$name = $settings{$name}",
			sub { $node->safe_psql('postgres', "SHOW $name") eq $settings{$name} }) or BAIL_OUT("no $name");
	}
	return;
}

#---- counters -------------------------------------------------------------

# Columns of remote_bp_stat, and as 'spill.COLUMN' those of remote_bp_stat_spill.
sub counters
{
	my ($node, $db) = @_;
	my ($tier, $spill) = map { decode_json($_) } split /\n/, $node->safe_psql($db // 'postgres',
		'SELECT row_to_json(s) FROM remote_bp_stat s; SELECT row_to_json(s) FROM remote_bp_stat_spill s');
	return { %$tier, map { ("spill.$_" => $spill->{$_}) } keys %$spill };
}

# A column, named as above, or an expression of columns of one of the two.
sub counter
{
	my ($node, $name, $db) = @_;
	my $from = $name =~ /\bspill\./ ? 'remote_bp_stat_spill spill' : 'remote_bp_stat';
	return $node->safe_psql($db // 'postgres', "SELECT $name FROM $from");
}

sub reset_counters
{
	my ($node, $db) = @_;
	$node->safe_psql($db // 'postgres', 'SELECT remote_bp_stat_reset()');
	return;
}

# Of all backends to all donors.
sub connections
{
	my ($node) = @_;
	return $node->safe_psql('postgres', 'SELECT coalesce(sum(connections), 0) FROM remote_bp_stat_donors');
}

sub leased_bytes
{
	my ($node) = @_;
	return $node->safe_psql('postgres',
		'SELECT coalesce(sum(bytes), 0) FROM remote_bp_leases');
}

# Wait until at least so many MB are leased.
sub wait_leased
{
	my ($node, $megabytes, $seconds) = @_;
	return wait_for(
		"$megabytes MB to be leased",
		sub { leased_bytes($node) >= $megabytes * $MB },
		$seconds);
}

# Wait until no donor is down.  One that returned wrong bytes is for a while.
sub wait_donors_used
{
	my ($node) = @_;
	return wait_for('donors to be used',
		sub { $node->safe_psql('postgres', "SELECT bool_and(state = 'ok') FROM remote_bp_stat_donors") eq 't' });
}

# Wait until each lease that there is now may be used for so many seconds (5)
# longer than now: since renewals come about once a second, for some of them.  It is
# given up when a sub, if there is one, is true.
sub wait_renewed
{
	my ($node, $seconds, $give_up) = @_;
	my $look = sub {
		return { map { split /\|/ } split /\n/, $node->safe_psql('postgres',
				'SELECT lease, min(extract(epoch FROM clock_timestamp() + expires_in)) FROM remote_bp_leases GROUP BY lease') };
	};
	my $before = $look->();
	my $given_up = 0;
	return wait_for(
		'leases to be renewed',
		sub {
			my $now = $look->();
			$given_up = $give_up && $give_up->();
			return $given_up || (keys %$before && !grep { ($now->{$_} // 0) < $before->{$_} + ($seconds // 5) } keys %$before);
		},
		120) && !$given_up;
}

# Wait until these counters are the same in two looks, a second apart: what was under way
# in processes that nobody can ask, such as the pusher, has ended.
sub wait_still
{
	my ($node, @names) = @_;
	my $before = '';
	return wait_for(
		'counters to stand still',
		sub {
			my $now = join ' ', @{ counters($node) }{@names};
			my $still = $now eq $before;
			$before = $now;
			sleep 1 unless $still;
			return $still;
		},
		120);
}

# Wait until the load reads from donors: from each, if they are named.
sub wait_hits
{
	my ($node, @donors) = @_;
	my $hits = counter($node, 'hits');
	return wait_for(
		'hits',
		sub {
			return counter($node, 'hits') > $hits
			  && !grep { $node->safe_psql('postgres', "SELECT coalesce(sum(reads), 0) FROM remote_bp_stat_donors WHERE donor = '$_'") == 0 } @donors;
		},
		120);
}

# Pages of the relation that the tier holds, all forks.
sub tier_pages
{
	my ($node, $rel, $db) = @_;
	return $node->safe_psql($db // 'postgres',
		"SELECT coalesce(sum(pages), 0) FROM remote_bp_relations WHERE relation = '$rel'::regclass"
	);
}

# The pages of a relation that came to the tier, when all have come: those
# that are there, and those that it evicted since to make room for others.
sub pages_kept_or_evicted
{
	my ($node, $rel) = @_;
	wait_still($node, qw(captures pushes staged_pages));
	return $node->safe_psql('postgres', <<"SQL");
SELECT (SELECT coalesce(sum(pages), 0) FROM remote_bp_relations WHERE relation = '$rel'::regclass)
	+ (SELECT coalesce(sum(evictions), 0) FROM remote_bp_stat_relations WHERE relation = '$rel'::regclass)
SQL
}

# A table of about so many MB, (id, v = 0, pad), with an index on id.
sub make_table
{
	my ($node, $rel, $megabytes, %opt) = @_;
	my $rows = $megabytes * 1024;    # 8 rows of 1000 bytes in a page
	my $kind = $opt{kind} // '';
	my $index = $opt{index} // 1;
	my $space = $opt{tablespace} ? "TABLESPACE $opt{tablespace}" : '';
	$node->safe_psql($opt{db} // 'postgres', <<"SQL");
CREATE $kind TABLE $rel (id int, v int, pad text) WITH (autovacuum_enabled = off) $space;
ALTER TABLE $rel ALTER pad SET STORAGE plain;
INSERT INTO $rel SELECT i, 0, rpad(i::text, 980, 'x') FROM generate_series(1, $rows) i;
SQL
	$node->safe_psql($opt{db} // 'postgres', "CREATE INDEX ${rel}_id ON $rel (id) $space")
	  if $index;
	# Set the hint bits, so that reads write nothing later.
	$node->safe_psql($opt{db} // 'postgres', "VACUUM $rel");
	$node->safe_psql($opt{db} // 'postgres', 'CHECKPOINT');
	return $rows;
}

# Two databases whose files are named alike, page by page, and whose contents
# differ.
sub two_templates
{
	my ($node) = @_;
	$node->safe_psql('postgres', 'CREATE DATABASE one');
	create_extension($node, 'one');
	make_table($node, 't', 4, db => 'one');
	evict_buffers($node, 'one');
	$node->safe_psql('postgres', 'CREATE DATABASE two TEMPLATE one');
	$node->safe_psql('two', 'UPDATE t SET v = 2; VACUUM t; UPDATE t SET v = 3; VACUUM t');
	$node->safe_psql('postgres', 'CHECKPOINT');
	return;
}

# Rows, sum of v and a hash of all content.
sub content
{
	my ($node, $rel, $db) = @_;
	return $node->safe_psql($db // 'postgres',
		"SELECT count(*), sum(v), sum(hashtext(t::text)::bigint) FROM $rel t");
}

# Read something else until the buffers hold nothing of before.
my %ballast;

sub evict_buffers
{
	my ($node, $db) = @_;
	$db //= 'postgres';
	if (!$ballast{ $node->name }{$db})
	{
		$ballast{ $node->name }{$db} = 1;
		$node->safe_psql($db, <<'SQL');
CREATE TABLE IF NOT EXISTS rbp_ballast (id int, pad text) WITH (autovacuum_enabled = off);
ALTER TABLE rbp_ballast ALTER pad SET STORAGE plain;
INSERT INTO rbp_ballast SELECT i, rpad('', 4000, 'y') FROM generate_series(1, 3000) i
	WHERE NOT EXISTS (SELECT FROM rbp_ballast);
CREATE INDEX IF NOT EXISTS rbp_ballast_id ON rbp_ballast (id);
SQL
		$node->safe_psql($db, 'VACUUM rbp_ballast');
	}
	# By index: a sequential scan would keep to a small ring of buffers.
	$node->safe_psql($db,
		"SET enable_seqscan = off; SET enable_bitmapscan = off; SELECT count(pad) FROM rbp_ballast WHERE id > 0"
	);
	return;
}

# Read the relation until the tier holds a good part (0.6) of its pages;
# returns how many it holds, 0 if that does not happen.
sub warm
{
	my ($node, $rel, %opt) = @_;
	my $db = $opt{db} // 'postgres';
	my $pages =
	  $node->safe_psql($db, "SELECT pg_relation_size('$rel') / 8192");
	my $want = int($pages * ($opt{part} // 0.6)) || 1;
	my $held = 0;
	wait_for(
		"$want of $pages pages of $rel in the tier",
		sub {
			content($node, $rel, $db);
			evict_buffers($node, $db);
			$held = tier_pages($node, $rel, $db);
			return $held >= $want;
		},
		$opt{seconds} // 120) or return 0;
	return $held;
}

# The children of a server, {pid, title} each, as ps shows them; background workers
# without a database are not in pg_stat_activity.
sub server_processes
{
	my ($node) = @_;
	my ($postmaster) = (eval { slurp_file($node->data_dir . '/postmaster.pid') } // '') =~ /^(\d+)/ or return;
	my @children;
	# without a program: some live for a few milliseconds
	for my $pid (split ' ', eval { slurp_file("/proc/$postmaster/task/$postmaster/children") } // '')
	{
		my ($title) = (eval { slurp_file("/proc/$pid/cmdline") } // '') =~ /^(postgres: [^\0]*?)[\s\0]*$/;
		push @children, { pid => $pid, title => $title } if $title;
	}
	return @children;
}

# The process id of a server's child whose title ends so.
sub server_process
{
	my ($node, $name) = @_;
	my ($child) = grep { $_->{title} =~ /\Q$name\E$/ } server_processes($node);
	return $child && $child->{pid};
}

#---- logs -----------------------------------------------------------------

sub log_size
{
	my ($node) = @_;
	return -s $node->logfile;
}

sub log_since
{
	my ($node, $offset) = @_;
	return slurp_file($node->logfile, $offset // 0);
}

# A test point: the log since then has such a line, or will have it soon, for whoever
# has done something tells of it afterwards.
sub log_tells
{
	my ($node, $offset, $pattern, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	wait_for('the log', sub { log_since($node, $offset) =~ $pattern }, 60);
	return like(log_since($node, $offset), $pattern, $name);
}

# Lines of the server's log that no test may cause: crashes, failed
# assertions, wrong pages.  Statements may contain such words, and so does the
# extension's script, which 18 logs when it fails.
sub log_troubles
{
	my ($node, $offset) = @_;
	return grep {
		!/^\t|STATEMENT:/ &&
		/PANIC:|TRAP:|terminated by signal (11|6|7)\b|mismatch|invalid page in block|could not read block|page verification failed|differs from the disk/i
	} split /\n/, log_since($node, $offset);
}

# The end of most tests: pages were compared, none was different, the log is
# quiet.
sub is_clean
{
	my ($node, $name, %opt) = @_;
	$name = $name ? "$name: " : '';
	my $c = counters($node);
	cmp_ok($c->{compared}, '>', 0, "${name}hits were compared with the disk")
	  unless $opt{no_compare};
	is($c->{mismatches}, 0, "${name}none was different");
	is($c->{hash_failures}, 0, "${name}no hash failure")
	  unless $opt{hash_failures};
	my @troubles = log_troubles($node);
	is(scalar @troubles, 0, "${name}the log is quiet")
	  or diag(join("\n", @troubles[ 0 .. ($#troubles > 9 ? 9 : $#troubles) ]));
	return;
}

# Stop the policy launcher, which visits databases at any time, where it waits for the
# time of its next visit: from now on nobody reads who was not told to, no snapshot is
# held, and no lock.  Returns a sub that lets it go on.
sub hold_policy_worker
{
	my ($node) = @_;
	my $pid;
	wait_for(
		'the policy launcher to wait',
		sub {
			$pid = server_process($node, 'remote_bp policy launcher') or return 0;
			kill 'STOP', $pid;
			return 1 if stopped_between_visits($node, $pid);
			kill 'CONT', $pid;
			return 0;
		},
		120) or BAIL_OUT('the policy launcher does not wait');
	return sub { kill 'CONT', $pid };
}

# While the launcher has a worker, it is in a transaction or waits for its end.  If it
# was stopped with a lock, the query may get no answer before it goes on.
sub stopped_between_visits
{
	my ($node, $pid) = @_;
	wait_for('the policy launcher to stop', sub { `ps -o state= -p $pid` =~ /^T/ }) or return 0;
	my $timed_out;
	$node->psql(
		'postgres',
		"SELECT count(*) FROM pg_stat_activity WHERE pid = $pid AND wait_event_type = 'Extension' AND xact_start IS NULL",
		stdout => \my $waits,
		timeout => 10,
		timed_out => \$timed_out);
	return !$timed_out && $waits eq '1';
}

# A cluster for a load that must survive something: pgbench's tables, about
# 64 MB, much of them in the tier.  Pages are compared with the disk.
sub busy_cluster
{
	my ($name, %opt) = @_;
	my $node = new_cluster($name, shared_buffers => '4MB', tier => '128MB', %opt);
	my ($megabytes) = ($opt{leased} // $opt{tier} // '128MB') =~ /(\d+)/;
	ok(wait_leased($node, $megabytes), "$name: memory is leased");
	RemoteBP::Load->prepare($node, $opt{scale} // 4);
	ok(serves_again($node), "$name: pages come from the tier");
	return $node;
}

# Read through the tables until most pages come from the tier.
sub serves_again
{
	my ($node, %opt) = @_;
	return wait_for(
		'the tier to serve most pages',
		sub {
			my $before = counters($node);
			$node->safe_psql('postgres',
				'SET enable_seqscan = off; SET enable_bitmapscan = off; SELECT count(filler) FROM pgbench_accounts WHERE aid > 0'
			);
			my $after = counters($node);
			my %d = map { $_ => $after->{$_} - $before->{$_} } qw(hits staged_hits misses);
			return $d{hits} + $d{staged_hits} > $d{misses} * ($opt{factor} // 1);
		},
		$opt{seconds} // 120);
}

sub start_load
{
	return RemoteBP::Load->start(@_);
}

1;
