#!/usr/bin/env bash
#
# What the state file promises by itself: rules that are in its schema, and
# that what changes nothing durable does not touch the disk.

. "$(dirname "$0")/../lib.sh"

start_broker --donor-timeout 300
register a 4 ia
beat a ia
lease c1 i1 2
beat a ia
first_id=$id first_secret=$secret
lease c2 i1 1 60000 temp
api DELETE "/v1/leases/$id" "{\"secret\":\"$secret\"}"
id=$first_id secret=$first_secret
beat a ia
beat a ia

# the log grows with each commit
written() { stat -c '%s %Y' "$state-wal" "$state"; sha256sum <"$state-wal"; }
before=$(written)
for i in 1 2 3 4 5; do renew; done
is "renewals" "$status" 200
api POST /v1/donors/a/heartbeat "{\"instance\":\"ia\",\"revision\":${revision[a]},\"grace_ms\":10000,\"reads\":7}"
is "and a heartbeat" "$status" 200
is "write nothing to the disk" "$(written)" "$before"
renew "\"bytes\":$((3 * region))"
[ "$(written)" != "$before" ]
point $? "a grant does"
has "of a region that is clean" '[.regions[].region] == [0, 1, 3]'

kill_broker
sql() { sqlite3 "$state" 'PRAGMA foreign_keys = ON' "$1" 2>&1; }
regions() { sql 'SELECT number, lease IS NOT NULL, used FROM region' | tr '\n' ' '; }
is "regions are leased, dirty, and leased anew" "$(regions)" '0|1|1 1|1|1 2|0|1 3|1|1 '
# refused WHY STATEMENT
refused() { local said; said=$(sql "$2"); [[ $said == *"$1"* ]] || { diagnose "$said"; return 1; }; }
refused 'not clean' 'UPDATE region SET lease = (SELECT key FROM lease) WHERE number = 2'
point $? "the file lets nobody grant a dirty region"
refused 'not clean' 'UPDATE region SET lease = 77 WHERE number = 0'
point $? "nor one that is leased"
refused 'CHECK' 'UPDATE region SET used = 0 WHERE number = 0'
point $? "nor call that clean"
refused 'FOREIGN KEY' 'UPDATE region SET used = 0 WHERE number = 2; UPDATE region SET lease = 77, used = 1 WHERE number = 2'
point $? "nor lease to nobody"
from=$(sql 'SELECT revision FROM donor')
is "the end of a lease makes its regions dirty" "$(sql 'DELETE FROM lease'; regions)" '0|0|1 1|0|1 2|0|0 3|0|1 '
[ "$(sql 'SELECT revision FROM donor')" -gt "$from" ]
point $? "of which the donor will learn"
start_broker
api GET /v1/donors
has "and so it is after a start" '.donors[0] | .leased == 0 and .dirty == 3 and .free == 1'

# a file that no broker has left is refused
lease c3 m/i 0
kill -TERM "$broker_pid"
wait "$broker_pid"
good=$dir/good.db bad=$dir/bad.db
cp "$state" "$good"
# loads FILE: sets said to "yes", or to the reason for which a broker refuses it.
loads()
{
    local pid

    : >"$dir/err"               # what the one before said is not looked at
    timeout 100 "$RBP_BROKER" --listen 127.0.0.1:0 --state "$1" 2>"$dir/err" &
    pid=$!
    until grep -q 'listening on' "$dir/err" || ! kill -0 "$pid" 2>/dev/null; do sleep 0.02; done
    said=yes
    kill -TERM "$pid" 2>/dev/null
    wait "$pid" || said="$? $(sed -n 's/.*error: //p' "$dir/err")"
    [ "$said" = yes ]
}
cp -p "$good" "$bad"
loads "$bad"
is "the file as the broker has left it is loaded" "$said" yes
while IFS='|' read -r reason change; do
    rm -f "$bad"*
    cp -p "$good" "$bad"
    sqlite3 "$bad" "PRAGMA foreign_keys = OFF; $change"
    ! loads "$bad" && [[ $said == "1 state file \"$bad\" is damaged: $reason"* ]]
    point $? "refused: $change" || diagnose "$said"
done <<'END'
its tables are not a broker's|DROP INDEX lease_client
its tables are not a broker's|DROP TRIGGER only_clean_is_granted; CREATE TRIGGER only_clean_is_granted BEFORE UPDATE OF lease ON region BEGIN SELECT 1; END
a row of region is of a lease that is not there|UPDATE region SET lease = 77, used = 1 WHERE number = 2
a row of region is of a donor that is not there|INSERT INTO region VALUES (77, 0, NULL, 0, 0)
donor a has other regions|DELETE FROM region WHERE number = 3
donor a has other regions|DELETE FROM region WHERE number = 0
donor a has other regions|UPDATE region SET rev = 1000 WHERE number = 3
donor a has values|UPDATE donor SET regions = 4, region_size = region_size + 1
donor a has values|UPDATE donor SET address = json_set(address, '$.id', 'b')
donor a has values|UPDATE donor SET address = json_set(address, '$.host', 1)
donor a has values|UPDATE donor SET address = json_remove(address, '$.port')
donor a/b has values|UPDATE donor SET id = 'a/b'
lease |UPDATE lease SET client = 'c' || char(7)
lease |UPDATE lease SET secret = upper(secret) || '' WHERE secret <> upper(secret)
lease |UPDATE lease SET ttl_ms = 86400001
lease  has values|UPDATE lease SET id = ''
ended lease |UPDATE ended SET how = ''
CHECK constraint failed|PRAGMA ignore_check_constraints = ON; UPDATE donor SET draining = 2
END

# a byte is another one: what is read is as it was, but for a number, or nothing is read
look() { sqlite3 "$1" .dump 'PRAGMA integrity_check' 2>&1 | tr -d 0-9; }
cp -p "$good" "$bad"
whole=$(look "$bad")
read -r -a places < <(perl -e 'local $/; open my $f, "<:raw", shift; my $all = <$f>; my @used = grep { substr($all, $_, 1) ne "\0" } 0 .. length($all) - 1;
        print join(" ", map { $used[$_ * @used / 60] } 0 .. 59), "\n"' "$good")
refusals=0 wrong=''
for place in "${places[@]}"; do
    rm -f "$bad"*
    cp -p "$good" "$bad"
    perl -e 'open my $f, "+<:raw", shift; seek $f, $ARGV[0], 0; read $f, my $byte, 1; seek $f, $ARGV[0], 0; print $f chr(255 ^ ord $byte)' "$bad" "$place"
    cp -p "$bad" "$dir/look.db"
    if loads "$bad"; then
        [ "$(look "$dir/look.db")" = "$whole" ] || wrong+="$place is loaded; "
    elif [[ $said == "1 "*"state file \"$bad\""* ]]; then
        refusals=$((refusals + 1))
    else
        wrong+="$place: $said; "
    fi
    rm -f "$dir"/look.db*
done
is "of ${#places[@]} files with one wrong byte, none is loaded that shows it" "$wrong" ""
diagnose "$refusals were refused"
[ "$refusals" -gt 20 ]
point $? "most are refused, with the reason"
start_broker
finish
