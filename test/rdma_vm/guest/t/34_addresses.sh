# Networks that are not as simple as the guest's own: several addresses on a device,
# IPv6, a VLAN, a switch with a smaller MTU; and devices that are taken away.  The
# client is that of test/card_check.
. test/rdma_vm/guest/lib.sh

export RBP_TEST_SLOW=30

# one_way add|delete FAMILY FROM TO DEVICE OTHER_DEVICE TABLE: as in network.sh
one_way()
{
    ip "$2" rule "$1" pref 1 from "$4" to "$4" lookup local &&
        ip "$2" rule "$1" pref 2 iif lo to "$4" lookup "$7" &&
        ip "$2" rule "$1" pref 2 oif "$5" to "$4" lookup "$7" || return 1
    [ "$1" = add ] || return 0
    ip "$2" route add "$4" dev "$5" src "$3" table "$7" &&
        ip "$2" neighbour replace "$4" lladdr "$(cat "/sys/class/net/$6/address")" dev "$5" nud permanent
}

# pair add|delete FAMILY NEAR FAR NEAR_DEVICE FAR_DEVICE TABLE
pair()
{
    local length=24
    local -a flags=(noprefixroute)

    [ "$2" = -4 ] || { length=64; flags+=(nodad); }
    if [ "$1" = add ]; then
        ip "$2" address add "$3/$length" dev "$5" "${flags[@]}" &&
            ip "$2" address add "$4/$length" dev "$6" "${flags[@]}" || return 1
    fi
    one_way "$1" "$2" "$3" "$4" "$5" "$6" "$7" && one_way "$1" "$2" "$4" "$3" "$6" "$5" "$(($7 + 1))" || return 1
    [ "$1" = add ] || { ip "$2" address delete "$3/$length" dev "$5" && ip "$2" address delete "$4/$length" dev "$6"; }
}

vlans_up()
{
    local n

    for n in 0 1; do
        ip link add link v$n name vlan$n type vlan id 7 &&
            echo 1 >/proc/sys/net/ipv4/conf/vlan$n/accept_local &&
            echo 0 >/proc/sys/net/ipv4/conf/vlan$n/rp_filter &&
            ip link set vlan$n up || return 1
    done
}

# To oneself is local only after the rules, as for IPv4
local_last() { ip -6 rule add pref 3 lookup local && ip -6 rule delete pref 0; }
local_first() { ip -6 rule add pref 0 lookup local && ip -6 rule delete pref 3; }

sent_by() { cat "/sys/class/net/$1/statistics/tx_packets"; }

# client ADDRESS TEST: by verbs
client()
{
    jq --arg host "$1" '.donors[0].rdma_host = $host' "$dir/lease.json" >"$dir/lease.$1.json" &&
        "${as_postgres[@]}" "$RBP_CARD_CHECK" --lease "$dir/lease.$1.json" --transport verbs --test "$2"
}

add_device()
{
    rdma link add "rxe$1" type rxe netdev "v$1" && chmod 666 /dev/infiniband/*
}

# A device is taken away while pages are read over it, and comes back.
lose_device()
{
    local n=$1 name=$2 reader removal status=0 removed=0

    client 10.77.1.2 watch >"$dir/watch.$n" 2>&1 &
    reader=$!
    check "$name: pages are read" until_true 20 grep -q reading "$dir/watch.$n"
    timeout 120 rdma link delete "rxe$n" &
    removal=$!
    wait "$reader" || status=$?
    is "$name: the reader is told so" "$status $(grep -c 'connection lost' "$dir/watch.$n")" '0 1'
    [ "$status" -eq 0 ] || diagnose "$(cat "$dir/watch.$n")"
    wait "$removal" || removed=$?
    is "$name: everybody lets go of it" "$removed" 0
    check "$name: it is back" add_device "$n"
    check "$name: pages come over it again" until_true 20 client 10.77.1.2 pages
}

check 'a second address on each device' pair add -4 10.77.1.1 10.77.1.2 v0 v1 110
check 'addresses of IPv6' local_last
check 'one on each device' pair add -6 fd77::1 fd77::2 v0 v1 112
check 'a VLAN' vlans_up
check 'with an address on each device' pair add -4 10.78.0.1 10.78.0.2 vlan0 vlan1 114

start_broker
start_donor far --memory 4MB --region-size 1MB --rdma-listen '[::]:7777'
check 'memory is leased' until_true 20 lease_memory 1048576
for address in "$donor_address" 10.77.1.2 fd77::2 10.78.0.2; do
    device=v0
    [ "$address" != 10.78.0.2 ] || device=vlan0
    before=$(sent_by "$device")
    check "pages are read over $address as they were written" client "$address" pages
    holds "they went that way" "$(sent_by "$device") - $before > 300"
done

# As by a switch that was forgotten: nobody notices before there is a large packet.
ip link set switch1 mtu 1500
said=$(client "$donor_address" pages 2>&1)
status=$?
holds 'a smaller MTU on the way: pages do not come, and nobody hangs' "$status != 0"
is 'a smaller MTU on the way: who is connected finds that out' "$(grep -cE 'cannot write: (connection lost|timed out)' <<<"$said")" 1
[ "$status" -eq 1 ] || diagnose "$said"
ip link set switch1 mtu 9000
check 'with the same MTU everywhere pages come again' client "$donor_address" pages
kill_donor far

# A donor at one address, whose device goes and comes back
start_donor far --memory 4MB --region-size 1MB --rdma-listen 10.77.1.2:7778
check 'memory is leased at another donor' until_true 20 lease_memory 1048576
lose_device 0 "the reader's device goes"
lose_device 1 "the donor's device goes"
is "the donor's log says so" \
    "$(grep -c 'device rxe1 is gone' "$dir/far.log") $(grep -c 'not listening until the device is back' "$dir/far.log") $(grep -c 'RDMA: listening again' "$dir/far.log")" '1 1 1'

pair delete -4 10.78.0.1 10.78.0.2 vlan0 vlan1 114
pair delete -6 fd77::1 fd77::2 v0 v1 112
pair delete -4 10.77.1.1 10.77.1.2 v0 v1 110
local_first
check 'the network is as before' ip link delete vlan0
ip link delete vlan1
done_testing
