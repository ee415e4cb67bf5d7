#!/usr/bin/env bash
#
# Clients of one name on two machines: each keeps its lease as long as the other
# one lives; what is before the slash of an instance tells them apart.

. "$(dirname "$0")/../lib.sh"

start_broker
register a 8 ia
pump a ia
until_true 10 donor_is a '.applied == 1'

taken_over() { api GET /metrics; sed -n 's/^remote_bp_leases_taken_over_total //p' <<<"$answer"; }

lease c boot1/i1 2
id1=$id secret1=$secret
has "a lease has no namesakes" '.namesakes == 0'
lease c boot2/i2 2
id2=$id secret2=$secret
has "a client of this name on another machine gets its own" ".bytes == 2 * $region and .namesakes == 1"
lease c boot2/i2 1 60000 temp
has "a lease for another purpose has no namesakes" '.namesakes == 0'
id=$id1 secret=$secret1
renew
is "the first one keeps its lease" "$status" 200
has "the first client learns of the other one" ".bytes == 2 * $region and .namesakes == 1"
is "nothing was taken over" "$(taken_over)" 0

lease c boot1/i3 2
id3=$id secret3=$secret
has "the first client started anew gets memory" ".bytes == 2 * $region"
is "the lease of its former process was taken over" "$(taken_over)" 1
id=$id1 secret=$secret1
renew
is "the lease of the former process is over" "$status" 410
id=$id2 secret=$secret2
renew
is "the lease of the other client is not over" "$status" 200

# over a restart of the broker
stop_pumps
kill_broker
start_broker
comes_back a 8 ia
pump a ia
id=$id2 secret=$secret2
renew '"donors":["a"]'
lease c boot1/i4 2
id4=$id secret4=$secret
id=$id3 secret=$secret3
renew '"donors":["a"]'
is "after a restart of the broker, an instance takes over from its former process" "$status" 404
id=$id2 secret=$secret2
renew
is "an instance takes over from nobody else" "$status" 200

# a client that says nothing of its machine takes over, as ever
lease d i1 1
id1=$id secret1=$secret
lease d i2 1
id=$id1 secret=$secret1
renew
is "without a machine, another instance takes over" "$status" 410

# a machine that was started anew: nobody renews what it held before
lease e boot1/i1 1
id1=$id secret1=$secret
alone()
{
    lease e boot2/i2 1
    has_none=$(get .namesakes)
    [ "$has_none" = 0 ]
}
lease e boot2/i2 1
has "a machine just started anew gets memory beside its old lease" ".bytes == $region and .namesakes == 1"
until_true 40 alone
point $? "a lease that nobody has renewed for a while is taken over"
id=$id1 secret=$secret1
renew
is "the old lease is over" "$status" 410
is "the others' leases live" "$(api POST "/v1/leases/$id4/renew" "{\"secret\":\"$secret4\"}"; echo "$status")" 200

finish
