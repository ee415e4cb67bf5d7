#!/usr/bin/env bash
#
# The broker is killed and restarted, at rest and amid requests: no lease is
# lost, no region is granted twice, revisions go on.

. "$(dirname "$0")/../lib.sh"

start_broker --donor-timeout 300
register a 16 ia
beat a ia
register b 16 ib '"grace_ms":600000'
beat b ib
lease c1 i1 8
first=$answer id1=$id secret1=$secret
lease c2 i1 4 60000 temp
second=$answer id2=$id secret2=$secret
lease c3 i1 2 300000
id3=$id secret3=$secret
lease c4 i1 2
id4=$id secret4=$secret
api DELETE "/v1/leases/$id4" "{\"secret\":\"$secret4\"}"
api POST /v1/donors/b/drain
api GET /v1/donors
before=$(get '[.donors[] | {id, revision, leased, free, dirty, grace_ms, regions}]')

kill_broker
start_broker --donor-timeout 300
api GET /v1/donors
is "donors, revisions and regions are as before" "$(get '[.donors[] | {id, revision, leased, free, dirty, grace_ms, regions}]')" "$before"
has "donors are not up before they are heard of" 'all(.donors[]; .state == "away" and .heard_ms == null)'
lease c9 i1 1
has "donors get no leases until they are heard of" '.bytes == 0'
api DELETE "/v1/leases/$id" "{\"secret\":\"$secret\"}"
beat a ia
is "a donor goes on without registering" "$status" 200
has "the donor has all its leases" '[.leases[].lease] | length == 3'
beat b ib
has "a drain goes on" '.drain == true'
donor_is b '.state == "draining"'

id=$id1 secret=$secret1
renew
is "a lease is renewed with its secret" "$status" 200
is "a renewed lease has its regions" "$(get '.regions | sort')" "$(jq -c '.regions | sort' <<<"$first")"
id=$id2 secret=$secret2
renew
is "the other lease is renewed" "$(get '.regions | sort')" "$(jq -c '.regions | sort' <<<"$second")"
has "the other lease has its purpose" '.purpose == "temp" and .client == "c2"'
id=$id4 secret=$secret4
renew
is "a lease that had ended is remembered as ended" "$status" 410
api GET /v1/leases
has "the third has its TTL again" ".leases[] | select(.lease == \"$id3\") | .remaining_ms | . > 0 and . <= 300000"
id=$id3 secret=$secret3
renew '"ttl_ms":3000'
is "it may ask for less" "$status" 200
kill_broker
start_broker --donor-timeout 300
gone() { api GET /v1/leases; jq -e "all(.leases[]; .lease != \"$id3\")" >/dev/null <<<"$answer"; }
until_true 60 gone
point $? "a lease expires after another restart if it is not renewed"

# a donor that came with a new process while the broker was down
kill_broker
start_broker
register a 16 ia2
api GET /v1/leases
has "a donor restarted while the broker was down is out of its leases" '[.leases[].donors[].id] | unique == ["b"]'

# state that is in use, not ours, or damaged
"$RBP_BROKER" --listen 127.0.0.1:0 --state "$state" >"$dir/second.log" 2>&1
is "a second broker on the same state does not start" $? 1
is "a second broker on the same state says why" "$(grep -c 'in use' "$dir/second.log")" 1
echo "this is not a database, but a text that is long enough to be looked at as one" >"$dir/text"
chmod 600 "$dir/text"
"$RBP_BROKER" --listen 127.0.0.1:0 --state "$dir/text" >"$dir/text.log" 2>&1
is "a broker on a text file does not start" $? 1
"$RBP_BROKER" --listen 127.0.0.1:0 --state "$dir/no/such/dir" >"$dir/nodir.log" 2>&1
is "a broker without its directory does not start" $? 1

