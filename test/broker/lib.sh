# Sourced by the tests of the broker: a real broker on loopback, donors and
# clients played by curl.  The broker checks its invariants at each commit and
# aborts if one is broken.
#
# Each test ends with finish, which also proves that the broker is alive.

root=${RBP_ROOT:-$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)}
: "${RBP_BROKER:=$root/build/remote_bp_broker}" "${RBP_CTL:=$root/build/remote_bp_ctl}"

# shellcheck source=test/lib/tap.sh
. "$root/test/lib/tap.sh"

REMOTE_BP_BROKER_CHECK=$(cat "$root/test/broker/invariants.sql")
export REMOTE_BP_BROKER_CHECK

if [ -n "${TESTDIR:-}" ]; then
    dir=$TESTDIR
else
    dir=$(mktemp -d "${TMPDIR:-/tmp}/rbp_broker_test.XXXXXX")
    scratch=$dir
fi
region=67108864             # bytes
made=$dir/made              # what a broker makes
mkdir -p -m 700 "$made"
log=$dir/broker.log
url=
broker_pid=
pump_pids=()
declare -A revision=()      # by donor: what it has applied
declare -A instance=()      # of donors without a pump
declare -A auth=()          # with this credential
declare -A pumped=()        # likewise, with one
declare -A state_of=()      # what they say of themselves: want_back and the like
applying=true               # they apply what is granted while a client waits for it
settle_ms=60000             # for so long a broker waits for them
export REMOTE_BP_TEST_SETTLE_MS=$settle_ms  # also those that start_broker does not start
curl_auth=()

# curl believes any broker: whom the programs believe is tested
export CURL_HOME=$dir
echo insecure >"$dir/.curlrc"

# end_own SIGNAL PID...: our own; the number of one that has ended may be that of somebody else's process
end_own()
{
    local signal=$1 pid me=$BASHPID

    shift
    for pid; do
        [[ $(ps -o ppid= -p "$pid") -ne me ]] || kill -"$signal" "$pid" 2>/dev/null || true
    done
}

# end_at_once SIGNAL PID: ends it, and the curl that it waits for, or this would send later what is not true any
# more.  In $(), that curl needs an exec: else bash forks a shell between the two.
end_at_once()
{
    end_own STOP "$2"
    pkill -KILL -P "$2"
    end_own "$1" "$2"
    end_own CONT "$2"
    wait "$2" 2>/dev/null
}

clean_up()
{
    end_own KILL "${pump_pids[@]}" $broker_pid
    wait
    [ -z "${scratch:-}" ] || rm -rf "$scratch"
}
trap clean_up EXIT

# make_cert NAME: the files $dir/NAME.crt and $dir/NAME.key, of a broker on this host
make_cert()
{
    (umask 077 && openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 30 -subj "/CN=$1" \
        -addext "subjectAltName=${2:-DNS:localhost,IP:127.0.0.1}" -keyout "$dir/$1.key" -out "$dir/$1.crt" 2>/dev/null)
}

# pin_of FILE: the pin of its certificate
pin_of() { openssl x509 -in "$1" -noout -pubkey | openssl pkey -pubin -outform DER | sha256sum | cut -c 1-64; }

# start_broker [ARGUMENT...]: with the certificate that credential() has made.
start_broker()
{
    local address='' i tls=()

    [ ! -f "$dir/tls.crt" ] || [[ " $* " != *" --credentials "* ]] || tls=(--tls-cert "$dir/tls.crt" --tls-key "$dir/tls.key")
    : >"$log"
    REMOTE_BP_TEST_SETTLE_MS=$settle_ms "$RBP_BROKER" --listen 127.0.0.1:0 --dir "$made" "${tls[@]}" "$@" 2>"$log" &
    broker_pid=$!
    for ((i = 0; i < 1200; i++)); do
        address=$(sed -n 's/.*listening on \([0-9.:]*\)$/\1/p' "$log")
        [ -z "$address" ] || break
        kill -0 "$broker_pid" 2>/dev/null || break
        sleep 0.05
    done
    if [ -z "$address" ]; then
        diagnose "$(cat "$log")"
        echo "Bail out! the broker does not start"
        exit 1
    fi
    url=http://$address
    ! grep -q 'info: serving HTTPS ' "$log" || url=https://$address
}

kill_broker()
{
    kill -KILL "$broker_pid"
    wait "$broker_pid" 2>/dev/null
    cat "$log" >>"$dir/brokers_before.log"
}

