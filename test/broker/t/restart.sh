#!/usr/bin/env bash
#
# The broker is killed, at rest and amid requests, and another one knows nothing: donors tell it
# of leases, and holders prove that they are theirs.  No lease is lost, none gets smaller because
# a donor comes later, no region is granted twice, and who lies spoils his own memory alone.

. "$(dirname "$0")/../lib.sh"

# held: what the lease of the last answer has
held() { get '[.regions[] | [.donor, .region, .rev]] | sort'; }

start_broker --donor-timeout 300
register a 16 ia
beat a ia
register b 16 ib '"grace_ms":600000'
beat b ib
lease c1 i1 8
first=$(held) id1=$id secret1=$secret
lease c2 i1 4 60000 temp
second=$(held) id2=$id secret2=$secret
lease c3 m/1 2 300000
id3=$id secret3=$secret
lease c4 i1 2
id4=$id secret4=$secret
api DELETE "/v1/leases/$id4" "{\"secret\":\"$secret4\"}"
api POST /v1/donors/b/drain
beat a ia
beat b ib
api GET /v1/leases
before=$(get '[.leases[] | {lease, client, purpose, ttl_ms, keep_ms, wanted, bytes}] | sort')

kill_broker
start_broker --donor-timeout 300
all='"donors":["a","b"]'
id=$id1 secret=$secret1
renew "$all"
is "a lease that is not known yet has not ended" "$status $(get '.error | test("donors are missing")')" "503 true"
api DELETE "/v1/leases/$id" "{\"secret\":\"$secret\"}"
is "nor is it given back" "$status" 503
comes_back a 16 ia
is "a donor tells of leases" "$status" 200
renew "$all"
is "a lease waits for all donors that its holder names" "$status" 503
comes_back b 16 ib '"draining":true,"grace_ms":600000'
donor_is b '.state == "draining"'
point $? "a drain goes on"
api GET /v1/leases
is "all leases are there, with all that is known of them" \
    "$(get '[.leases | group_by(.lease)[] | .[0] + {bytes: (map(.bytes) | add)} | {lease, client, purpose, ttl_ms, keep_ms, wanted, bytes}] | sort')" "$before"
has "but from where each is renewed" '.leases | all(.host == "")'
secret=$secret2
renew "$all"
is "another secret proves nothing" "$status" 403
secret=$secret1
renew "$all"
is "a lease is renewed with its secret" "$status" 200
is "it has its regions, which are the same grants" "$(held)" "$first"
api GET /v1/leases
has "and it is known from where" ".leases | any(.lease == \"$id\" and .host == \"127.0.0.1\")"
renew '"donors":["a","b","c"]'
is "then it is known, whatever its holder names" "$status" 200
beat a ia
has "the donor serves all that it has served" '[.leases[] | .lease] | length == 3'
has "with the same key" ".leases[] | select(.lease == \"$id\") | .key == \"$(donor_key a)\""
id=$id2 secret=$secret2
renew "$all,\"client\":\"c1\""
is "another client's lease it is not" "$status" 403
renew "$all,\"client\":\"c2\""
is "the other lease is renewed" "$status $(held) $(get '.purpose, .client' | tr '\n' ' ')" "200 $second temp c2 "
id=$id4 secret=$secret4
renew "$all"
is "a lease that had ended is not there" "$status" 404
id=none
renew
is "nor is one that none can be" "$status" 404
api GET /metrics
is "leases that go on are counted" "$(sed -n 's/^remote_bp_adopted_leases_total //p' <<<"$answer")" 2
lease c3 m/2 1
id=$id3 secret=$secret3
renew "$all"
is "another instance takes over what is told of its former process" "$status" 404

