#!/usr/bin/env bash
#
# Configuration files of the daemons: each option by the file and by the command line,
# and files that are wrong, which are refused with their line.

. "$(dirname "$0")/../lib.sh"

: "${RBP_DONOR:=$root/build/remote_bp_donor}"
start_broker
conf=$dir/donor.conf

# lines LINE...: the file has these
lines() { printf '%s\n' "$@" >"$conf"; }

# donor ARGUMENT...: what it says of the configuration; sets status
donor()
{
    said=$(timeout 60 "$RBP_DONOR" --config "$conf" --check-config "$@" 2>&1)
    status=$?
}

# refused NAME TEXT: the last one was, and its first line is this
refused() { is "$1" "$status ${said%%$'\n'*}" "2 remote_bp_donor: $2"; }

needed=("broker = $url" 'listen = 127.0.0.1:0' 'memory = 4MB' 'region-size = 1MB')

lines '# a donor' '' "  broker=$url  # the broker" $'listen\t= 127.0.0.1:0' 'memory = 64MB' 'region-size = 1MB' \
    'id = d1' 'memory = 4MB' 'min-free = 0' 'drain-timeout = 3' 'transports = tcp, shm'
donor
is "a file is valid, with comments and white space" "$status $said" "0 remote_bp_donor: the configuration is valid"
"$RBP_DONOR" --config "$conf" 2>"$dir/out" &
pump_pids+=($!)
until_true 20 donor_is d1 '.applied == .revision and .regions == 4 and (.transports | sort) == ["shm", "tcp"]'
point $? "a donor runs by its file, whose last line of an option counts"
kill $!
wait $!
is "it drains as long as the file says" "$? $(grep -c 'draining, for at most 3 s' "$dir/out")" "0 1"

lines "${needed[@]}" 'id = d2' 'min-free = 0'
"$RBP_DONOR" --id d3 --config "$conf" --memory=2MB 2>"$dir/out" &
pump_pids+=($!)
until_true 20 donor_is d3 '.applied == .revision and .regions == 2'
point $? "the command line wins, before --config and after it"
kill $!
wait $!

printf 'listen = 127.0.0.1:0\nstate = %s\ndonor-timeout = 2' "$dir/other.db" >"$dir/broker.conf"
: >"$dir/out"                   # what the donor said is not looked at
"$RBP_BROKER" --config "$dir/broker.conf" 2>"$dir/out" &
pump_pids+=($!)
until_true 20 grep -q 'listening on 127' "$dir/out"
point $? "a broker runs by a file without a newline at its end"
kill $!
wait $!

for name in broker listen memory; do
    lines "${needed[@]}"
    sed -i "s/^$name/#&/" "$conf"
    donor
    is "without a line for $name, the file and the line are named" "$status $(grep -c "^remote_bp_donor: $conf: there is no line \"$name = [A-Z:]*\"$" <<<"$said")" "2 1"
done
for line in 'lissten = :1' 'check-config' 'check-config = yes' "config = $conf" 'help = 1' '= 1' '--memory = 1GB' 'memory' 'memory =' 'memory = # 4MB' 'min-free = 1 2' 'memory 1GB' 'memory size = 1GB'; do
    lines "${needed[@]}" '' "$line"
    donor
    is "a line \"$line\" is refused" "$status $(grep -c "^remote_bp_donor: $conf:6: " <<<"$said")" "2 1"
done
# each option with a value that is wrong; any text is a name of a file
names=$'token-file\nbroker-ca'
while read -r name wrong; do
    names+=$'\n'$name
    lines "${needed[@]}" "$name = $wrong"
    donor
    is "a wrong $name is refused" "$status $(grep -cF "$conf:5: $name: " <<<"$said")" "2 1"
done <<END
broker nonsense
listen 7401
advertise 7401
memory 1kB
memory 10 bananas
region-size 1500kB
region-size 0
id -x
transports pigeon
rdma-listen nonsense
rdma-advertise 0.0.0.0:1
rdma-device $(printf 'x%.0s' {1..64})
rdma-port 256
rdma-gid-index -2
huge-pages maybe
numa-node 1024
min-free some
reclaim-grace 3601
drain-timeout -1
lease-connections 0
shm-users nobody-has-this-name
threads 65
spin-us 1s
log-level loud
END
is "these are all options" "$(sort -u <<<"$names")" "$("$RBP_DONOR" --help | sed -nE 's/^  --([a-z-]+)=.*/\1/p' | grep -vx config | sort)"
lines "${needed[@]}" 'region-size = 1500kB'
donor --region-size 1700kB
refused "a wrong value of the command line is not the file's" "--region-size: it must be a multiple of 1 MB"
for line in 'listen = 7400' 'donor-timeout = 1' 'log-level = loud' 'memory = 1GB'; do
    printf 'state = x\n%s\n' "$line" >"$dir/broker.conf"
    said=$("$RBP_BROKER" --config "$dir/broker.conf" 2>&1)
    is "the broker refuses \"$line\"" "$? $(grep -c "^remote_bp_broker: $dir/broker.conf:2: " <<<"$said")" "2 1"
done

printf '%s\n' "${needed[@]}" >"$dir/good"
cp "$dir/good" "$conf" && printf 'id = a\0b\n' >>"$conf"
donor
refused "a NUL is refused" "$conf:5: there is a control character (0x00)"
sed 's/$/\r/' "$dir/good" >"$conf"
donor
refused "so are the ends of lines of another system" "$conf:1: there is a control character (0x0d)"
{ cat "$dir/good" && yes '# 10 MB' | head -c 10485760; } >"$conf"
donor
refused "and a file of 10 MB" "$conf: the file is larger than 65536 bytes"
cp "$dir/good" "$conf" && chmod g+w "$conf"
donor
refused "and one that others may write" "$conf: others than its owner may write the file: chmod go-w it"
rm "$conf" && donor
refused "and one that is not there" "$conf: could not open the file: No such file or directory"
mkfifo -m 600 "$conf" && donor
refused "and a FIFO, for whose writer nobody waits" "$conf: it is not a regular file"
rm "$conf" && mkdir "$conf" && donor
refused "and a directory" "$conf: it is not a regular file"
is "--help comes before all of that" "$("$RBP_DONOR" --config "$conf" --help | head -n 1)" "remote_bp_donor lends this machine's memory to PostgreSQL servers."

finish
