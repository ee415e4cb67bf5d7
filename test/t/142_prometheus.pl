# Prometheus asks the broker and, by postgres_exporter, a server: it takes what they say, each
# alert fires in its case and ends, none does beside it, and the dashboard shows something in
# each panel.  Times of the rules are shortened here; test/monitoring tests them as they are.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use JSON::PP ();
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use RemoteBP;
use RemoteBP::Daemon;
use RemoteBP::Spill;
use Test::More;

need_test_build();
set_faults();
my $docs = "$FindBin::RealBin/../../docs/monitoring";
my $dir = PostgreSQL::Test::Utils::tempdir();
my $word = 'correct-horse-battery-staple';
write_token("$dir/$_", $word, $_) for qw(server donor operator monitor);

my $broker = start_broker(token => $word, args => [ '--credentials', write_credentials("$dir/credentials", $word), '--donor-timeout', 2 ]);
my %donors = map { $_ => start_donor($broker, id => $_, memory => '48MB', region_size => '2MB', args => [ '--token-file', "$dir/donor" ]) } qw(d1 d2);
my $node = spill_cluster(
	'watched',
	broker => $broker,
	transport => 'tcp',
	temp => '16MB',
	buffer => '32MB',
	test_build => 1,
	settings => "shared_buffers = 1MB\n",
	conf => "remote_bp.token_file = '$dir/server'\nremote_bp.lease_ttl = '6s'\nremote_bp.spill_temp_tables = on\n");
wait_leased($node, 32) or BAIL_OUT('no memory');
make_table($node, 't', 24);

#---- Prometheus -----------------------------------------------------------------------

my ($exporter, $port) = map { '127.0.0.1:' . PostgreSQL::Test::Cluster::get_free_port() } 1 .. 2;
my $cert = tls()->{cert};
my $rules = slurp_file("$docs/alerts.yml");
$rules =~ s/for: (10m|1h)$/for: 4s/mg;
$rules =~ s/for: 20s$/for: 2s/mg;
$rules =~ s/\[(10m|5m)\]/[15s]/g;
append_to_file("$dir/rules.yml", $rules);
append_to_file("$dir/prometheus.yml", <<"YAML");
global: {scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s}
rule_files: ["$dir/rules.yml"]
scrape_configs:
  - job_name: remote_bp
    scheme: https
    authorization: {credentials_file: "$dir/monitor"}
    tls_config: {ca_file: "$cert"}
    static_configs: [{targets: ["@{[ $broker->address ]}"]}]
  - job_name: postgres
    scrape_interval: 3s
    scrape_timeout: 3s
    static_configs: [{targets: ["$exporter"]}]
YAML

sub start_program
{
	my ($name, @command) = @_;
	return RemoteBP::Daemon->start(name => $name, log => "$dir/$name.log", listens => 0, command => [@command]);
}

start_program('postgres_exporter', 'env', 'DATA_SOURCE_NAME=' . $node->connstr('postgres') . ' sslmode=disable',
	'prometheus-postgres-exporter', "--web.listen-address=$exporter", '--disable-default-metrics', '--disable-settings-metrics',
	"--extend.query-path=$docs/postgres_exporter.yml");
my $prometheus = start_program('prometheus', 'prometheus', "--config.file=$dir/prometheus.yml", "--storage.tsdb.path=$dir/tsdb",
	"--web.listen-address=$port");

# What the expression gives now: a list of labels, or undef.
sub ask
{
	my ($expr) = @_;
	my $answer = http_client(timeout => 10)->post_form("http://$port/api/v1/query", { query => $expr });
	return undef unless $answer->{success};
	return map { $_->{metric} } @{ JSON::PP::decode_json($answer->{content})->{data}{result} };
}

sub firing
{
	return join(' ', sort map { $_->{alertname} . ($_->{donor} ? " of $_->{donor}" : '') } ask('ALERTS{alertstate="firing"}'));
}

# All that fires is what the expression says, now or soon.
sub wait_firing
{
	my ($alerts, $name, $while) = @_;
	my $now = '';
	ok(wait_for($name, sub { $while->() if $while; ($now = firing()) =~ /\A$alerts\z/ }, 60), $name);
	note("firing: $now");
	ctl($broker, '--token-file', "$dir/operator", 'health');
	IPC::Run::run([ rbp_program('ctl'), '--dbname', $node->connstr('postgres'), 'health' ], '>&', \my $verdict);
	note("remote_bp_ctl --dbname ... health\n$verdict");
	return;
}

