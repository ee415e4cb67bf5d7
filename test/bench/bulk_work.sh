# shellcheck shell=bash
# Sourced by "bulk" and "bulk_rdma_in_guest": queries that read many pages in
# order, or ask for them ahead.

# workload NAME: the SQL of it, with its settings before it; "rows" of pgbench_accounts, and "bitmap_pages" and
# "random_pages" of them
workload()
{
    local no_index="SET enable_indexscan = off; SET enable_indexonlyscan = off; SET enable_bitmapscan = off"
    local scan="SELECT count(*), sum(abalance) FROM pgbench_accounts"

    case $1 in
        scan) printf '%s\n' "$no_index" "$scan" ;;
        scan_2) printf '%s\n' "$no_index; SET max_parallel_workers_per_gather = 2; SET parallel_setup_cost = 0; SET parallel_tuple_cost = 0" "$scan" ;;
        vacuum) printf '%s\n' 'SELECT' 'VACUUM (DISABLE_PAGE_SKIPPING, INDEX_CLEANUP off) pgbench_accounts' ;;
        bitmap) printf '%s\n' 'SET enable_seqscan = off; SET enable_indexscan = off; SET effective_io_concurrency = 16' \
            "SELECT sum(abalance) FROM pgbench_accounts WHERE aid = ANY (ARRAY(SELECT 1 + i * $((rows / bitmap_pages)) FROM generate_series(0, $((bitmap_pages - 1))) i))" ;;
        random) printf '%s\n' 'SET enable_seqscan = off; SET enable_bitmapscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off; SET enable_memoize = off' \
            "SELECT sum(abalance) FROM generate_series(1, ${random_pages:-28000}) i JOIN pgbench_accounts ON aid = 1 + i::bigint * 7919 * 61 % $rows" ;;
        range) printf '%s\n' 'SET enable_seqscan = off; SET enable_bitmapscan = off' \
            "SELECT sum(abalance) FROM pgbench_accounts WHERE aid BETWEEN $((rows / 10)) AND $((rows / 10 + rows / 164 * 48))" ;;
    esac
}

# time_query SERVER WORKLOAD SETTING...: sets "ms"
time_query()
{
    local server=$1 workload=$2
    local -a sql

    mapfile -t sql < <(workload "$workload")
    shift 2
    {
        printf 'SET %s;\n' "$@"
        printf '%s;\n' "${sql[0]}" 'SELECT extract(epoch FROM clock_timestamp()) * 1000' "${sql[1]}" \
            'SELECT extract(epoch FROM clock_timestamp()) * 1000'
    } >"$work/bulk.sql"
    "${as_user[@]}" "$PG_BINDIR/psql" -XAtq -h "$work" -p "${server_port[$server]}" -U postgres -d postgres \
        -v ON_ERROR_STOP=1 -f "$work/bulk.sql" >"$work/bulk.out" || fail "$workload fails on \"$server\""
    ms=$(awk '/^[0-9]+\.[0-9]+$/ { t[n++] = $1 } END { printf "%.1f", t[1] - t[0] }' "$work/bulk.out")
}

# pages SERVER: read so far from donors, from the page cache as far as is
# known, and from files; read ahead, and such that were used
pages()
{
    query "$1" 'SELECT hits + staged_hits, page_cache_reads, misses, read_ahead, read_ahead_used FROM remote_bp_stat'
}

# measure_bulk SERVER VARIANT WORKLOAD SETTING...: its time, and on the server
# "remote_bp" where its pages came from
measure_bulk()
{
    local server=$1 variant=$2 name=$3 i=0 metric
    local -a b=() a=()

    shift 3
    [ "$server" != remote_bp ] || read -r -a b < <(pages "$server")
    time_query "$server" "$name" "$@"
    result "$variant" "$name" ms "$ms"
    [ "$server" = remote_bp ] || return 0
    sleep 0.1
    read -r -a a < <(pages "$server")
    for metric in donors page_cache files ahead ahead_used; do
        result "$variant" "$name" "$metric" $((a[i] - b[i]))
        i=$((i + 1))
    done
}

# say_bulk VARIANT: the times of this round
say_bulk()
{
    say "   round $round  $1: $(awk -F '\t' -v variant="$1" -v round="$round" \
        '$1 == variant && $3 == round && $4 == "ms" { printf "%s %.0f ms  ", $2, $5 }' "$BENCH_RESULTS")"
}
