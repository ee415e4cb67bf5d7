# The network fails under load: the server's cable is cut; packets vanish
# without a word, as in a broken switch; some packets are lost.
. test/rdma_vm/guest/lib.sh

disturb() { tc qdisc replace dev v0 root netem "$@" && tc qdisc replace dev v1 root netem "$@"; }
calm() { tc qdisc delete dev v0 root && tc qdisc delete dev v1 root; }

start_broker
start_donor far
# Less patient than the others: what is lost shall cost something.
start_server 'remote_bp.transport = verbs' "remote_bp.io_timeout = '200ms'" 'remote_bp.rdma_ack_timeout = 12'
check 'most pages come from the donor' warm

for failure in cut silence; do
    start_pgbench 10
    sleep 1
    before=$(counter fallbacks)
    if [ "$failure" = cut ]; then cable_down; else disturb loss 100%; fi
    sleep 3
    hits=$(counter hits)
    sleep 1
    is "$failure: nothing comes from the donor" "$(counter hits)" "$hits"
    holds "$failure: pages were read from disk" "$(counter fallbacks) > $before"
    if [ "$failure" = cut ]; then cable_up; else calm; fi
    finish_pgbench "$failure"
    check "$failure: most pages come from the donor again" warm
    is "$failure: the donor is used by verbs again" "$(donor_column far transport) $(donor_column far state)" 'verbs ok'
done

# The device sends again what is lost; what arrives is right.
before=$(counter hits)
disturb loss 1% delay 200us reorder 10%
start_pgbench 10 -b select-only@6 -b simple-update@3 -b tpcb-like@1 -c 4
lost=$(tc -s qdisc show dev v1 | sed -n 's/.*dropped \([0-9]*\).*/\1/p' | head -n 1)
finish_pgbench 'packets lost'
lost=$(($(tc -s qdisc show dev v1 | sed -n 's/.*dropped \([0-9]*\).*/\1/p' | head -n 1) - lost))
calm
holds 'packets lost: packets are lost' "$lost > 10"
holds 'packets lost: pages came from the donor' "$(counter hits) > $before + 100"
check 'packets lost: most pages come from the donor again' warm
is_clean 'network'
stop_server
done_testing
