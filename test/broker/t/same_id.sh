#!/usr/bin/env bash
#
# Two donors with one id: the second is refused as long as the first is heard of,
# and says why.  A donor that was killed is replaced at once in its place, and
# elsewhere when it has been silent.  Real donors.

. "$(dirname "$0")/../lib.sh"

: "${RBP_DONOR:=$root/build/remote_bp_donor}"

# run_donor NAME PORT: with the id d, at the broker of before; sets donor_pid
run_donor()
{
    "$RBP_DONOR" --broker "$url" --listen 127.0.0.1:"$2" --memory 4MB --region-size 1MB --id d --transports tcp \
        2>"$dir/$1.log" &
    donor_pid=$!
    pump_pids+=("$donor_pid")
}

# says NAME TEXT: that donor's log, for until_true
says() { grep -qF "$2" "$dir/$1.log"; }
port_of() { sed -n 's/.*listening on 127.0.0.1:\([0-9]*\)$/\1/p' "$dir/$1.log"; }
is_at() { donor_is d ".port == $(port_of "$1") and .state == \"up\""; }

start_broker --donor-timeout 300
run_donor first 0
first=$donor_pid
until_true 20 is_at first
point $? "a donor"
api POST /v1/leases '{"client":"c","instance":"i","purpose":"temp","bytes":4194304,"ttl_ms":600000}'
id=$(get .lease)
secret=$(get .secret)
regions=$(get '.regions | length')
is "all of its memory is leased" "$regions" 4

run_donor second 0
second=$donor_pid
refusal="the broker refuses: another process is donor \"d\", at 127.0.0.1:$(port_of first); this one is taken when that one has left, or was silent for 300 s"
until_true 20 says second "$refusal"
point $? "a second one of its id is refused, and says why"
is "the broker says so, too" "$(grep -c "refused another process as donor d, which is alive at 127.0.0.1:$(port_of first)" "$log")" 1
donor_is d '.leased == 4'
point $? "the first keeps its regions"
renew
is "the lease has all of them" "$status $(get '.regions | length')" "200 4"

# A broker that was started anew may hear of the second one first: the one that has leases is kept.
port=${url##*:}
kill_broker
kill -STOP "$first"
start_broker --donor-timeout 300 --listen 127.0.0.1:"$port"
until_true 20 is_at second
point $? "the second comes first"
kill -CONT "$first"
until_true 20 is_at first
point $? "the first takes its place"
renew '"donors":["d"]'
is "and the lease is whole" "$status $(get '.regions | length')" "200 4"
wait "$second"
is "the second one ends" $? 1
run_donor second 0
second=$donor_pid
until_true 20 says second "$refusal"
point $? "and waits, when it is started again"
kill -0 "$first"
is "the first runs" $? 0

# Killed, it is replaced in its place, with new memory.
kill -KILL "$first"
wait "$first" 2>/dev/null
run_donor anew "$(port_of first)"
until_true 20 says anew "registered with the broker as d"
point $? "started again in its place, it is taken at once"
renew '"bytes":0'
is "it has new memory" "$status $(get '.regions | length')" "200 0"
says second "registered with the broker"
is "the second still waits" $? 1

kill -TERM "$donor_pid"
wait "$donor_pid"
is "it is stopped" $? 0
until_true 20 says second "registered with the broker as d"
point $? "the second is taken when it has left"

# One elsewhere waits until the killed one has been silent.
kill_broker
start_broker --donor-timeout 2 --listen 127.0.0.1:"$port"
until_true 20 is_at second
point $? "the second is heard of by the next broker"
kill -KILL "$second"
wait "$second" 2>/dev/null
run_donor elsewhere 0
until_true 20 is_at elsewhere
point $? "another one in place of a killed donor is taken when that has been silent"

# In another network namespace, or on another machine, the port proves nothing.
kill_broker
start_broker --donor-timeout 300
here='"transports":["tcp"],"region_size":1048576,"regions":4,"host":"mem1","port":7001'
api POST /v1/donors "{\"id\":\"e\",\"instance\":\"boot.1/a\",$here}"
is "a donor registers" "$status" 200
for other in 'boot.2/b' 'other.1/b'; do
    api POST /v1/donors "{\"id\":\"e\",\"instance\":\"$other\",$here}"
    is "one with its address in another network namespace is refused ($other)" "$status" 409
done
api POST /v1/donors "{\"id\":\"e\",\"instance\":\"boot.1/b\",$here}"
is "one in the same is taken" "$status" 200

finish
