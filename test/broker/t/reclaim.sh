#!/usr/bin/env bash
#
# Memory that is asked back: by a donor's want_back and by a drain; the holder
# learns it in its renew answer, and past the grace time regions are taken.
# The grace time is long, but where its end is waited for.

. "$(dirname "$0")/../lib.sh"

start_broker --donor-timeout 300
register a 8 ia '"grace_ms":3600000'
pump a ia
until_true 60 donor_is a '.applied == 1'
lease c1 i1 6
has "a lease" '(.regions | length) == 6 and .reclaim == []'

# want_back: two are unleased anyway
stop_pumps
api GET /v1/donors
revision[a]=$(get '.donors[0].revision')
beat a ia '"want_back":2'
renew
has "regions that are not leased are not asked back" '.reclaim == []'
id1=$id secret1=$secret
lease c2 i1 1
has "regions that are wanted back are not granted" '.bytes == 0'
api DELETE "/v1/leases/$id" "{\"secret\":\"$secret\"}"
id=$id1 secret=$secret1
beat a ia '"want_back":5'
api GET /v1/donors
has "operators see what is being asked back" '.donors[0].reclaiming == 3 and .donors[0].want_back == 5'
renew
has "the holder is asked for the rest" '.reclaim == [{"donor": "a", "regions": 3, "shared": 0, "grace_ms": 3600000}]'
release=$(get '[.regions[0:2][] | {donor, region}]')
sleep 0.01
renew "\"release\":$release"
has "regions that the holder releases count" '.reclaim[0].regions == 1 and (.regions | length) == 4'
has "the grace time runs since it was told" '.reclaim[0].grace_ms < 3600000'
beat a ia '"want_back":4'
renew
has "a donor may want less again" '.reclaim == [] and (.regions | length) == 4'
beat a ia '"want_back":5,"grace_ms":1500'
renew
has "a donor may want more, with another grace time" '.reclaim == [{"donor": "a", "regions": 1, "shared": 0, "grace_ms": 1500}]'

pump a ia '"want_back":5'
taken() { api GET /v1/leases; [ "$(get ".leases[0].bytes == 3 * $region")" = true ]; }
until_true 60 taken
point $? "past the grace time it is taken"
renew
has "the holder sees that regions were taken" '(.regions | length) == 3 and .reclaim == []'
renew "\"bytes\":$((6 * region))"
has "the holder gets nothing in exchange where nothing is free" '(.regions | length) == 3'
api GET /metrics
is "metrics count it" "$(sed -n 's/^remote_bp_regions_taken_total //p' <<<"$answer")" 1

# buffer before temp
stop_pumps
pump a ia '"grace_ms":3600000'
until_true 60 donor_is a '.free == 5 and .want_back == 0 and .grace_ms == 3600000'
buffer_id=$id buffer_secret=$secret
lease c1 i1 4 60000 temp
temp_id=$id temp_secret=$secret
stop_pumps
api GET /v1/donors
revision[a]=$(get '.donors[0].revision')
beat a ia '"want_back":4'
id=$temp_id secret=$temp_secret
renew
has "temporary data is spared" '.reclaim == []'
id=$buffer_id secret=$buffer_secret
renew
has "buffer pages are asked back first" '.reclaim[0].regions == 3'

# a drain: everything, and another donor takes over region by region
register b 16 ib
pump b ib
until_true 60 donor_is b '.applied == 1'
pump a ia
api POST /v1/donors/a/drain
is "drain" "$status" 200
has "tells what is to come back" '.draining == true and .leased == 7'
donor_is a '.state == "draining"'
point $? "the donor is draining"
lease c4 i1 4
has "it gets no new leases" 'all(.regions[]; .donor == "b")'

move()  # release what is asked back until nothing is
{
    renew
    while [ "$(get '.reclaim | length')" -gt 0 ]; do
        renew "\"release\":$(get '.reclaim[0] as $r | [[.regions[] | select(.donor == $r.donor)][0:$r.regions][] | {donor, region}]')"
    done
}

id=$buffer_id secret=$buffer_secret
renew "\"bytes\":$((3 * region))"
held="$(get '[.regions[] | select(.donor == "a")] | length')"
renew "\"ahead\":$((2 * region))"
has "two regions are replaced before they are released" "(.bytes == 5 * $region) and ([.regions[] | select(.donor == \"a\")] | length) == $held"
renew "\"ahead\":$((2 * region))"
has "and no more" ".bytes == 5 * $region"
move
has "the holder moves to the other donor, in the same answers" "(.bytes == 3 * $region) and all(.regions[]; .donor == \"b\")"
id=$temp_id secret=$temp_secret
move
has "temporary data is asked back too" "(.bytes == 4 * $region) and all(.regions[]; .donor == \"b\")"
until_true 60 donor_is a '.leased == 0 and .dirty == 0'
point $? "the donor is empty and clean"
register a 8 ia2
donor_is a '.state == "up"'
point $? "a new process ends the drain"

# the donor's own wish, the grace time over
stop_pumps
pump b ib '"draining":true,"grace_ms":0'
empty() { api POST "/v1/leases/$id/renew" "{\"secret\":\"$secret\"}"; donor_is b '.leased == 0'; }
id=$temp_id secret=$temp_secret
told() { renew; [ "$(get '[.regions[] | select(.donor == "b")] | length')" = 0 ]; }
until_true 60 told
point $? "a donor drains itself, without grace time if it has none"
api GET /v1/leases
has "a holder that was not told keeps its regions" '[.leases[].donors[] | select(.id == "b") | .regions] | add > 0'

finish
