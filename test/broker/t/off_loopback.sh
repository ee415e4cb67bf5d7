#!/usr/bin/env bash
#
# A broker that other machines reach makes credentials at its first start, or needs
# none with --insecure, of which it reminds; one on loopback does neither.  All that in
# a network of its own, where that can be had.

if [ -z "${RBP_NETWORK:-}" ] && unshare -rn ip link set lo up 2>/dev/null; then
    RBP_NETWORK=own exec unshare -rn bash -c 'ip link set lo up && exec "$@"' _ "$0" "$@"
fi

. "$(dirname "$0")/../lib.sh"

stop_broker()
{
    kill -TERM "$broker_pid"
    wait "$broker_pid"
    broker_pid=
}
insecure() { api GET /metrics; sed -n 's/^remote_bp_broker_insecure //p' <<<"$answer"; }
made() { (cd "$made" && find . -name 'broker.*' -printf '%f %m\n' | sort); }
# with the one that was made for this role
with() { as "$(cat "$made/broker.$1.token")"; }

start_broker --listen 0.0.0.0:0
is "off loopback, files are made" "$(made)" "$(printf 'broker.%s 600\n' credentials crt donor.token key monitor.token operator.token server.token)"
for place in 'server.token": it goes to servers, as remote_bp.token_file' 'donor.token": it goes to donors, as --token-file' \
    'operator.token": it goes to operators, as --token-file of remote_bp_ctl' 'monitor.token": it goes to Prometheus, as credentials_file'; do
    is "the log has $place" "$(grep -cF "info: made \"$made/broker.$place" "$log")" 1
done
api GET /v1/donors
is "no credential" "$status" 401
with operator
is "it is not insecure" "$(insecure)" 0
is "remote_bp_ctl works with the operator's file" "$("$RBP_CTL" --broker "$url" --token-file "$made/broker.operator.token" donors | tail -n 1)" "(0 donors, 0 B, of which 0 B leased)"
with monitor
api GET /metrics
is "Prometheus' file" "$status" 200
with donor
register mem1:7001 1 i
is "the donors' file is for all donors" "$status" 200
with server
lease db1 i 0
is "the servers' for all servers" "$status" 201
is "there is no warning" "$(grep -cE ' (warning|error): ' "$log")" 1        # of the request without one

before=$(cat "$made"/broker.*.token "$made/broker.credentials")
stop_broker
rm "$made/broker.monitor.token"       # brought to its place
start_broker --listen 0.0.0.0:0
is "another start makes none" "$(made | wc -l) $(grep -c 'info: made' "$log")" "6 0"
lease db1 i 0
is "what was made works on" "$status" 201
"$RBP_CTL" --credentials "$made/broker.credentials" credential remove server '*' >/dev/null
kill -HUP "$broker_pid"
refused() { renew; [ "$status" = 401 ]; }
until_true 30 refused
point $? "the file is read again on SIGHUP"
is "each has the pin of the certificate" "$(cut -d . -f 4 "$made"/broker.*.token | sort -u)" "$(pin_of "$made/broker.crt")"
stop_broker
chmod 604 "$made/broker.credentials"
timeout 20 "$RBP_BROKER" --listen 0.0.0.0:0 --dir "$made" 2>"$dir/err"
is "the file must not be open to others" "$? $(grep -c 'others may read it: chmod 640 it$' "$dir/err")" "1 1"
rm "$made/broker.credentials"
start_broker --listen 0.0.0.0:0
is "without the file, all are made anew" "$(made | wc -l) $(cat "$made"/broker.*.token "$made/broker.credentials" | grep -cFxf <(echo "$before"))" "7 0"
stop_broker
rm "$made"/broker.*.token "$made/broker.credentials"

timeout 20 "$RBP_BROKER" --listen 0.0.0.0:0 --dir "$made" --credentials "$dir/none" 2>"$dir/err"
is "a file that is named must be there" "$? $(grep -c "\"$dir/none\": No such file" "$dir/err")" "1 1"
is "and none is made" "$(made)" "$(printf 'broker.%s 600\n' crt key)"
rm "$made/broker.crt" "$made/broker.key"
timeout 20 "$RBP_BROKER" --listen 0.0.0.0:0 --dir "$made" --credentials "$dir/none" --insecure 2>"$dir/err"
is "with --insecure it makes no sense" "$? $(grep -c 'does not go together with --credentials' "$dir/err")" "2 1"

cc -O1 -shared -fPIC -o "$dir/clock.so" "$root/test/preload/clock.c" -ldl || exit 1
export RBP_CLOCK=$dir/clock RBP_CLOCK_MONOTONIC=yes
curl_auth=()
LD_PRELOAD=$dir/clock.so start_broker --listen 0.0.0.0:0 --insecure
api GET /v1/donors
is "with --insecure nobody needs one" "$status $(made)" "200 "
is "a metric tells" "$(insecure)" 1
# woken by a lease, it finds that so much time has passed
reminded() { lease "c$RANDOM" i 0 1000; [ "$(grep -c 'warning: --insecure: everybody who reaches the broker' "$log")" -eq "$1" ]; }
until_true 30 reminded 1
point $? "and the log"
echo 3500 >"$RBP_CLOCK"
until_true 30 eval "lease c i 0 1000; grep -q 'did not run for 3[45]' '$log'"
reminded 1
point $? "once in an hour"
echo 7300 >"$RBP_CLOCK"
until_true 30 reminded 2
point $? "and again after it"
kill_broker
unset RBP_CLOCK RBP_CLOCK_MONOTONIC

for address in 127.0.0.1 127.1.2.3; do
    start_broker --listen $address:0
    api GET /v1/donors
    is "on $address nobody needs one, and none is made" "$status $(made)" "200 "
    is "which the log says" "$(grep -c 'warning: without --credentials everybody on this machine can lease memory' "$log")" 1
    is "it is not insecure for others" "$(insecure)" 0
    stop_broker
done
"$RBP_BROKER" --listen '[::1]:0' --dir "$made" 2>"$dir/six" &
pump_pids+=($!)
until_true 30 grep -qE 'info: listening on|error: could not listen' "$dir/six"
is "nor on ::1, where there is IPv6" "$? $(made)" "0 "
kill "${pump_pids[0]}"
wait "${pump_pids[0]}"

# as versions up to 1.1 were started
"$RBP_BROKER" --listen 0.0.0.0:0 --state "$dir/old.db" 2>"$dir/old" &
old=$!
pump_pids+=("$old")
until_true 30 grep -q 'info: listening on' "$dir/old"
is "--state has files made beside it, and is not used" "$(grep -c 'warning: --state is not needed any more' "$dir/old") $(cd "$dir" && LC_ALL=C echo old.db*)" \
    "1 old.db.credentials old.db.crt old.db.donor.token old.db.key old.db.monitor.token old.db.operator.token old.db.server.token"
kill "$old"
wait "$old"
start_broker
finish
