# The guest is what the other tests take it for: two devices that reach each
# other by the connection manager, and a cable between them that can be cut.
. test/rdma_vm/guest/lib.sh

is 'two devices are up' "$(cat /sys/class/infiniband/rxe*/ports/1/state)" $'4: ACTIVE\n4: ACTIVE'

# rping's server says "wait for CONNECTED state" when its client leaves.
talk()
{
    local server status=0

    rping -s -a "$donor_address" -C 5 >/dev/null 2>&1 &
    server=$!
    sleep 1
    timeout 20 rping -c -a "$donor_address" -C 5 || status=$?
    wait "$server"
    return "$status"
}

check 'they reach each other' talk
cable_down
is 'the cable can be cut' "$(cat /sys/class/net/v0/carrier)" 0
cable_up
check 'and mended' talk
done_testing
