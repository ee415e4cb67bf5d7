# One packet of a hundred is lost, some come in another order: the device sends
# them again, and what arrives is right.
. test/rdma_vm/guest/lib.sh

start_broker
start_donor far
start_server 'remote_bp.transport = verbs'
check 'most pages come from the donor' warm
tc qdisc replace dev v0 root netem loss 1% delay 200us reorder 10%
tc qdisc replace dev v1 root netem loss 1% delay 200us reorder 10%
before=$(counter hits)
start_pgbench 15 -b select-only@6 -b simple-update@3 -b tpcb-like@1 -c 4
finish_pgbench 'packets lost'
holds 'packets were lost' "$(tc -s qdisc show dev v1 | sed -n 's/.*dropped \([0-9]*\).*/\1/p' | head -n 1) > 10"
tc qdisc delete dev v0 root
tc qdisc delete dev v1 root
holds 'pages came from the donor' "$(counter hits) > $before + 100"
check 'most pages come from the donor again' warm
is_clean 'packets lost'
stop_server
done_testing
