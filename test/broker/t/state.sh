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

finish
