# pgbench over verbs, which "auto" prefers, with every page from the donor
# compared with the disk; then reads alone, in which the donor's processor has
# no part, as it has over TCP.
. test/rdma_vm/guest/lib.sh

now_ms() { echo $(($(date +%s%N) / 1000000)); }

# Sets used: milliseconds of the donor's processor, while nothing happens; and
# took: how long that was.
measure_idle()
{
    local cpu began

    cpu=$(donor_cpu_ms far)
    began=$(now_ms)
    sleep 5
    used=$(($(donor_cpu_ms far) - cpu))
    took=$(($(now_ms) - began))
}

# The same while clients, who have connected before, get so many pages; and
# hits.
measure()
{
    local cpu before end began

    start_pgbench 100
    sleep 2
    before=$(counter hits)
    cpu=$(donor_cpu_ms far)
    end=$((SECONDS + 300))
    began=$(now_ms)
    sleep 5
    while hits=$(($(counter hits) - before)) && [ "$hits" -lt "$1" ] && [ "$SECONDS" -lt "$end" ]; do
        sleep 1
    done
    used=$(($(donor_cpu_ms far) - cpu))
    took=$(($(now_ms) - began))
    kill "$pgbench_pid"
    wait "$pgbench_pid"
}

start_broker
start_donor far
start_server 'remote_bp.transport = auto'
start_pgbench 10 -b select-only@6 -b simple-update@3 -b tpcb-like@1 -c 4
check 'pages come from the donor' until_true 180 more_than hits 500
check 'and go there' until_true 180 more_than pushes 500
finish_pgbench 'reads and writes'
is 'by verbs' "$(donor_column far transport)" verbs
check 'most pages come from the donor' warm

# A busy host steals time from the guest, which takes it for the donor's: only
# what is too little tells, so that there are some tries.
sleep 2                     # what was written is pushed
for try in 1 2 3 4; do
    measure_idle
    idle=$used idle_took=$took
    measure 2000
    idle=$((idle * took / idle_took))
    diagnose "the donor's processor: idle $idle ms, by verbs $used ms for $hits pages"
    [ "$hits" -lt 2000 ] || [ "$used" -gt $((idle + 50)) ] || break
done
verbs_used=$used
verbs_hits=$hits
is 'still by verbs' "$(donor_column far transport)" verbs
holds 'many pages were read by verbs' "$verbs_hits >= 2000"
holds 'the donor did no more than while idle' "$verbs_used <= $idle + 50"

set_server remote_bp.transport tcp
measure 500
diagnose "by TCP $used ms for $hits pages (try $try)"
is 'by TCP when told so' "$(donor_column far transport)" tcp
holds 'by TCP it worked for each' "$used * $verbs_hits > 5 * ($verbs_used + 10) * $hits"
is_clean 'load'
stop_server
done_testing
