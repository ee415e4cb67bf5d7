#!/usr/bin/env bash
#
# Who may do what: roles by routes, names; credentials that change on SIGHUP, files
# that are wrong; remote_bp_ctl credential.

. "$(dirname "$0")/../lib.sh"

declare -A any
roles=(server donor operator monitor)
for role in "${roles[@]}"; do any[$role]=$(credential "$role" '*'); done
db1=$(credential server db1)
mem1=$(credential donor mem1)
ops=$(credential operator ops)
is "the file is for its owner only" "$(stat -c %a "$credentials")" 600
is "it has no secret" "$(cut -d . -f 3 <<<"$db1" | grep -cFf - "$credentials")" 0
settle_ms=1000                  # donors apply nothing here
start_broker --credentials "$credentials"

# roles by routes: a row has who may (sdom, or - for each that may not), and what they get
registration='{"id":"mem1:1","host":"h","port":1,"transports":["tcp"],"region_size":1048576,"regions":1,"instance":"i"}'
lease='{"client":"db1","instance":"i","purpose":"buffer","bytes":0,"ttl_ms":60000}'
secret=$(printf '0%.0s' {1..64})
while read -r method path may wanted body; do
    got='' expected=''
    for i in 0 1 2 3; do
        as "${any[${roles[i]}]}"
        api "$method" "$path" ${body:+"$body"}
        got+="$status "
        [ "${may:i:1}" = - ] && expected+='403 ' || expected+="$wanted "
    done
    is "$method $path is for $may" "$got" "$expected"
done <<END
GET /metrics --om 200
GET /v1/donors --om 200
GET /v1/leases --om 200
POST /v1/donors -d-- 200 $registration
POST /v1/donors/mem1:1/heartbeat -d-- 200 {"instance":"i","revision":5}
POST /v1/donors/mem1:1/drain --o- 202
POST /v1/donors/mem1:1/undrain --o- 202
POST /v1/donors/mem1:1/forget --o- 409
DELETE /v1/donors/mem1:1 -d-- 204 {"instance":"i"}
POST /v1/leases s--- 201 $lease
POST /v1/leases/none/renew s--- 404 {"secret":"$secret"}
DELETE /v1/leases/none s--- 404 {"secret":"$secret"}
POST /v1/leases/none/revoke --o- 404
GET /nonsense sdom 404
PUT /v1/leases sdom 405
GET /healthz sdom 200
END
as "${any[monitor]}"
api POST /v1/donors/x/drain
is "a 403 names the role that would do" "$(get .error)" 'monitor "*" may not do this: role operator may'
as "$mem1"
api GET /v1/leases
is "or the two that would" "$(get .error)" 'donor "mem1" may not do this: role operator or monitor may'
is "it says that this is the credential's fault" "$(curl -sS -D - -o /dev/null "${curl_auth[@]}" "$url/v1/leases" | tr -d '\r' | grep -i '^www-authenticate')" \
    'WWW-Authenticate: Bearer realm="remote_bp"'

# names of clients
as "$db1"
for client in db1:201 db1/a:201 db1/a/b:201 db10:403 db:403 Db1:403 db1x/db1:403 other/db1:403 db1.:403 '*:403'; do
    api POST /v1/leases "${lease/\"db1\"/\"${client%:*}\"}"
    is "server db1 and client ${client%:*}" "$status" "${client#*:}"
done
is "a 403 names whose it is" "$(get .error)" 'server "db1" may not do this for "*": role server of that name, or of "*", may'
as "${any[server]}"
lease other i 0
as "$db1"
renew
is "another's lease is not renewed with its secret" "$status" 403
api DELETE "/v1/leases/$id" "{\"secret\":\"$secret\"}"
is "nor given back" "$status" 403
renew '"client":"db1","new_secret":"'"$(printf 'a%.0s' {1..64})"'","instance":"mine"'
is "nor renamed to one's own" "$status" 403
as "${any[server]}"
renew
is "it is as it was" "$status $(get .client)" "200 other"
as "$db1"
lease db1 i 0
renew '"client":"other","new_secret":"'"$(printf 'a%.0s' {1..64})"'","instance":"theirs"'
is "an own lease is not given another's name" "$status" 403
renew
is "it is renewed" "$status $(get .client)" "200 db1"
secret=$(printf '0%.0s' {1..64})
renew
is "a wrong secret of a lease is not the credential's fault" "$status $(curl -sS -D - -o /dev/null "${curl_auth[@]}" --data-binary "{\"secret\":\"$secret\"}" "$url/v1/leases/$id/renew" |
    grep -ci '^www-authenticate')" "403 0"

