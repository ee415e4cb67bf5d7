# A donor is killed under load: its pages are read from disk; another in its
# place is used.
. test/rdma_vm/guest/lib.sh

start_broker
start_donor near --memory 48MB
start_donor far --memory 48MB
start_server 'remote_bp.transport = verbs'
until_true 120 leased 96
check 'most pages come from the donors' warm
check 'pages come from one donor' until_true 120 reads_more near 0
check 'pages come from the other donor' until_true 120 reads_more far 0

start_pgbench 14
before=$(counter fallbacks)
kill_donor far
check 'pages of the dead donor are read from disk' until_true 120 more_than fallbacks "$before"
before=$(counter hits)
check 'the other donor serves on' until_true 120 more_than hits "$before"
start_donor far --memory 48MB
finish_pgbench 'one donor killed'
check 'the memory of the new donor is leased' until_true 180 leased 96
reads=$(donor_column far reads)
check 'most pages come from donors again' warm
check 'some pages come from the new donor' until_true 120 reads_more far "$reads"

start_pgbench 6
kill_donor near
kill_donor far
finish_pgbench 'both killed'
is_clean 'donors killed'
stop_server
done_testing
