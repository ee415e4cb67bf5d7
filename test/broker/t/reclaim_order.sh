#!/usr/bin/env bash
#
# A donor that wants memory back gets that of buffer leases first and that of
# temp leases last, also when it wants more while a holder is being asked.

. "$(dirname "$0")/../lib.sh"

settle_ms=8000              # for donors that do not
start_broker
register a 8 ia '"grace_ms":3600000'
pump a ia '"grace_ms":3600000'
until_true 10 donor_is a '.applied == 1'

# One client with both purposes: two leases, which know nothing of each other.
lease c1 i1 4
buffer_id=$id buffer_secret=$secret
has "a lease for buffer pages" '.purpose == "buffer" and (.regions | length) == 4'
lease c1 i2 4 60000 temp
temp_id=$id temp_secret=$secret
has "a lease for temporary data, of another instance, is granted" '.purpose == "temp" and (.regions | length) == 4'

buffer() { id=$buffer_id secret=$buffer_secret; renew "$@"; }
temp() { id=$temp_id secret=$temp_secret; renew "$@"; }

buffer
has "the first goes on" "$status == 200 and (.regions | length) == 4"
stop_pumps
applying=false              # nothing more is granted, and each heartbeat says what is wanted back
api GET /v1/donors
revision[a]=$(get '.donors[0].revision')

beat a ia '"want_back":2'
buffer
has "buffer pages are asked for" '.reclaim[0].regions == 2'
beat a ia '"want_back":5'
temp
has "temporary data is spared while a buffer lease that was told can give more later" '.reclaim == []'
buffer
has "a lease is asked for no more in one round" '.reclaim[0].regions == 2'
buffer "\"bytes\":0,\"release\":$(get '[.regions[0:2][] | {donor, region}]')"
has "the holder gives more in the next round" '(.regions | length) == 2'
asked_more() { buffer; [ "$(get '.reclaim[0].regions')" = 2 ]; }
until_true 10 asked_more
point $? "the next round asks for the rest of it"
temp
has "temporary data is asked for when that is not enough" '.reclaim[0].regions == 1 and (.regions | length) == 4'

beat a ia '"want_back":4'
temp
has "a need that shrinks spares temporary data first, even where it was told" '.reclaim == []'
buffer
has "buffer pages are still asked for" '.reclaim[0].regions == 2'
beat a ia '"want_back":6'
temp
has "a need that grows comes back to it" '.reclaim[0].regions == 2'

# The end of the one is not the end of the other.
api DELETE "/v1/leases/$buffer_id" "{\"secret\":\"$buffer_secret\"}"
is "the buffer lease ends" "$status" 204
temp
has "the other one lives" "$status == 200 and (.regions | length) == 4"
lease c1 i3 0 60000 temp
id=$temp_id secret=$temp_secret
renew
is "the lease is over when its client comes again" "$status" 410

finish
