# The cable is cut under load, as if the donor's port had lost its link, and
# then loses packets without a word, as a broken switch does.
# Timeout: 240
. test/rdma_vm/guest/lib.sh

packets_vanish() { tc qdisc replace dev v0 root netem loss 100% && tc qdisc replace dev v1 root netem loss 100%; }
packets_pass() { tc qdisc delete dev v0 root; tc qdisc delete dev v1 root; }

start_broker
start_donor far
# Less patient than the others: what is lost shall cost something.
start_server 'remote_bp.transport = verbs' "remote_bp.io_timeout = '200ms'"
check 'most pages come from the donor' warm

for cut in cable_down packets_vanish; do
    start_pgbench 12
    sleep 2
    before=$(counter fallbacks)
    $cut
    sleep 3
    hits=$(counter hits)
    sleep 1
    is "$cut: nothing comes from the donor" "$(counter hits)" "$hits"
    holds "$cut: pages were read from disk" "$(counter fallbacks) > $before"
    if [ "$cut" = cable_down ]; then cable_up; else packets_pass; fi
    finish_pgbench "$cut"
    check "$cut: most pages come from the donor again" warm
    is "$cut: by verbs" "$(donor_column far transport) $(donor_column far state)" 'verbs ok'
done
is_clean 'cable cut'
stop_server
done_testing
