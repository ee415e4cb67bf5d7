# While the tier cannot be used, remote_bp_stat says why: for each reason that
# there is, and no reason when it can be.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use RemoteBP;
use Test::More;

my $dir = PostgreSQL::Test::Utils::tempdir();
my $right = 'correct-horse-battery-staple';
write_token("$dir/right", $right, 'server');
write_token("$dir/donor", $right, 'donor');
write_token("$dir/wrong", 'guessed', 'server');
write_token("$dir/pinned", $right, 'server', '*', '0' x 64);
write_token("$dir/unpinned", $right, 'server', '*', '-');
write_token("$dir/open", $right, 'server');
chmod 0644, "$dir/open";

my $node = new_cluster('reasons', tier => '32MB',
	conf => "remote_bp.temp_tier_max_size = '8MB'\nremote_bp.temp_tier_size = '8MB'\nremote_bp.lease_ttl = '3s'\n");

sub set
{
	my (%settings) = @_;
	$node->safe_psql('postgres', "ALTER SYSTEM SET remote_bp.$_ = $settings{$_}") for sort keys %settings;
	$node->reload;
	return;
}

# Both pools are unusable for that reason; or, with undef, usable.
sub wait_reason
{
	my ($why, $name, %opt) = @_;
	my $temp_why = exists $opt{temp} ? $opt{temp} : $why;
	my ($usable, $reason, $temp) = ('', '', '');
	ok( wait_for(
			$name,
			sub {
				($usable, $reason, $temp) = split /\|/,
				  $node->safe_psql('postgres', 'SELECT t.usable, t.unusable_reason, s.unusable_reason FROM remote_bp_stat t, remote_bp_stat_spill s'), -1;
				return ($why ? $usable eq 'f' && $reason =~ $why : $usable eq 't' && $reason eq '')
				  && ($temp_why ? $temp =~ $temp_why : $temp eq '');
			},
			90),
		$name) or diag("usable $usable; $reason; temporary data: $temp");
	return;
}

sub health
{
	return $node->safe_psql('postgres', 'SELECT ok, problem FROM remote_bp_health');
}

sub last_error
{
	return $node->safe_psql('postgres',
		'SELECT last_error FROM remote_bp_stat WHERE last_error_at BETWEEN pg_postmaster_start_time() AND clock_timestamp()');
}

wait_reason(qr/^remote_bp\.broker is not set$/, 'no broker is set');
is(last_error(), '', 'a broker that is not set is no error');
is(health(), 't|', 'and no problem');

my $broker = start_broker(args => [ '--credentials', write_credentials("$dir/credentials", $right) ], token => $right);
my $url = $broker->url;
set(broker => "'$url'");
wait_reason(qr/broker "\Q$url\E".*since.*certificate/, 'a broker with a certificate that nobody has vouched for');
set(broker_ca_file => "'@{[ tls()->{cert} ]}'");
wait_reason(qr/broker "\Q$url\E".*since.*requires a credential.*401/, 'no credential');
set(token_file => "'$dir/wrong'");
wait_reason(qr/broker "\Q$url\E".*since.*does not accept the credential.*401/, 'the wrong credential');
like(last_error(), qr/does not accept the credential/, 'the wrong credential is the last error');
like(health(), qr/^f\|the tier is not usable: .*does not accept the credential.*; temporary data cannot go to donors: /, 'and the problem');
IPC::Run::run([ rbp_program('ctl'), '--dbname', $node->connstr('postgres'), 'health' ], '>', \my $verdict);
like(($? >> 8) . " $verdict", qr/\A4 not well: the tier is not usable: .*does not accept the credential.*; tier not usable, [^\n]*\n\z/, 'remote_bp_ctl tells it');
set(token_file => "'$dir/none'");
wait_reason(qr/could not read token file/, 'no such file');
set(token_file => "'$dir/open'");
wait_reason(qr/could not read token file "\Q$dir\E\/open": others may read it: chmod 640 it/, 'a file that others may read');
set(token_file => "'$dir/donor'");
wait_reason(qr/broker "\Q$url\E".*since.*does not accept the credential \(HTTP status 403: donor "\*" may not do this: role server may\)/,
	'a credential of another role');
set(token_file => "'$dir/pinned'");
wait_reason(qr/broker "\Q$url\E".*since.*does not match pinned public key/, 'a broker that is not whom the pin names');
(my $plain = $url) =~ s/https/http/;
set(broker => "'$plain'", token_file => "'$dir/right'");
wait_reason(qr/broker "\Q$plain\E".*since.*the credential has a pin, which needs a URL of https:/, 'no TLS, though the credential has a pin');
set(broker => "'$url'", token_file => "'$dir/unpinned'");
wait_reason(qr/waits for memory/, 'a certificate of the CA that is set will do for a credential without a pin');
set(broker_ca_file => "''", token_file => "'$dir/right'");
$node->safe_psql('postgres', 'SELECT remote_bp_stat_reset()');
wait_reason(qr/waits for memory/, 'the right credential, and no donor');
$node->safe_psql('postgres', 'SELECT remote_bp_stat_reset()');
is(last_error(), '', 'a reset forgets the last error');

my $donor = start_donor($broker, memory => '64MB', args => [ '--token-file', "$dir/donor" ]);
wait_reason(undef, 'a donor');
set(enabled => 'off');
wait_reason(qr/^remote_bp\.enabled is off$/, 'switched off', temp => undef);
set(enabled => 'on');
set(buffer_tier_size => 0, temp_tier_size => 0);
wait_reason(qr/^remote_bp\.buffer_tier_size is 0$/, 'sizes of zero', temp => qr/^remote_bp\.temp_tier_size is 0$/);
is(health(), 't|', 'which are no problem');
set(buffer_tier_size => "'32MB'", temp_tier_size => "'8MB'");
wait_reason(undef, 'sizes that are not');

$broker->freeze;
ok(wait_for('an error', sub { last_error() =~ /could not (renew the|get a) lease|renewed in time/ }), 'a broker that hangs is the last error');
wait_reason(qr/broker "\Q$url\E".*since/, 'a broker that hangs is the reason when the lease has ended');
$broker->thaw;
wait_reason(undef, 'the broker goes on');
$broker->kill9;
wait_reason(qr/broker "\Q$url\E".*since/, 'the broker is gone');
restart_broker($broker);
wait_reason(undef, 'the broker is back');
is_clean($node, '', no_compare => 1);
$node->stop;

done_testing();