sqlite3 "$dir/newer.db" 'CREATE TABLE donor (id TEXT); PRAGMA user_version = 1000'
chmod 600 "$dir/newer.db"
"$RBP_BROKER" --listen 127.0.0.1:0 --state "$dir/newer.db" >"$dir/newer.log" 2>&1
is "a later version's file is not touched" "$? $(grep -c 'of another version (1000)' "$dir/newer.log")" "1 1"

# a donor that offers RDMA later
api POST /v1/donors "{\"id\":\"a\",\"host\":\"127.0.0.1\",\"port\":7001,\"shm_name\":\"s\",\"boot_id\":\"b\",
    \"rdma_host\":\"192.168.7.1\",\"rdma_port\":7002,\"transports\":[\"tcp\",\"verbs\"],\"region_size\":$region,\"regions\":16,\"instance\":\"ia2\"}"
is "a donor may offer RDMA later" "$status" 200
kill_broker
start_broker
api GET /v1/donors
has "the donor keeps its RDMA address" '.donors[] | select(.id == "a") | .rdma_host == "192.168.7.1" and .rdma_port == 7002 and .transports == ["tcp", "verbs"]'

# killed amid requests, again and again: what was answered with success is so
kill_broker
rm -f "$state"*
start_broker
port=${url##*:}
register a 64 ia
register b 64 ib

client()    # NAME: get, renew, release leases; log what was promised
{
    local n=0

    trap - EXIT
    url=http://127.0.0.1:$port
    while [ ! -e "$dir/stop" ]; do
        n=$((n + 1))
        lease "$1" "i$n" 3
        [ "$status" = 201 ] || { sleep 0.05; continue; }
        echo "$id $secret $(get '[.regions[] | [.donor, .region]]')" >"$dir/promised.$1"
        renew "\"bytes\":$((5 * region))"
        [ "$status" != 200 ] || echo "$id $secret $(get '[.regions[] | [.donor, .region]]')" >"$dir/promised.$1"
    done
}
pump a ia
pump b ib
clients=()
for name in k1 k2 k3; do
    client $name &
    clients+=($!)
done
pump_pids+=("${clients[@]}")
all_promised() { [ -s "$dir/promised.k1" ] && [ -s "$dir/promised.k2" ] && [ -s "$dir/promised.k3" ]; }
until_true 60 all_promised
point $? "clients get leases"
promised_anew() { [ "$dir/promised.$1" -nt "$dir/mark" ]; }
amid=0
for round in 1 2 3 4 5 6; do
    touch "$dir/mark"
    until_true 60 promised_anew k$((round % 3 + 1)) && amid=$((amid + 1))
    sleep 0.$round
    kill_broker
    for ((try = 0; try < 100; try++)); do
        : >"$log"
        "$RBP_BROKER" --listen 127.0.0.1:"$port" --state "$state" 2>"$log" &
        broker_pid=$!
        for ((i = 0; i < 600; i++)); do
            grep -q 'listening on' "$log" && break 2
            kill -0 "$broker_pid" 2>/dev/null || break
            sleep 0.05
        done
    done
done
touch "$dir/stop"
wait "${clients[@]}"
is "killed amid requests" "$amid" "$round"
alive=0
regions='[]'
for name in k1 k2 k3; do
    read -r id secret promised <"$dir/promised.$name"
    renew
    if [ "$status" = 200 ]; then
        alive=$((alive + 1))
        is "$name has all that it was promised" "$(get "$promised - [.regions[] | [.donor, .region]]")" '[]'
        regions=$(get "$regions + [.regions[] | [.donor, .region]]")
    else
        # taken over by its next instance, whose answer was lost with the broker
        is "$name was taken over by another instance of its client" "$status $(get .error)" "410 the lease was taken over by another instance of its client"
    fi
done
is "no region is in two leases" "$(jq -c 'group_by(.) | map(select(length > 1)[0])' <<<"$regions")" '[]'
[ "$(grep -c 'broken invariant' "$dir/brokers_before.log")" = 0 ]
point $? "no broker broke an invariant"

finish
