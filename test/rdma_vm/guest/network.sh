# shellcheck shell=bash
# Sourced in the guest: its network.  Two interfaces at a switch, each with an
# address and a Soft-RoCE device:
#
#   v0  10.77.0.1  rxe0   by custom, the server's side
#   v1  10.77.0.2  rxe1   the donors' side
#
# Soft-RoCE of this kernel knows only the first network namespace, so both are
# in it.  Rules make them strangers to one another: what goes to 10.77.0.2
# leaves by v0, with 10.77.0.1 as its source if none is bound, and the other
# way round.  So a cut of v0's cable cuts both RDMA and TCP.  It leaves routes
# in place, as a real one does: a Soft-RoCE device that has a packet of the
# connection manager and no route for it never sends another one.

# shellcheck disable=SC2034
server_address=10.77.0.1
# shellcheck disable=SC2034
donor_address=10.77.0.2

network_up()
{
    local n other

    ip link set lo up
    ip link add switch mtu 9000 type bridge
    ip link set switch up
    for n in 0 1; do
        ip link add v$n mtu 9000 type veth peer name switch$n mtu 9000
        ip link set switch$n master switch
        echo 1 >/proc/sys/net/ipv4/conf/v$n/accept_local
        echo 0 >/proc/sys/net/ipv4/conf/v$n/rp_filter
        ip address add 10.77.0.$((n + 1))/24 dev v$n noprefixroute
        ip link set switch$n up
        ip link set v$n up
    done

    # To oneself as ever; to the other by the cable; what arrives is local only
    # after that.  "iif lo" is what comes from this machine; rdma_cm, which
    # makes sure that it can answer whence it was asked, says "oif" only.
    for n in 0 1; do
        other=10.77.0.$((2 - n))
        ip rule add pref 1 from "$other" to "$other" lookup local
        ip rule add pref 2 iif lo to "$other" lookup $((100 + n))
        ip rule add pref 2 oif v$n to "$other" lookup $((100 + n))
        ip route add "$other" dev v$n src 10.77.0.$((n + 1)) table $((100 + n))
        ip neighbour add "$other" lladdr "$(cat /sys/class/net/v$((1 - n))/address)" dev v$n nud permanent
    done
    ip rule add pref 3 lookup local
    ip rule del pref 0

    rdma link add rxe0 type rxe netdev v0 && rdma link add rxe1 type rxe netdev v1
}

cable_down() { ip link set switch0 down; }
cable_up() { ip link set switch0 up; }