# a take-over that comes before the donors
kill_broker
start_broker --donor-timeout 300
lease c2 i2 1 60000 temp
fresh_id=$id fresh_secret=$secret
beat a ia
is "a donor learns that its broker is another one" "$status" 404
comes_back a 16 ia
comes_back b 16 ib
api GET /v1/leases
is "it is in force when they come" "$(get "[.leases[] | select(.client == \"c2\") | .lease]")" "[\"$fresh_id\"]"
beat a ia
is "and the regions of the former process are cleaned" "$(get "[.leases[] | select(.lease == \"$id2\")], (.dirty | length > 0)" | tr '\n' ' ')" "[] true "
id=$fresh_id secret=$fresh_secret
renew
is "and the new one is well" "$status" 200

# an old donor tells nothing: its memory is new to the broker
register old 4 io '"clean":[1]'
is "a donor that tells nothing registers" "$status" 200
beat old io
has "and what it does not call clean is cleaned" '.leases == [] and .dirty == [0, 2, 3]'

# revisions go on: what was said before counts for nothing
had=$(jq .revision "$dir/served.a")
comes_back a 16 ia
has "revisions are above all that the donor has applied" ".revision > $had"
beat a ia
had=${revision[a]}
comes_back a 16 ia
has "and above those of this broker" ".revision > $had"

# a donor that lies
id=$id1 secret=$secret1
renew "$all"
is "the lease is proven" "$status $(held)" "200 $first"
kill_broker
settle_ms=8000                  # for donors that do not
start_broker --donor-timeout 300
settle_ms=60000
told=$(jq -c --arg id "$id" '.leases[] | select(.lease == $id) | {lease, key, about, remaining_ms: .ttl_ms, regions: [0], revs: [1]}' "$dir/served.a")
# tells_of JQ-EXPRESSION: a donor liar does, of what it makes of that lease
tells_of() { register liar 4 il "\"revision\":1,\"clean\":[1,2,3],\"leases\":[$(jq -c "$1" <<<"$told")]"; }
tells_of ".key = \"$(printf 'a%.0s' {1..64})\" | .about.client = \"victim\" | .about.keep_ms = 86400000 | .remaining_ms = 86400000"
is "a donor invents what it likes" "$status" 200
renew '"donors":["liar"]'
is "which nobody can prove" "$status" 403
lease victim i9 0
register liar2 4 il "\"revision\":1,\"clean\":[1,2,3],\"leases\":[$(jq -c ".key = \"$(printf 'a%.0s' {1..64})\"" <<<"$told")]"
comes_back a 16 ia
comes_back b 16 ib
renew "$all"
id=$id1 secret=$secret1
renew "$all,\"client\":\"c1\""
is "others' leases are as they were" "$status $(held)" "200 $first"
api GET /v1/leases
has "and what it told of them is no more" "[.leases[] | select(.lease == \"$id\")] | length == 1"
lease victim i10 0
is "nor is anybody in its way" "$status" 201

# what cannot be told
id=$id1 secret=$secret1
while IFS='|' read -r why change; do
    tells_of "$change"
    is "refused: $change" "$status $(get ".error | test(\"$why\")")" "400 true"
done <<'END'
lease|.lease = "-x"
key|.key = "00"
ids and keys|.key |= ascii_upcase
remaining_ms|.remaining_ms = 172800001
remaining_ms|del(.remaining_ms)
each once|.regions = [4]
each once|.regions = [-1]
each once|.regions = [0, 0] | .revs = [1, 1]
each once|.regions = [1]
for each of|.revs = []
up to|.revs = [2]
client|del(.about)
client|.about.client = ""
ttl_ms|.about.ttl_ms = 999
keep_ms|.about.keep_ms = -1
wanted|.about.wanted = 1125899906842625
about|.about.purpose = "other"
about|.about.more = ("x" * 4096)
END
register liar 4 il "\"revision\":1,\"leases\":[$told,$told]"
is "refused: a lease told twice" "$status" 400
register liar 4 il "\"revision\":1,\"leases\":[$(jq -c '.regions = [1]' <<<"$told"),$told]"
is "refused: a lease told twice, with other regions" "$status $(get .error)" '400 "leases" must list each lease once'
register liar 4 il "\"leases\":$(jq -c -n '[range(1025)] | map({})')"
is "refused: more leases than a donor has" "$status $(get .error)" '400 "leases" must list 1024 leases or fewer'
renew "\"donors\":$(jq -c -n '[range(10000) | tostring]')"
is "refused: a holder of 10,000 donors" "$status" 400
renew '"donors":[1]'
is "refused: donors that are no names" "$status" 400
renew
is "nothing of that touched the lease" "$status $(held)" "200 $first"

# what no donor has applied could not be told to the next broker
applying=false
lease c9 i1 2
applying=true
is "what donors have not applied is not promised" "$status $(held)" "201 []"
grep -q '2 regions are taken back, since their donors did not answer in time' "$log"
point $? "and is taken back"

# Donors come back from another broker, at which leases have gone on: whoever has not renewed one here
# for ten seconds may have another secret there, or another lease.
kill_broker
instance=()
start_broker --donor-timeout 300
register a 10 ia
beat a ia
lease c1 m/1 2
id1=$id
lease c2 m/1 2
id2=$id
lease c3 m/1 2
id3=$id
lease c5 m/1 2
id5=$id secret5=$secret
lease c4 m/1 2
id4=$id secret4=$secret
beat a ia
sleep 11
renew
id=$id5 secret=$secret5
renew
fresh=$(printf 'ab%.0s' {1..32}) other=${id1/%????/abcd} later=${id5/%????/abcd}
secret=$fresh
jq -c --arg key "$(donor_key a)" --arg one "$id1" --arg two "$id2" --arg other "$other" --arg four "$id4" --arg five "$id5" --arg later "$later" '.leases |= map(
    if .lease == $one or .lease == $four then .key = $key
    elif .lease == $five then .lease = $later | .key = $key | .about.instance = "m/2" | .about.created += 1
    elif .lease == $two then .lease = $other | .key = $key | .about.instance = "m/2" else . end)' "$dir/served.a" >"$dir/told"
