# Sourced by the components of "make bench": servers, limits, loads, results.
#
# Each component is a script of its own that test/bench/run starts, with these
# in the environment: BENCH_WORK (scratch directory, which outlives the
# component and holds loaded data for the next), BENCH_RESULTS (its file of
# results), ROUNDS, SECONDS_EACH, SCALE and so on, see test/bench/run.
#
# A component's servers, daemons, control groups and copies of data are its
# own and gone when it ends, however it ends.

cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 1

# shellcheck source=test/lib/postgres.sh
. test/lib/postgres.sh
# shellcheck source=test/lib/daemons.sh
. test/lib/daemons.sh

find_postgres

export PGOPTIONS='-c client_min_messages=warning'

component=$(basename "$0")
if [ -z "${BENCH_WORK:-}" ]; then
    echo "Start this as: ONLY=$component make bench" >&2
    exit 2
fi

work=$BENCH_WORK/$component         # the component's own scratch directory
round=0                             # results are labelled with it

# PostgreSQL does not run as root, and control groups need root.
as_user=()
as_root=()
if [ "$(id -u)" -eq 0 ]; then
    as_user=(setpriv --reuid=postgres --regid=postgres --init-groups --)
else
    as_root=(sudo -n)
fi

say()
{
    printf '%s\n' "$*"
}

fail()
{
    printf 'bench: %s: %s\n' "$component" "$*" >&2
    exit 1
}

# calculate EXPRESSION: in awk's arithmetic
calculate()
{
    awk "BEGIN { print ($1) }"
}

#
# ---- results -----------------------------------------------------------------
#

# result VARIANT CLIENTS METRIC VALUE
result()
{
    printf '%s\t%s\t%s\t%s\t%s\n' "$1" "$2" "$round" "$3" "$4" >>"$BENCH_RESULTS"
}

# not_measured VARIANT REASON
not_measured()
{
    say "   not measured: $1: $2"
    printf 'not measured\t%s\t%s\n' "$1" "$2" >>"$BENCH_RESULTS"
}

#
# ---- results of cells ----------------------------------------------------------
#
# Results of each cell are put into the file of results when it is done, in place of
# those that are there.  Cells that were not chosen, and those that a run did not come
# to, stay as they were.  "results" is the file.

# keep_cells: take over those that are there
keep_cells()
{
    kept=${results%.new}
    [ ! -f "$kept" ] || awk -F '\t' '$1 != "fact" || $2 ~ /^made /' "$kept" >>"$results"
}

# without CELL FILE: its other lines; the beginning of a name stands for all its cells
without()
{
    awk -F '\t' -v cell="$1" '
        index($1 ".", cell ".") == 1 { next }
        $1 == "not measured" && index(cell ".", $2 ".") == 1 { next }
        $1 == "fact" && index($2 ".", "made " cell ".") == 1 { next }
        { print }' "$2"
}

# put_cell CELL FILE: in place of what there is of it
put_cell()
{
    without "$1" "$results" >"$work/results"
    cat "$2" >>"$work/results"
    cat "$work/results" >"$results"
    cp "$results" "$kept.part"
    mv "$kept.part" "$kept"
}

#
# ---- beginning and end -------------------------------------------------------
#

declare -A server_port=() server_groups=() server_preload=()
running=()
groups_made=()
at_end=()                           # commands, the last first; servers are stopped then

begin()
{
    trap clean_up EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM
    set -o errtrace
    trap 'echo "bench: $component: line $LINENO: failed: $BASH_COMMAND" >&2' ERR
    mkdir -p "$work"
    [ "$(id -u)" -ne 0 ] || chown postgres: "$work"
    ulimit -l unlimited 2>/dev/null || true         # donors lock their memory
}

