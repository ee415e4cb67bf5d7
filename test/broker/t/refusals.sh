#!/usr/bin/env bash
#
# Who is refused, and why, is in the logs: at the broker, at a donor, and in the
# log of a donor that the broker refuses, also when it could not reach it before.
# The same again is counted, not repeated.

. "$(dirname "$0")/../lib.sh"

: "${RBP_DONOR:=$root/build/remote_bp_donor}"
operator=$(credential operator ops)
server=$(credential server '*')
in_file "$(credential donor d)" token
start_broker --credentials "$credentials"
as "$operator"
"$RBP_DONOR" --broker "$url" --listen 127.0.0.1:0 --memory 4MB --region-size 1MB --id d --transports tcp,shm \
    --token-file "$dir/token" 2>"$dir/donor.log" &
donor_pid=$!
pump_pids+=("$donor_pid")
until_true 20 donor_is d '.applied == .revision'
point $? "a donor"
donor_port=$(sed -n 's/.*listening on 127.0.0.1:\([0-9]*\)$/\1/p' "$dir/donor.log")

# told FILE N TEXT: N lines have this text
told() { [ "$(grep -cF "$3" "$1")" = "$2" ] || { diagnose "$(cat "$1")"; return 1; }; }
donor_tells() { grep -qF "$1" "$dir/donor.log"; }

# say BYTES...: to the donor, as printf understands them; what it answers is lost
say()
{
    local fd bytes

    exec {fd}<>"/dev/tcp/127.0.0.1/$donor_port"
    for bytes in "$@"; do
        # shellcheck disable=SC2059
        printf "$bytes" >&"$fd"
    done
    timeout 20 cat <&"$fd" >/dev/null
    exec {fd}>&-
}

# hello VERSION LEASE
hello() { printf '%s' "\\x01\\0\\0\\0\\x38\\0\\0\\0remote_bp\\0\\x0$1\\0\\0\\0\\x00\\x00$2$(printf '\\0%.0s' $(seq $((40 - ${#2}))))"; }
auth="\\x03\\0\\0\\0\\x40\\0\\0\\0$(printf 'x%.0s' {1..64})"

for i in 1 2 3; do say "$(printf 'y%.0s' {1..64})"; done
until_true 20 donor_tells "refused a client from 127.0.0.1: it does not speak this protocol"
point $? "a donor logs a client that does not speak its protocol"
for version in 1 9; do say "$(hello $version x)"; done
until_true 20 donor_tells "refused a client from 127.0.0.1: it speaks another version of the protocol"
point $? "a donor logs a client that speaks another version"
for i in 1 2 3 4; do say "$(hello 2 no-such-lease)" "$auth"; done
until_true 20 donor_tells "refused a client from 127.0.0.1: there is no such lease, or no more"
point $? "a donor logs a client that names an unknown lease"
as "$server"
api POST /v1/leases '{"client":"c","instance":"i","purpose":"buffer","bytes":1048576,"ttl_ms":600000}'
id=$(get .lease)
as "$operator"
until_true 20 donor_is d '.leased == 1 and .applied == .revision'
say "$(hello 2 "$id")" "$auth"
until_true 20 donor_tells "refused a client from 127.0.0.1: its proof for lease $id of server \"c\" is wrong"
point $? "a donor logs a client that does not know the lease's secret"
told "$dir/donor.log" 1 "does not speak this protocol" && told "$dir/donor.log" 1 "there is no such lease"
point $? "each once for the time being"

secret=$(printf '0%.0s' {1..64})
as "$server"
for i in 1 2 3; do renew; done
is "a wrong secret at the broker" "$status" 403
told "$log" 1 "warning: refused a request from 127.0.0.1: server \"*\" has a wrong secret for lease $id"
point $? "is in its log, once"
curl_auth=()
for i in 1 2 3; do api GET /v1/leases; done
is "no credential" "$status" 401
told "$log" 1 "warning: refused a request from 127.0.0.1: it has no credential"
point $? "as well"
as "operator.op.$(cut -d . -f 3,4 <<<"$operator")"
api GET /v1/leases
is "a wrong one" "$status" 401
told "$log" 1 "warning: refused a request from 127.0.0.1: its credential is wrong"
point $? "also where another complaint came before it"
as "operator.ops.$(printf '0%.0s' {1..64}).-"
api GET /v1/leases
told "$log" 1 'warning: refused a request from 127.0.0.1: its secret of operator "ops" is wrong'
point $? "with role and name, if there is one of these"
as "$operator"
api POST /v1/leases "{\"client\":\"c\",\"instance\":\"i\",\"purpose\":\"buffer\",\"bytes\":1,\"ttl_ms\":5000}"
is "one of another role" "$status" 403
told "$log" 1 'warning: refused a request from 127.0.0.1: operator "ops" may not do this: role server may'
point $? "is in the log with both"

kill -TERM "$broker_pid"
wait "$broker_pid"
told "$log" 1 "it has no credential (2 times more in"
point $? "how often it was in all comes later, or at the end"
until_true 30 donor_tells "warning: cannot reach the broker: "
point $? "the broker away is in the donor's log"
"$RBP_CTL" --credentials "$credentials" credential remove donor d >/dev/null
start_broker --credentials "$credentials" --listen "${url#*://}"
until_true 30 donor_tells "warning: the broker refuses: the credential is missing or wrong"
point $? "the donor logs that the broker refuses it"
broker_tells() { grep -qF "refused a request from 127.0.0.1: its credential is wrong" "$log"; }
until_true 30 broker_tells
point $? "the broker's log has this refusal, too"
in_file "$(credential donor e)" token
kill -HUP "$broker_pid"
until_true 30 donor_tells 'warning: the broker refuses: donor "e" may not do this for "d": role donor of that name, or of "*", may'
point $? "a credential of another name, which the donor finds in its file, is refused with who may"
in_file "$(credential donor d)" token
kill -HUP "$broker_pid"
until_true 30 donor_is d '.state == "up"'
point $? "with one of its own it is back"

kill -TERM "$donor_pid"
kill -TERM "$donor_pid"
wait "$donor_pid"
told "$dir/donor.log" 1 "there is no such lease, or no more (3 times more in"
point $? "the donor counts what it does not repeat"

finish
