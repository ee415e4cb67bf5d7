#!/usr/bin/env bash
#
# Signals: SIGHUP has the daemons reload, SIGTERM stops them, and none that a
# supervisor, a timer or a terminal sends for other reasons ends them.

. "$(dirname "$0")/../lib.sh"

: "${RBP_DONOR:=$root/build/remote_bp_donor}"
start_broker
"$RBP_DONOR" --broker "$url" --listen 127.0.0.1:0 --rdma-device none --memory 4MB --region-size 1MB --min-free 0 \
    --id d 2>"$dir/donor.log" &
donor=$!
pump_pids+=("$donor")
until_true 30 donor_is d '.applied == .revision'
point $? "a broker and a donor are up"

reloads() { [ "$(grep -c 'info: reloading on SIGHUP' "$1")" -eq "$2" ]; }
n=0
for signal in USR1 USR2 ALRM VTALRM PROF PIPE XFSZ IO PWR TTOU; do
    n=$((n + 1))
    for pid in "$broker_pid" "$donor"; do
        kill -"$signal" "$pid" && kill -HUP "$pid"
    done
    until_true 30 reloads "$log" $n && until_true 30 reloads "$dir/donor.log" $n
    point $? "SIG$signal ends neither, and SIGHUP has both reload"
done

donor_is d '.state == "up"'
point $? "the donor is up, and was never away"
kill -TERM "$donor"
wait "$donor"
is "the donor ends on SIGTERM" $? 0
grep -q 'info: drained' "$dir/donor.log"
point $? "drained" || diagnose "$(cat "$dir/donor.log")"
is "it has registered once" "$(grep -c 'info: registered' "$dir/donor.log")" 1

finish
