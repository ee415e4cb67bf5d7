#!/usr/bin/env bash
#
# Donors' side: instances, stale and repeated reports, leases that the donor
# ended itself, a donor that is silent, leaves, or was never known.

. "$(dirname "$0")/../lib.sh"

settle_ms=8000              # for donors that do not
start_broker --donor-timeout 300

api POST /v1/donors/never/heartbeat '{"instance":"i","revision":0}'
is "a heartbeat of an unknown donor" "$status" 404

register a 4 i1
beat a i1
applying=false
lease c1 i1 2
is "a grant that its donor does not acknowledge is not told" "$status $(get '.bytes, (.regions | length)' | tr '\n' ' ')" "201 0 0 "
donor_is a '.leased == 0 and .dirty == 2'
point $? "it is taken back, and not clean, for the donor may know of it"
applying=true
beat a i1
beat a i1 '"clean":[0,1]'
renew "\"bytes\":$((2 * region))"
is "a grant that it acknowledges is" "$(get '.bytes, (.regions | length)' | tr '\n' ' ')" "$((2 * region)) 2 "

# stale reports: the donor has applied revision 1 only
api POST "/v1/leases/$id/revoke"
stale=1
api POST /v1/donors/a/heartbeat "{\"instance\":\"i1\",\"revision\":$stale,\"clean\":[0,1,2,3]}"
has "a report older than the region's last change does not count" '.dirty == [0, 1]'
revision[a]=$(get .revision)
beat a i1 '"clean":[0]'
has "a newer report counts" '.dirty == [1]'
beat a i1 '"clean":[0,1,2,3]'
has "a report that lists everything counts" '.dirty == []'

# leases that the donor ended by its own clock
register b 4 i1
beat b i1
beat a i1
lease c1 i1 4
beat a i1
beat b i1
beat a i1 "\"ended\":[\"$id\"],\"clean\":[0,1]"
has "an ended lease's regions leave, clean at once if the same report says so" '.leases == [] and .dirty == []'
seen=${revision[a]}
renew "\"bytes\":$((4 * region))"
is "the lease lives on" "$status" 200
has "the lease keeps its regions elsewhere, and gets new ones" '.bytes > 0 and ([.regions[].donor] | contains(["b"]))'
api POST /v1/donors/a/heartbeat "{\"instance\":\"i1\",\"revision\":$seen,\"ended\":[\"$id\"]}"
has "a repeated report spares what was granted later" "[.leases[].lease] == [\"$id\"]"
revision[a]=$(get .revision)
api POST /v1/donors/a/heartbeat "{\"instance\":\"i1\",\"revision\":$((seen - 1)),\"clean\":[0,1,2,3]}"
has "clean does not touch a leased region" '.leases[0].regions | length == 2'

# nonsense
beat a i1 '"clean":[4]'
is "a region that the donor does not have is refused" "$status" 400
beat a i1 '"clean":[-1]'
is "a negative region is refused" "$status" 400
beat a i1 '"clean":{}'
is "clean that is no array is refused" "$status" 400
beat a i1 '"want_back":-1'
is "negative want_back is refused" "$status" 400
beat a i1 '"ended":["nonsense",1,null]'
is "unknown ended leases are ignored" "$status" 200
register a 5 i1
is "an instance cannot change its regions" "$status" 409

# a new instance
beat b i1
lease c2 i1 1
register a 6 i2
beat a i1
is "the old process of the same name is told to stop" "$status" 409
beat a i2
has "the new process has nothing to serve" '.leases == [] and .dirty == []'
api GET /v1/leases
has "the new process is in no lease" 'all(.leases[].donors[]; .id != "a")'
donor_is a '.regions == 6 and .free == 6'
point $? "its memory can be leased"

# a broker that lost its memory: the donor says what is clean
register z 4 i1 '"clean":[1,3]'
beat z i1
has "regions not listed as clean at registration are dirty" '.dirty == [0, 2]'
api DELETE /v1/donors/z '{"instance":"other"}'
is "only the instance itself can leave" "$status" 409
api DELETE /v1/donors/z '{"instance":"i1"}'
is "a donor leaves" "$status" 204
beat z i1
is "a donor that left is unknown" "$status" 404

# silence, with a broker that waits for less
kill_broker
start_broker --donor-timeout 4
comes_back a 6 i2
comes_back b 4 i1
unset "instance[b]"        # it is silent from here on
pump a i2
up() { beat b i1; donor_is b '.state == "up"'; }
until_true 60 up
point $? "a donor is up that is heard of"
until_true 60 donor_is b '.state == "away"'
point $? "a silent donor is away"
has "its leases keep their regions for now" '.donors[] | select(.id == "b") | .leased > 0'
lease c3 i1 20
has "gets no new leases" 'all(.regions[]; .donor == "a")'
has "the other donor gets new leases" '.bytes > 0'
api DELETE "/v1/leases/$id" "{\"secret\":\"$secret\"}"
until_true 60 donor_is b '.state == "gone" and .leased == 0'
point $? "later they lose them"
"$RBP_CTL" --broker "$url" donors >"$dir/table"
is "a donor that is gone is shown with nothing to lend" "$(grep -cE '^b .* gone .* -  +-  +-  +-  ' "$dir/table")" 1
revision[b]=0
beat b i1
has "a donor that is back learns of it" '.leases == [] and (.dirty | length) > 0'
donor_is b '.state == "up"'
point $? "a donor that is back is up again"

# the long poll
register p 1 i1
beat p i1
( trap - EXIT; beat p i1 '"asks":1'; echo "$answer" >"$dir/poll" ) &
poll=$!
until_true 60 donor_is p '.stats.asks == 1'
api POST /v1/donors/p/drain
wait $poll
answer=$(<"$dir/poll")
# If it was answered before, for it had waited for long enough, the next one tells.
[ "$(get .drain)" = true ] || beat p i1
has "a drain reaches the donor" '.drain == true'
api POST /v1/donors/nobody/drain
is "draining an unknown donor" "$status" 404

# numbers that it reports are shown
beat p i1 '"reads":12345,"evil\"name":1,"text":"x"'
donor_is p '.stats == {"reads": 12345}'
point $? "numbers among a heartbeat's members are kept, others are not"
api GET /metrics
is "statistics are in the metrics, but for names that are unknown" "$(grep -cE '^remote_bp_donor_reads_total.donor="p". 12345$|evil|denied_total.donor' <<<"$answer")" 1

finish
