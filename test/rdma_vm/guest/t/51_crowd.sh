# 500 connections at once, by processes of test/card_check, to a donor that a server
# uses: pings are answered, and the server does not take the donor for down.  Then
# the donor is started anew in their midst.
. test/rdma_vm/guest/lib.sh

export RBP_TEST_SLOW=30

# Until the lease has memory of the new donor, which knows it then
renew_lease()
{
    curl -sS --fail-with-body -H 'Content-Type: application/json' "$broker/v1/leases/$(jq -r .lease "$dir/lease.json")/renew" \
        -d "{\"secret\": \"$(jq -r .secret "$dir/lease.json")\", \"bytes\": 8388608}" | jq -e '.bytes > 0' >/dev/null
}

# A hundred processes on the processors of the donor: it goes first.
crowd()
{
    nice -n 19 "${as_postgres[@]}" "$RBP_CARD_CHECK" --lease "$dir/lease.json" --transport verbs --test crowd \
        --processes 100 --connections 5 "$@"
}

far() { start_donor far --rdma-listen "$donor_address:7777"; }
well() { [ "$(donor_column far state)" = ok ]; }

start_broker
far
start_server 'remote_bp.transport = auto' "remote_bp.buffer_tier_size = '64MB'" "remote_bp.io_timeout = '2s'"
start_pgbench 5 -S -c 2
check 'pages come from the donor' until_true 120 more_than hits 300
check 'memory is leased for the crowd' until_true 20 lease_memory 8388608

before=$(counter hits)
status=0
crowd >"$dir/crowd.out" 2>&1 || status=$?
is '500 connections at once come about and last, and pings are answered meanwhile' "$status" 0
diagnose "$(cat "$dir/crowd.out")"
check 'pages come from the donor all the while' until_true 60 more_than hits $((before + 100))
is 'the server does not take the donor for down' "$(donor_column far state) $(grep -c 'is down' "$dir/server.log")" 'ok 0'

# Once more, and amid them the donor is started anew.
mkfifo "$dir/go"
crowd --restart <"$dir/go" >"$dir/restart.out" 2>&1 &
pid=$!
exec 8>"$dir/go"
check 'they connect once more' until_true 60 grep -q connecting "$dir/restart.out"
kill_donor far
far
check 'the new donor knows the lease' until_true 60 renew_lease
echo started >&8
exec 8>&-
status=0
wait "$pid" || status=$?
is 'all connect to the donor that was started anew' "$status" 0
diagnose "$(cat "$dir/restart.out")"
check 'the server uses the donor again' until_true 60 well
before=$(counter hits)
check 'pages come from the donor again' until_true 120 more_than hits $((before + 100))
finish_pgbench 'the crowd'
is_clean 'the crowd'
stop_server
done_testing
