#!/usr/bin/env bash
#
# How leases end: release, expiry, revoke, take-over; what the holder, a
# stranger and the donor see of it.

. "$(dirname "$0")/../lib.sh"

start_broker --donor-timeout 300
register a 8 ia
pump a ia
until_true 60 donor_is a '.applied == 1'

lease c1 i1 2
wrong=${secret//[0-9]/f}
api POST "/v1/leases/$id/renew" "{\"secret\":\"$wrong\"}"
is "renew with a wrong secret" "$status" 403
api DELETE "/v1/leases/$id" "{\"secret\":\"$wrong\"}"
is "release with a wrong secret" "$status" 403
api POST "/v1/leases/$id/renew" '{"secret":"abc"}'
is "renew with half a secret" "$status" 400
api POST "/v1/leases/$id/renew" '{}'
is "renew without a secret" "$status" 400
api POST /v1/leases/00000000-0000-4000-8000-000000000000/renew "{\"secret\":\"$secret\",\"donors\":[\"a\"]}"
is "renew of an unknown lease" "$status" 404
has "the refusal has a reason" '.error | length > 0'

for list in leases donors; do
    api GET /v1/$list
    is "GET /v1/$list shows neither secret nor instance" "$(grep -cE "secret|$secret|instance" <<<"$answer")" 0
done
api GET /v1/leases
has "GET /v1/leases shows the lease" ".leases | length == 1 and .[0].lease == \"$id\" and .[0].bytes == 2 * $region and .[0].donors[0].regions == 2"

api DELETE "/v1/leases/$id" "{\"secret\":\"$secret\"}"
is "release" "$status" 204
renew
is "renewing a lease that was given back fails" "$status" 410
has "says how it ended" '.error | test("given back")'
until_true 60 donor_is a '.free == 8'
point $? "the donor cleaned its regions"

lease c1 i1 2
api POST "/v1/leases/$id/revoke"
is "revoke" "$status" 200
has "tells the regions" '.regions == 2'
renew
is "renewing a revoked lease fails" "$status" 410
has "says how it ended" '.error | test("revoked")'
api POST "/v1/leases/$id/revoke"
is "revoking again" "$status" 410
api POST /v1/leases/nonsense/revoke
is "revoking an unknown lease" "$status" 404

# Once it has a second less, a renewal gives that back, however late it is seen.
lease c1 i1 2 600000
remaining() { api GET /v1/leases; get '.leases[0].remaining_ms'; }
older() { [ "$(remaining)" -lt 599000 ]; }
until_true 60 older
point $? "a lease's time runs"
left=$(remaining)
renewed() { renew; [ "$status" = 200 ] && [ "$(remaining)" -gt "$left" ]; }
until_true 60 renewed
point $? "a renewed lease has all of it again"
not_renewed() { api GET /v1/leases; [ "$(get '.leases | length')" = 0 ]; }
renew '"ttl_ms":3000'
is "it may ask for less" "$status" 200
until_true 60 not_renewed
point $? "a lease that is not renewed goes"
renew '"donors":["b"]'
is "an expired lease may go on with another broker, if a donor is not here" "$status" 503
renew '"donors":["a"]'
is "renewing an expired lease fails" "$status" 410
has "says how it ended" '.error | test("expired")'
until_true 60 donor_is a '.free == 8'
point $? "regions of an expired lease come back"

# The answer to a take-over waits a second for the memory to be cleaned, for
# which a busy machine may need some tries.  Two regions are for those that wait.
give_back() { api DELETE "/v1/leases/$1" "{\"secret\":\"$2\"}"; }
n=0
take_over()
{
    if [ $((n++)) -gt 0 ]; then
        give_back "$id" "$secret"
        give_back "$temp_id" "$temp_secret"
        give_back "$other_id" "$other_secret"
        until_true 60 donor_is a '.free == 8' || return
    fi
    lease c1 i1 8 600000
    old_id=$id old_secret=$secret
    lease c1 i1 1 600000 temp
    temp_id=$id temp_secret=$secret
    lease other i1 1 600000
    other_id=$id other_secret=$secret
    taken=$(get .bytes)
    lease c1 i2 8 600000
    [ "$(get .bytes)" = $((6 * region)) ]
}
until_true 60 take_over
point $? "a new instance takes over, and gets the cleaned memory at once"
is "where everything was taken" "$taken" 0
api POST "/v1/leases/$old_id/renew" "{\"secret\":\"$old_secret\"}"
is "the lease of the former process is over" "$status" 410
has "says how it ended" '.error | test("taken over")'
api GET /v1/leases
has "the other purpose's and other client's leases live" "[.leases[].lease] | contains([\"$temp_id\", \"$other_id\"])"
api GET /metrics
is "metrics count it" "$(sed -n 's/^remote_bp_leases_taken_over_total //p' <<<"$answer")" "$n"

# what a donor sees: revision, key, ttl
stop_pumps
api GET /v1/donors
revision[a]=$(get '.donors[0].revision')
api POST "/v1/leases/$id/revoke"
beat a ia
has "the revoked lease's regions are not in the answer to the donor, but dirty" ".leases == [] and (.dirty | length) == 6 and .revision > 0"
seen=${revision[a]}
beat a ia '"clean":[0,1,2,3,4,5,6,7]'
has "cleaning raises no revision" ".revision == $seen and .dirty == []"
lease c9 i1 1 50000
beat a ia
has "a grant is in the answer to the donor with its key and TTL" \
    ".leases | length == 1 and .[0].lease == \"$id\" and .[0].key == \"$(donor_key a)\" and .[0].regions == [0] and .[0].ttl_ms > 0 and .[0].ttl_ms <= 50000"
renew "\"ttl_ms\":500000"
beat a ia
has "a renewal is in the answer to the donor" '.leases[0].ttl_ms > 50000'

finish