my $query = 'SELECT count(*), max(pad) FROM (SELECT * FROM t ORDER BY pad) s';

sub read_pages
{
	content($node, 't');
	evict_buffers($node);
	return;
}

sub work
{
	read_pages();
	$node->safe_psql('postgres', $query);
	return;
}

ok(wait_for('both to be asked', sub { ask('count(up == 1) == 2') && ask('remote_bp_server_ok == 1') }), 'Prometheus has asked broker and server')
  or diag(slurp_file("$dir/prometheus.log"), slurp_file("$dir/postgres_exporter.log"));
my $exported = http_client()->get("http://$exporter/metrics")->{content};
my $complaints = '';
IPC::Run::run([qw(promtool check metrics)], '<', \join('', grep { /^(# \w+ )?remote_bp_/ } split /^/, $exported), '>&', \$complaints);
is($complaints, '', 'what postgres_exporter makes of the queries is as it should be');

#---- the dashboard ----------------------------------------------------------------------

work() for 1 .. 3;
for my $panel (@{ JSON::PP::decode_json(slurp_file("$docs/grafana.json"))->{panels} })
{
	my %legends;
	for my $target (@{ $panel->{targets} })
	{
		# "> 0" is for what is of interest if it is there
		my $expr = $target->{expr} =~ s/\$__rate_interval/15s/gr =~ s/\$(instance|donor|client)/.*/gr =~ s/ > 0$//r;
		my @series;
		ok(wait_for($expr, sub { work(); @series = ask($expr) }, 300), "$panel->{title}: $expr");
		$legends{ $target->{legendFormat} =~ s/\{\{(\w+)\}\}/$_->{$1} \/\/ '?'/ger }++ for @series;
	}
	ok(!(grep { $legends{$_} > 1 || /\?$/ } keys %legends), "$panel->{title}: legends tell the series apart") or diag(join("\n", sort keys %legends));
}

#---- alerts -----------------------------------------------------------------------------

wait_firing('', 'all is quiet');
$donors{d2}->freeze;
wait_firing('(RemoteBpDonorDown of d2 ?)+', 'a donor is stopped');
$donors{d2}->thaw;
wait_firing('', 'it goes on');

$broker->kill9;
wait_firing('.*RemoteBpBrokerDown.*', 'the broker is killed');
$broker = restart_broker($broker);
wait_firing('', 'it is started again');

chomp(my $accepted = slurp_file("$dir/credentials"));
RemoteBP::write_secret_file("$dir/credentials", $accepted =~ s/^server .*\n//mr);
$broker->signal('HUP');
wait_firing('(RemoteBpTierUnusable ?)+', 'a server has a credential that is not accepted any more');
my $guess = { headers => { Authorization => 'Bearer ' . credential('guessed', 'operator') } };
wait_firing('RemoteBpTierUnusable RemoteBpTooManyRefusals', 'somebody guesses credentials',
	sub { http_client()->get($broker->url . '/v1/donors', $guess) for 1 .. 5 });
RemoteBP::write_secret_file("$dir/credentials", $accepted);
$broker->signal('HUP');
wait_firing('', 'it is accepted again, and nobody guesses');

wait_leased($node, 32);
work() for 1 .. 3;
set_faults('donor d1 read corrupt');
wait_firing('(RemoteBpDonorDown of d1 )?RemoteBpPagesCorrupt', 'a donor returns wrong bytes', \&read_pages);
set_faults();
wait_firing('', 'it does so no more', \&read_pages);

my $session = $node->background_psql('postgres', on_error_stop => 0);
$session->query($_) for "SET temp_buffers = '800kB'", 'CREATE TEMP TABLE f AS SELECT * FROM t';
cmp_ok($session->query('SELECT sum(remote_bytes) FROM remote_bp_temp_files WHERE temp_relation'), '>', 0, 'there is temporary data');
$_->kill9 for values %donors;
$session->query('SELECT count(*), max(pad) FROM f');
wait_firing('.*RemoteBpTempDataLost.*', 'it is lost');
$session->quit;
start_donor($broker, id => $_, memory => '48MB', region_size => '2MB', args => [ '--token-file', "$dir/donor" ]) for qw(d1 d2);
wait_firing('', 'donors are started again');

$node->safe_psql('postgres', "ALTER SYSTEM SET remote_bp.temp_tier_size = '0'");
$node->reload;
wait_firing('', 'what is switched off raises no alert');

$prometheus->stop;
$node->stop;
done_testing();
