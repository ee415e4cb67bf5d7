# The lease is revoked under load: the donor makes its keys void at once, no
# query fails, and the next lease is used.
. test/rdma_vm/guest/lib.sh

lease() { query 'SELECT DISTINCT lease FROM remote_bp_leases'; }
another_lease() { [ -n "$(lease)" ] && [ "$(lease)" != "$old" ]; }

start_broker
start_donor far
start_server 'remote_bp.transport = verbs'
check 'most pages come from the donor' warm
for turn in first second; do
    old=$(lease)
    start_pgbench 12 -b select-only@8 -b simple-update@2 -c 3
    sleep 2
    check "$turn: the lease is revoked" ctl revoke "$old"
    check "$turn: there is another one" until_true 40 another_lease
    finish_pgbench "$turn: revoked"
    check "$turn: most pages come from the donor again" warm
done
is_clean 'revoked'
stop_server
done_testing
