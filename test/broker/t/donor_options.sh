#!/usr/bin/env bash
#
# remote_bp_donor's options, and what it tells the broker: a real donor.

. "$(dirname "$0")/../lib.sh"

: "${RBP_DONOR:=$root/build/remote_bp_donor}"

start_broker
donor=("$RBP_DONOR" --broker "$url" --memory 4MB --region-size 1MB)

"$RBP_DONOR" --version >"$dir/out"
is "remote_bp_donor --version" "$(cat "$dir/out")" "remote_bp_donor $(sed -n "s/^default_version *= *'\(.*\)'/\1/p" "$root/remote_bp.control")"
for bad in "--transports pigeon" "--transports ," "--rdma-listen nonsense" "--rdma-advertise :1" "--rdma-advertise 0.0.0.0:1" \
    "--rdma-port 256" "--rdma-gid-index -2" "--rdma-device $(printf 'x%.0s' {1..64})" \
    "--numa-node 1024" "--shm-users nobody-has-this-name" "--shm-users ," "--shm-users 4294967295" "--lease-connections 0" "--lease-connections 16385" "--region-size 1500kB" "--memory 1kB" "--id -x" "--huge-pages maybe" "--huge-pages on" "--advertise nonsense" "extra"; do
    # shellcheck disable=SC2086
    timeout 60 "${donor[@]}" --listen 127.0.0.1:0 $bad >/dev/null 2>&1
    is "remote_bp_donor ${bad:0:40}" $? 2
done

# run_donor ID ARGUMENT...: until it has registered; what it says is in out
run_donor()
{
    local id=$1 pid

    shift
    : >"$dir/out"
    "${donor[@]}" --id "$id" "$@" 2>"$dir/out" &
    pid=$!
    pump_pids+=("$pid")
    until_true 20 donor_is "$id" '.applied == .revision'
    point $? "a donor with $*"
    api GET /v1/donors
    answer=$(get ".donors[] | select(.id == \"$id\")")
    kill "$pid"
    wait "$pid"
}

# wherever this runs, there is no such device
run_donor d1 --listen 127.0.0.1:0 --rdma-device none
has "offers what it can, by default" '.transports == ["shm", "tcp"] and .host == "127.0.0.1" and .port > 0 and (has("rdma_host") | not)'
is "the log says once why there is no RDMA" "$(grep -c RDMA "$dir/out") $(grep -c 'info: without RDMA: no RDMA device' "$dir/out")" "1 1"
run_donor d2 --listen 127.0.0.1:0 --transports shm
has "without tcp it has no port" '.transports == ["shm"] and .port == 0'
is "without verbs, the log says nothing about RDMA" "$(grep -c RDMA "$dir/out")" 0
run_donor d3 --listen 0.0.0.0:0 --transports tcp,shm --advertise mem1.example:7001
has "clients are told the advertised address" '.host == "mem1.example" and .port == 7001'

run_donor d4 --listen 0.0.0.0:0
has "RDMA is not offered on any address" '.transports == ["shm", "tcp"]'
is "which the log says" "$(grep -c 'without RDMA: no address was given' "$dir/out")" 1
run_donor d5 --listen 127.0.0.1:0 --numa-node 0 --region-size 1MB
is "the log says where memory is" "$(grep -c 'memory: [0-9]* of [0-9]* regions are on NUMA node 0' "$dir/out")" 1
timeout 60 "${donor[@]}" --listen 127.0.0.1:0 --numa-node 1023 >"$dir/out" 2>&1
is "a NUMA node that the machine does not have is refused" "$? $(grep -c 'error: --numa-node: this machine has no NUMA node 1023' "$dir/out")" "1 1"

for transports in verbs shm,verbs; do
    timeout 60 "${donor[@]}" --listen 127.0.0.1:0 --rdma-device none --transports $transports >"$dir/out" 2>&1
    is "without a device, --transports $transports fails" "$? $(grep -c 'error: could not serve RDMA: no RDMA device' "$dir/out")" "1 1"
done

# without --id, whatever the host's name
cc -O1 -shared -fPIC -o "$dir/names.so" "$root/test/preload/names.c" -ldl || echo "Bail out! test/preload/names.c does not compile"
long=$(printf 'x%.0s' {1..63})
for host in short "${long}a" "${long}b"; do
    : >"$dir/out"               # what the one before said is not looked at
    LD_PRELOAD=$dir/names.so RBP_HOST_NAME=$host "${donor[@]}" --listen 127.0.0.1:0 2>"$dir/out" &
    pump_pids+=($!)
    until_true 20 grep -q 'registered with the broker' "$dir/out"
    point $? "a donor without --id, on a host with a name of ${#host} characters"
    port=$(sed -n 's/.*listening on .*:\([0-9]*\)$/\1/p' "$dir/out")
    api GET /v1/donors
    echo "$(get ".donors[] | select(.port == $port) | .id") $port" >>"$dir/ids"
done
is "a short one is in its id" "$(sed -n '1s/:.*//p' "$dir/ids")" short
is "long ones are shortened" "$(sed -n 's/^x\{48\}-[0-9a-f]\{8\}:\([0-9]*\) \1$/fits/p' "$dir/ids" | xargs)" "fits fits"
is "and told apart" "$(sed 's/:.*//' "$dir/ids" | sort -u | wc -l)" 3

# what is taken from leases, they apply by themselves, and say so
region=1048576
lease c i 3
is "real donors grant a lease" "$status $(get .bytes)" "201 $((3 * region))"
api POST "/v1/leases/$id/revoke"
is "they apply a revocation" "$status $(get '[.regions, .pending]')" "200 [3,[]]"
api GET /v1/donors
drained=$(get '[.donors[] | select(.state == "up")][0].id')
api POST "/v1/donors/$drained/drain"
is "and a drain" "$status $(get .pending)" "200 []"

# of clean regions there may be many: it lists them only if others are neither clean nor leased
perl -MIO::Socket::INET -e '
    my $socket = IO::Socket::INET->new(Listen => 5, LocalAddr => "127.0.0.1", LocalPort => 0) or die;
    $| = 1;
    print $socket->sockport, "\n";
    my $request = "";
    my $client = $socket->accept;
    until ($request =~ /^Content-Length: (\d+)\r\n(?:.*?\r\n)?\r\n(.*)/ims && length $2 == $1) { sysread $client, $request, 65536, length $request or die }
    print $request =~ /\r\n\r\n(.*)/s, "\n"' >"$dir/said" &
pump_pids+=($!)
until_true 20 test -s "$dir/said"
"${donor[@]}" --broker "http://127.0.0.1:$(cat "$dir/said")" --id silent --listen 127.0.0.1:0 2>"$dir/out" &
pump_pids+=($!)
until_true 20 grep -q instance "$dir/said"
answer=$(sed -n 2p "$dir/said")
has "a donor that comes does not list its clean regions" '.regions == 4 and .leases == [] and (has("clean") | not)'

finish