# shellcheck disable=SC2317
clean_up()
{
    local status=$? name group try i

    trap '' INT TERM
    if [ "$status" -ne 0 ] && [ "$status" -ne 130 ]; then
        for name in "$work"/*.log; do
            if grep -qE 'FATAL|PANIC|ERROR|[Ee]rror|arning' "$name" 2>/dev/null; then
                printf -- '---- %s\n' "$(basename "$name")" >&2
                tail -n 10 "$name" >&2
            fi
        done
    fi
    for name in "${running[@]}"; do
        "${as_user[@]}" "$PG_BINDIR/pg_ctl" -D "$work/$name" -m immediate -w stop >/dev/null 2>&1 || true
    done
    # Nothing needs to be given back any more.
    for pid in "${daemon_pids[@]}"; do
        kill -KILL "$pid" 2>/dev/null || true
    done
    for ((i = ${#at_end[@]} - 1; i >= 0; i--)); do
        eval "${at_end[i]}" || echo "bench: failed: ${at_end[i]}" >&2
    done
    for group in "${groups_made[@]}"; do
        for try in $(seq 1 50); do
            if "${as_root[@]}" rmdir "$group" 2>/dev/null || [ ! -d "$group" ]; then
                break
            fi
            [ "$try" -lt 50 ] || echo "bench: cannot remove $group" >&2
            sleep 0.1
        done
    done
    rm -rf "$work"
    exit "$status"
}

#
# ---- control groups ----------------------------------------------------------
#

write_root()
{
    printf '%s\n' "$1" | "${as_root[@]}" tee "$2" >/dev/null 2>&1
}

# make_group CONTROLLER NAME: sets "group" to its path.  Version 1 of the
# control groups has a tree for each controller, version 2 has one tree.
make_group()
{
    local controller=$1 top=/sys/fs/cgroup name=remote_bp_bench.$$.$2

    group=
    if [ -d "$top/$controller" ] && [ -f "$top/$controller/cgroup.procs" ]; then
        group=$top/$controller/$name
    elif grep -qw "${controller/blkio/io}" "$top/cgroup.controllers" 2>/dev/null; then
        group=$top/$name
        write_root "+${controller/blkio/io}" "$top/cgroup.subtree_control" || return 1
    else
        return 1
    fi
    if [ ! -d "$group" ]; then
        "${as_root[@]}" mkdir "$group" 2>/dev/null || return 1
        groups_made+=("$group")
    fi
}

# memory_group NAME MB: sets "group"
memory_group()
{
    make_group memory "$1" || return 1
    if [ -f "$group/memory.limit_in_bytes" ]; then
        write_root "$(($2 * 1024 * 1024))" "$group/memory.limit_in_bytes"
    else
        write_root "$(($2 * 1024 * 1024))" "$group/memory.max" && { write_root 0 "$group/memory.swap.max" || true; }
    fi
}

# throttle GROUP MAJOR:MINOR READS: limits reads a second; 0: no limit
throttle()
{
    if [ -f "$1/blkio.throttle.read_iops_device" ]; then
        write_root "$2 $3" "$1/blkio.throttle.read_iops_device"
    else
        write_root "$2 riops=${3/#0/max}" "$1/io.max"
    fi
}

# device_of PATH: MAJOR:MINOR of the whole block device that carries it, which
# is what a throttle wants.
device_of()
{
    local device sys

    device=$(findmnt -no MAJ:MIN -T "$1" | head -n 1 | tr -d ' ')
    sys=$(readlink -f "/sys/dev/block/$device")
    [ -n "$device" ] && [ -d "$sys" ] || return 1
    if [ -f "$sys/partition" ]; then
        device=$(cat "$sys/../dev")
    fi
    printf '%s\n' "$device"
}

#
# ---- data and servers ----------------------------------------------------------
#

query()
{
    local name=$1

    shift
    "${as_user[@]}" "$PG_BINDIR/psql" -XAtq -F ' ' -h "$work" -p "${server_port[$name]}" -U postgres -d postgres \
        -v ON_ERROR_STOP=1 -c "$1"
}

# load_base NAME MB COMMAND...: a cluster that the command fills, with NAME for
# its last argument, and that takes so much room with its copies; once for all
# components, later copied
load_base()
{
    local base=$BENCH_WORK/base.$1 log=$work/load.log

    [ ! -f "$base/loaded" ] || return 0
    [ "$(df -Pm "$BENCH_WORK" | awk 'NR == 2 { print $4 }')" -gt "$2" ] ||
        fail "$BENCH_WORK has too little space; set TMPDIR, or the size to less"
    say "   loading data ($1)"
    rm -rf "$base"
    "${as_user[@]}" "$PG_BINDIR/initdb" -D "$base" -A trust -U postgres --no-locale --encoding=UTF8 >"$log" 2>&1 ||
        fail "initdb: $(tail -n 5 "$log")"
    cat >>"$base/postgresql.conf" <<CONF
listen_addresses = ''
max_connections = 40
max_wal_size = 8GB
checkpoint_timeout = 1h
autovacuum = off
huge_pages = off
CONF
    running+=("../base.$1")
    "${as_user[@]}" "$PG_BINDIR/pg_ctl" -D "$base" -l "$work/base.log" -w start \
        -o "-c fsync=off -c shared_buffers=512MB -c unix_socket_directories='$work'" >>"$log" 2>&1 ||
        fail "the server does not start: $(tail -n 5 "$log" "$work/base.log")"
    "${@:3}" "$1" >>"$log" 2>&1 || fail "cannot load: $(tail -n 5 "$log")"
    "${as_user[@]}" "$PG_BINDIR/psql" -XAtq -h "$work" -U postgres -d postgres \
        -c 'CREATE EXTENSION pg_prewarm' -c 'VACUUM FREEZE' -c CHECKPOINT >>"$log" 2>&1
    "${as_user[@]}" "$PG_BINDIR/pg_ctl" -D "$base" -m fast -w stop >/dev/null 2>&1
    no_longer_running "../base.$1"
    sync -f "$BENCH_WORK"
    "${as_user[@]}" touch "$base/loaded"
}

load_pgbench()
{
    "${as_user[@]}" "$PG_BINDIR/pgbench" -h "$work" -U postgres -i -I dtGvp -q -s "$1" postgres
}

# load_data SCALE: pgbench's
load_data()
{
    load_base "$1" $(($1 * 16 * 5 + 2048)) load_pgbench
}

# create_server NAME BASE SHARED_BUFFERS_MB [SETTING...]: a copy of the data
create_server()
{
    local name=$1 base=$2 setting

    server_port[$name]=$((5440 + ${#server_port[@]}))
    "${as_user[@]}" cp -a --reflink=auto "$BENCH_WORK/base.$base" "$work/$name"
    for setting in "unix_socket_directories = '$work'" "port = ${server_port[$name]}" \
        "shared_buffers = ${3}MB" "${@:4}"; do
        printf '%s\n' "$setting"
    done >>"$work/$name/postgresql.conf"
}

no_longer_running()
{
    local name
    local -a others=()

    for name in "${running[@]}"; do
        [ "$name" = "$1" ] || others+=("$name")
    done
    running=("${others[@]}")
}

data_files()
{
    find "$work/$1/base" "$work/$1/global" -type f
}

# What loading and copying left in the page cache is charged to nobody's limit.
drop_cache()
{
    sync -f "$work"
    data_files "$1" | while read -r file; do
        dd if="$file" iflag=nocache count=0 status=none
    done
}

# An idle file leaves the page cache soon on some machines: right before a run.
warm_cache()
{
    data_files "$1" | xargs -d '\n' cat >/dev/null
}

# start_server NAME: within the groups "server_groups[NAME]", with the library
# "server_preload[NAME]"
start_server()
{
    local name=$1 own

    drop_cache "$name"
    (
        for own in ${server_groups[$name]:-}; do
            write_root "$BASHPID" "$own/cgroup.procs" || exit 1
        done
        preload=()
        [ -z "${server_preload[$name]:-}" ] || preload=(env "LD_PRELOAD=${server_preload[$name]}")
        "${as_user[@]}" "${preload[@]}" "$PG_BINDIR/pg_ctl" -D "$work/$name" -l "$work/$name.log" -w start
    ) >"$work/pg_ctl.log" 2>&1 || fail "the server \"$name\" does not start: $(tail -n 5 "$work/$name.log" "$work/pg_ctl.log")"
    running+=("$name")
}

stop_server()
{
    "${as_user[@]}" "$PG_BINDIR/pg_ctl" -D "$work/$1" -m fast -w stop >"$work/pg_ctl.log" 2>&1 ||
        fail "the server \"$1\" does not stop"
    no_longer_running "$1"
}

#
# ---- memory ------------------------------------------------------------------
#

# start_memory MB [OPTION...]: a broker and one donor with so much, and with
# these options, at "donor_address"; sets "broker" (its URL) and "donor_pid"
donor_address=127.0.0.1
start_memory()
{
    local available

    available=$(awk '/^MemAvailable/ { print int($2 / 1024) }' /proc/meminfo)
    [ "$available" -gt $(($1 + 1024)) ] || fail "a donor of $1 MB does not fit into the $available MB that are available"
    touch "$work/broker.log" "$work/donor.log"
    start_daemon "$work/broker.log" "${as_user[@]}" "$PG_BINDIR/remote_bp_broker" --listen 127.0.0.1:0
    broker=http://$daemon_address
    start_daemon "$work/donor.log" "${as_user[@]}" "$PG_BINDIR/remote_bp_donor" \
        --broker "$broker" --listen "$donor_address:0" --memory "$1MB" --region-size "${REGION_MB}MB" --id bench \
        "${@:2}"
    # shellcheck disable=SC2034
    donor_pid=$daemon_pid
}

# regions MB: rounded up to whole regions, in MB
regions()
{
    printf '%s\n' $((($1 + REGION_MB - 1) / REGION_MB * REGION_MB))
}

# lease MB: a lease of so much of the donor's memory without a server, into
# lease.json
lease()
{
    curl -sS --fail-with-body -o "$work/lease.json" -H 'Content-Type: application/json' \
        -d "{\"client\": \"bench\", \"instance\": \"bench\", \"purpose\": \"buffer\", \"bytes\": $(($1 * 1024 * 1024)), \"ttl_ms\": 7200000}" \
        "$broker/v1/leases" || fail "no lease: $(cat "$work/lease.json")"
    [ "$(jq .bytes "$work/lease.json")" -eq $(($1 * 1024 * 1024)) ] || fail 'the lease is too small'
}

end_lease()
{
    curl -sS --fail-with-body -o "$work/delete" -X DELETE -H 'Content-Type: application/json' \
        -d "$(jq -c '{secret}' "$work/lease.json")" "$broker/v1/leases/$(jq -r .lease "$work/lease.json")" ||
        fail "the lease does not end: $(cat "$work/delete")"
}

# wait_for_lease NAME MB
wait_for_lease()
{
    local try leased=0

    for try in $(seq 1 300); do
        leased=$(query "$1" "SELECT coalesce(sum(bytes), 0)::bigint / 1048576 FROM remote_bp_leases")
        [ "$leased" -lt "$2" ] || return 0
        sleep 0.1
    done
    fail "the server \"$1\" has $leased MB of $2 MB leased (try $try)"
}

# wait_for NAME WHAT CONDITION: an SQL expression
wait_for()
{
    local try

    for try in $(seq 1 3000); do
        [ "$(query "$1" "SELECT $3")" != t ] || return 0
        sleep 0.1
    done
    fail "$2 (try $try)"
}

# set_setting NAME SETTING VALUE: for the processes that come
set_setting()
{
    local try

    query "$1" "ALTER SYSTEM SET $2 = '$3'"
    query "$1" 'SELECT pg_reload_conf()' >/dev/null
    for try in $(seq 1 100); do
        [ "$(query "$1" "SHOW $2")" != "$3" ] || return 0
        sleep 0.05
    done
    fail "$2 does not change (try $try)"
}

# set_transport NAME TRANSPORT: for the processes that come
set_transport()
{
    set_setting "$1" remote_bp.transport "$2"
}

# The transport that was used last has to be the one that the figure is of.
check_transport()
{
    local used

    used=$(query "$1" "SELECT string_agg(DISTINCT transport, ',') FROM remote_bp_stat_donors WHERE transport <> 'none'")
    [ "$used" = "$2" ] || fail "pages came over \"$used\", not over $2"
}

read_everything="SELECT sum(pg_prewarm(oid))::bigint FROM pg_class WHERE relname LIKE 'pgbench%' AND relkind IN ('r', 'i')"
pages_of_everything="SELECT (sum(pg_relation_size(oid)) / 8192)::bigint FROM pg_class WHERE relname LIKE 'pgbench%' AND relkind IN ('r', 'i')"

# fill_tier NAME SHARED_BUFFERS_MB: read everything until all that is not in
# shared buffers is in the tier, or no more gets there.  What the page cache has
# goes there as well: whoever wants a full tier wants it whatever that has.
fill_tier()
{
    local name=$1 pages goal have before=-1 pass read_from

    read_from=$(query "$name" "SELECT current_setting('remote_bp.read_from', true)")
    [ -z "$read_from" ] || set_setting "$name" remote_bp.read_from donor
    pages=$(query "$name" "$pages_of_everything")
    goal=$((pages - $2 * 128))
    for pass in $(seq 1 12); do
        query "$name" "$read_everything" >/dev/null
        sleep 0.5
        have=$(query "$name" 'SELECT remote_pages + staged_pages FROM remote_bp_stat')
        if [ "$have" -ge "$goal" ] || [ "$have" -le "$before" ]; then
            break
        fi
        before=$have
    done
    [ -z "$read_from" ] || set_setting "$name" remote_bp.read_from "$read_from"
    say "   the tier holds $have of $pages pages after $pass passes"
    [ "$have" -gt $((goal / 2)) ] || fail "the tier does not fill"
}

# empty_tier NAME: forget all pages
empty_tier()
{
    query "$1" "SELECT count(remote_bp_evict(oid)) FROM pg_class WHERE relkind IN ('r', 'i', 't', 'm')" >/dev/null
}

# where_from NAME: of all pages read so far, those from donors or staging,
# those of temporary files from there, those from files, those of these of
# which the page cache was known to have them (-1: unknown to this version), and
# of these such that the tier had, too
where_from()
{
    query "$1" "SELECT hits + staged_hits, reads + staged_reads, misses,
                coalesce((to_jsonb(s) ->> 'page_cache_reads')::bigint, -1),
                coalesce((to_jsonb(s) ->> 'page_cache_first')::bigint, -1) FROM remote_bp_stat s, remote_bp_stat_spill"
}

# device_reads NAME: kB that the server's processes had read from block devices,
# of those that have ended
device_reads()
{
    awk '/^read_bytes/ { printf "%d\n", $2 / 1024 }' "/proc/$(postmaster_pid "$1")/io"
}

#
# ---- load ------------------------------------------------------------------------
#

# run_pgbench NAME CLIENTS SECONDS ARGUMENT...: sets "tps" and "transactions"
run_pgbench()
{
    local name=$1 clients=$2 seconds=$3 threads=2

    shift 3
    [ "$clients" -ge 2 ] || threads=1

    # Another sequence each time: a run that repeats its warm-up finds on a slow
    # server the very pages that the warm-up left in shared buffers.
    pgbench_runs=$((${pgbench_runs:-0} + 1))
    "${as_user[@]}" "$PG_BINDIR/pgbench" -h "$work" -p "${server_port[$name]}" -U postgres -n -M prepared \
        -c "$clients" -j "$threads" -T "$seconds" --random-seed="$pgbench_runs" "$@" postgres \
        >"$work/pgbench.out" 2>"$work/pgbench.log" || fail "pgbench on \"$name\": $(tail -n 5 "$work/pgbench.log")"
    tps=$(sed -n 's/^tps = \([0-9.]*\).*/\1/p' "$work/pgbench.out")
    transactions=$(sed -n 's/^number of transactions actually processed: \([0-9]*\).*/\1/p' "$work/pgbench.out")
    [ -n "$tps" ] && [ "$transactions" -gt 0 ] || fail "pgbench on \"$name\" did nothing: $(cat "$work/pgbench.out")"
}

