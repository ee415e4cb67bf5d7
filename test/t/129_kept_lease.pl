# The lease over the crash of a process.  Nobody renews it before recovery has ended,
# which may take longer than the lease lasts: the broker keeps a lapsed lease for a while, and
# the server finds out which of its regions are still what they were.  The startup process
# is stopped meanwhile.
# Timeout: 1800

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use RemoteBP;
use RemoteBP::Kept;
use Test::More;

my $MB = 1024 * 1024;
my $broker = start_broker(noted => 1);
my $donor = start_donor($broker, memory => '64MB');
my $node = kept_cluster('lapses', broker => $broker, transport => 'tcp', conf => "remote_bp.lease_ttl = 3s\n");

my $other = { client => 'other', instance => 'elsewhere/1', purpose => 'buffer', bytes => 64 * $MB, ttl_ms => 3600_000 };
my $lease;

# A crash, and what happens before the server is open again; what there was before.
sub crash_while
{
	my ($name, $meanwhile) = @_;
	my $before = state_of($node);
	my ($startup, $offset) = crash_held($node);
	ok($startup, "$name: recovery takes its time") or BAIL_OUT('recovery was not stopped');
	$before->{offset} = $offset;
	$meanwhile->($before);
	go_on($node, $startup, $offset, $name);
	return $before;
}

sub free_regions
{
	return http_json($broker, 'GET', '/v1/donors')->{donors}[0]{free};
}

# Another client gets all memory, if not at once: the donor may be late to apply the grant.
sub all_granted
{
	my $got = $lease = http_json($broker, 'POST', '/v1/leases', $other);
	return wait_for(
		'another client to get all',
		sub {
			return 1 if @{ $got->{regions} } == 8;
			$got = http_json($broker, 'POST', "/v1/leases/$lease->{lease}/renew", { secret => $lease->{secret}, bytes => 64 * $MB });
			return 0;
		});
}

sub lapses
{
	my ($name) = @_;
	return ok(wait_for('the lease to lapse', sub { broker_lease($broker)->{lapsed} }, 120), "$name: the lease lapses");
}

