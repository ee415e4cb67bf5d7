# A donor is killed under load: its pages are read from disk; another in its
# place is used.
. test/rdma_vm/guest/lib.sh

start_broker
start_donor near --memory 48MB
start_donor far --memory 48MB
start_server 'remote_bp.transport = verbs'
until_true 30 leased 96
check 'most pages come from the donors' warm
holds 'of one' "$(donor_column near reads) > 0"
holds 'and of the other' "$(donor_column far reads) > 0"

start_pgbench 14
sleep 2
kill_donor far
sleep 2
before=$(counter hits)
sleep 2
holds 'the other donor serves on' "$(counter hits) > $before"
holds 'pages of the dead one were read from disk' "$(counter fallbacks) > 0"
start_donor far --memory 48MB
finish_pgbench 'one donor killed'
check 'the new one is leased' until_true 60 leased 96
reads=$(donor_column far reads)
check 'most pages come from donors again' warm
holds 'some from the new one' "$(donor_column far reads) > $reads"

start_pgbench 6
kill_donor near
kill_donor far
finish_pgbench 'both killed'
is_clean 'donors killed'
stop_server
done_testing
