# pgbench over verbs, which "auto" prefers, with every page from the donor
# compared with the disk.  That reads need nothing of the donor's processor, 32_donor tells.
. test/rdma_vm/guest/lib.sh

start_broker
start_donor far
start_server 'remote_bp.transport = auto'
start_pgbench 10 -b select-only@6 -b simple-update@3 -b tpcb-like@1 -c 4
check 'pages come from the donor' until_true 180 more_than hits 500
check 'pages go to the donor' until_true 180 more_than pushes 500
finish_pgbench 'reads and writes'
is 'the donor is read by verbs' "$(donor_column far transport)" verbs
check 'most pages come from the donor' warm

before=$(counter hits)
start_pgbench 10
check 'many pages are read' until_true 300 more_than hits $((before + 2000))
finish_pgbench 'reads'
is 'the donor is still read by verbs' "$(donor_column far transport)" verbs

set_server remote_bp.transport tcp
before=$(counter hits)
start_pgbench 10
check 'pages come from the donor, by TCP' until_true 300 more_than hits $((before + 500))
finish_pgbench 'reads by TCP'
is 'the donor is read by TCP when remote_bp.transport says so' "$(donor_column far transport)" tcp
is_clean 'load'
stop_server
done_testing