# buffers NAME: "hit read" since ever
buffers()
{
    query "$1" "SELECT blks_hit, blks_read FROM pg_stat_database WHERE datname = 'postgres'"
}

# measure_read SERVER VARIANT CLIENTS: one run of pgbench -S after a short one
# that is not counted, and all figures about where its pages came from.  The
# server has the extension if VARIANT is shm or tcp.
measure_read()
{
    local server=$1 variant=$2 clients=$3 operation p50 p99
    local -a b a

    case $variant in
        shm | tcp) set_transport "$server" "$variant" ;;
        page_cache) warm_cache "$server" ;;
    esac
    run_pgbench "$server" "$clients" "$WARM_UP" -S
    case $variant in
        shm | tcp) query "$server" 'SELECT remote_bp_stat_reset()' >/dev/null ;;
        page_cache) warm_cache "$server" ;;
    esac
    read -r -a b < <(buffers "$server")
    run_pgbench "$server" "$clients" "$SECONDS_EACH" -S
    sleep 0.2
    read -r -a a < <(buffers "$server")

    result "$variant" "$clients" tps "$tps"
    result "$variant" "$clients" buffer_hit_ratio "$(calculate "${a[0]} - ${b[0]} > 0 ? (${a[0]} - ${b[0]}) / (${a[0]} - ${b[0]} + ${a[1]} - ${b[1]}) : 0")"
    result "$variant" "$clients" reads_per_transaction "$(calculate "(${a[1]} - ${b[1]}) / $transactions")"
    case $variant in
        shm | tcp)
            check_transport "$server" "$variant"
            result "$variant" "$clients" tier_hit_ratio \
                "$(query "$server" 'SELECT (hits + staged_hits)::float8 / greatest(hits + staged_hits + misses, 1) FROM remote_bp_stat')"
            while read -r operation p50 p99; do
                result "$variant" "$clients" "${operation}_p50_us" "$p50"
                result "$variant" "$clients" "${operation}_p99_us" "$p99"
            done < <(query "$server" "SELECT operation, p50_us, p99_us FROM remote_bp_stat_latency
                                      WHERE operation IN ('hit', 'disk_read') AND calls > 0")
            ;;
    esac
    printf '   round %s  %-10s %s clients  %10.0f tps\n' "$round" "$variant" "$clients" "$tps"
}

