# The donor's process stands still: who is connected reads on, because reads do
# not need it.
. test/rdma_vm/guest/lib.sh

start_broker --donor-timeout 60
start_donor far
start_server 'remote_bp.transport = verbs' "remote_bp.lease_ttl = '60s'"
check 'most pages come from the donor' warm
start_pgbench 12
sleep 2
kill -STOP "${donor_pid[far]}"
sleep 3
before=$(counter hits)
sleep 3
after=$(counter hits)
kill -CONT "${donor_pid[far]}"
holds 'pages came from the donor all the while' "$after > $before + 200"
finish_pgbench 'donor stopped'
check 'most pages come from the donor' warm
is 'which is well' "$(donor_column far state)" ok
is_clean 'donor stopped'
stop_server
done_testing
