#!/usr/bin/env bash
#
# A full disk under the broker: it renews leases, answers heartbeats, refuses
# what it would have to write, and goes on by itself when there is room.  The
# file may not grow (prlimit), or its writes fail as on a full disk (preload).

. "$(dirname "$0")/../lib.sh"

full=$dir/full
cc -O1 -shared -fPIC -o "$dir/slow_files.so" "$root/test/preload/slow_files.c" -ldl || exit 1

fill_limit() { prlimit --pid "$broker_pid" --fsize="$(stat -c %s "$state-wal")": ; }
free_limit() { prlimit --pid "$broker_pid" --fsize=unlimited: ; }
fill_disk() { echo 0 "$state" >"$full.new" && mv "$full.new" "$full"; }
free_disk() { rm "$full"; }

# lease_is LEASE JQ-EXPRESSION
lease_is() { api GET /v1/leases; jq -e --arg id "$1" ".leases[] | select(.lease == \$id) | $2" >/dev/null <<<"$answer"; }
prolonged()
{
    local before

    lease_is "$id" true
    before=$(get ".leases[] | select(.lease == \"$id\").remaining_ms")
    sleep 0.5
    renew
    [ "$status" = 202 ] && lease_is "$id" ".remaining_ms > $before - 100"
}
tables() { api GET /v1/donors; get '[.donors[] | {id, state, revision, leased, free, dirty, want_back}]'; }
lease_again() { api POST /v1/leases "$new_lease"; [ "$status" = 201 ]; }
gone() { api GET /v1/leases; jq -e --arg id "$1" 'all(.leases[]; .lease != $id)' >/dev/null <<<"$answer"; }
refused_all()
{
    local request

    for request in "POST /v1/leases $new_lease" "DELETE /v1/leases/$id {\"secret\":\"$secret\"}" "POST /v1/leases/$id/revoke {}" \
        "POST /v1/donors/a/drain {}" "DELETE /v1/donors/a {\"instance\":\"i1\"}"; do
        # shellcheck disable=SC2086
        api $request
        [ "$status" = 503 ] || return 1
        jq -e '.error == "the broker cannot write its state file now; its log says why"' >/dev/null <<<"$answer" || return 1
    done
}

for way in limit disk; do
    rm -f "$state"*
    export LD_PRELOAD="" RBP_SLOW_FILES=$full
    [ $way = limit ] || LD_PRELOAD=$dir/slow_files.so
    start_broker --donor-timeout 300
    unset LD_PRELOAD
    register a 8 i1
    beat a i1
    register b 8 i1
    beat b i1
    pump a i1
    new_lease="{\"client\":\"new\",\"instance\":\"i\",\"purpose\":\"temp\",\"bytes\":$region,\"ttl_ms\":60000}"
    lease ended i 2
    ended=$id
    lease c i 4
    kept=$id kept_secret=$secret
    beat b i1
    until_true 60 donor_is a '.applied == .revision'
    lease mortal i 0 6000
    mortal=$id
    id=$kept secret=$kept_secret
    before=$(tables)

    # the first that writes finds it
    fill_$way
    renew "\"bytes\":$((6 * region))"
    is "$way: a renewal that would get more renews" "$status $(get '.bytes, .wanted' | tr '\n' ' ')" "202 $((4 * region)) $((4 * region)) "
    held=$(jq -c '.regions[0] | {donor, region}' <<<"$answer")
    is "nothing else has changed" "$(tables)" "$before"
    renew "\"new_secret\":\"$(printf '%064x' 7)\""
    is "the secret, too" "$status $(get .secret)" "202 $secret"
    refused_all
    point $? "what must be written is refused" || diagnose "$status $answer"
    register new 4 i1
    is "so is a new donor" "$status" 503
    renew "\"release\":[$held]"
    is "a renewal that releases renews" "$status $(get .bytes)" "202 $((4 * region))"
    beat b i1 "\"want_back\":1,\"clean\":[7],\"ended\":[\"$ended\"]"
    is "a heartbeat that reports is answered, and does not count" "$status $(get "[.leases[].lease] == [\"$ended\", \"$id\"]")" "202 true"
    donor_is b '.want_back == 1'
    point $? "but what it tells each time does"
    beat b i1

    until_true 60 prolonged
    point $? "renewals prolong the lease"
    until_true 60 lease_is "$mortal" '.remaining_ms == 0'
    point $? "the time of one that is not renewed passes"
    kill -0 "$broker_pid" && api GET /healthz
    is "the broker is well" "$status" 200
    api GET /metrics
    is "its metrics tell" "$(grep '^remote_bp_broker_state_full' <<<"$answer")" "remote_bp_broker_state_full 1"
    is "the log told once" "$(grep -c 'error: could not write the state file: .*; the last change is undone' "$log")" 1

    free_$way
    until_true 60 lease_again
    point $? "with room a lease is granted" || diagnose "$status $answer"
    until_true 60 grep -q 'info: the state file can be written again' "$log"
    point $? "which the log tells"
    until_true 60 gone "$mortal"
    point $? "a lease that expired meanwhile ends"
    beat b i1 "\"ended\":[\"$ended\"]"
    is "a report counts" "$status $(get "[.leases[].lease] | contains([\"$ended\"])")" "200 false"
    renew "\"bytes\":$((6 * region))"
    is "a lease grows" "$status $(get .bytes)" "200 $((6 * region))"
    register new 4 i1
    is "a donor registers" "$status" 200
    stop_pumps

    # all that was answered is on the disk
    before=$(tables)
    kill_broker
    [ $way = limit ] || fill_disk
    [ $way = limit ] || export LD_PRELOAD=$dir/slow_files.so
    start_broker --donor-timeout 300
    unset LD_PRELOAD
    api GET /v1/donors
    is "after a restart the regions are as before" "$(get '[.donors[] | {id, leased, dirty}]')" \
        "$(jq -c '[.[] | {id, leased, dirty}]' <<<"$before")"
    renew
    is "and so is the lease" "$status $(get .bytes)" "200 $((6 * region))"
    if [ $way = disk ]; then
        api POST /v1/leases "$new_lease"
        is "a broker that starts on a full disk refuses what must be written" "$status" 503
        free_disk
        until_true 60 lease_again
        point $? "and goes on with room"
    fi
    kill_broker
done

# A start on a full disk
rm -f "$state"*
(
    ulimit -f 1
    exec timeout 60 "$RBP_BROKER" --listen 127.0.0.1:0 --state "$state" >"$dir/out" 2>&1
)
is "a broker that cannot make its state file ends" $? 1
grep -q "error: cannot use state file \"$state\": " "$dir/out"
point $? "and says so" || diagnose "$(cat "$dir/out")"

start_broker
finish