# pgbench_command SERVER CLIENTS: pgbench -S for a run of a pair, quoted for a shell
pgbench_command()
{
    printf '%q ' "${as_user[@]}" "$PG_BINDIR/pgbench" -n -S -M prepared -c "$2" -j "$((($2 + 1) / 2))" -T "$((2 * PAIR_SECONDS))" \
        --random-seed="$round" -h "$work" -p "${server_port[$1]}" -U postgres postgres
}

# measure_select_pair LOAD CLIENTS WITH WITHOUT: pgbench -S on two servers with the extension, of which
# one has what is measured.  They take turns of so many milliseconds (SLICE_MS).
SLICE_MS=100
measure_select_pair()
{
    local server i=0 status seconds n variant
    local -a order sides=() b a
    local -A cpu=() before=()
    local sources="SELECT hits + staged_hits, captures, blks_read FROM remote_bp_stat, pg_stat_database WHERE datname = 'postgres'"

    readarray -t order < <(in_order "$3" "$4")
    for server in "${order[@]}"; do
        [ "${#sides[@]}" -eq 0 ] || sides+=(--)
        sides+=("$(postmaster_pid "$server")" "$work/$server.out" "$(pgbench_command "$server" "$2")")
        cpu[$server]=$(cpu_seconds "$(postmaster_pid "$server")")
        before[$server]=$(query "$server" "$sources")
    done
    "$(dirname "${BASH_SOURCE[0]}")/side_by_side" "$SLICE_MS" "${sides[@]}" >"$work/seconds" || fail 'a pair did not run'
    sleep 0.1                           # for the last process to end
    while read -r seconds status; do
        server=${order[i++]}
        [ "$status" -eq 0 ] || fail "pgbench on \"$server\": $(tail -n 5 "$work/$server.out")"
        n=$(sed -n 's/^number of transactions actually processed: \([0-9]*\).*/\1/p' "$work/$server.out")
        variant=$1.without
        [ "$server" != "$3" ] || variant=$1.with
        result "$variant" "$2" tps "$(calculate "$n / $seconds")"
        result "$variant" "$2" cpu_us "$(calculate "($(cpu_seconds "$(postmaster_pid "$server")") - ${cpu[$server]}) / $n * 1000000")"
        read -r -a b <<<"${before[$server]}"
        read -r -a a < <(query "$server" "$sources")
        result "$variant" "$2" reads_per_transaction "$(calculate "(${a[2]} - ${b[2]}) / $n")"
        result "$variant" "$2" hits_per_transaction "$(calculate "(${a[0]} - ${b[0]}) / $n")"
        result "$variant" "$2" captures_per_transaction "$(calculate "(${a[1]} - ${b[1]}) / $n")"
    done <"$work/seconds"
}

