# Queries that spill to donors by RDMA: the same answers as from disk, nothing
# left behind; a donor killed in the middle costs one query, or none with
# second copies.
. test/rdma_vm/guest/lib.sh

sorted="SET work_mem = '64kB'; SET max_parallel_workers_per_gather = 0;
    SELECT md5(string_agg(aid || ':' || filler, ',' ORDER BY bid, filler, aid DESC)) FROM pgbench_accounts WHERE aid <= 30000"
joined="SET work_mem = '64kB'; SET max_parallel_workers_per_gather = 0; SET enable_mergejoin = off; SET enable_nestloop = off;
    SELECT count(*), sum(a.aid::bigint * b.abalance + b.aid), md5(string_agg(a.filler || b.aid, '' ORDER BY a.aid))
    FROM pgbench_accounts a JOIN pgbench_accounts b ON b.aid = a.aid + 1 WHERE a.aid <= 20000 AND b.aid <= 20000"

# A moment after the query, for its connection to end
nothing_left() { [ "$(query "SELECT pages || ' ' || files FROM remote_bp_stat_spill")" = '0 0' ]; }

# with_cursor NAME COMMAND...: half-way through a sorted cursor, do that; what
# psql then said is in $said.
with_cursor()
{
    local psql_pid name=$1

    shift
    rm -f "$dir/ready" "$dir/go"
    cat >"$dir/cursor.sql" <<SQL
\set VERBOSITY verbose
SET work_mem = '64kB';
SET max_parallel_workers_per_gather = 0;
BEGIN;
DECLARE c CURSOR FOR SELECT aid, filler FROM pgbench_accounts WHERE aid <= 30000 ORDER BY filler, aid DESC;
FETCH 1 FROM c;
\! touch $dir/ready
\! while [ ! -e $dir/go ]; do sleep 0.2; done
SELECT count(*) FROM (SELECT 1) x;
MOVE 29997 FROM c;
FETCH 2 FROM c;
ROLLBACK;
SELECT 'still here';
SQL
    "${as_postgres[@]}" psql -XAtq -f "$dir/cursor.sql" >"$dir/cursor.out" 2>&1 &
    psql_pid=$!
    check "$name: a cursor is open" until_true 120 test -e "$dir/ready"
    holds "$name: its file is on donors" "$(query 'SELECT sum(remote_bytes + staged_bytes)::bigint FROM remote_bp_temp_files') > 0"
    "$@"
    "${as_postgres[@]}" touch "$dir/go"
    wait "$psql_pid"
    said=$(cat "$dir/cursor.out")
    is "$name: the session goes on" "$(tail -n 1 "$dir/cursor.out")" 'still here'
}

start_broker
start_donor near --memory 48MB
start_donor far --memory 48MB
start_server 'remote_bp.transport = verbs' "remote_bp.buffer_tier_max_size = '16MB'" \
    "remote_bp.temp_tier_max_size = '64MB'" "remote_bp.temp_tier_size = '64MB'"
until_true 60 leased 80 || bail_out 'no memory for temporary data is leased'

# Donors register what they lend region by region, in the background; blocks for
# a region whose turn has not come go to the disk.
hardly_refused()
{
    query 'SELECT remote_bp_stat_reset()' >/dev/null
    query "$sorted" >/dev/null
    [ "$(counter "(spill.rescued * 10 < spill.writes AND spill.writes > 100)::int")" = 1 ]
}
check 'all regions can be used' until_true 60 hardly_refused

for statement in sorted joined; do
    from_disk=$(query "SET remote_bp.spill_temp_files = off; ${!statement}")
    query 'SELECT remote_bp_stat_reset()' >/dev/null
    is "$statement: the same answer by RDMA as from disk" "$(query "${!statement}")" "$from_disk"
    holds "$statement: blocks were written to donors" "$(counter spill.writes) > 100"
    holds "$statement: blocks were read from donors" "$(counter spill.reads) > 100"
    holds "$statement: most blocks are read ahead" "$(counter spill.read_ahead) * 2 > $(counter spill.reads)"
    is "$statement: no block is wrong or lost" "$(counter "spill.hash_failures || ' ' || spill.lost")" '0 0'
    # a guest that stands still for a while loses a connection now and then
    holds "$statement: hardly any block goes to the disk" "$(counter spill.rescued) * 5 < $(counter spill.writes)"
    check "$statement: no block is left on donors" until_true 20 nothing_left
done
is 'both donors are reached by verbs' "$(query "SELECT string_agg(transport, ' ') FROM remote_bp_stat_donors")" 'verbs verbs'

query "ALTER SYSTEM SET remote_bp.temp_mirror = on" && query 'SELECT pg_reload_conf()' >/dev/null
with_cursor 'with second copies' kill_donor far
is 'with second copies: the query has no error' "$(grep -c ERROR <<<"$said")" 0
is 'with second copies: the query returns all rows' "$(grep -cE '^[0-9]+\|' <<<"$said")" 3
check 'with second copies: nothing is left' until_true 20 nothing_left

start_donor far --memory 48MB
until_true 60 leased 80 || bail_out 'the memory does not come back'
query "ALTER SYSTEM SET remote_bp.temp_mirror = off" && query 'SELECT pg_reload_conf()' >/dev/null
both() { kill_donor near; kill_donor far; }
with_cursor 'all donors killed' both
holds 'all donors killed: the query fails with an I/O error' "$(grep -c 'ERROR:  58030' <<<"$said") == 1"
check 'all donors killed: nothing is left' until_true 60 nothing_left
is 'all donors killed: the next query uses the disk' "$(query "$sorted")" "$(query "SET remote_bp.spill_temp_files = off; $sorted")"
is 'no backend crashed' "$(grep -cE 'PANIC:|TRAP:|terminated by signal' "$dir/server.log")" 0
stop_server
done_testing
