#!/usr/bin/env bash
#
# remote_bp_ctl: tables and JSON, commands, exit codes; and the options that
# all programs share.

. "$(dirname "$0")/../lib.sh"

in_file "$(credential operator '*')" token
donor=$(credential donor '*')
server=$(credential server '*')
start_broker --credentials "$credentials" --donor-timeout 300   # on a busy machine
as "$donor"
register mem1:7001 4 i1
register mem2:7001 4 i1
beat mem1:7001 i1
beat mem2:7001 i1
as "$server"
lease db1 i1 3

# ctl ARGUMENT...: sets code, out, err
ctl()
{
    code=0
    [[ " $* " != *[\ n]drain* && " $* " != *" revoke "* ]] || start_applying
    "$RBP_CTL" --broker "$url" --token-file "$dir/token" "$@" >"$dir/out" 2>"$dir/err" || code=$?
    [ ${#appliers[@]} = 0 ] || stop_applying
    out=$(cat "$dir/out")
    err=$(cat "$dir/err")
}

ctl donors
is "donors" "$code" 0
is "donors shows a table with a head" "$(head -1 <<<"$out" | awk '{ print $1, $2, $3 }')" "DONOR ADDRESS STATE"
is "donors shows a line for each donor" "$(grep -cE '^mem[12]:7001 +127.0.0.1:7001 +up +shm, tcp +256 MB' <<<"$out")" 2
is "donors shows a sum" "$(tail -1 <<<"$out")" "(2 donors, 512 MB, of which 192 MB leased)"
ctl donors --json
is "donors --json shows all donors" "$(jq -c '[.donors[].id]' <<<"$out")" '["mem1:7001","mem2:7001"]'
ctl leases
is "leases" "$(grep -cE "^$id +db1 +127.0.0.1 +buffer +192 MB +192 MB +[0-9]+ (s|min) +[0-9.]+ s +mem[12]:7001: (64|128) MB, mem[12]:7001: (64|128) MB\$" <<<"$out")" 1
ctl --json leases
is "leases --json shows the lease" "$(jq -r '.leases[].lease' <<<"$out")" "$id"
is "leases --json shows no secret" "$(grep -c "$secret" <<<"$out")" 0

ctl drain mem1:7001
is "drain" "$code $out" "0 draining donor mem1:7001: $(jq '[.regions[] | select(.donor == "mem1:7001")] | length' <<<"$answer") regions to be given back"
ctl donors
is "donors shows that the donor is draining" "$(grep -cE '^mem1:7001 .* draining' <<<"$out")" 1
ctl drain nobody
is "drain of an unknown donor fails" "$code" 1
is "drain of an unknown donor says so" "$(grep -c 'drain nobody: there is no donor' <<<"$err")" 1
ctl drain 'a/../b c%'
is "drain of an unknown donor fails whatever its name" "$code" 1
ctl revoke "$id"
is "revoke" "$code $out" "0 revoked lease $id: 3 regions"
ctl revoke "$id"
is "revoke of an ended lease fails" "$code" 1
ctl --json revoke nonsense
is "revoke of an unknown lease fails" "$code" 1
ctl leases
is "no leases" "$(tail -1 <<<"$out")" "(0 leases)"
ctl undrain mem1:7001
is "undrain" "$code $out" "0 not draining donor mem1:7001 any more: its memory is leased again"
ctl donors
is "undrain: the donor's memory can be leased" "$(grep -cE '^mem[12]:7001 .* up ' <<<"$out")" 2
ctl undrain nobody
is "undrain of an unknown donor fails" "$code $(grep -c 'there is no donor' <<<"$err")" "1 1"
ctl forget mem1:7001
is "forget of a donor that is there is refused" "$code $(grep -c 'forget mem1:7001: donor "mem1:7001" is not gone' <<<"$err")" "1 1"

# health
lease db1 i1 2
ctl health
is "health" "$code $out" "0 well: 2 of 2 donors heard of, 128 MB leased by 1 lease"
as "$donor"
beat mem1:7001 i1 '"locked":1'
beat mem2:7001 i1 '"locked":0'
ctl health
is "health names whose memory is not locked, which changes no verdict" "$code $out" \
    "0 well: 2 of 2 donors heard of, 128 MB leased by 1 lease"$'\n'"donor mem2:7001: its memory is not locked, so it may be swapped out"
beat mem2:7001 i1
as "$server"
"$RBP_CTL" --broker "$url" --broker-ca "$dir/tls.crt" health >"$dir/out"
is "health without a credential says why" "$? $(grep -c '^not well: broker: .*credential is missing or wrong' "$dir/out")" "4 1"
"$RBP_CTL" --broker http://127.0.0.1:1 health >"$dir/out"
is "and so it does without a broker" "$? $(grep -c '^not well: broker: Failed to connect' "$dir/out")" "4 1"

# The environment takes the place of the options.
REMOTE_BP_BROKER=$url REMOTE_BP_TOKEN_FILE=$dir/token "$RBP_CTL" health >"$dir/out"
is "health of the broker of the environment" "$?" 0
REMOTE_BP_BROKER=http://127.0.0.1:1 REMOTE_BP_TOKEN_FILE=$dir/none "$RBP_CTL" --broker "$url" --token-file "$dir/token" health >"$dir/out"
is "options win over the environment" "$?" 0
REMOTE_BP_BROKER='' "$RBP_CTL" health 2>"$dir/err"
is "an empty name is none" "$? $(grep -c 'broker is required' "$dir/err")" "2 1"

# --json is a promise: of each command these members, and no others.
# shape NAME EXPRESSION: what the last one printed, by jq
shape() { is "--json: $1" "$code $(jq -c "$2" <<<"$out" 2>&1)" "$3"; }
ctl --json donors
shape donors '.donors[0] | keys' '0 ["applied","dirty","free","grace_ms","heard_ms","host","id","leased","port","reclaiming","region_size","regions","revision","state","stats","transports","want_back"]'
ctl --json leases
shape leases '[.leases[0] | keys, (.donors[0] | keys)]' '0 [["age_s","bytes","client","donors","host","keep_ms","lapsed","lease","purpose","remaining_ms","ttl_ms","wanted"],["bytes","id","reclaim","regions"]]'
ctl --json health
shape health '.' '0 {"ok":true,"problems":[],"summary":["2 of 2 donors heard of, 128 MB leased by 1 lease"],"notes":[]}'
ctl --json drain mem2:7001
shape drain '[.id, .draining, (.leased | type)]' '0 ["mem2:7001",true,"number"]'
ctl --json undrain mem2:7001
shape undrain '[.id, .draining, (.leased | type)]' '0 ["mem2:7001",false,"number"]'
ctl --json forget mem2:7001
shape "forget that is refused" '[(.error | type), .status]' '1 ["string",409]'
ctl --json drain nobody
shape "drain of nobody" '.' '1 {"error":"drain nobody: there is no donor \"nobody\"","status":404}'
ctl --json revoke $'\xff"'
shape "revoke of what is no name" '[(.error | type), .status]' '1 ["string",404]'
"$RBP_CTL" --credentials "$credentials" --json credential list >"$dir/out"
code=$? out=$(cat "$dir/out")
shape "credential list" '.[0] | keys' '0 ["hash","name","role"]'
"$RBP_CTL" --credentials "$dir/none" --json credential list >"$dir/out" 2>"$dir/err"
code=$? out=$(cat "$dir/out")
shape "a file that is not there" '[(.error | type), .status]' '1 ["string",null]'
"$RBP_CTL" --json --broker "$url" --broker-ca "$dir/tls.crt" donors >"$dir/out" 2>"$dir/err"
code=$? out=$(cat "$dir/out")
shape "no credential" '[(.error | type), .status]' '1 ["string",401]'
"$RBP_CTL" --json --broker "$url" --token-file "$dir/none" donors >"$dir/out" 2>"$dir/err"
code=$? out=$(cat "$dir/out")
shape "no token file" '[(.error | type), .status]' '1 ["string",null]'
for command in donors leases 'drain x' 'undrain x' 'forget x' 'revoke x'; do
    # shellcheck disable=SC2086
    "$RBP_CTL" --json --broker http://127.0.0.1:1 $command >"$dir/out" 2>"$dir/err"
    code=$? out=$(cat "$dir/out")
    shape "$command without a broker" '[(.error | type), .status]' '3 ["string",null]'
done
"$RBP_CTL" --json --broker http://127.0.0.1:1 health >"$dir/out" 2>"$dir/err"
code=$? out=$(cat "$dir/out")
shape "health without a broker" '[.ok, (.problems | length)]' '4 [false,1]'

# Somebody who is no broker, or a strange one: it hangs, talks nonsense, or does not end.
# impostor KIND: sets url_of_impostor
impostor()
{
    perl -MIO::Socket::INET -e '
        my $socket = IO::Socket::INET->new(Listen => 5, LocalAddr => "127.0.0.1", LocalPort => 0) or die;
        my @kept;
        $SIG{PIPE} = "IGNORE";
        $| = 1;
        print $socket->sockport, "\n";
        while (my $client = $socket->accept)
        {
            push @kept, $client and next if $ARGV[0] eq "hang";
            sysread $client, my $request, 65536;
            print $client "HTTP/1.1 200 OK\r\nConnection: close\r\n", $ARGV[0] eq "proxy" ? "" : "Remote-BP-Broker: 1\r\n", "\r\n";
            print $client $ARGV[0] eq "large" ? "[" . " " x (64 << 20) . "]" : "{nonsense";
        }' "$1" >"$dir/impostor" &
    pump_pids+=($!)
    until_true 30 test -s "$dir/impostor"
    url_of_impostor=http://127.0.0.1:$(cat "$dir/impostor")
}
for kind in hang proxy nonsense large; do
    rm -f "$dir/impostor"
    impostor "$kind"
    "$RBP_CTL" --json --broker "$url_of_impostor" donors >"$dir/out" 2>"$dir/err"
    code=$? out=$(cat "$dir/out")
    shape "a broker that is none: $kind" '[(.error | type), .status]' '3 ["string",null]'
done
stop_pumps

# watch: again and again, until it is ended; also while there is no broker
"$RBP_CTL" --broker "$url" --token-file "$dir/token" --watch 1 health >"$dir/watched" 2>&1 &
watcher=$!
seen() { [ "$(grep -c "$1" "$dir/watched")" -ge "$2" ]; }
until_true 30 seen '^well: ' 2
point $? "health is watched"
kill "$watcher"
wait "$watcher" 2>/dev/null

# drain, and wait until nothing is leased there
ctl --timeout 5 drain mem2:7001
is "usage: --timeout is for --wait" "$code" 2
ctl --wait donors
is "usage: donors does not take --wait" "$code" 2
first=$id
lease db2 i2 4                  # more than the other donor has
ctl --json --wait --timeout 1 drain mem2:7001
shape "drain that takes too long" '[(.error | type), .status]' '1 ["string",null]'
ctl undrain mem2:7001
waits() { "$RBP_CTL" --broker "$url" --token-file "$dir/token" --json --wait drain mem2:7001 >"$dir/drained" 2>/dev/null & }
waits
waiter=$!
draining() { ctl donors; grep -q ' draining ' <<<"$out"; }
until_true 30 draining
ctl undrain mem2:7001
wait "$waiter"
code=$? out=$(cat "$dir/drained")
shape "drain that somebody has taken back" '[(.error | type), .status]' '1 ["string",null]'
waits
waiter=$!
ctl --json revoke "$id"
shape revoke keys '0 ["lease","pending","regions"]'
ctl revoke "$first"
wait "$waiter"
code=$? out=$(cat "$dir/drained")
shape "drain that waits" '[.id, .draining, .leased]' '0 ["mem2:7001",true,0]'
ctl undrain mem2:7001
kill_broker
start_broker --credentials "$credentials" --donor-timeout 5
as "$donor"
register mem1:7001 4 i1
register mem2:7001 4 i1
pump mem1:7001 i1
unwell() { ctl health; [ "$code" = 4 ] && grep -qE '^not well: donor mem2:7001 is (away|gone); 1 of 2 donors heard of, ' <<<"$out"; }
until_true 30 unwell
point $? "health of a donor that is silent"
# the pumped donor goes on, the other one does not come back
forgets() { ctl --json forget mem2:7001; [ "$code" = 0 ]; }
until_true 60 forgets
point $? "a donor that is gone is forgotten"
shape forget '.' '0 {"id":"mem2:7001"}'
ctl health
is "and all is well without it" "$code $(grep -c '^well: 1 of 1 donor heard of, ' <<<"$out")" "0 1"
stop_pumps

# completion
# complete WORD...: sets out to what the last one can become
complete_words()
{
    COMP_WORDS=(remote_bp_ctl "$@") COMP_CWORD=$# COMPREPLY=()
    _remote_bp_ctl
    out=${COMPREPLY[*]}
}
# shellcheck source=broker/ctl/completion.bash
. "$root/broker/ctl/completion.bash"
remote_bp_ctl() { "$RBP_CTL" "$@"; }
complete_words d
is "completion of a command" "$out" "donors drain"
complete_words --json --to
is "completion of an option" "$out" "--token-file"
complete_words --token-file "$dir/toke"
is "completion of a file" "$out" "$dir/token"
complete_words drain ''
is "nothing is known of donors" "$out" ""

# usage
ctl
is "usage: a command is required" "$code" 2
ctl nonsense
is "usage: an unknown command is refused" "$code" 2
ctl drain
is "usage: drain requires a donor" "$code" 2
ctl donors extra
is "usage: too many arguments are refused" "$code" 2
ctl --nonsense donors
is "usage: an unknown option is refused" "$code" 2
"$RBP_CTL" donors >/dev/null 2>&1
is "usage: --broker is required" $? 2
"$RBP_CTL" --broker ftp://x donors >/dev/null 2>&1
is "usage: a URL that is not HTTP is refused" $? 2
for url_without in ftp://127.0.0.1:7000 127.0.0.1:7000 http://:7000 https://:7000; do
    "$RBP_CTL" --broker "$url_without" donors >/dev/null 2>"$dir/err"
    is "usage: $url_without is refused" "$? $(grep -c 'is not a URL such as http' "$dir/err")" "2 1"
    timeout 60 "$RBP_DONOR" --broker "$url_without" --listen 127.0.0.1:0 --memory 1TB >/dev/null 2>"$dir/err"
    is "usage: $url_without is refused by a donor before it reserves memory" "$? $(grep -c 'is not a URL such as http' "$dir/err")" "2 1"
done
"$RBP_CTL" --broker "HTTP${url#http}" --token-file "$dir/token" donors >/dev/null
is "HTTP is a scheme, too" $? 0
"$RBP_CTL" --broker "$url" --broker-ca "$dir/tls.crt" donors >/dev/null 2>"$dir/err"
is "a request without a credential fails" "$? $(grep -c 'credential is missing or wrong' "$dir/err")" "1 1"
"$RBP_CTL" --broker "$url" --token-file "$dir/none" donors >/dev/null 2>"$dir/err"
is "a missing token file is an error" "$? $(grep -c 'No such file' "$dir/err")" "1 1"
"$RBP_CTL" --broker http://127.0.0.1:1 donors >/dev/null 2>"$dir/err"
is "a missing broker is an error" $? 3
http_proxy=http://127.0.0.1:1 https_proxy=http://127.0.0.1:1 "$RBP_CTL" --broker "$url/" --token-file "$dir/token" donors >/dev/null
is "a proxy in the environment is not asked" $? 0

for program in "$RBP_BROKER" "$RBP_CTL"; do
    name=${program##*/}
    is "$name --version" "$("$program" --version)" "$name $(sed -n "s/^default_version *= *'\(.*\)'/\1/p" "$root/remote_bp.control")"
    "$program" --help >"$dir/help"
    is "$name --help" "$? $(grep -c '^  -h, --help' "$dir/help")" "0 1"
    is "$name -h" "$("$program" -h)" "$(cat "$dir/help")"
done
for bad in "--listen nonsense" "--listen 127.0.0.1" "--listen 127.0.0.1:70000" "--listen ::1:80" "--donor-timeout 0" \
    "--donor-timeout 1x" "--log-level loud" "--tls-cert x" "--tls-key x" "extra"; do
    # shellcheck disable=SC2086
    timeout 60 "$RBP_BROKER" --listen 127.0.0.1:0 $bad >/dev/null 2>&1
    is "remote_bp_broker $bad" $? 2
done
"$RBP_BROKER" --listen 0.0.0.0:0 >/dev/null 2>"$dir/err"
is "remote_bp_broker for other machines without --dir" "$? $(grep -c 'dir: it is needed' "$dir/err")" "2 1"
timeout 60 "$RBP_BROKER" --listen "127.0.0.1:${url##*:}" >/dev/null 2>"$dir/err"
is "a port that is taken" "$? $(grep -c 'could not listen on 127.0.0.1' "$dir/err")" "1 1"
for text in '' '   ' 'two words' "$(printf 'x%.0s' {1..2000})" "${donor%.*}" "boss${donor#donor}" "${donor%.*}.0" ".$donor" "${donor/\*/a b}"; do
    in_file "$text" bad_token
    said=$("$RBP_CTL" --broker "$url" --token-file "$dir/bad_token" donors 2>&1)
    is "a token file with \"${text:0:20}\"" "$? $(grep -cE 'its first line is (empty|not ROLE.NAME.SECRET.PIN)$' <<<"$said")" "1 1"
done
in_file "operator.*.0123456789abcdef.-" bad_token
said=$("$RBP_CTL" --broker "$url" --token-file "$dir/bad_token" donors 2>&1)
is "a short secret" "$? $(grep -c 'its secret is not 64 hex digits, of 32 random bytes$' <<<"$said")" "1 1"
chmod 644 "$dir/token"
said=$("$RBP_CTL" --broker "$url" --token-file "$dir/token" donors 2>&1)
is "a token file that others may read" "$? $(grep -c "\"$dir/token\": others may read it: chmod 640 it\$" <<<"$said")" "1 1"
said=$(timeout 60 "$RBP_DONOR" --broker "$url" --listen 127.0.0.1:0 --memory 4MB --region-size 1MB --min-free 0 --token-file "$dir/token" 2>&1)
is "which a donor does not take, either" "$? $(grep -c "others may read it: chmod 640 it\$" <<<"$said")" "1 1"
chmod 640 "$dir/token"
ctl donors
is "its group may" "$code" 0

finish
