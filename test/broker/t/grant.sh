#!/usr/bin/env bash
#
# Grants: spread over donors, rounded up to regions, never more than there is;
# renew, resize, release; a region is granted again only when it is clean.

. "$(dirname "$0")/../lib.sh"

start_broker

lease nobody i1 4
is "a lease without donors is made" "$status" 201
has "a lease without donors has nothing" '.bytes == 0 and .regions == [] and .donors == [] and .reclaim == []'
api DELETE "/v1/leases/$id" "{\"secret\":\"$secret\"}"
is "a lease without donors is given back" "$status" 204

register a:1 4 ia
is "a donor registers" "$status" 200
has "a registered donor gets a revision" '.revision >= 1'
register b:1 8 ib
register a:1 4 ia
has "registering again changes nothing" '.revision == 1'
pump a:1 ia
pump b:1 ib
until_true 10 donor_is a:1 '.applied == 1'
until_true 10 donor_is b:1 '.applied == 1'

lease c1 i1 4
is "a lease is made" "$status" 201
has "the lease has an id and a secret" '(.lease | test("^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$")) and (.secret | test("^[0-9a-f]{64}$"))'
has "the lease is as large as wanted" ".bytes == 4 * $region and (.regions | length) == 4"
has "the lease is spread evenly" '[.regions | group_by(.donor)[] | length] == [2, 2]'
has "the lease has the donors' addresses" '[.donors[] | {id, host, port, shm_name, boot_id, transports}] | sort ==
    [{id: "a:1", host: "127.0.0.1", port: 7001, shm_name: "s", boot_id: "b", transports: ["shm", "tcp"]},
     {id: "b:1", host: "127.0.0.1", port: 7001, shm_name: "s", boot_id: "b", transports: ["shm", "tcp"]}]'
has "the lease has no RDMA address where there is none" 'all(.donors[]; has("rdma_host") or has("rdma_port") | not)'
first=$answer first_id=$id first_secret=$secret
api GET /v1/donors
has "the answer waited until the donors knew" 'all(.donors[]; .applied == .revision)'

api POST /v1/leases "{\"client\":\"c2\",\"instance\":\"i\",\"purpose\":\"temp\",\"bytes\":1,\"ttl_ms\":60000}"
has "a byte takes a region" ".bytes == $region and .wanted == 1 and .purpose == \"temp\""
id2=$(get .lease) secret2=$(get .secret)
has "the region comes from the donor with the most free regions" '.regions[0].donor == "b:1"'

lease c3 i1 100
has "a client that wants more than there is gets what there is" ".bytes == 7 * $region and .wanted == 100 * $region"
all=$(jq -c -s '[.[].regions[] | [.donor, .region]] | unique | length' <<<"$first$answer")
is "no region is in two leases" "$all" 11
api DELETE "/v1/leases/$id" "{\"secret\":\"$secret\"}"

# c3's regions come back clean through the pumps
until_true 10 donor_is b:1 '.free == 5'
until_true 10 donor_is a:1 '.free == 2'

id=$first_id secret=$first_secret
gone=$(jq -c '[.regions[0] | {donor, region}]' <<<"$first")
renew "\"bytes\":$((6 * region)),\"release\":$gone"
is "renew" "$status" 200
has "releases and grows in one go" ".bytes == 6 * $region"
has "a renewal never grants regions that are not clean yet" "all(.regions[]; {donor, region} != $gone[0])"
renew "\"bytes\":$((2 * region))"
has "wanting less takes nothing" ".bytes == 6 * $region and .wanted == 2 * $region"
release=$(get '[.regions[2:][] | {donor, region}]')
renew "\"release\":$release"
has "releasing takes regions" ".bytes == 2 * $region"
renew "\"release\":$release"
has "releasing again is harmless" ".bytes == 2 * $region"
renew "\"release\":$(get '[.regions[] | {donor, region, rev: (.rev - 1)}]')"
has "so is releasing what was granted before" ".bytes == 2 * $region"
renew "\"bytes\":$((3 * region))"
has "a third region is granted" ".bytes == 3 * $region"
renew "\"bytes\":$((2 * region)),\"release\":$(get '[.regions[2] | {donor, region, rev}]')"
has "what has this rev is released" ".bytes == 2 * $region"
renew '"release":[{"donor":"zz","region":1},{"donor":"a:1","region":99},{"donor":"a:1","region":-1}]'
has "releasing regions that the lease never had is harmless" ".bytes == 2 * $region"
renew '"release":[{"donor":"a:1"}]'
is "an invalid release is refused" "$status" 400
renew '"release":[{"donor":"a:1","region":0,"rev":"1"}]'
is "and so is one of an invalid rev" "$status" 400
renew '"ttl_ms":30000'
has "the TTL can be changed" '.ttl_ms == 30000'

# another client's regions cannot be released
other=$(jq -c -n --arg s "$secret2" '{}')
api POST "/v1/leases/$id2/renew" "{\"secret\":\"$secret2\",\"release\":$(api GET /v1/leases; echo '[{"donor":"a:1","region":0},{"donor":"a:1","region":1},{"donor":"b:1","region":0},{"donor":"b:1","region":1}]')}"
renew
has "a client cannot release another's regions" ".bytes == 2 * $region"

# a new donor is used by a lease that wants more
register c:1 8 ic
pump c:1 ic
until_true 10 donor_is c:1 '.applied == 1'
renew "\"bytes\":$((8 * region))"
has "a growing lease fills up the new donor" '([.regions[] | select(.donor == "c:1")] | length) >= 3'

# dirty regions wait for their donor's word
stop_pumps
api DELETE "/v1/leases/$id" "{\"secret\":\"$secret\"}"
is "give it all back" "$status" 204
api GET /v1/donors
dirty=$(get '[.donors[].dirty] | add')
is "its regions are dirty" "$dirty" 8
free=$(get '[.donors[].free] | add')
lease c4 i1 100
is "dirty regions are not granted" "$(get '.regions | length')" "$free"
# it waits, and what comes would be for it first
api DELETE "/v1/leases/$id" "{\"secret\":\"$secret\"}"

# a donor that RDMA reaches by another address, and nothing else
api POST /v1/donors "{\"id\":\"r:1\",\"host\":\"127.0.0.1\",\"rdma_host\":\"192.168.7.1\",\"rdma_port\":7002,
    \"transports\":[\"verbs\"],\"region_size\":$region,\"regions\":1,\"instance\":\"ir\"}"
is "a donor needs no port for tcp" "$status" 200
instance[r:1]=ir revision[r:1]=0
lease c5 i1 1
has "the lease's holder is told how RDMA reaches it" '[.donors[] | {id, host, port, rdma_host, rdma_port, transports}] ==
    [{id: "r:1", host: "127.0.0.1", port: 0, rdma_host: "192.168.7.1", rdma_port: 7002, transports: ["verbs"]}]'
api GET /v1/donors
has "the list of donors shows how RDMA reaches it" '.donors[] | select(.id == "r:1") | .port == 0 and .rdma_host == "192.168.7.1" and .rdma_port == 7002'
has "the list of donors shows no RDMA address where there is none" 'all(.donors[] | select(.id != "r:1"); has("rdma_host") | not)'
"$RBP_CTL" --broker "$url" donors >"$dir/ctl"
is "it is shown without a port" "$(grep -cE '^r:1 +127.0.0.1 +up +verbs +64 MB' "$dir/ctl")" 1

finish