mv "$dir/told" "$dir/served.a"
api GET /v1/leases
before=$(get ".leases[] | select(.lease == \"$id3\") | .remaining_ms")
comes_back a 10 ia
api GET /v1/leases
[ "$(get ".leases[] | select(.lease == \"$id3\") | .remaining_ms")" -gt "$before" ]
point $? "a lease that was renewed elsewhere lasts longer here, too"
id=$id1 secret=$fresh
renew
is "one that has another secret by now is its holder's" "$status $(get '.regions | length')" "200 2"
id=$other
renew
is "a newer one of the same client is, too" "$status $(get '.regions | length')" "200 2"
id=$later
renew
is "one that was made elsewhere since is newer than one that is renewed here" "$status $(get '.regions | length')" "200 2"
id=$id4
renew
is "but nobody's word changes the secret of one that is renewed here" "$status" 403
secret=$secret4
renew
is "whose holder loses the regions of that donor alone" "$status $(get '.regions | length')" "200 0"

# killed amid requests, again and again, under donors that lend memory: what was promised is so
: "${RBP_DONOR:=$root/build/remote_bp_donor}"
kill_broker
instance=()
start_broker
port=${url##*:}
donors=()
for name in a b; do
    "$RBP_DONOR" --broker "$url" --listen 127.0.0.1:0 --rdma-device none --memory 64MB --region-size 1MB --min-free 0 --id $name 2>"$dir/$name.log" &
    donors+=($!)
done
pump_pids+=("${donors[@]}")
until_true 60 donor_is a '.state == "up"'
until_true 60 donor_is b '.state == "up"'
region=1048576

client()    # NAME: get, renew, release leases; log what was promised
{
    local n=0

    trap - EXIT
    while [ ! -e "$dir/stop" ]; do
        n=$((n + 1))
        : >"$dir/promised.$1"           # it is about to be taken over
        lease "$1" "i$n" 3
        [ "$status" = 201 ] || { sleep 0.05; continue; }
        echo "$id $secret $(held)" >"$dir/promised.$1"
        renew "\"bytes\":$((5 * region)),\"donors\":[\"a\",\"b\"]"
        [ "$status" != 200 ] || echo "$id $secret $(held)" >"$dir/promised.$1"
    done
}
clients=()
for name in k1 k2 k3; do
    client $name &
    clients+=($!)
done
pump_pids+=("${clients[@]}")
all_promised() { [ -s "$dir/promised.k1" ] && [ -s "$dir/promised.k2" ] && [ -s "$dir/promised.k3" ]; }
until_true 60 all_promised
point $? "clients get leases"
promised_anew() { [ -s "$dir/promised.$1" ] && [ "$dir/promised.$1" -nt "$dir/mark" ]; }
amid=0
for round in 1 2 3 4 5 6; do
    touch "$dir/mark"
    until_true 60 promised_anew k$((round % 3 + 1)) && amid=$((amid + 1))
    sleep 0.$round
    kill_broker
    start_broker --listen 127.0.0.1:"$port"
done
touch "$dir/stop"
wait "${clients[@]}"
is "killed amid requests" "$amid" "$round"
regions='[]'
for name in k1 k2 k3; do
    [ -s "$dir/promised.$name" ] || continue
    read -r id secret promised <"$dir/promised.$name"
    [ "$promised" != '[]' ] || continue     # no donor knows of it
    known() { renew '"donors":["a","b"]'; [ "$status" != 503 ]; }
    until_true 60 known
    is "$name has all that it was promised" "$status $(get "$promised - [.regions[] | [.donor, .region, .rev]]")" '200 []'
    regions=$(get "$regions + [.regions[] | [.donor, .region]]")
done
is "no region is in two leases" "$(jq -c 'group_by(.) | map(select(length > 1)[0])' <<<"$regions")" '[]'
[ "$(grep -c 'broken invariant' "$dir/brokers_before.log")" = 0 ]
point $? "no broker broke an invariant"
[ "$(grep -c 'does not take' "$dir/a.log")" = 0 ]
point $? "and none refused what a donor told"

finish