# measure_half HALF LOAD WITH WITHOUT: a half of the pairs, 0 or 1, for each number of clients.
# The first of them warms up, and is not counted.
measure_half()
{
    local first=$(($1 * PAIRS)) clients

    for clients in $CLIENTS; do
        round=$first
        BENCH_RESULTS=/dev/null measure_select_pair "$2" "$clients" "$3" "$4"
        for round in $(seq $((first + 1)) $((first + PAIRS))); do
            measure_select_pair "$2" "$clients" "$3" "$4"
        done
    done
}

# run_in_guest SCRIPT SECONDS: in a guest that has RDMA, which is ended after so
# long; takes what it measures for the component's results.
run_in_guest()
{
    local status=0

    # The guest has its own /tmp and /dev/shm.
    case $BENCH_WORK in
        /tmp/* | /dev/shm/*)
            not_measured guest "the guest does not see $BENCH_WORK; set TMPDIR"
            return
            ;;
    esac
    if ! command -v qemu-system-x86_64 >/dev/null || ! test/rdma_vm/kernel; then
        not_measured guest 'QEMU or the kernel is missing'
        return
    fi
    mkdir "$work/vm"
    RBP_VM_DIR=$work/vm RBP_VM_MEMORY=5120 RBP_VM_SECONDS=$2 test/rdma_vm/boot env \
        BENCH_HOST="$BENCH_WORK" BENCH_WORK=/dev/shm/bench BENCH_RESULTS=/rbp/results ROUNDS="$ROUNDS" \
        SECONDS_EACH="$SECONDS_EACH" REGION_MB=8 RDMA_SCALE="$RDMA_SCALE" RDMA_MB="$RDMA_MB" \
        BULK_RDMA_SCALE="$BULK_RDMA_SCALE" "$1" || status=$?
    [ "$status" -eq 0 ] || fail "the guest failed ($status); its last words: $(tail -n 5 "$work/vm/console")"
    cat "$work/vm/results" >>"$BENCH_RESULTS"
}

# in_order NAME...: the names, rotated by the round, so that none is always
# first after another.
in_order()
{
    local -a names=("$@")
    local i

    for ((i = 0; i < $#; i++)); do
        printf '%s\n' "${names[(i + round) % $#]}"
    done
}

# cpu_seconds PID: user and system time of the process, and of its children:
# both those that live and those that it has waited for
cpu_seconds()
{
    local tick

    tick=$(getconf CLK_TCK)
    # processes come and go meanwhile
    { cat /proc/[0-9]*/stat 2>/dev/null || true; } | awk -v pid="$1" -v tick="$tick" '
        {
            me = $1
            sub(/^.*\) /, "")               # the name may have blanks
            if (me == pid) sum += $12 + $13 + $14 + $15
            else if ($2 == pid) sum += $12 + $13
        }
        END { printf "%.2f\n", sum / tick }'
}

