# RDMA that leads nowhere, or to a stranger: under "auto", TCP is used; under
# "verbs", the disk.
# Timeout: 240
. test/rdma_vm/guest/lib.sh

# What donors say where their RDMA is; a stranger listens at the last.
rping -s -P -a "$donor_address" -p 7999 >/dev/null 2>&1 &
stranger=$!

start_broker
for place in "$donor_address:1" 10.77.0.99:7001 "$donor_address:7999"; do
    start_donor far --rdma-advertise "$place"
    start_server 'remote_bp.transport = auto'
    check "$place: most pages come from the donor" warm
    is "$place: by TCP" "$(donor_column far transport)" tcp
    set_server remote_bp.transport verbs
    sleep 1
    before=$(counter hits)
    start_pgbench 6
    finish_pgbench "$place"
    is "$place: nothing comes by verbs" "$(counter hits)" "$before"
    is_clean "$place"
    stop_server "$place: the server"
    kill_donor far
done
kill "$stranger"
wait "$stranger"
done_testing
