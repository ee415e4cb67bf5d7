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
at_least() { [ "$(queue_pairs "$1")" -ge "$2" ]; }
same_number() { [ "$(queue_pairs rxe1 remote_bp_donor)" = "$(queue_pairs rxe0)" ]; }
no_more_than() { [ "$(queue_pairs rxe0)" -le "$1" ]; }

start_broker
start_donor far
start_server 'remote_bp.transport = verbs' 'remote_bp.max_connections = 3'
check 'most pages come from the donor' warm

# The pusher has one of its own.
start_pgbench 10 -S -c 6
check 'backends have queue pairs' until_true 120 at_least rxe0 3
check 'others are over the limit' until_true 120 more_than over_limit 0
most=0
for _ in {1..20}; do
    found=$(queue_pairs rxe0)
    most=$((found > most ? found : most))
    sleep 0.2
done
holds 'backends over the limit have no queue pair' "$most <= 4"
check 'the donor has as many' until_true 120 same_number
finish_pgbench 'six clients, three connections'
holds 'they read from disk' "$(counter over_limit) > 0"
check 'with the backends their queue pairs go' until_true 120 no_more_than 1

# Twenty queries of a few pages each, in sessions of their own.
set_server remote_bp.connect_threshold 100
before=$(counter below_threshold)
for aid in 1000 20000 40000 60000 80000; do
    query "SELECT count(filler) FROM pgbench_accounts WHERE aid = $aid" >/dev/null
done
holds 'who reads little does not connect' "$(counter below_threshold) > $before"
set_server remote_bp.connect_threshold 8

set_server remote_bp.idle_connection_timeout 2s
check 'the pusher closes what is idle' until_true 120 no_more_than 0
open_session
reads() { in_session "$scan"; at_least "$1" 1; }
check 'a session that reads has a queue pair' until_true 120 reads rxe0
check 'and loses it when it is idle' until_true 120 no_more_than 0
before=$(counter hits)
reads_again() { in_session "$scan"; more_than hits $((before + 500)); }
check 'it gets another when it reads again' until_true 120 reads_again
close_session

# From the device that is named: it has another address.
set_server remote_bp.rdma_device rxe1
open_session
check 'the named device is used' until_true 120 reads rxe1
close_session
is_clean 'connections'
stop_server
done_testing
