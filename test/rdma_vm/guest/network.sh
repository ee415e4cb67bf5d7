# shellcheck shell=bash
# Sourced in the guest: its network.  Two ends of a cable, each with an
# address and a Soft-RoCE device:
#
#   v0  10.77.0.1  rxe0   by custom, the server's side
#   v1  10.77.0.2  rxe1   the donors' side
#
# Soft-RoCE of this kernel knows only the first network namespace, so both are
# in it.  Rules make them strangers to one another: what goes to 10.77.0.2
# leaves by v0, with 10.77.0.1 as its source if none is bound, and the other
# way round.  So a cut of the cable cuts both RDMA and TCP.

# shellcheck disable=SC2034
server_address=10.77.0.1
# shellcheck disable=SC2034
donor_address=10.77.0.2

network_up()
{
    local side

    ip link set lo up
    ip link add v0 mtu 9000 type veth peer name v1 mtu 9000
    for side in v0 v1; do
        echo 1 >/proc/sys/net/ipv4/conf/$side/accept_local
        echo 0 >/proc/sys/net/ipv4/conf/$side/rp_filter
    done
    ip address add 10.77.0.1/24 dev v0 noprefixroute
    ip address add 10.77.0.2/24 dev v1 noprefixroute

    # To oneself as ever; to the other by the cable; what arrives is local only
    # after that.  "iif lo" is what comes from this machine; rdma_cm, which
    # makes sure that it can answer whence it was asked, says "oif" only.
    ip rule add pref 1 from 10.77.0.1 to 10.77.0.1 lookup local
    ip rule add pref 1 from 10.77.0.2 to 10.77.0.2 lookup local
    ip rule add pref 2 iif lo to 10.77.0.2 lookup 100
    ip rule add pref 2 iif lo to 10.77.0.1 lookup 101
    ip rule add pref 2 oif v0 to 10.77.0.2 lookup 100
    ip rule add pref 2 oif v1 to 10.77.0.1 lookup 101
    ip rule add pref 3 lookup local
    ip rule del pref 0

    # While the cable is cut, they are not local either.
    ip route add unreachable default table 100 metric 1000
    ip route add unreachable default table 101 metric 1000

    cable_up && rdma link add rxe0 type rxe netdev v0 && rdma link add rxe1 type rxe netdev v1
}

cable_down()
{
    ip link set v0 down
}

# What the interfaces forget when they are down is said again.
cable_up()
{
    ip link set v0 up
    ip link set v1 up
    ip neighbour replace 10.77.0.2 lladdr "$(cat /sys/class/net/v1/address)" dev v0 nud permanent
    ip neighbour replace 10.77.0.1 lladdr "$(cat /sys/class/net/v0/address)" dev v1 nud permanent
    ip route replace 10.77.0.2 dev v0 src 10.77.0.1 table 100
    ip route replace 10.77.0.1 dev v1 src 10.77.0.2 table 101
}