# names of donors
as "${any[donor]}"
register mem2 1 i2
as "$mem1"
for donor in mem1:200 mem1:7001:200 mem1:a:b:200 mem10:403 mem1.b:403 mem:403 mem2:403; do
    register "${donor%:*}" 1 i1
    is "donor mem1 and id ${donor%:*}" "$status" "${donor##*:}"
done
beat mem1 i1
is "its own heartbeat" "$status" 200
api POST /v1/donors/mem2/heartbeat '{"instance":"i2","revision":0,"id":"mem1"}'
is "another's heartbeat, with its own id in the body" "$status" 403
api DELETE /v1/donors/mem2 '{"instance":"i2"}'
is "another is not removed" "$status" 403
as "$ops"
donor_is mem2 '.id == "mem2"'
point $? "it is there"
api POST /v1/donors/mem2/drain
is "an operator's name is only a name" "${status/202/200}" 200   # 202: who plays the donor is slow

# rotation
accepted() { grep -c 'info: accepting' "$log"; }
reload()
{
    local before

    before=$(grep -c "$1" "$log")
    kill -HUP "$broker_pid"
    until_true 10 eval "[ \$(grep -c '$1' '$log') -gt $before ]"
}
statuses() { for each in "$@"; do as "$each"; api GET /v1/leases; printf '%s ' "$status"; done; }
ops2=$(credential operator ops)
is "a credential is not known before SIGHUP" "$(statuses "$ops" "$ops2")" "200 401 "
reload 'info: accepting 8 credentials of'
is "then both of the name are" "$(statuses "$ops" "$ops2")" "200 200 "
"$RBP_CTL" --credentials "$credentials" --json credential list >"$dir/list"
hash=$(cut -d . -f 3 <<<"$ops" | tr -d '\n' | sha256sum | cut -c 1-64)
is "the list has the hash of each secret" "$(jq -r --arg hash "$hash" '.[] | select(.hash == $hash) | .role, .name' "$dir/list" | paste -sd ' ') $(jq length "$dir/list")" "operator ops 8"
said=$("$RBP_CTL" --credentials "$credentials" credential remove operator ops "${hash:0:12}")
is "the former one is removed" "$? $said" "0 removed 1 credential"
is "which counts from SIGHUP on" "$(statuses "$ops" "$ops2")" "200 200 "
reload 'info: accepting 7 credentials of'
is "it is not known any more" "$(statuses "$ops" "$ops2")" "401 200 "

# a faulty file changes nothing, at SIGHUP
cp -p "$credentials" "$dir/good"
hash=$(printf 'a%.0s' {1..64})
faulty()        # faulty NAME LOG: what is in the file is not used, which the log says so
{
    reload "warning: credentials file \"$credentials\" is not used: $2; those of before stay in use"
    is "$1 is not used" "$? $(statuses "$ops2" "$ops")" "0 200 401 "
    timeout 20 "$RBP_BROKER" --listen 127.0.0.1:0 --dir "$made" --credentials "$credentials" 2>"$dir/err"
    is "$1: no broker starts with it" "$? $(grep -c "error: cannot use credentials file \"$credentials\": $2\$" "$dir/err")" "1 1"
    rm -f "$credentials"
    cp -p "$dir/good" "$credentials"
}
for line in "server" "server db2" "boss db2 $hash" "server db2 $hash $hash" "server -x $hash" "server db2 ${hash%a}" "server db2 ${hash}a" "server db2 ${hash%a}g" \
    "server a/b $hash" "serverserverserver db2 $hash" "server $(printf 'x%.0s' {1..64}) $hash" "# $hash" "${any[server]}"; do
    echo "$line" >>"$credentials"
    faulty "a line \"${line:0:30}\"" 'line 8 is not "ROLE NAME SHA256-OF-SECRET"'
