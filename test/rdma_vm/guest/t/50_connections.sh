# Bounds on connections, counted as queue pairs: so many at most, none for
# those who read little, none for those who read nothing for long.
. test/rdma_vm/guest/lib.sh

# One session that stays, and waits for its answers.
open_session() { coproc session { "${as_postgres[@]}" psql -XAtq; }; }
in_session()
{
    local line

    printf '%s;\n\\echo done\n' "$1" >&"${session[1]}"
    while read -r -t 60 line <&"${session[0]}" && [ "$line" != "done" ]; do :; done
}
close_session() { exec {session[1]}>&-; wait "$session_PID"; }
no_more_than() { [ "$(queue_pairs rxe0)" -le "$1" ]; }

start_broker
start_donor far
start_server 'remote_bp.transport = verbs' 'remote_bp.max_connections = 3'
check 'most pages come from the donor' warm

# The pusher has one of its own.
start_pgbench 10 -S -c 6
sleep 5
found=$(queue_pairs rxe0)
holds 'backends over the limit have no queue pair' "$found >= 3 && $found <= 4"
is 'the donor has as many' "$(queue_pairs rxe1 remote_bp_donor)" "$found"
finish_pgbench 'six clients, three connections'
holds 'backends over the limit read from disk' "$(counter over_limit) > 0"
check 'with the backends their queue pairs go' until_true 10 no_more_than 1

# Queries of a few pages each, in sessions of their own.
connects() { query "SELECT calls FROM remote_bp_stat_latency WHERE operation = 'connect'"; }
set_server remote_bp.read_from auto
before=$(connects)
for aid in 1000 20000 40000 60000 80000; do
    query "SELECT count(filler) FROM pgbench_accounts WHERE aid = $aid" >/dev/null
done
is 'a backend that reads little does not connect' "$(connects)" "$before"
set_server remote_bp.read_from donor

set_server remote_bp.idle_connection_timeout 2s
sleep 4                     # the pusher's
open_session
in_session "$scan"
found=$(queue_pairs rxe0)
holds 'a session that reads has a queue pair' "$found >= 1"
check 'and loses it when it is idle' until_true 15 no_more_than $((found - 1))
before=$(counter hits)
in_session "$scan"
holds 'the session gets another queue pair when it reads again' "$(counter hits) > $before + 500"
close_session

# A GID names a device and one of its addresses.  A device alone is used only
# if the route to the donor leads through it.
gid_index_of()
{
    local gid

    for gid in "/sys/class/infiniband/$1/ports/1/gids"/*; do
        [ "$(cat "$gid")" != "$2" ] || echo "${gid##*/}"
    done 2>/dev/null
}
set_server remote_bp.rdma_device rxe1
open_session
before=$(counter hits)
in_session "$scan"
is 'a device that the route does not lead through is not used' "$(queue_pairs rxe1)" 0
is 'and nothing comes by verbs' "$(counter hits)" "$before"
close_session
set_server remote_bp.rdma_gid_index "$(gid_index_of rxe1 0000:0000:0000:0000:0000:ffff:0a4d:0002)"
open_session
in_session "$scan"
holds 'the device of the GID is used' "$(queue_pairs rxe1) >= 1"
close_session
is_clean 'connections'
stop_server
done_testing
