# Reads take nothing of the donor's processor, as they do over TCP.
# Timeout: 180
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
check 'most pages come from the donor' warm
sleep 2                     # what was written is pushed
cpu=$(donor_cpu_ms far)
sleep "$window"
idle=$(($(donor_cpu_ms far) - cpu))

measure verbs
verbs_used=$used
verbs_hits=$hits
is 'by verbs' "$(donor_column far transport)" verbs
set_server remote_bp.transport tcp
measure tcp
is 'by TCP' "$(donor_column far transport)" tcp
diagnose "the donor's processor in $window s: idle $idle ms, $verbs_hits hits by verbs $verbs_used ms, $hits by TCP $used ms"

holds 'many pages were read by verbs' "$verbs_hits > 1000"
holds 'the donor did no more than while idle' "$verbs_used <= $idle + 50"
holds 'by TCP it worked for each' "$used > 10 * ($verbs_used + 10)"
is_clean 'one-sided'
stop_server
done_testing
