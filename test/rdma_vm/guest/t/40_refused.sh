# RDMA that leads nowhere, or to a stranger: under "auto", such a donor is used
# over TCP, under "verbs" not at all.
. test/rdma_vm/guest/lib.sh

start_broker
start_donor nobody --memory 32MB --rdma-advertise "$donor_address:1"
start_donor nowhere --memory 32MB --rdma-advertise 10.77.0.99:7001
start_server 'remote_bp.transport = auto' "remote_bp.buffer_tier_size = '64MB'"
check 'both donors are leased' until_true 60 leased 64
check 'most pages come from the donors' warm
# While one donor cannot be connected to yet, the other one gets all pages, and it has
# room for all: they are written once more.
used_by_tcp()
{
    query "SELECT remote_bp_evict('pgbench_accounts')" >/dev/null && scan_accounts &&
        [ "$(donor_column "$1" transport)" = tcp ]
}
check 'the donor is used by TCP where no process listens for RDMA' until_true 60 used_by_tcp nobody
check 'the donor is used by TCP where there is no host for RDMA' until_true 60 used_by_tcp nowhere
reported() { [ "$(grep -c 'cannot be reached over verbs' "$dir/server.log")" -ge 2 ]; }
check 'the log reports both donors' until_true 60 reported

set_server remote_bp.transport verbs
sleep 1
before=$(counter hits)
start_pgbench 6
finish_pgbench 'nobody and nowhere'
is 'nothing comes by verbs' "$(counter hits)" "$before"
kill_donor nobody
kill_donor nowhere

# The stranger accepts everybody, and speaks another language.
rping -s -P -a "$donor_address" -p 7999 >/dev/null 2>&1 &
stranger=$!
start_donor strange --rdma-advertise "$donor_address:7999"
set_server remote_bp.transport auto
check 'the stranger is leased' until_true 60 leased 64
check 'a stranger: most pages come from the donor' warm
is 'a stranger: the donor is used by TCP' "$(donor_column strange transport)" tcp
kill "$stranger"
wait "$stranger"
is_clean 'refused'
stop_server
done_testing