# Pages that were in the regions leave; others come, and nobody has seen a wrong one.
# Denied or zeroed memory may have been read before the worker knew.
sub are_gone
{
	my ($before, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is(content($node, 'pages'), $before->{content}, "$name: rows are right at once");
	log_tells($node, $before->{offset}, qr/going on with the lease, \d+ MB/, "$name: the lease worker goes on with the lease");
	ok(wait_leased($node, 64, 120) && wait_usable($node), "$name: all memory is used");
	is_right($node, $before, $name);
	my @errors = grep { /(ERROR|PANIC):/ } split /\n/, log_since($node, $before->{offset});
	is("@errors", '', "$name: no query fails");
	return;
}

# Longer than the lease's time
my $before = crash_while('lapsed', sub { lapses('lapsed') });
is_kept($node, $before, 'lapsed');

# Memory of a lapsed lease goes to whom it is due; the rest is kept.
make_table($node, 'more', 16);
my $more = content($node, 'more');
ok( wait_for(
		'a full tier',
		sub { content($node, 'more'); content($node, 'pages'); evict_buffers($node); counter($node, 'remote_pages') > 5500 },
		120),
	'shared: pages are in all regions');
$before = crash_while(
	'shared',
	sub {
		lapses('shared');
		$lease = http_json($broker, 'POST', '/v1/leases', $other);
		ok( wait_for(
				'the other lease to have its share',
				sub {
					my $answer = http_json($broker, 'POST', "/v1/leases/$lease->{lease}/renew", { secret => $lease->{secret}, bytes => 32 * $MB });
					return $answer && $answer->{bytes} == 32 * $MB;
				},
				120),
			'shared: another client gets half of the memory');
	});
ok(wait_for('the lease to be renewed', sub { wait_usable($node); leased_bytes($node) == 32 * $MB }, 120), 'shared: the server has the other half');
is(lease_id($node), $before->{lease}, 'shared: the lease is the same');
my $pages = counter($node, 'remote_pages');
cmp_ok($pages, '>', 1000, 'shared: pages in the other half are there');
cmp_ok($pages, '<=', 32 * $MB / 8192, 'shared: those in the first half are not');
is(content($node, 'more'), $more, 'shared: rows of each table are right');
is_right($node, $before, 'shared');
http_json($broker, 'DELETE', "/v1/leases/$lease->{lease}", { secret => $lease->{secret} });
ok(wait_leased($node, 64, 120) && warm($node, 'pages', part => 0.8), 'shared: pages come into the tier');

# All regions go to another client, which writes nothing, and back to the same lease.
$before = crash_while(
	'granted again',
	sub {
		my ($before) = @_;
		my $path = "/v1/leases/$before->{lease}/renew";
		my $renew = { secret => lease_secret($broker, $before->{lease}), ttl_ms => 3600_000, bytes => 0 };
		my $answer = http_json($broker, 'POST', $path, $renew);
		is(scalar @{ $answer->{regions} }, 8, 'granted again: the lease has regions');
		my %rev = map { $_->{region} => $_->{rev} } @{ $answer->{regions} };
		http_json($broker, 'POST', $path, { %$renew, release => $answer->{regions} });
		ok(wait_for('the regions to be clean', sub { free_regions() == 8 }), 'granted again: they are given back');
		ok(all_granted(), 'granted again: another client gets them');
		http_json($broker, 'DELETE', "/v1/leases/$lease->{lease}", { secret => $lease->{secret} });
		ok( wait_for(
				'all to be granted',
				sub {
					$answer = http_json($broker, 'POST', $path, { %$renew, bytes => 64 * $MB });
					return @{ $answer->{regions} } == 8;
				}),
			'granted again: the lease has them again');
		is(scalar(grep { $_->{rev} > $rev{ $_->{region} } } @{ $answer->{regions} }), 8, 'granted again: each of them as another grant');
	});
ok(wait_for('pages to leave', sub { tier_pages($node, 'pages') < 0.1 * $before->{pages} }, 120), 'granted again: the pages that were in them are dropped');
is(lease_id($node), $before->{lease}, 'granted again: the lease is the same');
are_gone($before, 'granted again');
ok(warm($node, 'pages', part => 0.8), 'granted again: pages come into the tier');

# The donor dies, and another process has its name, address and regions.
$before = crash_while(
	'donor restarted',
	sub {
		$donor->kill9;
		$donor = start_donor($broker, memory => '64MB');
	});
ok(wait_for('pages to leave', sub { tier_pages($node, 'pages') < 0.1 * $before->{pages} }, 120), 'donor restarted: the pages that were there are dropped');
are_gone($before, 'donor restarted');
ok(warm($node, 'pages', part => 0.8), 'donor restarted: pages come into the tier');

# The donor is not there at all when the server is back.
$before = crash_while('donor gone', sub { $donor->kill9 });
is_right($node, $before, 'donor gone');
$donor = start_donor($broker, memory => '64MB');
ok(wait_leased($node, 64, 120) && wait_donors_used($node), 'donor gone: another one is used');
ok(wait_for('pages', sub { warm($node, 'pages', part => 0.8) && counter($node, 'hits') > 0 }), 'donor gone: pages come into the tier');
is_right($node, $before, 'donor gone, then back');

# An operator ends the lease.
$before = crash_while('revoked', sub { http_json($broker, 'POST', "/v1/leases/$_[0]{lease}/revoke") });
is_empty($node, $before, 'revoked');

# The broker is not there, and comes back before the lease has ended ...
set_and_wait($node, 'remote_bp.lease_ttl' => '10min');
ok(wait_for('the setting to be told', sub { broker_lease($broker)->{ttl_ms} == 600_000 }, 60), 'no broker: the lease lasts for long');
$before = crash_while('no broker', sub { $broker->kill9 });
is_kept($node, $before, 'no broker');
$broker = restart_broker($broker);
ok(wait_renewed($node), 'no broker: the lease is renewed when it is back');
is(lease_id($node), $before->{lease}, 'no broker: it is the same lease');
cmp_ok(tier_pages($node, 'pages'), '>=', 0.9 * $before->{pages}, 'no broker: all pages are there');

# ... or after that, when the broker still keeps it.
set_and_wait($node, 'remote_bp.lease_ttl' => '3s');
ok(wait_for('the setting to be told', sub { broker_lease($broker)->{ttl_ms} == 3_000 }, 60), 'no broker, lapsed: the lease does not last');
$before = crash_while(
	'no broker, lapsed',
	sub {
		lapses('no broker, lapsed');
		$broker->kill9;
	});
log_tells($node, $before->{offset}, qr/LOG: .*remote_bp: could not .* lease .*broker/, 'no broker, lapsed: the worker asks for it');
is(counter($node, 'usable'), 'f', 'no broker, lapsed: the memory is not used');
is_right($node, $before, 'no broker, lapsed');
$broker = restart_broker($broker);
is_kept($node, $before, 'no broker, lapsed');

# Without a crash, too, what a lapsed lease has is kept.
$before = state_of($node);
$broker->freeze;
ok(wait_for('the deadline', sub { counter($node, 'usable') eq 'f' }, 120), 'no crash: the memory is not used past the deadline');
$broker->thaw;
ok(wait_usable($node), 'no crash: it is used when the broker is back');
is(lease_id($node), $before->{lease}, 'no crash: by the same lease');
cmp_ok(tier_pages($node, 'pages'), '>=', 0.9 * $before->{pages}, 'no crash: all pages are there');
is_right($node, $before, 'no crash');

# The settings have come to say another broker, which is not there: the lease is renewed at
# its own.
my $url = $broker->{noted}{url};
my $nobody = 'http://127.0.0.1:' . PostgreSQL::Test::Cluster::get_free_port();
set_and_wait($node, 'remote_bp.broker' => $nobody);
log_tells($node, $before->{offset}, qr/could not switch to broker "\Q$nobody\E"/, 'mistyped broker: the worker does not change to it');
$before = crash_while('mistyped broker', sub { });
is_kept($node, $before, 'mistyped broker');
ok(wait_renewed($node, 2), 'mistyped broker: the lease is renewed');
is(lease_id($node), $before->{lease}, 'mistyped broker: it is the same lease');
set_and_wait($node, 'remote_bp.broker' => $url);

# Longer than the broker keeps it
set_and_wait($node, 'remote_bp.keep_time' => '0');
ok(wait_for('the setting to be told', sub { (broker_lease($broker)->{keep_ms} // 1) == 0 }, 60), 'too long: the lease is not kept');
$before = crash_while(
	'too long',
	sub {
		ok(wait_for('the lease to end', sub { !%{ broker_lease($broker) } }, 120), 'too long: the lease ends');
		ok(wait_for('the regions to be clean', sub { free_regions() == 8 }), 'too long: its regions are free');
		ok(all_granted(), 'too long: another client gets the memory');
		http_json($broker, 'DELETE', "/v1/leases/$lease->{lease}", { secret => $lease->{secret} });
	});
is_empty($node, $before, 'too long');

# And once more as at the beginning
set_and_wait($node, 'remote_bp.keep_time' => '30min');
$before = crash_while('in time', sub { });
is_kept($node, $before, 'in time');
my @troubles = log_troubles($node);
is("@troubles", '', 'the log is quiet');
$node->stop;

done_testing();
