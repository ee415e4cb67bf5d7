#!/usr/bin/env bash
#
# Prometheus' metrics: what they are called, and what is in them, whatever donors and
# clients are called and report; how many there are; a scrape beside a flood of heartbeats.

. "$(dirname "$0")/../lib.sh"

# scrape: sets answer; it is what promtool wants
scrape() { api GET /metrics && [ "$status" = 200 ] && complaint=$(promtool check metrics <<<"$answer" 2>&1) && [ -z "$complaint" ]; }

# metric NAME-AND-LABELS: its value
metric() { grep -v '^#' <<<"$answer" | grep -F "$1 " | sed 's/.* //'; }

right=$(credential monitor '*')
start_broker --credentials "$credentials"
api GET /v1/donors
as "${right/monitor/server}"
api GET /v1/donors
as "$right"
api POST /v1/donors '{}'
scrape
point $? "metrics of a broker that is empty" || diagnose "$status $complaint $answer"
is "what was refused is counted" "$(metric remote_bp_http_refused_total)" 3
is "no metric is there twice" "$(grep -v '^#' <<<"$answer" | sed 's/ [^ ]*$//' | sort | uniq -d)" ""
is "the process's are there" "$(grep -cE '^process_(start_time_seconds|resident_memory_bytes|open_fds|max_fds) [1-9]' <<<"$answer")" 4
before=$(metric process_start_time_seconds)
scrape
is "its start stays when it was" "$(metric process_start_time_seconds)" "$before"
kill_broker
curl_auth=()
start_broker

register a:1 4 i1
scrape
is "a donor that has reported nothing has no counters that would jump" "$(grep -c '_total{donor=' <<<"$answer")" 0
beat a:1 i1 '"want_back":1,"reads":12345,"denied":7,"bytes_read":1000000000000000,"connections":3,"evil\"} 1":1,"writes":"x"'
register b:1 2 i2
lease db1 i1 3
api POST /v1/leases '{"client":"db \"2\\\"} 1","instance":"i","purpose":"temp","bytes":67108864,"ttl_ms":60000}'
scrape
point $? "metrics of donors and leases" || diagnose "$status $complaint $answer"
is "regions" "$(($(metric 'remote_bp_donor_regions{donor="a:1",state="leased"}') + $(metric 'remote_bp_donor_regions{donor="b:1",state="leased"}')))" 4
is "a donor's state" "$(metric 'remote_bp_donor_state{donor="a:1",state="up"}') $(metric 'remote_bp_donor_state{donor="a:1",state="gone"}')" "1 0"
is "what it wants back" "$(metric 'remote_bp_donor_want_back_bytes{donor="a:1"}')" "$region"
is "what it reports" "$(metric 'remote_bp_donor_reads_total{donor="a:1"}') $(metric 'remote_bp_donor_denied_total{donor="a:1"}') $(metric 'remote_bp_donor_connections{donor="a:1"}')" "12345 7 3"
is "also if it is much" "$(metric 'remote_bp_donor_read_bytes_total{donor="a:1"}')" 1000000000000000
is "its own names are no metrics" "$(grep -c evil <<<"$answer")" 0
is "leases" "$(metric 'remote_bp_leases{purpose="buffer"}') $(metric 'remote_bp_leases{purpose="temp"}')" "1 1"
is "what a client wants" "$(metric 'remote_bp_lease_wanted_bytes{client="db1",purpose="buffer"}')" $((3 * region))
is "a client's name is quoted" "$(metric 'remote_bp_lease_wanted_bytes{client="db \"2\\\"} 1",purpose="temp"}')" "$region"
is "requests are counted by route" "$(metric 'remote_bp_request_seconds_count{route="POST /v1/leases"}') $(metric 'remote_bp_request_seconds_bucket{route="POST /v1/leases",le="+Inf"}')" "2 2"

# A heartbeat without news waits for a second, which is no time that a request takes.
quick='remote_bp_request_seconds_bucket{route="POST /v1/donors/*/heartbeat",le="1"}'
beat a:1 i1
scrape
before=$(metric "$quick")
beat a:1 i1
beat a:1 i1
beat a:1 i1
scrape
[ "$(metric "$quick")" -gt "$before" ]
point $? "waiting for news does not count"

# More clients than are shown, of which one is called as the rest
for ((i = 1; i <= 110; i++)); do
    echo "{\"client\":\"c$i\",\"instance\":\"i\",\"purpose\":\"buffer\",\"bytes\":$((i << 30)),\"ttl_ms\":600000}"
done >"$dir/clients"
echo '{"client":"other","instance":"i","purpose":"buffer","bytes":1099511627776,"ttl_ms":600000}' >>"$dir/clients"
while read -r body; do
    curl -sS -m 60 -o /dev/null --data-binary "$body" "$url/v1/leases"
done <"$dir/clients"
scrape
point $? "metrics of many clients" || diagnose "$status $complaint"
is "a hundred are shown, and the rest" "$(grep -c '^remote_bp_lease_wanted_bytes{' <<<"$answer")" 102
is "these are the largest" "$(metric 'remote_bp_lease_wanted_bytes{client="c11",purpose="buffer"}') $(metric 'remote_bp_lease_wanted_bytes{client="c10",purpose="buffer"}')" $((11 << 30))" "
is "the rest is a sum" "$(metric 'remote_bp_lease_wanted_bytes{client="other",purpose="buffer"}')" $((1099511627776 + (55 << 30) + 3 * region))

api POST /v1/leases '{"client":"late","instance":"i","purpose":"buffer","bytes":1099511627776,"ttl_ms":1000,"keep_ms":3600000}'
of_late() { metric "remote_bp_lease_$1{client=\"late\",purpose=\"buffer\"}"; }
wants_what_it_has() { scrape && [ -n "$(of_late bytes)" ] && [ "$(of_late wanted_bytes)" = "$(of_late bytes)" ]; }
until_true 30 wants_what_it_has
point $? "a lease that has lapsed wants no more than it has"

# Heartbeats all the time
pump a:1 i1
pump b:1 i2
good=0
for ((i = 0; i < 20; i++)); do scrape && good=$((good + 1)); done
is "scrapes beside heartbeats" "$good" 20
stop_pumps

finish
