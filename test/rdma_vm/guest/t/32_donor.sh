# What the donor does to connections under load: its process stands still, and
# who is connected reads on, because reads do not need it; it makes the keys
# of a revoked lease void at once, no query fails, and the next lease is used.
. test/rdma_vm/guest/lib.sh

lease() { query 'SELECT DISTINCT lease FROM remote_bp_leases'; }
another_lease() { [ -n "$(lease)" ] && [ "$(lease)" != "$old" ]; }

# Its memory is in huge pages, which makes no difference to who reads it.
echo 48 >/proc/sys/vm/nr_hugepages
start_broker --donor-timeout 600
start_donor far --huge-pages on
is 'the donor has huge pages' "$(grep -c 'memory: 96 MB in 12 regions of 8 MB, 96 MB in huge pages, ' "$dir/far.log")" 1
start_server 'remote_bp.transport = verbs'
check 'most pages come from the donor' warm

start_pgbench 12
connected() { [ "$(donor_column far connections)" -ge "$pgbench_clients" ]; }
check 'the clients are connected' until_true 120 connected
kill -STOP "${donor_pid[far]}"
# What it has answered, has come after this.
sleep 3
check 'stopped: pages come from the donor all the while' until_true 180 more_than hits $(($(counter hits) + 200))
kill -CONT "${donor_pid[far]}"
finish_pgbench 'stopped'
check 'stopped: most pages come from the donor afterwards' warm
is 'stopped: the donor is not down' "$(donor_column far state)" ok

old=$(lease)
start_pgbench 10 -b select-only@8 -b simple-update@2 -c 3
sleep 2
revoked() { ctl revoke "$1" || [ $? -eq 4 ]; }     # 4: the donor is late to apply it
check 'revoked: the broker ends the lease' revoked "$old"
check 'revoked: the server gets another lease' until_true 180 another_lease
finish_pgbench 'revoked'
check 'revoked: most pages come from the donor again' warm
is_clean 'donor'
stop_server
done_testing
