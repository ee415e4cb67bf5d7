#!/usr/bin/env bash
#
# Leases that lapse: past its TTL a lease is kept for keep_ms, until it is
# renewed, its memory is asked back, or its client has another lease; and how a
# lease gets another secret.

. "$(dirname "$0")/../lib.sh"

hour=3600000

# lease_is LEASE JQ-EXPRESSION; for until_true
lease_is() { api GET /v1/leases; said --arg id "$1" ".leases[] | select(.lease == \$id) | $2"; }
# short_lease CLIENT INSTANCE REGIONS KEEP_MS: one that lapses as soon as one may
short_lease()
{
    lease "$1" "$2" "$3" $hour
    renew "\"ttl_ms\":1000,\"keep_ms\":$4"
}

settle_ms=8000              # for donors that do not
start_broker --donor-timeout 300
register a 8 ia "\"grace_ms\":$hour"
beat a ia

# asked for, and told
api POST /v1/leases "{\"client\":\"c\",\"instance\":\"i\",\"purpose\":\"buffer\",\"bytes\":$region,\"ttl_ms\":60000,\"keep_ms\":86400001}"
is "nothing is kept for more than a day" "$status" 400
lease c1 m/1 4 $hour
has "a lease is kept only if that is asked for" '.keep_ms == 0'
for keep in -1 86400001; do
    renew "\"keep_ms\":$keep"
    is "keep_ms may not be $keep" "$status" 400
done
renew "\"keep_ms\":$((2 * hour))"
has "a renewal may ask for it" ".keep_ms == $((2 * hour)) and .ttl_ms == $hour"
renew
has "and the next one need not" ".keep_ms == $((2 * hour))"
beat a ia
has "the donor is told when the lease ends, with that time" ".leases[0].ttl_ms > $((2 * hour)) and .leases[0].ttl_ms <= $((3 * hour))"
api GET /v1/leases
has "operators see the time until it lapses, and how long it is kept" \
    ".leases[0] | .remaining_ms <= $hour and .keep_ms == $((2 * hour)) and .lapsed == false"
renew '"ttl_ms":1000'
granted=$(get '.regions | sort')

# lapsed
until_true 60 lease_is "$id" .lapsed
point $? "past its TTL it has lapsed"
has "and has its memory" ".leases[0] | .remaining_ms == 0 and .bytes == 4 * $region"
is "ctl says so" "$("$RBP_CTL" --broker "$url" leases | grep -cE "^$id .* lapsed  +a: 256 MB\$")" 1
beat a ia
has "the donor goes on to serve it" ".leases[0] | .lease == \"$id\" and (.regions | length) == 4 and .ttl_ms > $hour"
lapsed_id=$id lapsed_secret=$secret
lease c2 i1 8 60000
has "nobody else has its memory" ".bytes == 4 * $region"
api DELETE "/v1/leases/$id" "{\"secret\":\"$secret\"}"
beat a ia
id=$lapsed_id secret=$lapsed_secret
kill_broker
start_broker --donor-timeout 300
comes_back a 8 ia "\"grace_ms\":$hour"
lease_is "$id" ".keep_ms == $((2 * hour)) and .bytes == 4 * $region"
point $? "a broker that is started again knows for how long it is kept"
beat a ia
renew "\"ttl_ms\":$hour,\"donors\":[\"a\"]"
is "its holder renews it" "$status" 200
is "and has the same grants" "$(get '.regions | sort')" "$granted"
lease_is "$id" '.lapsed == false'
point $? "it has not lapsed any more"

# a region that was given back meanwhile is another grant
beat a ia
renew "\"release\":[$(jq -c '.[0]' <<<"$granted")],\"bytes\":$((3 * region))"
beat a ia
beat a ia '"clean":[0,1,2,3,4,5,6,7]'
renew "\"bytes\":$((8 * region))"
is "the same region again is another grant" \
    "$(get "(.regions | length) == 8 and ([.regions[] | select(.region == 0)][0].rev > ($granted)[0].rev)")" true
is "and the others are what they were" "$(get "[.regions[] | select(.region == (1, 2, 3))] == ($granted)[1:]")" true

# its end
renew '"ttl_ms":1000,"keep_ms":1000'
until_true 60 gone "$id"
point $? "it ends when it was kept for so long"
renew
is "as one that has expired" "$status $(get '.error | test("expired")')" "410 true"
beat a ia
has "and so the donor is told" '.leases == [] and (.dirty | length) == 8'
pump a ia
until_true 60 donor_is a '.free == 8'

