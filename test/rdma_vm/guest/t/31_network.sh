# The network fails under load: the server's cable is cut; packets vanish
# without a word, as in a broken switch; some packets are lost.
. test/rdma_vm/guest/lib.sh

disturb() { tc qdisc replace dev v0 root netem "$@" && tc qdisc replace dev v1 root netem "$@"; }
lost() { tc -s qdisc show dev v1 | sed -n 's/.*dropped \([0-9]*\).*/\1/p' | head -n 1; }
many_lost() { [ $(($(lost) - lost)) -gt 10 ]; }
# Whoever was answered before the failure may be late to count it.
no_hits() { local hits; hits=$(counter hits); sleep 1; [ "$(counter hits)" = "$hits" ]; }
calm() { tc qdisc delete dev v0 root && tc qdisc delete dev v1 root; }

start_broker
start_donor far
# Less patient than the others: what is lost shall cost something.
start_server 'remote_bp.transport = verbs' "remote_bp.io_timeout = '200ms'"
check 'most pages come from the donor' warm

for failure in cut silence; do
    start_pgbench 10
    before=$(counter fallbacks)
    if [ "$failure" = cut ]; then cable_down; else disturb loss 100%; fi
    check "$failure: pages are read from disk" until_true 120 more_than fallbacks "$before"
    check "$failure: nothing comes from the donor" until_true 120 no_hits
    check "$failure: each client goes on meanwhile" goes_on
    if [ "$failure" = cut ]; then cable_up; else calm; fi
    finish_pgbench "$failure"
    check "$failure: most pages come from the donor again" warm
    is "$failure: by verbs" "$(donor_column far transport) $(donor_column far state)" 'verbs ok'
done

# The device sends again what is lost; what arrives is right.
before=$(counter hits)
disturb loss 1% delay 200us reorder 10%
start_pgbench 10 -b select-only@6 -b simple-update@3 -b tpcb-like@1 -c 4
lost=$(lost)
check 'packets lost: so they are' until_true 180 many_lost
check 'packets lost: pages come from the donor' until_true 180 more_than hits $((before + 100))
finish_pgbench 'packets lost'
calm
check 'packets lost: most pages come from the donor again' warm
is_clean 'network'
stop_server
done_testing