postmaster_pid()
{
    head -n 1 "$work/$1/postmaster.pid"
}

#
# ---- queries that spill -------------------------------------------------------------
#

# spill_counters: blocks that went to donors, and such that did not
spill_counters()
{
    query remote_bp 'SELECT writes, local + bypassed FROM remote_bp_stat_spill'
}

# measure_spill SERVER VARIANT QUERY [SETTING...]: one run of a query that
# spills, with all figures about its temporary files.  The server "remote_bp"
# has the extension.
measure_spill()
{
    local server=$1 variant=$2 cpu=0 metric value
    local -a b=() a=()

    {
        printf 'SET %s;\n' "work_mem = '4MB'" "${@:4}"
        printf '%s\n' "SELECT pg_read_file('/proc/self/schedstat');"
        printf '%s;\n' "EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) $3"
        printf '%s\n' "SELECT pg_read_file('/proc/self/schedstat');"
    } >"$work/spill.sql"
    if [ "$server" = remote_bp ]; then
        read -r -a b < <(spill_counters)
        cpu=$(donor_cpu)
    fi
    "${as_user[@]}" "$PG_BINDIR/psql" -XAtq -h "$work" -p "${server_port[$server]}" -U postgres -d postgres \
        -v ON_ERROR_STOP=1 -f "$work/spill.sql" >"$work/spill.out" || fail "the query fails on \"$server\""
    result "$variant" 1 cpu_ms "$(awk '/^[0-9]+ [0-9]+ [0-9]+$/ { c[n++] = $1 } END { print (c[1] - c[0]) / 1e6 }' "$work/spill.out")"
    while read -r metric value; do
        result "$variant" 1 "$metric" "$value"
    done < <(grep -vE '^[0-9]+ [0-9]+ [0-9]+$' "$work/spill.out" | jq -r '.[0] | .["Execution Time"] as $t | .Plan |
        "total_ms \($t)",
        "read_ms \(.["Temp I/O Read Time"] // 0)", "write_ms \(.["Temp I/O Write Time"] // 0)",
        "io_ms \((.["Temp I/O Read Time"] // 0) + (.["Temp I/O Write Time"] // 0))",
        "blocks_read \(.["Temp Read Blocks"])", "blocks_written \(.["Temp Written Blocks"])"')
    if [ "$server" = remote_bp ]; then
        result "$variant" 1 donor_cpu_ms "$(calculate "($(donor_cpu) - $cpu) * 1000")"
        read -r -a a < <(spill_counters)
        result "$variant" 1 on_donors "$(calculate "(${a[0]} - ${b[0]}) / (${a[0]} - ${b[0]} + ${a[1]} - ${b[1]} + 1e-9)")"
    fi
    say "   round $round  $variant: $(awk -F '\t' -v variant="$variant" -v round="$round" '
        $1 == variant && $3 == round { v[$4] = $5 }
        END { printf "%.1f s, temporary reads %.2f s, writes %.2f s of %d blocks", v["total_ms"] / 1000, v["read_ms"] / 1000,
              v["write_ms"] / 1000, v["blocks_written"] }' "$BENCH_RESULTS")"
}

#
# ---- pushes and the donor's processor time ---------------------------------------
#

# The donor's CPU time
donor_cpu()
{
    cpu_seconds "$donor_pid"
}

# counters NAME: seconds, captures, pushes, dropped because staging was full,
# other pushes that came to nothing, pages read from donors
counters()
{
    query "$1" 'SELECT extract(epoch FROM clock_timestamp()), captures, pushes, drops_full,
                pushes_stale + pushes_failed + pushes_no_slot, hits FROM remote_bp_stat'
}

# Each client reads through the whole table, again and again, from a place of
# its own; the tier is a sixth of it.  So a page is never there when it is
# read, and each read evicts a page that the tier has not got.
write_scan()
{
    cat >"$work/scan.sql" <<'SQL'
\set at (:turn * 512 + :client_id * (:blocks / :clients)) % (:blocks - 512)
\set turn :turn + 1
SELECT pg_prewarm('pgbench_accounts', 'buffer', 'main', :at, :at + 511);
SQL
    chmod a+r "$work/scan.sql"
}

# measure_pushes NAME TRANSPORT CLIENTS
measure_pushes()
{
    local name=$1 transport=$2 clients=$3 cpu
    local -a b a

    [ -f "$work/scan.sql" ] || write_scan
    warm_cache "$name"
    read -r -a b < <(counters "$name")
    cpu=$(donor_cpu)
    run_pgbench "$name" "$clients" "$SECONDS_EACH" -f "$work/scan.sql" -D turn=0 -D clients="$clients" \
        -D blocks="$(query "$name" "SELECT pg_relation_size('pgbench_accounts') / 8192")"
    cpu=$(calculate "$(donor_cpu) - $cpu")
    read -r -a a < <(counters "$name")
    result "push.$transport" "$clients" evictions_per_second "$(calculate "(${a[1]} + ${a[3]} - ${b[1]} - ${b[3]}) / (${a[0]} - ${b[0]})")"
    result "push.$transport" "$clients" pushes_per_second "$(calculate "(${a[2]} - ${b[2]}) / (${a[0]} - ${b[0]})")"
    result "push.$transport" "$clients" dropped "$(calculate "(${a[3]} - ${b[3]}) / (${a[1]} + ${a[3]} - ${b[1]} - ${b[3]} + 1e-9)")"
    result "push.$transport" "$clients" failed "$(calculate "(${a[4]} - ${b[4]}) / (${a[1]} - ${b[1]} + 1e-9)")"
    result "push.$transport" "$clients" donor_cpu_us "$(calculate "$cpu * 1000000 / (${a[2]} - ${b[2]} + 1e-9)")"
    say "   round $round  pushes over $transport, $clients clients: $(calculate "int((${a[2]} - ${b[2]}) / (${a[0]} - ${b[0]}))") pages a second"
}