done
sed -i "1i server db2" "$credentials"
faulty "a file that is wrong at its beginning" 'line 1 is not "ROLE NAME SHA256-OF-SECRET"'
printf 'server db2 %s\0\n' "$hash" >>"$credentials"
faulty "a NUL" 'line 8 is not "ROLE NAME SHA256-OF-SECRET"'
: >"$credentials"
faulty "an empty file" "it is empty"
chmod 604 "$credentials"
faulty "a file that others may read" "others may read it: chmod 640 it"
rm "$credentials"
faulty "a file that is not there" "No such file or directory"
rm "$credentials" && mkfifo -m 600 "$credentials"
faulty "a FIFO" "it is not a regular file"
reload 'info: accepting 7 credentials of'
is "the good file is used again" "$? $(statuses "$ops2" "$ops")" "0 200 401 "

# remote_bp_ctl credential
ctl()
{
    code=0
    out=$("$RBP_CTL" --credentials "$credentials" "$@" 2>"$dir/err") || code=$?
}
ctl credential list
is "list" "$code $(sed -nE 's/^(donor|operator) +(mem1|ops) +[0-9a-f]{64}$/\1 \2/p' <<<"$out" | paste -sd ,)" "0 donor mem1,operator ops"
chmod 640 "$credentials"
ctl credential add monitor grafana
is "add prints a credential" "$code $(grep -cE '^monitor\.grafana\.[0-9a-f]{64}\.-$' <<<"$out")" "0 1"
is "the file keeps its mode" "$(stat -c %a "$credentials")" 640
is "without a pin, if it knows no certificate, of which it warns" "$(grep -c 'warning: without a certificate of the broker .* has no pin' "$dir/err")" 1
ctl --tls-cert "$dir/tls.crt" credential add monitor grafana
is "with one, it has the certificate's" "$code $(cut -d . -f 4 <<<"$out") $(cat "$dir/err")" "0 $(pin_of "$dir/tls.crt") "
ctl --tls-cert "$dir/tls.key" credential add monitor grafana
is "a file that is no certificate" "$code $(grep -c "cannot use certificate \"$dir/tls.key\": " "$dir/err")" "1 1"
ctl credential remove monitor grafana 0123456789
is "remove of what is not there" "$code $(grep -c 'has no such credential' "$dir/err")" "1 1"
ctl credential remove monitor grafana
is "remove" "$code $out" "0 removed 2 credentials"
head -n 1 "$credentials" >"$dir/one" && chmod 600 "$dir/one"
"$RBP_CTL" --credentials "$dir/one" credential remove server '*' >/dev/null 2>"$dir/err"
is "the last one stays: with none, the former ones would" "$? $(grep -c 'has no other credential' "$dir/err") $(wc -l <"$dir/one")" "1 1 1"
cc -O1 -shared -fPIC -o "$dir/failed_syncs.so" "$root/test/preload/failed_syncs.c" -ldl || exit 1
echo "fsync 5 $(realpath "$dir")" >"$dir/orders"
LD_PRELOAD=$dir/failed_syncs.so RBP_FAILED_SYNCS=$dir/orders "$RBP_CTL" --credentials "$dir/one" credential add server db3 >"$dir/out" 2>"$dir/err"
is "add says nothing before the directory is on the disk, too" "$? $(wc -c <"$dir/out") $(grep -c 'could not write .*: Input/output error' "$dir/err")" "1 0 1"
"$RBP_CTL" --credentials "$dir/none" credential list >/dev/null 2>&1
is "list without a file" $? 1
chmod 604 "$dir/one"
"$RBP_CTL" --credentials "$dir/one" credential add server db3 >/dev/null 2>"$dir/err"
is "a file that others may read is not changed" "$? $(grep -c 'chmod 640' "$dir/err") $(wc -l <"$dir/one")" "1 1 2"
for bad in '' 'add' 'add server' 'add boss x' 'add server -x' 'add server a/b' 'add server x y' 'list x' 'remove' 'remove server' 'remove boss x' 'change server x' \
    '--json add server x' '--tls-cert x list'; do
    # shellcheck disable=SC2086
    ctl credential $bad
    is "usage: credential $bad is refused" "$code" 2
done
"$RBP_CTL" credential list 2>/dev/null
is "usage: credential without --credentials is refused" $? 2
ctl --broker "$url" donors
is "usage: other commands do not take it" "$code" 2
ctl --broker "$url" credential list
is "usage: credential takes no --broker" "$code" 2

is "no secret is in a log" "$(cut -d . -f 3 <<<"$db1"$'\n'"$ops"$'\n'"${any[server]}" | grep -cFf - "$log")" 0
finish
