# pgbench over verbs, which "auto" prefers, with every page from the donor
# compared with the disk; then reads alone, in which the donor's processor has
# no part, as it has over TCP.
# Timeout: 200
. test/rdma_vm/guest/lib.sh

window=6                    # seconds

# Sets used (milliseconds of the donor's processor) and hits of a window
# under load, after the clients have connected.
measure()
{
    local cpu before

    start_pgbench $((window + 6))
    sleep 3
    before=$(counter hits)
    cpu=$(donor_cpu_ms far)
    sleep "$window"
    used=$(($(donor_cpu_ms far) - cpu))
    hits=$(($(counter hits) - before))
    finish_pgbench "reads by $1"
}

start_broker
start_donor far
start_server 'remote_bp.transport = auto'
start_pgbench 12 -b select-only@6 -b simple-update@3 -b tpcb-like@1 -c 4
finish_pgbench 'reads and writes'
holds 'pages came from the donor' "$(counter hits) > 500"
holds 'and went there' "$(counter pushes) > 500"
is 'by verbs' "$(donor_column far transport)" verbs
check 'most pages come from the donor' warm

sleep 2                     # what was written is pushed
cpu=$(donor_cpu_ms far)
sleep "$window"
idle=$(($(donor_cpu_ms far) - cpu))
measure verbs
verbs_used=$used
verbs_hits=$hits
is 'still by verbs' "$(donor_column far transport)" verbs
set_server remote_bp.transport tcp
measure tcp
is 'by TCP when told so' "$(donor_column far transport)" tcp
diagnose "the donor's processor in $window s: idle $idle ms, $verbs_hits hits by verbs $verbs_used ms, $hits by TCP $used ms"

holds 'many pages were read by verbs' "$verbs_hits > 1000"
holds 'the donor did no more than while idle' "$verbs_used <= $idle + 50"
holds 'by TCP it worked for each' "$used * $verbs_hits > 10 * ($verbs_used + 10) * $hits"
is_clean 'load'
stop_server
done_testing
