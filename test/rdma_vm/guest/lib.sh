# shellcheck shell=bash
# Sourced by the tests in the guest: broker, donors with RDMA, servers,
# pgbench, counters.  $dir is the test's directory.

set -uo pipefail

# shellcheck source=test/lib/tap.sh
. test/lib/tap.sh
# shellcheck source=test/lib/daemons.sh
. test/lib/daemons.sh
# shellcheck source=test/rdma_vm/guest/network.sh
. test/rdma_vm/guest/network.sh

as_postgres=(setpriv --reuid=postgres --regid=postgres --init-groups --)
export PGHOST=$dir PGPORT=5432 PGUSER=postgres PGDATABASE=postgres PAGER=cat LC_ALL=C
export PGCONNECT_TIMEOUT=60
data=$dir/data
broker=
donor_limit=                # options of prlimit
server_limit=
declare -A donor_pid=() donor_port=()

clean_up()
{
    [ ! -f "$data/postmaster.pid" ] || "${as_postgres[@]}" pg_ctl -D "$data" -m immediate -w stop >/dev/null 2>&1
    stop_daemons
}
trap clean_up EXIT
trap 'exit 143' TERM INT

bail_out()
{
    echo "Bail out! $*"
    exit 2
}

# is NAME GOT WANTED
is()
{
    point "$([ "$2" = "$3" ]; echo $?)" "$1"
    [ "$2" = "$3" ] || diagnose "got: $2, wanted: $3"
}

# holds NAME EXPRESSION: the shell's arithmetic, with what it was made of
holds()
{
    point "$(($2 ? 0 : 1))" "$1"
    (($2)) || diagnose "not true: $2"
}

# until_true SECONDS COMMAND...; on a busy host all takes several times as long.
until_true()
{
    local end=$((SECONDS + 5 * $1))

    shift
    until "$@"; do
        [ "$SECONDS" -lt "$end" ] || return 1
        sleep 0.5
    done
}

#---- daemons ----------------------------------------------------------------

start_broker()
{
    start_daemon "$dir/broker.log" "${as_postgres[@]}" "$RBP_BROKER" --listen 127.0.0.1:0 \
        --donor-timeout 20 "$@" || bail_out 'no broker'
    broker=http://$daemon_address
}

# start_donor ID [OPTION...]: on the far side of the cable; by verbs and TCP,
# if no option tells otherwise.  A donor that was killed is replaced at its
# port, so that the broker takes it at once.
start_donor()
{
    local id=$1

    shift
    [ ! -f "$dir/$id.log" ] || cat "$dir/$id.log" >>"$dir/$id.before.log"
    start_daemon "$dir/$id.log" ${donor_limit:+prlimit "$donor_limit"} "${as_postgres[@]}" "$RBP_DONOR" --broker "$broker" --id "$id" \
        --listen "$donor_address:${donor_port[$id]:-0}" --memory 96MB --region-size 8MB --transports verbs,tcp \
        --log-level debug "$@" || bail_out "no donor $id"
    donor_pid[$id]=$daemon_pid
    donor_port[$id]=${daemon_address##*:}
}

# A killed process is gone when this returns.
kill_donor()
{
    kill -KILL "${donor_pid[$1]}"
    until_true 10 is_gone "${donor_pid[$1]}"
}

is_gone() { ! kill -0 "$1" 2>/dev/null; }

ctl() { "${as_postgres[@]}" "$RBP_CTL" --broker "$broker" "$@"; }

#---- server -----------------------------------------------------------------

query() { "${as_postgres[@]}" psql -XAtq -v ON_ERROR_STOP=1 -c "$1"; }

# start_server [SETTING...]: with pgbench's tables; the tier has memory when
# this returns.
start_server()
{
    cp -r "$RBP_TEMPLATE" "$data"
    chown -R postgres: "$data"
    chmod 700 "$data"
    cat >>"$data/postgresql.conf" <<CONF
unix_socket_directories = '$dir'
shared_preload_libraries = 'remote_bp'
shared_buffers = 1MB
remote_bp.broker = '$broker'
remote_bp.buffer_tier_max_size = '96MB'
remote_bp.compare_with_disk = on
remote_bp.read_from = donor
# All is slow here, and late answers are not what is tested.  On a busy host the
# guest stands still for longer than a device waits for an acknowledgement.
remote_bp.io_timeout = 5s
remote_bp.rdma_ack_timeout = 18
remote_bp.lease_ttl = 600s
CONF
    printf '%s\n' "$@" >>"$data/postgresql.conf"
    ${server_limit:+prlimit "$server_limit"} "${as_postgres[@]}" pg_ctl -D "$data" -l "$dir/server.log" -w -t 300 start >"$dir/pg_ctl.log" 2>&1 ||
        bail_out "the server does not start: $(tail -n 3 "$dir/server.log")"
    query 'CREATE EXTENSION remote_bp'
    until_true 120 leased 1 || bail_out 'no memory is leased'
}

# lease_memory BYTES: a lease without a server, into lease.json; not before there is memory
lease_memory()
{
    curl -sS --fail-with-body -H 'Content-Type: application/json' "$broker/v1/leases" \
        -d '{"client": "guest", "instance": "guest/'"$RANDOM"'", "purpose": "buffer", "bytes": '"$1"', "ttl_ms": 600000}' >"$dir/lease.json" &&
        jq -e '.bytes > 0' "$dir/lease.json" >/dev/null
}

# How many MB are leased now, at least?
leased() { [ "$(query 'SELECT coalesce(sum(bytes), 0)::bigint >> 20 FROM remote_bp_leases')" -ge "$1" ]; }

stop_server()
{
    check "${1:-the server} stops cleanly" "${as_postgres[@]}" pg_ctl -D "$data" -m fast -w stop
    rm -rf "$data"
}

# set_server SETTING VALUE: takes effect at once.
set_server()
{
    query "ALTER SYSTEM SET $1 = '$2'"
    query 'SELECT pg_reload_conf()' >/dev/null
}

# A column of remote_bp_stat, or of remote_bp_stat_spill as spill.COLUMN, or an expression of columns of one of the two
counter()
{
    case $1 in
        *spill.*) query "SELECT $1 FROM remote_bp_stat_spill spill" ;;
        *) query "SELECT $1 FROM remote_bp_stat" ;;
    esac
}
more_than() { [ "$(counter "$1")" -gt "$2" ]; }     # COUNTER NUMBER
donor_column() { query "SELECT $2 FROM remote_bp_stat_donors WHERE donor = '$1'"; }

