#!/usr/bin/env bash
#
# A donor and the memory of its machine: it takes no more than is available,
# gives up when that becomes less while it takes it, and dies before others.

. "$(dirname "$0")/../lib.sh"

: "${RBP_DONOR:=$root/build/remote_bp_donor}"
start_broker
donor=("$RBP_DONOR" --broker "$url" --listen 127.0.0.1:0 --rdma-device none)
plain=("${donor[@]}" --huge-pages off)     # what is in huge pages is not taken from others

total_kb=$(sed -n 's/^MemTotal: *\([0-9]*\) kB$/\1/p' /proc/meminfo)
timeout -k 1 60 "${plain[@]}" --memory "$((total_kb + 1048576))kB" --region-size 1GB --min-free 0 2>"$dir/out"
is "more memory than the machine has" $? 1
grep -Eq 'error: --memory is [0-9.]+ [MGT]B, but [0-9.]+ [MGT]B are available, and --min-free leaves 0 B of that to others; use --memory [0-9]+MB or less' "$dir/out"
point $? "is refused, with what there is" || diagnose "$(cat "$dir/out")"

# Two more huge pages than there are.
free=$(awk '$1 == "HugePages_Free:" { n += $2 } $1 == "HugePages_Rsvd:" { n -= $2 } END { print n + 0 }' /proc/meminfo)
huge=("${donor[@]}" --memory "$((2 * (free + 2)))MB" --region-size 2MB)
timeout -k 1 60 "${huge[@]}" --huge-pages on 2>"$dir/out"
is "--huge-pages on, without enough of them" $? 1
grep -Eq "error: could not get memory for region [0-9]+ of $((free + 2)): .*; --huge-pages is on, and needs $((free + 2)) free huge pages of 2 MB \(vm.nr_hugepages\)" "$dir/out"
point $? "is refused" || diagnose "$(cat "$dir/out")"
for how in try off; do
    "${huge[@]}" --huge-pages $how --id $how 2>"$dir/out" &
    pump_pids+=($!)
    until_true 30 donor_is $how '.applied == .revision'
    point $? "--huge-pages $how"
    grep -Eq "memory: .* in $((free + 2)) regions of 2 MB, .*[0-9] [MGT]B in (transparent huge|plain) pages, " "$dir/out"
    point $? "takes others" || diagnose "$(cat "$dir/out")"
    kill $!
    wait $!
done

# No memory can be locked.
bash -c 'ulimit -l 0; exec "$@"' - "${donor[@]}" --memory 4MB --region-size 1MB --min-free 0 --id swapped 2>"$dir/out" &
pump_pids+=($!)
until_true 30 donor_is swapped '.stats.locked == 0'
point $? "a donor tells that its memory is not locked" || diagnose "$(cat "$dir/out")"
kill $!
wait $!

# A machine of 1 GB, of which 300 MB are available; its 20th is 51 MB.
printf 'MemTotal: 1048576 kB\nMemAvailable: 307200 kB\n' >"$dir/meminfo"
export REMOTE_BP_TEST_MEMINFO=$dir/meminfo
timeout -k 1 60 "${plain[@]}" --memory 256MB 2>"$dir/out"
is "what would leave too little to others" $? 1
grep -q 'but 300 MB are available, and --min-free leaves 51.2 MB of that to others; use --memory 248MB or less' "$dir/out"
point $? "is refused as well"  || diagnose "$(cat "$dir/out")"

# Each look at the machine opens the file twice.  Each time it finds a pipe of its own,
# since the next one is there before the donor can have read anything from this one.
printf 'MemTotal: 1048576 kB\nMemAvailable: 1048576 kB\n' >"$dir/enough"
printf 'MemTotal: 1048576 kB\nMemAvailable: 65536 kB\n' >"$dir/short"
mkfifo "$dir/machine"
(
    trap - EXIT
    for ((i = 0; ; i++)); do
        mkfifo "$dir/next"
        exec 3>"$dir/machine"           # waits for the donor to open it
        mv "$dir/next" "$dir/machine"
        if ((i < 12)); then cat "$dir/enough"; else cat "$dir/short"; fi >&3
        exec 3>&-
    done
) 2>/dev/null &
pump_pids+=($!)
REMOTE_BP_TEST_MEMINFO=$dir/machine timeout -k 1 60 "${plain[@]}" --memory 640MB --region-size 16MB --min-free 100MB 2>"$dir/out"
is "memory that becomes short while it is taken" $? 1
grep -q 'error: could not get memory for region 5 of 40: Cannot allocate memory; the machine would have less left than --min-free' "$dir/out"
point $? "is given up" || diagnose "$(cat "$dir/out")"

# What there is not to be seen does not stop it.
REMOTE_BP_TEST_MEMINFO=$dir/none "${donor[@]}" --memory 4MB --region-size 1MB --id blind 2>"$dir/out" &
blind=$!
pump_pids+=("$blind")
until_true 30 donor_is blind '.applied == .revision'
point $? "a donor that cannot see what there is"
is "dies before all others" "$(cat /proc/$blind/oom_score_adj)" 1000

# Later it becomes short: what is free goes back to the system.
printf 'MemTotal: 1048576 kB\nMemAvailable: 524288 kB\n' >"$dir/meminfo"
"${plain[@]}" --memory 64MB --region-size 16MB --id tight 2>"$dir/out" &
pump_pids+=($!)
until_true 30 donor_is tight '.free == 4 and .applied == .revision'
point $? "a donor with a 20th left to others by default"
printf 'MemTotal: 1048576 kB\nMemAvailable: 10240 kB\n' >"$dir/meminfo"
until_true 30 donor_is tight '.stats.released_regions >= 3'
point $? "gives memory back when there is less"

finish
