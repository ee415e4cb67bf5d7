#!/usr/bin/env bash
#
# What an operator does is answered when the donors have applied it: then another broker, which learns
# from them, does not undo it.  Or else the answer names those that have not.

. "$(dirname "$0")/../lib.sh"

settle_ms=8000              # for donors that do not
start_broker
register a 4 ia
beat a ia
register b 4 ib
beat b ib
settle_ms=60000

lease c1 i1 6
applying=false
api POST "/v1/leases/$id/revoke"
is "donors that have not applied a revocation are named" "$status $(get '[.regions, (.pending | sort)]')" '202 [6,["a","b"]]'
api POST "/v1/leases/$id/revoke"
is "it is revoked all the same" "$status" 410
api POST /v1/donors/a/drain
is "likewise with a drain" "$status $(get '[.draining, .pending]')" '202 [true,["a"]]'
code=0
"$RBP_CTL" --broker "$url" --json undrain b >"$dir/out" 2>"$dir/err" || code=$?
is "so says remote_bp_ctl, by its exit status, too" "$code $(jq -c .pending "$dir/out")" '4 ["b"]'
is "remote_bp_ctl warns" "$(grep -c 'not applied yet by donors \["b"\]' "$dir/err")" 1

kill_broker
start_broker
applying=true
register a 4 ia
beat a ia
register b 4 ib
beat b ib
lease c2 i2 6
api POST "/v1/leases/$id/revoke"
is "a revocation that all have applied" "$status $(get '[.regions, .pending]')" '200 [6,[]]'
api POST /v1/donors/a/drain
is "and a drain" "$status $(get '[.draining, .pending]')" '200 [true,[]]'
kill_broker
start_broker
comes_back a 4 ia "\"draining\":$(jq .drain "$dir/served.a")"
comes_back b 4 ib
api GET /v1/leases
is "another broker does not undo it" "$(get .leases)" '[]'
donor_is a '.state == "draining"'
point $? "nor the drain"
register a 4 new
api POST /v1/donors/b/undrain
is "nobody waits for what has been applied before" "$status $(get .pending)" '200 []'
code=0
"$RBP_CTL" --broker "$url" --json undrain b >"$dir/out" 2>"$dir/err" || code=$?
is "nor warns of it" "$code $(jq -c .pending "$dir/out") $(cat "$dir/err")" '0 [] '
finish
