#!/usr/bin/env bash
#
# Memory that is scarce is shared: a lease that came first and took all is
# asked to give back what others are short of; what is free goes to leases that
# are short of their share, temp before buffer, and to who has waited longest.

. "$(dirname "$0")/../lib.sh"

start_broker
declare -A id_of=() secret_of=()

# as LEASE: what follows is about that one
as() { id=${id_of[$1]} secret=${secret_of[$1]}; }

# take LEASE CLIENT REGIONS PURPOSE
take()
{
    lease "$2" "$1" "$3" 600000 "$4"
    id_of[$1]=$id
    secret_of[$1]=$secret
}

# A holder's round: releases what is asked back, of each donor, and asks again.
round()
{
    as "$1"
    renew
    while [ "$(get '.reclaim | length')" -gt 0 ]; do
        renew "\"release\":$(get '.regions as $all | [.reclaim[] | . as $r | [$all[] | select(.donor == $r.donor)][0:$r.regions][]] | map({donor, region})')"
    done
}

# sizes LEASE...: regions of each
sizes()
{
    local name list=''

    api GET /v1/leases
    for name in "$@"; do
        list+=" $(get ".leases[] | select(.lease == \"${id_of[$name]}\") | .bytes / $region")"
    done
    echo "${list# }"
}

# settle_at "SIZES" LEASE...: rounds of all until sizes are these
settle_at()
{
    local wanted=$1 name end=$((SECONDS + 60)) got

    shift
    while [ $SECONDS -lt $end ]; do
        for name in "$@"; do round "$name"; done
        got=$(sizes "$@")
        [ "$got" != "$wanted" ] || return 0
        sleep 0.1
    done
    diagnose "got $got, wanted $wanted"
    return 1
}

# still "SIZES" LEASE...: and some rounds later, too; nothing is asked back
still()
{
    local wanted=$1 name i

    shift
    for ((i = 0; i < 3; i++)); do
        for name in "$@"; do
            round "$name"
            [ "$(sizes "$@")" = "$wanted" ] || { diagnose "got $(sizes "$@")"; return 1; }
        done
    done
    api GET /v1/leases
    [ "$(get '[.leases[].donors[].reclaim] | add')" = 0 ]
}

register a 8 ia '"grace_ms":3600000'
register b 8 ib '"grace_ms":3600000'
pump a ia '"grace_ms":3600000'
pump b ib '"grace_ms":3600000'
until_true 20 donor_is a '.applied == 1' && until_true 20 donor_is b '.applied == 1'

take buffer1 c1 16 buffer
is "the first lease gets all there is" "$(sizes buffer1)" 16
take temp1 c1 8 temp
is "the next gets nothing at first" "$(sizes temp1)" 0
settle_at "8 8" buffer1 temp1
point $? "the first lease gives it an equal share"
as buffer1
renew
has "the lease stays spread over the donors" '[.donors[].id] == ["a", "b"] or [.donors[].id] == ["b", "a"]'
take buffer2 c2 16 buffer
settle_at "4 8 4" buffer1 temp1 buffer2
point $? "a second server's lease gets its share of what temporary data leaves"
still "4 8 4" buffer1 temp1 buffer2
point $? "shares stay as they are"
take small c3 2 buffer
settle_at "3 8 3 2" buffer1 temp1 buffer2 small
point $? "a lease that wants less than a share gets that from buffer leases"
still "3 8 3 2" buffer1 temp1 buffer2 small
point $? "for good"
end() { as "$1"; api DELETE "/v1/leases/$id" "{\"secret\":\"$secret\"}"; }
end buffer2
settle_at "6 8 2" buffer1 temp1 small
point $? "memory that is given back is divided again"
for name in buffer1 temp1 small; do end "$name"; done
until_true 20 donor_is a '.free == 8' && until_true 20 donor_is b '.free == 8'
point $? "all is free"

