# remote_bp_hot_pages(): the pages that shared buffers use, those that were read from the
# tier, and the others there; one scan for all who ask; a list that is bounded.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use RemoteBP;
use Test::More;
use Time::HiRes qw(time);

need_test_build();
my $broker = start_broker();
my $donor = start_donor($broker, memory => '128MB');
my $node = new_cluster('hot', broker => $broker, test_build => 1, shared_buffers => '6MB', conf => "remote_bp.io_timeout = '5s'\n");
wait_leased($node, 64) or BAIL_OUT('no memory');
make_table($node, 't', 16);
make_table($node, 'small', 1);
my $go_on = hold_policy_worker($node);

sub sql { return $node->safe_psql('postgres', $_[0]); }

# Numbers of pages of a relation in each class, 'class pages, ...', in a list that is taken now.
my $blocks = q{SELECT class, fork, 8192 * part + i AS block, relfilenode, database FROM remote_bp_hot_pages(), generate_series(0, 8 * length(bitmap) - 1) i
	WHERE get_bit(bitmap, i) = 1};

sub wait_new
{
	my $taken = sql('SELECT extract(epoch FROM clock_timestamp()) * 1000 - age_ms FROM remote_bp_hot_pages_info()');
	return wait_for('another list', sub { sql('SELECT extract(epoch FROM clock_timestamp()) * 1000 - age_ms FROM remote_bp_hot_pages_info()') > $taken + 5 }, 120);
}

