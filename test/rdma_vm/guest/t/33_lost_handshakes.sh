# Of the connection manager's packets, which alone go to queue pair 1, one in five
# is lost: handshakes are begun again, and nobody gives verbs up for all.
. test/rdma_vm/guest/lib.sh

# Lose that share of the packets to queue pair 1.  The number of the queue pair
# is in the header that follows IP and UDP (of port 4791).
lose_handshakes()
{
    local device

    for device in v0 v1; do
        tc qdisc replace dev $device root handle 1: prio priomap 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 &&
            tc qdisc add dev $device parent 1:3 handle 3: netem loss "$1" &&
            tc filter add dev $device parent 1: protocol ip u32 match ip protocol 17 0xff \
                match ip dport 4791 0xffff match u32 0x00000001 0x00ffffff at 32 flowid 1:3 || return 1
    done
}
calm() { tc qdisc delete dev v0 root && tc qdisc delete dev v1 root; }
lost_handshakes() { tc -s qdisc show | sed -n '/netem/,/Sent/s/.*dropped \([0-9]*\).*/\1/p' | awk '{ n += $1 } END { print n + 0 }'; }
all_connected() { [ "$(queue_pairs rxe0)" -ge "$1" ]; }

start_broker
start_donor far
start_server 'remote_bp.transport = auto'
check 'most pages come from the donor' warm
is 'the donor is used by verbs' "$(donor_column far transport)" verbs

check 'packets to queue pair 1 are lost from now on' lose_handshakes 20%
# The pusher has a connection.  Those that are begun now lose packets.
lost=0
for round in 1 2 3 4 5; do
    before=$(counter hits)
    start_pgbench 10 -S -c 6
    check "round $round: clients connect all the same" until_true 60 all_connected 5
    check "round $round: pages come from the donor" until_true 60 more_than hits $((before + 200))
    finish_pgbench "round $round"
    lost=$(lost_handshakes)
    [ "$round" -lt 2 ] || [ "$lost" -eq 0 ] || break
done
holds 'packets were lost' "$lost > 0"
check 'the network is calm again' calm
is 'the donor is used by verbs, and was not down' "$(donor_column far transport) $(donor_column far state)" 'verbs ok'
is 'nobody has given verbs up for all' "$(grep -c 'cannot be reached over verbs (' "$dir/server.log")" 0
check 'most pages come from the donor by the end' warm
is_clean 'lost handshakes'
stop_server
done_testing
