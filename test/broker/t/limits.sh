#!/usr/bin/env bash
#
# Nobody can block the broker or a donor: enemies with connections that drip, with halves
# of large bodies, with many leases and donors, and with all connections that a
# server may have.  Whoever is honest comes in, and goes on.

. "$(dirname "$0")/../lib.sh"

applying=false              # donors of curl have nothing to do here
settle_ms=1000

: "${RBP_DONOR:=$root/build/remote_bp_donor}"
region=1048576
floods=()

# start_flood PROCESSES PORT CONNECTIONS ADDRESSES TEXT DRIP [tls]: see test/broker/flood; TEXT is for printf
start_flood()
{
    local i n=$1 text=$5

    # shellcheck disable=SC2059
    [ -f "$text" ] || { printf "$text" >"$dir/first"; text=$dir/first; }
    for ((i = 0; i < n; i++)); do
        rm -f "$dir/flood$i"    # of an earlier one, which was ready
        "$root/test/broker/flood" "$2" "$3" "$4" "$text" "${@:6}" >"$dir/flood$i" 2>"$dir/flood_err$i" &
        floods+=($!)
    done
    pump_pids+=("${floods[@]}")
    for ((i = 0; i < n; i++)); do
        until_true 30 grep -q ready "$dir/flood$i" || { cat "$dir/flood_err$i"; echo "Bail out! no flood"; exit 1; }
    done
}
stop_flood()
{
    kill "${floods[@]}"
    wait "${floods[@]}" 2>/dev/null
    floods=()
}
tells() { grep -qF "$2" "$1"; }
threads() { find "/proc/$broker_pid/task" -mindepth 1 -maxdepth 1 | wc -l; }

# closes PORT SECONDS TEXT: a connection that says this, and then a byte now and then, is closed in this time
closes()
(
    trap - EXIT
    trap '' PIPE
    exec {fd}<>"/dev/tcp/127.0.0.1/$1"
    # shellcheck disable=SC2059
    printf "$3" >&"$fd"
    end=$((SECONDS + $2))
    while [ $SECONDS -lt $end ]; do
        printf x 2>/dev/null >&"$fd"
        read -r -t 0.5 -u "$fd"
        [ $? -gt 128 ] || exit 0
    done
    exit 1
)

# The same over TLS
closes_tls()
(
    trap - EXIT
    {
        # shellcheck disable=SC2059
        printf "$3"
        while sleep 0.5 && printf x 2>/dev/null; do :; done
    } | timeout "$2" openssl s_client -quiet -connect "127.0.0.1:$1" >/dev/null 2>&1
    [ "${PIPESTATUS[1]}" -ne 124 ]
)

