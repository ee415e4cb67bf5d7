# Too little memory may be locked: a donor says so at its start, or refuses
# connections later; a server goes on by TCP.
. test/rdma_vm/guest/lib.sh

start_broker

# Verbs were asked for and cannot be had: the donor does not start.
status=0
timeout 60 prlimit --memlock=4194304 "${as_postgres[@]}" "$RBP_DONOR" --broker "$broker" --id small \
    --listen "$donor_address:0" --memory 64MB --region-size 8MB --transports verbs,tcp >"$dir/small.log" 2>&1 || status=$?
holds 'a donor that cannot register its memory ends' "$status != 0 && $status != 124"
check 'a donor that cannot register its memory says why' grep -iE 'memlock|locked memory' "$dir/small.log"

# They were not asked for: it serves by TCP, and says so.
donor_limit=--memlock=4194304
start_donor small --transports auto --memory 64MB
check 'a donor with --transports auto goes on without RDMA' grep -iE 'memlock|locked memory' "$dir/small.log"
kill_donor small
donor_limit=

start_donor far
server_limit=--memlock=16384
start_server 'remote_bp.transport = auto'
check 'most pages come from the donor' warm
is 'the donor is used by TCP if the server cannot lock memory' "$(donor_column far transport)" tcp
start_pgbench 5
finish_pgbench 'no locked memory'
is_clean 'no locked memory'
stop_server
kill_donor far

# The limit sinks when the donor is at work: who connects is turned away.
server_limit=
start_donor late
prlimit --memlock=4096:4096 --pid "${donor_pid[late]}"
start_server 'remote_bp.transport = auto'
check 'most pages come from a donor that cannot register any more' warm
is 'a donor that refuses RDMA is used by TCP' "$(donor_column late transport)" tcp
is_clean 'refused'
stop_server
done_testing
