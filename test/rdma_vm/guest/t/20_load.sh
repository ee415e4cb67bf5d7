# pgbench with every page from a donor compared with the disk; then reads
# alone, in which the donor's processor has no part.
. test/rdma_vm/guest/lib.sh

start_broker
start_donor far
start_server
start_pgbench 15 -b select-only@6 -b simple-update@3 -b tpcb-like@1 -c 4
finish_pgbench 'reads and writes'
holds 'pages came from the donor' "$(counter hits) > 500"
holds 'and went there' "$(counter pushes) > 500"
is 'by verbs, which "auto" prefers' "$(donor_column far transport)" verbs

check 'most pages come from the donor' warm
is_clean 'by verbs'
stop_server
done_testing