# Read through all accounts by index, so that they pass through all of the
# shared buffers.
scan='SET enable_seqscan = off; SET enable_bitmapscan = off; SELECT count(filler) FROM pgbench_accounts WHERE aid > 0'
scan_accounts() { query "$scan" >/dev/null; }

# Of one scan, most pages come from donors.
most_from_donors()
{
    local before after

    read -r -a before <<<"$(query "SELECT hits || ' ' || misses FROM remote_bp_stat")"
    scan_accounts
    read -r -a after <<<"$(query "SELECT hits || ' ' || misses FROM remote_bp_stat")"
    [ $((after[0] - before[0])) -gt $((2 * (after[1] - before[1]))) ]
}

# reads_more DONOR READS: a scan reads pages from the donor, which has served so many before.
reads_more() { scan_accounts && [ "$(donor_column "$1" reads)" -gt "$2" ]; }

warm() { until_true "${1:-180}" most_from_donors; }

# start_pgbench SECONDS [ARGUMENT...]; the default is to read only.  It runs
# until finish_pgbench, and so long at least.  At a rate, because it would keep
# both processors busy otherwise, and all else would take several times as long.
pgbench_pid=
pgbench_end=
pgbench_clients=
start_pgbench()
{
    local arguments

    pgbench_end=$((SECONDS + $1))
    shift
    [ $# -gt 0 ] || set -- -S -c 2
    arguments=$*
    pgbench_clients=${arguments##*-c }
    "${as_postgres[@]}" pgbench -n -M prepared -R 40 -P 1 -T 86400 "$@" >"$dir/pgbench.log" 2>&1 &
    pgbench_pid=$!
    until_true 120 grep -q '^progress' "$dir/pgbench.log" || bail_out "pgbench: $(tail -n 3 "$dir/pgbench.log")"
}

# Each client is seen to begin a statement and to end it, before an observer,
# who is as slow as all here, has looked a hundred times.
goes_on()
{
    local look pid start found waiting seen
    local -A begun=()

    for ((look = 0; look < 100; look++)); do
        found=0 waiting=0
        while IFS='|' read -r pid start; do
            [ -n "$start" ] || continue
            found=$((found + 1))
            case "${begun[$pid]-} " in *" $start "*) ;; *) begun[$pid]+=" $start" ;; esac
            # The first may be from before, and the last may not have ended.
            read -r -a seen <<<"${begun[$pid]}"
            [ ${#seen[@]} -ge 3 ] || waiting=$((waiting + 1))
        done <<<"$(query "SELECT pid, extract(epoch FROM query_start) FROM pg_stat_activity WHERE application_name = 'pgbench'")"
        [ "$found" -lt "$pgbench_clients" ] || [ "$waiting" -gt 0 ] || return 0
    done
    diagnose "$found of $pgbench_clients clients are there, $waiting of them hang"
    return 1
}

# End it when its time is over (SIGALRM is how pgbench does it): no transaction
# failed, none hung.  $1: name
finish_pgbench()
{
    local status=0

    while [ "$SECONDS" -lt "$pgbench_end" ] && ! is_gone "$pgbench_pid"; do
        sleep 0.2
    done
    check "$1: each client goes on" goes_on
    kill -ALRM "$pgbench_pid"
    wait "$pgbench_pid" || status=$?
    is "$1: no client failed" "$status $(grep -c 'ERROR' "$dir/pgbench.log")" '0 0'
    [ "$status" -eq 0 ] || diagnose "$(tail -n 5 "$dir/pgbench.log")"
}

# User processes' queue pairs on a device.
queue_pairs() { rdma resource show qp link "$1" | grep -c "comm ${2:-postgres}"; }

# The end of most tests: what came from donors was compared and right.
is_clean()
{
    local troubles

    holds "$1: hits were compared with the disk" "$(counter compared) > 0"
    is "$1: none was different" "$(counter mismatches)" 0
    is "$1: no hash failure" "$(counter hash_failures)" 0
    # (a worker that is at work when the server stops says so)
    troubles=$(grep -E '(ERROR|FATAL|PANIC):|TRAP:|terminated by signal|differs from the disk|could not read block' "$dir/server.log" |
        grep -vE 'the database system is (starting|shutting)|connection to client lost|terminating background worker .* due to administrator command')
    is "$1: no error in the server's log" "$troubles" ''
}