# memory that is asked back: of the lapsed one first, without grace
short_lease lapsed i 4 $hour
lapsed_id=$id
lease live i 4 $hour
until_true 60 lease_is "$lapsed_id" .lapsed
stop_pumps
pump a ia '"want_back":2'
until_true 60 lease_is "$lapsed_id" ".bytes == 2 * $region"
point $? "what a donor wants back is taken from it at once"
lease_is "$id" '.donors[0].reclaim == 0 and .donors[0].regions == 4'
point $? "and others are left alone"
stop_pumps
pump a ia '"want_back":5'
until_true 60 lease_is "$lapsed_id" ".bytes == 0"
point $? "until it has no more"
until_true 60 lease_is "$id" '.donors[0].reclaim == 1 and .donors[0].regions == 4'
point $? "then they are asked"
is "the log says why" "$(grep -c "lease $lapsed_id: 2 regions of donor a are taken, since it has lapsed" "$log")" 2
api DELETE "/v1/leases/$id" "{\"secret\":\"$secret\"}"
api POST "/v1/leases/$lapsed_id/revoke"
stop_pumps
pump a ia
until_true 60 donor_is a '.free == 8'

# likewise for another lease's share
short_lease lapsed i 8 $hour
lapsed_id=$id
until_true 60 lease_is "$lapsed_id" .lapsed
lease live i 4 $hour
shared() { renew; [ "$(get .bytes)" = $((4 * region)) ]; }
until_true 60 shared
point $? "what another lease lacks of its share is taken from it at once"
lease_is "$lapsed_id" ".bytes == 4 * $region and .donors[0].reclaim == 0"
point $? "and its own share stays"
api DELETE "/v1/leases/$id" "{\"secret\":\"$secret\"}"
api POST "/v1/leases/$lapsed_id/revoke"
until_true 60 donor_is a '.free == 8'

# its client is elsewhere
short_lease moved m1/1 2 $hour
lapsed_id=$id
lease moved m2/1 2 60000
until_true 60 gone "$lapsed_id"
point $? "it is not kept for a client that has another lease"
api DELETE "/v1/leases/$id" "{\"secret\":\"$secret\"}"
short_lease again m1/1 2 $hour
lapsed_id=$id lapsed_secret=$secret
until_true 60 lease_is "$lapsed_id" .lapsed
lease again m1/2 2
api POST "/v1/leases/$lapsed_id/renew" "{\"secret\":\"$lapsed_secret\"}"
is "another instance of its client takes over from it" "$status $(get '.error | test("taken over")')" "410 true"
api DELETE "/v1/leases/$id" "{\"secret\":\"$secret\"}"
until_true 60 donor_is a '.free == 8'

# another secret
lease c1 i1 2 $hour
old=$secret new=$(printf '%064x' 7)
for bad in '"00"' "\"${new/0/g}\"" "\"${new/0/A}\"" 7; do
    renew "\"new_secret\":$bad"
    is "new_secret may not be $bad" "$status" 400
done
regions=$(get .regions)
renew '"ttl_ms":600000'
regions=$(get '.regions | sort')
renew "\"new_secret\":\"$new\",\"bytes\":$((4 * region))"
has "a lease gets another secret" ".secret == \"$new\""
is "keeps its grants, and gets no more with it" "$(get '.regions | sort')" "$regions"
renew
is "the former one is wrong" "$status" 403
renew "\"new_secret\":\"$new\""
is "who missed the answer may ask again" "$status $(get .secret)" "200 $new"
renew "\"new_secret\":\"$(printf '%064x' 8)\""
is "but not with another one" "$status" 403
secret=$new
renew
is "with the new one it is renewed, and gets what it lacks" "$status $(get .bytes)" "200 $((4 * region))"
stop_pumps
api GET /v1/donors
revision[a]=$(get '.donors[0].revision')
beat a ia
from=${revision[a]}
applying=false
start=$(date +%s%3N)
renew "\"new_secret\":\"$old\""
[ $(($(date +%s%3N) - start)) -ge 900 ]
point $? "the answer waits for a donor that does not know it yet"
beat a ia
applying=true
has "of which the donor learns at once" ".revision > $from"
secret=$old
has "what it learns is a key of its own" ".leases[0] | .key == \"$(donor_key a)\" and has(\"secret\") == false"
secret=$(get '.leases[0].key')
renew
is "with that nobody renews the lease" "$status" 403
beat a ia
beat a ia
kill_broker
start_broker --donor-timeout 300
comes_back a 8 ia "\"grace_ms\":$hour"
renew '"donors":["a"]'
is "nor with another broker" "$status" 403
secret=$old
renew '"donors":["a"]'
is "it is the secret for another broker, too" "$status" 200

# another client goes on with it: a new instance of the first does not end it
renew "\"new_secret\":\"$new\",\"client\":\"c2\",\"instance\":\"m2/1\""
is "a lease gets another client with its secret" "$status $(get .client)" "200 c2"
secret=$new other_id=$id other_secret=$secret
lease c1 i2 1 $hour
id_of_c1=$id secret_of_c1=$secret id=$other_id secret=$other_secret
renew
is "the client of before does not take over from it" "$status" 200
api DELETE "/v1/leases/$id_of_c1" "{\"secret\":\"$secret_of_c1\"}"
lease c2 m2/2 1 $hour
api POST "/v1/leases/$other_id/renew" "{\"secret\":\"$other_secret\"}"
is "another instance of its own does" "$status $(get '.error | test("taken over")')" "410 true"

finish
