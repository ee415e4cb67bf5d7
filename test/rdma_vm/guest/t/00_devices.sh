# The guest is what the other tests take it for: two devices that reach each
# other by the connection manager, and a cable between them that can be cut.
. test/rdma_vm/guest/lib.sh

is 'two devices are up' "$(cat /sys/class/infiniband/rxe*/ports/1/state)" $'4: ACTIVE\n4: ACTIVE'

# rping's server says "wait for CONNECTED state" when its client leaves.  A client that comes before the
# server listens, or is refused, leaves the server waiting.
listens() { rdma resource show cm_id | grep -q 'state LISTEN.*comm rping'; }
talk()
{
    local server try

    for try in 1 2 3; do
        timeout 600 rping -s -a "$donor_address" -C 5 >/dev/null 2>&1 &
        server=$!
        until_true 60 listens || echo "# try $try: rping does not listen"
        if timeout 100 rping -c -a "$donor_address" -C 5; then
            wait "$server"
            return 0
        fi
        kill "$server"
        wait "$server"
    done
    return 1
}

check 'they reach each other' talk
cable_down
is 'the cable can be cut' "$(cat /sys/class/net/v0/carrier)" 0
cable_up
check 'and mended' talk
done_testing
