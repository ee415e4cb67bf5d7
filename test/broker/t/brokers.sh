#!/usr/bin/env bash
#
# A donor that knows two brokers follows the first that works, and a lease goes on with it.

. "$(dirname "$0")/../lib.sh"

held() { get '[.regions[] | [.donor, .region, .rev]] | sort'; }
all='"donors":["d"]'

renews() { renew "$all" && [ "$status" = 200 ]; }
agrees() { renew "$all,\"bytes\":$((2 * region))" && [ "$status $(held)" = "200 $regions" ]; }

start_broker
first=$url
"$RBP_BROKER" --listen 127.0.0.1:0 2>"$dir/second" &
second_pid=$!
pump_pids+=("$second_pid")
until_true 20 grep -q 'listening on' "$dir/second"
second=http://$(sed -n 's/.*listening on \([0-9.:]*\)$/\1/p' "$dir/second")

for urls in "$first," ",$first" "$first,,$second" "$first,second" ""; do
    said=$("$RBP_DONOR" --broker "$urls" --listen 127.0.0.1:0 --memory 1MB --region-size 1MB --check-config 2>&1)
    is "\"${urls//[0-9]/}\" is no list of brokers" "$? $(grep -c 'is not a URL such as https://HOST:PORT' <<<"$said")" "2 1"
done

echo "broker = $first/, $second" >"$dir/donor.conf"
chmod 600 "$dir/donor.conf"
"$RBP_DONOR" --config "$dir/donor.conf" --listen 127.0.0.1:0 --memory 8MB --region-size 1MB --min-free 0 --transports tcp --id d 2>"$dir/donor" &
donor_pid=$!
pump_pids+=("$donor_pid")
region=1048576
until_true 20 donor_is d '.applied == .revision'
point $? "a donor follows the first of two brokers"
api POST /v1/leases '{"client":"c","instance":"i","purpose":"buffer","bytes":0,"ttl_ms":60000,"elsewhere":true}'
is "who can ask another broker is granted a lease by one with donors" "$status" 201
url=$second
api POST /v1/leases '{"client":"c","instance":"i","purpose":"buffer","bytes":0,"ttl_ms":60000,"elsewhere":true}'
is "but by none without" "$status $(get .error)" "503 no donor follows this broker"
lease c i 0 2000
is "who knows no other one is" "$status" 201
api DELETE "/v1/leases/$id" "{\"secret\":\"$secret\"}"
url=$first
lease c1 i1 4 60000
regions=$(held)
is "a lease is granted" "$status $(get '.regions | length')" "201 4"

kill_broker
url=$second
until_true 30 donor_is d '.leased == 4'
point $? "the first one is killed: the donor follows the second one, and tells of the lease"
renew "$all"
is "which goes on there" "$status $(held)" "200 $regions"
renew "$all,\"bytes\":$((6 * region))"
is "and grows" "$status $(get '.regions | length')" "200 6"
regions=$(held)
is "remote_bp_ctl takes the second one, too" "$("$RBP_CTL" --broker "$first,$second" donors | grep -c '^d ')" 1

"$RBP_CTL" --broker "$first,$second" brokers >"$dir/brokers"
is "and shows both" "$(sed 1d "$dir/brokers" | tr -s ' ' | sed 's/0 0 .*/0 0 why/; s/ $//')" "$first 0 0 why
$second $(sed -n 's/.*default_version = .\(.*\)./\1/p' "$root/remote_bp.control") 1 1"
url=$first
: >"$log"
"$RBP_BROKER" --listen "${first#http://}" 2>"$log" &
broker_pid=$!
until_true 20 grep -q 'listening on' "$log"
renew "$all"
is "the first one is back, and knows nothing yet" "$status" 503
until_true 60 donor_is d '.leased == 6'
point $? "the donor returns to it, and tells of the lease"
renew "$all"
is "which goes on there, as large as it was" "$status $(held)" "200 $regions"
grep -q "info: broker $first is well again, and is preferred to $second" "$dir/donor"
point $? "the donor's log says so"

# it is stopped, not killed: it knows the lease when it goes on, but not what has happened since
until_true 30 donor_is d '.applied == .revision'    # no heartbeat that says something new is on its way
kill -STOP "$broker_pid"
url=$second
follows() { [ "$(grep -c "registered with the broker as d, at $url\$" "$dir/donor")" -ge "$1" ]; }
until_true 30 follows 2
point $? "the first one is stopped: the donor follows the second one"
until_true 30 renews
point $? "and the lease goes on there"
renew "$all,\"bytes\":$((2 * region)),\"release\":[{\"donor\":\"d\",\"region\":0},{\"donor\":\"d\",\"region\":1},{\"donor\":\"d\",\"region\":2},{\"donor\":\"d\",\"region\":3}]"
is "and shrinks" "$status $(get '.regions | length')" "200 2"
regions=$(held)
url=$first
kill -CONT "$broker_pid"
renew "$all,\"elsewhere\":true"
is "the first one goes on, and does not answer who can ask the one that the donor follows" "$status" 503
until_true 60 agrees
point $? "when the donor is back, what it thought of its regions is replaced"

# another list, by SIGHUP
donors=$(grep -c 'registered with the broker' "$dir/donor")
rewrite() { echo "broker = $1    # a comment" >"$dir/donor.conf.new" && chmod 600 "$dir/donor.conf.new" && mv "$dir/donor.conf.new" "$dir/donor.conf" && kill -HUP "$donor_pid"; }
rewrite "http://127.0.0.1:1, $first/"
until_true 30 grep -q "the brokers are http://127.0.0.1:1, $first/\$" "$dir/donor"
point $? "a donor takes another list of brokers"
until_true 30 agrees
is "and does not leave the one that it follows" "$? $(grep -c 'registered with the broker' "$dir/donor")" "0 $donors"
rewrite "nonsense"
until_true 30 grep -q 'broker: "nonsense" is not a URL' "$dir/donor"
point $? "it refuses what is no list"
chmod go+w "$dir/donor.conf"
kill -HUP "$donor_pid"
until_true 30 grep -q 'others than its owner may write the file' "$dir/donor"
point $? "and a file that others can write"
rewrite "$second,$first"
until_true 60 grep -q "broker $second is well again, and is preferred to $first" "$dir/donor"
point $? "it goes to one that comes first in the list when that is well"
rewrite "$first"
url=$first
until_true 60 agrees
point $? "and leaves one that is not in the list any more"
kill -TERM "$second_pid"
finish
