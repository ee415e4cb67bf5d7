#!/usr/bin/env bash
#
# A log that nobody reads, in a pipe or a socket that is full: neither a donor
# nor a broker waits for it, and what was dropped is counted.

. "$(dirname "$0")/../lib.sh"

: "${RBP_DONOR:=$root/build/remote_bp_donor}"

# Runs a program with such a standard error, and does what stdin says: fill it,
# or read what is there, to a file; wait for the program's end.
# shellcheck disable=SC2016
keep_log='
    use Fcntl; use IO::Handle; use Socket;
    my ($kind, $out, @command) = @ARGV;
    my ($read, $write);
    $kind eq "pipe" ? pipe($read, $write) : socketpair($read, $write, AF_UNIX, SOCK_STREAM, 0);
    my $pid = fork();
    if ($pid == 0) { open(STDERR, ">&", $write); exec(@command); }
    $read->blocking(0);
    STDOUT->autoflush(1);
    print "$pid\n";
    while (my $wanted = <STDIN>)
    {
        if ($wanted eq "wait\n") { waitpid($pid, 0); print $? >> 8, "\n"; last; }
        if ($wanted eq "fill\n")
        {
            my $more;
            if ($kind eq "pipe")
            {
                sysopen(my $file, "/proc/self/fd/" . fileno($write), O_WRONLY | O_NONBLOCK) or die;
                for my $size (4096, 1) { 1 while syswrite($file, "\0" x $size); }
            }
            else { 1 while defined send($write, "\0" x 4096, MSG_DONTWAIT); }
        }
        else
        {
            open(my $file, ">>", $out) or die;
            while (sysread($read, my $text, 65536)) { $text =~ tr/\0//d; print $file $text; }
            close($file);
        }
        print "done\n";
    }'

# start KIND PROGRAM ARGUMENT...: sets pid; what it logs is in $out when read
start()
{
    local kind=$1

    shift
    out=$dir/log.$kind.${1##*/}
    : >"$out"
    coproc keeper { trap - EXIT; exec perl -e "$keep_log" "$kind" "$out" "$@"; }
    read -t 60 -r pid <&"${keeper[0]}"
    pump_pids+=("$pid" "$keeper_PID")
}

ask()
{
    said=
    echo "$1" >&"${keeper[1]}"
    read -t 60 -r said <&"${keeper[0]}"
}

logged() { ask read; grep -q "$1" "$out"; }
dropped() { kill -HUP "$pid"; logged ' warning: [1-9][0-9]* messages were dropped, since the log could not be written$'; }

# it_ends NAME: by SIGTERM, with a full log
it_ends()
{
    local perl=$keeper_PID

    ask fill
    kill -TERM "$pid"
    ask wait
    is "$1" "$said" 0
    wait "$perl"
}

start_broker
for kind in pipe socket; do
    start $kind "$RBP_DONOR" --broker "$url" --listen 127.0.0.1:0 --rdma-device none --memory 64MB --region-size 64MB \
        --min-free 0 --id $kind
    until_true 60 donor_is $kind '.applied == .revision and .heard_ms != null'
    point $? "a donor that logs to a $kind"
    port=$(get ".donors[] | select(.id == \"$kind\").port")

    ask fill
    kill -HUP "$pid"
    for ((i = 0; i < 3; i++)); do
        exec 5<>"/dev/tcp/127.0.0.1/$port"
        head -c 4096 /dev/zero >&5
        timeout 60 cat <&5 >/dev/null 2>&1
        [ $? != 124 ]
        point $? "refuses client $i while the log is full"
        exec 5>&-
    done
    lease c$kind i 1
    is "a region of it is leased" "$(get .bytes)" $region
    until_true 60 donor_is $kind '.applied == .revision'
    point $? "and it knows"
    api DELETE "/v1/leases/$id" "{\"secret\":\"$secret\"}"

    ask read
    until_true 60 dropped
    point $? "when there is room again, the log tells how many messages were dropped" || diagnose "$(cat "$out")"
    until_true 60 logged "info: reloading on SIGHUP"
    point $? "and goes on"
    is "and has nothing but whole lines" "$(grep -vc '^20[^ ]*Z remote_bp_donor: [a-z]*: .' "$out")" 0
    it_ends "a donor ends on SIGTERM with a full log"
done

own_url=$url
for kind in pipe socket; do
    start $kind "$RBP_BROKER" --listen 127.0.0.1:0
    until_true 60 logged 'listening on'
    point $? "a broker that logs to a $kind"
    url=http://$(sed -n 's/.*listening on \([0-9.:]*\)$/\1/p' "$out")
    ask fill
    kill -HUP "$pid"
    register a 4 i1
    beat a i1
    is "serves donors while the log is full" "$status" 200
    lease c i 2
    is "and clients" "$(get .bytes)" $((2 * region))
    ask read
    until_true 60 dropped
    point $? "when there is room again, the log tells how many messages were dropped" || diagnose "$(cat "$out")"
    it_ends "a broker ends on SIGTERM with a full log"
done
url=$own_url

finish