# credential ROLE NAME: one more in the file that start_broker --credentials is to have; prints it.
credentials=$dir/credentials
credential()
{
    [ -f "$dir/tls.crt" ] || make_cert tls
    "$RBP_CTL" --credentials "$credentials" --tls-cert "$dir/tls.crt" credential add "$1" "$2"
}

# as CREDENTIAL: from now on, requests have it
as() { curl_auth=(-H "Authorization: Bearer $1"); }

# in_file CREDENTIAL NAME: it is in the token file $dir/NAME
in_file() { (umask 077 && echo "$1" >"$dir/$2"); }

# api METHOD PATH [BODY]: sets status and answer.
api()
{
    local said

    [[ "$1 $2" != "POST /v1/leases"* && $2 != */*drain ]] || ! $applying || start_applying
    said=$(exec curl -sS -m 80 -X "$1" "${curl_auth[@]}" ${3+--data-binary "$3"} -w '\n%{http_code}' "$url$2" 2>&1)
    status=${said##*$'\n'}
    answer=${said%$'\n'*}
    [ ${#appliers[@]} = 0 ] || stop_applying
}

# replace FILE TEXT: in one step, since the process may be killed at any moment
replace() { echo "$2" >"$1.new" && mv "$1.new" "$1"; }

# Nothing is promised that a donor has not applied.  So those that do nothing by themselves do
# that while a client waits; they clean nothing.
declare -A appliers=()
start_applying()
{
    local donor said

    for donor in "${!instance[@]}"; do
        (
            trap - EXIT
            [ -z "${auth[$donor]:-}" ] || curl_auth=(-H "${auth[$donor]}")
            while said=$(exec curl -sS -m 80 "${curl_auth[@]}" -w '\n%{http_code}' "$url/v1/donors/$donor/heartbeat" --data-binary \
                "{\"instance\":\"${instance[$donor]}\",\"revision\":${revision[$donor]}${state_of[$donor]:+,${state_of[$donor]}}}" 2>&1) &&
                [[ $said == *$'\n'200 && $said =~ ^\{\"revision\":([0-9]+), ]]; do
                revision[$donor]=${BASH_REMATCH[1]}
                [[ $said == *'"revs":null'* ]] || replace "$dir/served.$donor" "${said%$'\n'*}"
                replace "$dir/applied.$donor" "${revision[$donor]}"
            done
        ) &
        appliers[$donor]=$!
    done
}

stop_applying()
{
    local donor

    for donor in "${!appliers[@]}"; do
        end_at_once KILL "${appliers[$donor]}"
        [ ! -s "$dir/applied.$donor" ] || revision[$donor]=$(<"$dir/applied.$donor")
        rm -f "$dir/applied.$donor"
    done
    appliers=()
}

# is NAME GOT WANTED
is()
{
    if [ "$2" = "$3" ]; then
        point 0 "$1"
    else
        point 1 "$1"
        diagnose "got:    $2"
        diagnose "wanted: $3"
    fi
}

# said JQ-ARGUMENT...: the expression is true of the answer.  jq 1.6 takes any for true of an empty text.
said() { [ -n "$answer" ] && jq -e "$@" >/dev/null 2>&1 <<<"$answer"; }

# has NAME JQ-EXPRESSION: it is true of the answer
has()
{
    if said "$2"; then
        point 0 "$1"
    else
        point 1 "$1"
        diagnose "status $status, answer $answer"
    fi
}

get() { jq -c -r "$1" <<<"$answer"; }

# register DONOR REGIONS INSTANCE [MORE-MEMBERS]
register()
{
    api POST /v1/donors "{\"id\":\"$1\",\"host\":\"127.0.0.1\",\"port\":7001,\"shm_name\":\"s\",\"boot_id\":\"b\",
        \"transports\":[\"shm\",\"tcp\"],\"region_size\":$region,\"regions\":$2,\"instance\":\"$3\"${4:+,$4}}"
    revision[$1]=0
    [ "$status" != 200 ] || instance[$1]=$3 auth[$1]=${curl_auth[1]:-}
    [ "$status" != 200 ] || unset "pumped[$1]"
}

# Has the broker served all requests of processes that were killed?  Their connections wait to be closed.
no_late_request() { ! awk -v port="$(printf ':%04X' "${url##*:}")" '$4 == "08" && substr($2, 9) == port' /proc/net/tcp | grep -q .; }

# remember DONOR MORE-MEMBERS: it says that whenever it applies what is granted.  No request that says
# something else comes after this.
remember()
{
    local before=${state_of[$1]:-}

    state_of[$1]=$2
    [ -z "$2" ] || state_of[$1]=$(jq -c -n "{$2} | del(.clean, .ended)" | sed 's/^{//; s/}$//')
    [ "${state_of[$1]}" = "$before" ] || until_true 60 no_late_request
}

# beat DONOR INSTANCE [MORE-MEMBERS]: one heartbeat; applies the answer.
beat()
{
    remember "$1" "${3:-}"
    api POST "/v1/donors/$1/heartbeat" "{\"instance\":\"$2\",\"revision\":${revision[$1]}${3:+,$3}}"
    [ "$status" != 200 ] || revision[$1]=$(get .revision)
    # revs are told when something has changed
    [ "$status" != 200 ] || [[ $answer == *'"revs":null'* ]] || echo "$answer" >"$dir/served.$1"
}

# comes_back DONOR REGIONS INSTANCE [MORE-MEMBERS]: it registers with a broker that does not know it
# (any more), and tells what it serves.
comes_back()
{
    register "$1" "$2" "$3" "$(jq -r --argjson n "$2" '"\"revision\":\(.revision),\"leases\":\([.leases[] |
        {lease, key, about, remaining_ms: .ttl_ms, regions, revs}]),\"clean\":\([range($n)] - [.leases[].regions[]])"' "$dir/served.$1")${4:+,$4}"
    revision[$1]=$(jq .revision "$dir/served.$1")
}

# pump DONOR INSTANCE [MORE-MEMBERS]: in the background, a donor that does
# all that is asked at once and says so.  stop_pumps ends them.
pump()
{
    (
        trap - EXIT
        declare clean='[]'
        applying=false
        revision[$1]=0
        while :; do
            beat "$1" "$2" "\"clean\":$clean${3:+,$3}"
            if [ "$status" = 200 ]; then
                clean=$(get .dirty)
            else
                sleep 0.1
            fi
        done
    ) &
    pump_pids+=($!)
    pumped[$1]=$2
    remember "$1" "${3:-}"
    unset "instance[$1]"
}

stop_pumps()
{
    local pid

    for pid in "${pump_pids[@]}"; do
        end_at_once TERM "$pid"
    done
    pump_pids=()
    for pid in "${!pumped[@]}"; do
        instance[$pid]=${pumped[$pid]}
    done
    pumped=()
}

# lease CLIENT INSTANCE REGIONS [TTL_MS [PURPOSE]]: sets id and secret.
lease()
{
    api POST /v1/leases "{\"client\":\"$1\",\"instance\":\"$2\",\"purpose\":\"${5:-buffer}\",
        \"bytes\":$(($3 * region)),\"ttl_ms\":${4:-60000}}"
    id=$(get .lease)
    secret=$(get .secret)
}

# donor_key DONOR: what it is told instead of the secret
donor_key() { perl -MDigest::SHA=hmac_sha256_hex -e 'print hmac_sha256_hex("remote_bp donor $ARGV[0]", pack("H*", $ARGV[1]))' "$1" "$secret"; }

# renew [MORE-MEMBERS]: the lease of id and secret
renew()
{
    api POST "/v1/leases/$id/renew" "{\"secret\":\"$secret\"${1:+,$1}}"
}

# until_true SECONDS COMMAND...: a bound on a hang, not a measure
until_true()
{
    local end=$((SECONDS + 4 * $1))     # a busy machine may take its time

    shift
    until "$@"; do
        [ $SECONDS -lt $end ] || return 1
        sleep 0.1
    done
}

# donor_is DONOR JQ-EXPRESSION; for until_true
donor_is()
{
    api GET /v1/donors
    said --arg id "$1" ".donors[] | select(.id == \$id) | $2"
}

# gone LEASE; for until_true
gone()
{
    api GET /v1/leases
    said --arg id "$1" 'all(.leases[]; .lease != $id)'
}

finish()
{
    stop_pumps
    api GET /healthz
    is "the broker is healthy at the end" "$status" 200
    kill -TERM "$broker_pid"
    wait "$broker_pid"
    is "and stops cleanly" $? 0
    broker_pid=
    done_testing
}
