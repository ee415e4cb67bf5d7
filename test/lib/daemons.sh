# shellcheck shell=bash
# Sourced: start the programs on loopback, and stop what was started.

daemon_pids=()

# start_daemon LOG PROGRAM ARGUMENT...: start it and wait until it serves;
# sets daemon_address to where it listens and daemon_pid.  Daemons are given
# sessions of their own, so that Ctrl-C reaches the script alone.
start_daemon()
{
    local log=$1 try

    shift
    : >"$log"                               # now: its shell may come to it after sed looks
    setsid "$@" >"$log" 2>&1 </dev/null &
    daemon_pid=$!
    disown "$daemon_pid"                    # no message from bash when it is killed
    daemon_pids+=("$daemon_pid")
    for try in $(seq 1 1200); do
        daemon_address=$(sed -n 's/.*listening on \([^ ]*:[0-9][0-9]*\).*/\1/p' "$log" | head -n 1)
        [ -z "$daemon_address" ] || return 0
        kill -0 "$daemon_pid" 2>/dev/null || break
        sleep 0.1
    done
    echo "${1##*/} does not serve (try $try):" >&2
    tail -n 5 "$log" >&2
    return 1
}

# kill_daemon PID: kill it, and wait until it has gone.  Then stop_daemons must not know it: its
# number may be that of another process.
kill_daemon()
{
    local i

    for i in "${!daemon_pids[@]}"; do
        [ "${daemon_pids[i]}" != "$1" ] || daemon_pids[i]=none
    done
    kill -KILL "$1"
    while kill -0 "$1" 2>/dev/null; do
        sleep 0.1
    done
}

# Donors first: they ask the broker to let them go.
stop_daemons()
{
    local i pid try

    for ((i = ${#daemon_pids[@]} - 1; i >= 0; i--)); do
        pid=${daemon_pids[i]}
        kill -TERM "$pid" 2>/dev/null || continue
        for try in $(seq 1 30); do
            kill -0 "$pid" 2>/dev/null || break
            [ "$try" -lt 30 ] || kill -KILL "$pid" 2>/dev/null || true
            sleep 0.1
        done
    done
    daemon_pids=()
}