operator=$(credential operator ops)
monitor=$(credential monitor m)
servers=$(credential server '*')
db1=$(credential server db1)
db2=$(credential server db2)
mem1=$(credential donor mem1)
mem2=$(credential donor mem2)
start_broker --credentials "$credentials"
port=${url##*:}
as "$db1"
lease db1 i 0
as "$mem2"
register mem2 4 i2

# connections that drip, without a credential: the beginning of a TLS handshake
start_flood 3 "$port" 800 40 '\x16\x03\x01\x02\x00\x01' x
statuses=''
as "$operator"
for ((i = 0; i < 25; i++)); do api GET /v1/donors; statuses+="$status "; done
is "with 2,400 connections that drip, newcomers get in" "$statuses" "$(printf '200 %.0s' {1..25})"
as "$db1"
renew
is "who has a lease renews it" "$status" 200
as "$mem2"
beat mem2 i2
is "a donor is heard" "$status" 200
few() { [ "$(threads)" -lt 700 ]; }
until_true 30 few
point $? "they have a quarter of the places" || diagnose "$(threads) threads"
grep -q 'warning: ended the oldest connection without a credential' "$log"
point $? "the log tells"
stop_flood
kill_broker                     # whose log has many addresses, and would not tell more for a while
start_broker --credentials "$credentials"
port=${url##*:}

# those of one address
silent=()
for ((i = 0; i < 80; i++)); do
    exec {fd}<>"/dev/tcp/127.0.0.1/$port"
    silent+=("$fd")
done
accepted() { [ "$(threads)" -ge 83 ] || tells "$log" 'which has too many'; }
until_true 30 accepted
point $? "80 silent connections of one address"
sleep 0.5                       # now they are old enough to be closed for others
exec {fd}<>"/dev/tcp/127.0.0.1/$port"
silent+=("$fd")
read -r -t 20 -u "${silent[0]}"
is "of 81 silent connections of one address the first is closed" $? 1
read -r -t 0.1 -u "${silent[80]}"
[ $? -gt 128 ]
point $? "the last is not"
until_true 30 tells "$log" 'warning: ended the oldest connection without a credential of 127.0.0.1, which has too many'
point $? "the log has the address"
for fd in "${silent[@]}"; do exec {fd}>&-; done

# a request has 10 s, however it comes; a fifth of what we wait
closes "$port" 50 '\x16\x03\x01\x02\x00\x01' &
shake=$!
closes_tls "$port" 50 'GET /v1/donors HTTP/1.1\r\nX: ' &
header=$!
closes_tls "$port" 50 "POST /v1/donors HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer $mem1\r\nContent-Length: 1000\r\n\r\n" &
body=$!
wait $shake
is "a TLS handshake that drips is closed" $? 0
wait $header
is "a request whose header drips is closed" $? 0
wait $body
is "one whose body drips, too" $? 0
tells "$log" 'warning: refused a request from 127.0.0.1: its request takes too long'
point $? "the log says why"

# large bodies: two places of four are the enemy's
{
    printf 'POST /v1/donors HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Length: 1000000\r\n\r\n' "$mem2"
    head -c 100000 /dev/zero | tr '\0' ' '
} >"$dir/half"
start_flood 1 "$port" 8 1 "$dir/half" ' ' tls
as "$mem1"
(
    head -c 900000 /dev/zero | tr '\0' ' '
    echo '{"id":"mem1","host":"h","port":1,"transports":["tcp"],"region_size":1048576,"regions":1,"instance":"i"}'
) >"$dir/large"
statuses=''
for ((i = 0; i < 5; i++)); do api POST /v1/donors "@$dir/large"; statuses+="$status "; done
is "another one's large body is read" "$statuses" "200 200 200 200 200 "
stop_flood

# what a credential may hold
as "$db1"
statuses=''
for ((i = 1; i <= 64; i++)); do lease "db1/$i" i 0; statuses+="${status#201}"; done
is "a server may have 64 leases" "$statuses" ""
lease db1/65 i 0
is "and not one more" "$status $(get .error)" '503 server "db1" has 64 leases, and may have no more'
tells "$log" 'warning: refused a request from 127.0.0.1: server "db1" has 64 leases, and may have no more'
point $? "which is in the log"
lease db1/2 i2 0
is "another instance takes over" "$status" 201
api DELETE "/v1/leases/$id" "{\"secret\":\"$secret\"}"
lease db1/65 i 0
is "when one ends, there is room" "$status" 201
as "$db2"
lease db2 i 0
is "another server has its own" "$status" 201
as "$mem1"
statuses=''
for ((i = 2; i <= 64; i++)); do register "mem1:$i" 1 i; statuses+="${status#200}"; done
is "a donor's credential may have 64 donors" "$statuses" ""
register mem1:65 1 i
is "and not one more" "$status $(get .error)" '503 donor "mem1" has 64 donors, and may have no more'
register mem1:64 1 i
is "one that is there can register again" "$status" 200
as "$mem2"
register mem2:1 1 i
is "another credential has its own" "$status" 200

# the name * leaves 64 to others; donors that have much to tell
kill_broker
any=$(credential donor '*')
start_broker --credentials "$credentials" --donor-timeout 300
port=${url##*:}
perl -e '
    my ($url, $auth) = @ARGV;
    my $stats = join ",", map { sprintf q(\"%s%d\":1), "n" x 45, $_ } 10 .. 73;
    for my $i (1 .. 1024 - 64 - 1) {
        for ([ "", qq(\\"id\\":\\"many$i\\",\\"host\\":\\"h\\",\\"port\\":1,\\"transports\\":[\\"tcp\\"],\\"region_size\\":1048576,\\"regions\\":1) ],
            [ "/many$i/heartbeat", qq(\\"revision\\":0,$stats) ]) {
            print qq(next\n) if $n++;
            print qq(url = "$url/v1/donors$_->[0]"\nheader = "$auth"\ninsecure\noutput = /dev/null\ndata = "{\\"instance\\":\\"i\\",$_->[1]}"\n);
        }
    }' "$url" "Authorization: Bearer $any" >"$dir/many"
curl -sS --config "$dir/many"
as "$any"
register other1 1 i
is "the name * has all but 64 donors" "$status" 200
register other2 1 i
is "and not one more" "$status $(get .error)" "503 there is no room for more donors"
as "$mem2"
register mem2 1 i
is "a name has one of those" "$status" 200

# an answer that nobody reads
perl -MSocket -MIO::Socket::SSL -e '
    socket(my $fd, PF_INET, SOCK_STREAM, 0);
    setsockopt($fd, SOL_SOCKET, SO_RCVBUF, 4096);
    connect($fd, pack_sockaddr_in($ARGV[0], inet_aton("127.0.0.1"))) or die;
    $fd = IO::Socket::SSL->start_SSL($fd, SSL_verify_mode => 0) or die;
    syswrite $fd, "GET /v1/donors HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer $ARGV[1]\r\n\r\n";
    sleep 600' "$port" "$monitor" &
pump_pids+=($!)
until_true 60 tells "$log" 'warning: refused a request from 127.0.0.1: it does not read the answer'
point $? "an answer that is not read ends, too"
kill_broker

# halves of large bodies, where nobody needs a credential
curl_auth=()
settle_ms=60000
start_broker
port=${url##*:}
lease c1 i 0
{
    printf 'POST /v1/donors HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n'
    head -c 400000 /dev/zero | tr '\0' ' '
} >"$dir/half"
start_flood 1 "$port" 900 1 "$dir/half" ' '
many() { [ "$(threads)" -gt 850 ]; }
until_true 30 many
renew
is "with 900 halves of bodies, a lease is renewed" "$status" 200
register mem1 1 i
is "a donor registers" "$status" 200
sleep 2                         # for what is to be held
held=$(sed -n 's/^VmHWM:\s*\([0-9]*\) kB$/\1/p' "/proc/$broker_pid/status")
[ "$held" -lt 250000 ]
point $? "the broker holds few of them" || diagnose "$held kB"
stop_flood
api DELETE /v1/donors/mem1 '{"instance":"i"}'

# a donor with few descriptors; for a real one there have to be more of everything
( ulimit -n 2000 && exec "$RBP_DONOR" --broker "$url" --listen 127.0.0.1:0 --memory 8MB --region-size 1MB --id d --transports tcp,shm \
    2>"$dir/donor.log" ) &
donor_pid=$!
until_true 20 donor_is d '.applied == .revision'
point $? "a donor"
donor_port=$(sed -n 's/.*listening on 127.0.0.1:\([0-9]*\)$/\1/p' "$dir/donor.log")
if [ "$(id -u)" -ne 0 ]; then
    is "nobody can read the memory of broker or donor" "$(for i in $broker_pid $donor_pid; do cat "/proc/$i/environ" >/dev/null 2>&1; echo $?; done | xargs)" "1 1"
fi

# connect_as WHERE DONOR LEASE SECRET N: see test/broker/connect; says what came of them
connect_as() { "$root/test/broker/connect" "$@" </dev/null | xargs; }
leases=() secrets=()
for ((i = 0; i < 4; i++)); do
    lease "enemy/$((i / 2))" i 1 3600000
    leases+=("$id") secrets+=("$secret")
done
lease honest i 1 3600000
until_true 20 donor_is d '.leased == 5 and .applied == .revision'
is "a client connects" "$(connect_as "$donor_port" d "$id" "$secret" 1)" "0 1 end"

closes "$donor_port" 25 x
is "a handshake that drips is closed" $? 0
tells "$dir/donor.log" 'warning: refused a client from 127.0.0.1: its handshake took too long'
point $? "the log says why"

# all connections that a name may have, by four leases of two servers: 64 are others'
mkfifo "$dir/hold"
exec {hold}<>"$dir/hold"
for ((i = 0; i < 4; i++)); do
    "$root/test/broker/connect" "$donor_port" d "${leases[i]}" "${secrets[i]}" 500 <"$dir/hold" >"$dir/enemy$i" 2>&1 &
    pump_pids+=($!)
done
for ((i = 0; i < 4; i++)); do until_true 30 grep -q end "$dir/enemy$i"; done
is "they have as many as there are, but for 64" "$(cat "$dir"/enemy? | awk '$1 == 0 { n += $2 } END { print n }')" $((2000 - 8 - 128 - 64))
is "another one gets in" "$(connect_as "$donor_port" d "$id" "$secret" 1)" "0 1 end"
grep -q 'warning: refused a client from 127.0.0.1: lease .* of server "enemy/[01]" has all the connections that its server may have' "$dir/donor.log"
point $? "the log names the client"
wrong=$(printf '0%.0s' {1..64})
is "wrong proofs are refused" "$(connect_as "$donor_port" d "$id" "$wrong" 600)" "1 600 end"
is "and keep no right one out" "$(connect_as "$donor_port" d "$id" "$secret" 1)" "0 1 end"

# who may use the UNIX socket
shm_name=$(sed -n 's/.*shared memory by \(@.*\)$/\1/p' "$dir/donor.log")
is "this user may use shared memory" "$(connect_as "$shm_name" d "$id" "$secret" 1)" "0 1 end"
"$RBP_DONOR" --broker "$url" --listen 127.0.0.1:0 --memory 1MB --region-size 1MB --id e --shm-users 54321,daemon 2>"$dir/other.log" &
other_pid=$!
until_true 20 donor_is e '.applied == .revision'
shm_name=$(sed -n 's/.*shared memory by \(@.*\)$/\1/p' "$dir/other.log")
is "but not where others are named" "$(connect_as "$shm_name" e "$id" "$secret" 1)" "5 1 end"
grep -q 'warning: refused a client from this host, user [0-9]*: --shm-users does not have it' "$dir/other.log"
point $? "the log says which user"

# Connections that drip, beside those.  Newcomers share 64 places with them, so on a busy machine one may be the
# oldest before it has sent its proof, and is ended.  It comes again, as servers do.
newcomer()
{
    local i said

    for ((i = 0; i < 5; i++)); do
        said=$(connect_as "$donor_port" d "$id" "$secret" 1)
        [ "$said" = "closed 1 end" ] || break
    done
    echo "$said"
}
start_flood 3 "$donor_port" 800 40 '' x
is "with 2,400 connections that drip, newcomers get in" "$(for ((i = 0; i < 14; i++)); do newcomer; done | sort | uniq -c | xargs)" "14 0 1 end"
# a thousand are accepted at once, when the threads that are to close others hardly run
taskset -acp "$(taskset -cp $$ | sed 's/.*: *//; s/[,-].*//')" "$donor_pid" >"$dir/taskset"
kill -STOP "$donor_pid"
start_flood 1 "$donor_port" 1000 40 '' x
kill -CONT "$donor_pid"
is "with a thousand that come at once, too" "$(newcomer)" "0 1 end"
is "nobody is refused" "$(grep -c 'all of which have proved' "$dir/donor.log")" 0
tells "$dir/donor.log" 'warning: ended the oldest connection without a proof: there are too many'
point $? "the donor's log tells"
stop_flood
exec {hold}>&-
kill -KILL "$donor_pid" "$other_pid"        # no lease is given back, for which they would wait

finish