sub classes
{
	my ($rel, $fork) = @_;
	wait_new() or return '';
	return sql(sprintf(q{SELECT string_agg(class || ' ' || n, ', ' ORDER BY class) FROM (SELECT class, count(*) AS n FROM (%s) b
		WHERE relfilenode = pg_relation_filenode('%s') AND fork = '%s' AND database = (SELECT oid FROM pg_database WHERE datname = current_database()) GROUP BY class) c},
			$blocks, $rel, $fork // 'main'));
}

#---- classes ------------------------------------------------------------------

my $pages = sql(q{SELECT pg_relation_size('t') / 8192});
evict_buffers($node);
sql(q{SELECT remote_bp_evict('t'), remote_bp_evict('t_id'), remote_bp_evict('small')});
is(classes('t'), '', 'pages that are nowhere are not named');
sql(q{SELECT remote_bp_prewarm('t')});
evict_buffers($node);
wait_still($node, qw(captures pushes staged_pages));
# Some of them come to the main queue at once, since they were written while they were there before.
my ($main, $small) = classes('t') =~ /^(?:1 (\d+), )?2 (\d+)$/;
cmp_ok($small // 0, '>', 0.8 * $pages, 'pages that the tier has, and nobody has read, are of class 2');
is(sql("SELECT count(DISTINCT block), count(*) FROM ($blocks) b WHERE relfilenode = pg_relation_filenode('t') AND fork = 'main'"), "$pages|$pages", 'each of them is named, once');
my $read = 'SET enable_seqscan = off; SET enable_bitmapscan = off; SELECT sum(v) FROM';
sql("$read t WHERE id BETWEEN 1 AND 800");
evict_buffers($node);
my ($hot) = classes('t') =~ /^1 (\d+), 2 \d+$/;
cmp_ok($hot // 0, '>=', ($main // 0) + 90, 'some were read');
is(sql("SELECT min(class), max(class), count(*) FROM ($blocks) b WHERE relfilenode = pg_relation_filenode('t') AND fork = 'main' AND block < 100"), '1|1|100', 'pages that were read from the tier are of class 1');
sql(q{SELECT remote_bp_prewarm('small')});
sql("$read small WHERE id > 0") for 1 .. 3;
is(classes('small'), '0 ' . sql(q{SELECT pg_relation_size('small') / 8192}), 'pages that shared buffers have are of class 0 alone');
like(classes('t', 'vm'), qr/^(|[012] 1)$/, 'the visibility map has a page');
is(sql("SELECT count(*) FROM ($blocks) b WHERE fork NOT IN ('main', 'vm') OR database = 0"), 0, 'there are no other forks, nor relations of all databases');

# The blocks are the right ones.
evict_buffers($node);
sql(q{SELECT remote_bp_evict('t'); SELECT remote_bp_prewarm('t', first_block => 1000, last_block => 1009)});
evict_buffers($node);
wait_new();
is(sql("SELECT min(block), max(block), count(*) FROM ($blocks) b WHERE relfilenode = pg_relation_filenode('t') AND fork = 'main'"), '1000|1009|10', 'blocks are named by their numbers');
is(sql(q{SELECT bool_and(l IS NULL OR l < this) FROM (SELECT ROW(class, tablespace, database, relfilenode, fork, part) AS this,
	lag(ROW(class, tablespace, database, relfilenode, fork, part)) OVER () AS l FROM remote_bp_hot_pages()) x}),
	't', 'rows are in ascending order');
is(sql(q{SELECT bool_and(length(bitmap) BETWEEN 1 AND 1024 AND get_byte(bitmap, length(bitmap) - 1) > 0) FROM remote_bp_hot_pages()}), 't', 'bitmaps are as short as can be');

#---- what is told about it -------------------------------------------------------

is(sql(q{SELECT i.system_identifier = c.system_identifier, timeline, format, age_ms >= 0, complete FROM remote_bp_hot_pages_info() i, pg_control_system() c}),
	't|1|1|t|t', 'the server, the format and the age are told');

# In a transaction there is one list, whatever others take.
my $session = $node->background_psql('postgres');
my $rows = 'SELECT md5(string_agg(p::text, E\'\n\')) FROM remote_bp_hot_pages() p';
my $first = $session->query_safe("BEGIN; SAVEPOINT s; $rows");
sql(q{SELECT remote_bp_prewarm('small'); SELECT remote_bp_evict('t')});
wait_new();
isnt(sql($rows), $first, 'others have another list by now');
is($session->query_safe("ROLLBACK TO s; $rows"), $first, 'a transaction sees one list to its end');
is($session->query_safe('SELECT complete FROM remote_bp_hot_pages_info()'), 't', 'and what is told about it');
isnt($session->query_safe("COMMIT; $rows"), $first, 'the next one sees another');
$session->quit;

#---- bounds ---------------------------------------------------------------------

sql(q{ALTER SYSTEM SET remote_bp.injection_point = 'few-hot-pages'});
$node->reload;
$node->poll_query_until('postgres', 'SHOW remote_bp.injection_point', 'few-hot-pages');
sql(q{SELECT remote_bp_prewarm('t')});
evict_buffers($node);
sql("$read small WHERE id > 0") for 1 .. 3;
is(wait_for('a short list', sub { sql('SELECT complete FROM remote_bp_hot_pages_info()') eq 'f' }, 120), 1, 'a list that is not complete says so');
is(sql('SELECT count(*), count(*) FILTER (WHERE class = 2), bool_or(class = 0) FROM remote_bp_hot_pages()'), '4|0|t', 'pages that were never read are left out first');

# A scan takes a second now: none begins for twenty.
my $taken = 'SELECT round((extract(epoch FROM clock_timestamp()) * 1000 - age_ms) / 500) FROM remote_bp_hot_pages_info()';
my $began = time;
my @taken = map { sql($taken) } 1 .. 5;
my %different = map { $_ => 1 } grep { abs($_ - $taken[0]) > 1 } @taken;
SKIP:
{
	skip 'the machine is slow', 1 if time - $began > 10;
	is(join(' ', keys %different), '', 'a list serves all who ask within twenty times the duration of its scan');
}

# Who asks while another one scans gets what there is; and the scan can be cancelled.
wait_for('the next scan', sub { sql(q{SELECT age_ms > 20000 FROM remote_bp_hot_pages_info()}) eq 't' || time - $began > 60 }, 120);
$node->psql('postgres', q{SET statement_timeout = '100ms'; SELECT count(*) FROM remote_bp_hot_pages()});
is(sql('SELECT count(*) FROM remote_bp_hot_pages()'), 4, 'a list is there after a scan was cancelled');

is_clean($node);

#---- a start -----------------------------------------------------------------------

sql(q{ALTER SYSTEM RESET remote_bp.injection_point});
$go_on->();
$node->restart;
cmp_ok(sql('SELECT count(*) FROM remote_bp_hot_pages() WHERE class > 0'), '>=', 0, 'a list is taken after a start');
is(sql('SELECT complete FROM remote_bp_hot_pages_info()'), 't', 'and not that of before');
is_clean($node, 'a start', no_compare => 1);
$node->stop;

done_testing();