# Holders that give nothing by themselves, so that what is free is known.
give() { as "$1"; renew "\"bytes\":$(($2 * region)),\"release\":$(get '[.regions[0] | {donor, region}]')"; }
ask() { as "$1"; renew; }
take big c1 16 buffer
take first c2 4 buffer
take second c3 4 buffer
take temp c4 4 temp
is "nothing is left for those who come later" "$(sizes big first second temp)" "16 0 0 0"
has_one_free() { api GET /v1/donors; [ "$(get '[.donors[].free] | add')" = 1 ]; }
as big
renew
give big 32
until_true 20 has_one_free
point $? "a region becomes free"
for name in big second first; do ask "$name"; done
is "neither a lease above its share nor one that waits for buffer pages gets it" "$(sizes big first second temp)" "15 0 0 0"
ask temp
is "the lease for temporary data gets it" "$(sizes big first second temp)" "15 0 0 1"
ask big
give big 32
until_true 20 has_one_free
for name in big second first; do ask "$name"; done
is "the next free region is not for another lease" "$(sizes big first second temp)" "14 0 0 1"
end temp
two_free() { api GET /v1/donors; [ "$(get '[.donors[].free] | add')" = 2 ]; }
until_true 20 two_free
ask second
is "buffer pages: the lease that came last does not get it" "$(sizes big first second)" "14 0 0"
ask first
ask second
is "buffer pages: the lease that has waited longest gets it" "$(sizes big first second)" "14 2 0"
ask big
has "the lease with too much is asked for the rest, not for more" '[.reclaim[].regions] | add == 6'
for name in big first second; do end "$name"; done
until_true 20 donor_is a '.free == 8' && until_true 20 donor_is b '.free == 8'
point $? "all is free again"

# Temporary data is asked for other temporary data, but not for what a buffer lease can give.
take temp c1 10 temp
take buffer c1 16 buffer
as temp
renew "\"bytes\":$((16 * region))"
take other c2 16 buffer
buffer_asked() { ask buffer; [ "$(get '[.reclaim[].regions] | add')" = "$1" ]; }
until_true 60 buffer_asked 3
point $? "a buffer lease is asked for another's share"
take temp2 c2 2 temp
until_true 60 buffer_asked 2
point $? "a buffer lease is asked again when temporary data comes in between"
ask temp
is "nothing is asked of other temporary data, since the buffer lease has enough" "$(get '[.reclaim[].regions] | add // 0')" 0
settle_at "10 2 2 2" temp temp2 buffer other
point $? "the temporary data gets its share from the buffer lease, and the rest is shared"
for name in temp temp2 buffer other; do end "$name"; done
until_true 20 donor_is a '.free == 8' && until_true 20 donor_is b '.free == 8'
point $? "all is free once more"

# Past the grace time: temporary data is not taken for another's sake.
stop_pumps
pump a ia '"grace_ms":0'
pump b ib '"grace_ms":0'
until_true 20 donor_is a '.grace_ms == 0' && until_true 20 donor_is b '.grace_ms == 0'
take temp c1 8 temp
take buffer c1 8 buffer
take other c2 16 buffer
stubborn()
{
    for name in temp buffer other; do ask "$name"; done
    [ "$(sizes temp buffer other)" = "8 4 4" ]
}
until_true 60 stubborn
point $? "regions that a buffer lease does not give in time are taken for another's share"
ask temp
is "temporary data is not asked for buffer pages" "$(get '[.reclaim[].regions] | add // 0')" 0
take temp2 c2 16 temp
asked_temp() { ask temp2; ask temp; [ "$(get '[.reclaim[].regions] | add')" = 4 ]; }
until_true 60 asked_temp
point $? "temporary data is asked for another's temporary data"
for i in 1 2 3; do
    asked_temp
    is "temporary data is not taken, round $i" "$? $(sizes temp)" "0 8"
done
is "the log tells who was asked" "$(grep -c "lease ${id_of[temp]} of c1 has more than its share of 256 MB: 4 regions are asked back for others" "$log")" 1

finish
