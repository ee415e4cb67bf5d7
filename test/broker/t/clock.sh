#!/usr/bin/env bash
#
# The time of day steps by days, forwards and backwards, on the machines of the
# broker and a donor: nothing expires, and nothing is late.

. "$(dirname "$0")/../lib.sh"

: "${RBP_DONOR:=$root/build/remote_bp_donor}"
cc -O1 -shared -fPIC -o "$dir/clock.so" "$root/test/preload/clock.c" -ldl || exit 1
export RBP_CLOCK=$dir/clock

step() { echo "$1" >"$RBP_CLOCK.new" && mv "$RBP_CLOCK.new" "$RBP_CLOCK"; }
beats() { api GET /metrics; sed -n 's/^remote_bp_heartbeats_total //p' <<<"$answer"; }
beats_more() { renew; [ "$status" = 200 ] && [ "$(beats)" -gt $((had + 3)) ]; }
# The file's last line was written on this day, that many days off.
dated() { tail -n 1 "$1" | grep -q "^$(date -u -d "$2 days" +%Y-%m-%d)"; }
told()
{
    kill -HUP "$broker_pid" "$donor"
    dated "$log" "$1" && dated "$dir/donor.log" "$1"
}

export LD_PRELOAD=$dir/clock.so
start_broker
"$RBP_DONOR" --broker "$url" --listen 127.0.0.1:0 --rdma-device none --memory 128MB --region-size 64MB --min-free 0 \
    --id d 2>"$dir/donor.log" &
donor=$!
unset LD_PRELOAD
pump_pids+=("$donor")
until_true 60 donor_is d '.applied == .revision and .heard_ms != null'
lease c i 2
is "a lease" "$(get .bytes)" $((2 * region))

for days in 3 -3 0; do
    step $((days * 86400))
    until_true 60 told $days
    point $? "the clock is $days days off"
    had=$(beats)
    until_true 60 beats_more
    is "$days days: the donor is heard and the lease renewed" "$status $(donor_is d '.state == "up" and .leased == 2 and .applied == .revision' && echo up)" "200 up"
    kept=$id kept_secret=$secret
    lease mortal i 0 1000
    until_true 60 gone "$id"
    point $? "another one that is not renewed ends"
    id=$kept secret=$kept_secret
    renew
    is "it has all regions" "$status $(get .bytes)" "200 $((2 * region))"
done
# the clock steps by days; the machine may stand still for seconds
is "no lease ended, nobody was late" "$(cat "$log" "$dir/donor.log" | grep -Ec 'not renewed|of c .*expired|did not run for [0-9]{7}|silent|ended leases')" 0
api DELETE "/v1/leases/$id" "{\"secret\":\"$secret\"}"

finish
