#!/usr/bin/env bash
#
# The HTTP side: credentials, sizes, malformed bodies, paths and methods, health,
# slow and many connections.

. "$(dirname "$0")/../lib.sh"

right=$(credential operator ops)
start_broker --credentials "$credentials"

api GET /healthz
is "health needs no credential" "$status" 200
has "health is ok" '.status == "ok" and .version != null'
for path in /v1/donors /v1/leases /metrics /nonsense; do
    api GET $path
    is "$path needs one" "$status" 401
done
api POST /v1/leases '{}'
is "a POST needs one" "$status" 401
IFS=. read -r _ _ secret _ <<<"$right"
for bad in "Bearer ${right%.*}" "Bearer $right-" "Bearer " "$right" "Basic $right" "Bearer $secret" "Bearer operator.ops.${secret^^}.-" \
    "Bearer operator.*.$secret.-" "Bearer operator.op.$secret.-" "Bearer server.ops.$secret.-" "Bearer operator.ops.${secret%?}.-" \
    "Bearer operator.ops.$secret.0" "Bearer operator.ops.$(tr 0-9a-f 1-9a-f0 <<<"$secret").-" "Bearer $(printf '.%.0s' {1..250})"; do
    curl_auth=(-H "Authorization: $bad")
    api GET /v1/donors
    is "not with \"${bad//$secret/SECRET}\"" "$status" 401
done
for good in "Bearer $right" "bearer $right" "Bearer ${right%.*}.-" "Bearer ${right%.*}.$(printf 'a%.0s' {1..64})"; do
    curl_auth=(-H "Authorization: $good")
    api GET /v1/donors
    is "but with \"${good//$secret/SECRET}\"" "$status" 200
done
is "the credential is in no log" "$(grep -c "$secret" "$log")" 0
kill_broker

# what follows is the same for all
curl_auth=()
start_broker

for path in /nonsense / /v1 /v1/donors/ /v1/donors/a/b /v1/leases/x/renew/y //v1/donors /v1/donors/a/heartbeat/; do
    api GET "$path"
    is "GET $path is not there" "$status" 404
done
api GET /v1/leases/x/renew
is "GET of what wants POST" "$status" 405
api PUT /v1/leases '{}'
is "PUT" "$status" 405
api POST /healthz '{}'
is "POST to health" "$status" 405

good='"client":"c","instance":"i","purpose":"buffer","bytes":1,"ttl_ms":5000'
for body in '' '{' '[]' '"x"' '1' 'null' '{"client":' "{$good}x" "{$good,\"bytes\":2}" '{}' \
    '{"client":1,"instance":"i","purpose":"buffer","bytes":1,"ttl_ms":5000}' \
    '{"client":"","instance":"i","purpose":"buffer","bytes":1,"ttl_ms":5000}' \
    '{"client":"a\u0007b","instance":"i","purpose":"buffer","bytes":1,"ttl_ms":5000}' \
    '{"client":"a\u0000b","instance":"i","purpose":"buffer","bytes":1,"ttl_ms":5000}' \
    "{\"client\":\"$(printf 'x%.0s' {1..200})\",\"instance\":\"i\",\"purpose\":\"buffer\",\"bytes\":1,\"ttl_ms\":5000}" \
    '{"client":"c","instance":"i","purpose":"other","bytes":1,"ttl_ms":5000}' \
    '{"client":"c","instance":"i","purpose":"buffer","bytes":-1,"ttl_ms":5000}' \
    '{"client":"c","instance":"i","purpose":"buffer","bytes":1.5,"ttl_ms":5000}' \
    '{"client":"c","instance":"i","purpose":"buffer","bytes":"1","ttl_ms":5000}' \
    '{"client":"c","instance":"i","purpose":"buffer","bytes":99999999999999999999,"ttl_ms":5000}' \
    '{"client":"c","instance":"i","purpose":"buffer","bytes":1,"ttl_ms":1}' \
    '{"client":"c","instance":"i","purpose":"buffer","bytes":1}'; do
    api POST /v1/leases "$body"
    is "400 for ${body:0:60}" "$status $(get '.error | length > 0')" "400 true"
done
printf '{"client":"a\xff\xfe"}' >"$dir/binary"
api POST /v1/leases "@$dir/binary"
is "400 for what is not UTF-8" "$status" 400

donor='"host":"h","port":1,"transports":["tcp"],"region_size":1048576,"regions":1,"instance":"i"'
for body in "{\"id\":\"a b\",$donor}" "{\"id\":\"../x\",$donor}" "{\"id\":\"-x\",$donor}" "{\"id\":\"a/b\",$donor}" \
    "{$donor}" "$(sed 's/1048576/1048577/' <<<"{\"id\":\"a\",$donor}")" "$(sed 's/"regions":1/"regions":65537/' <<<"{\"id\":\"a\",$donor}")" \
    "$(sed 's/"regions":1/"regions":0/' <<<"{\"id\":\"a\",$donor}")" "$(sed 's/\["tcp"\]/[]/' <<<"{\"id\":\"a\",$donor}")" \
    "$(sed 's/\["tcp"\]/"tcp"/' <<<"{\"id\":\"a\",$donor}")" "$(sed 's/"port":1/"port":65536/' <<<"{\"id\":\"a\",$donor}")" \
    "$(sed 's/"port":1/"port":0/' <<<"{\"id\":\"a\",$donor}")" "$(sed 's/"port":1,//' <<<"{\"id\":\"a\",$donor}")" \
    "$(sed 's/"tcp"/"tcp","verbs"/' <<<"{\"id\":\"a\",$donor}")" \
    "{\"id\":\"a\",\"rdma_host\":\"h\",$donor}" "{\"id\":\"a\",\"rdma_port\":1,$donor}" \
    "{\"id\":\"a\",\"rdma_host\":\"h\",\"rdma_port\":65536,$donor}" "{\"id\":\"a\",\"rdma_host\":\"\",\"rdma_port\":1,$donor}"; do
    api POST /v1/donors "$body"
    is "400 for ${body:0:70}" "$status" 400
done
api GET /v1/donors
has "none of that left a donor" '.donors == []'
api GET /v1/leases
has "none of that left a lease" '.leases == []'

# sizes
head -c 1048577 /dev/zero | tr '\0' ' ' >"$dir/large"
api POST /v1/leases "@$dir/large"
is "a body of more than 1 MiB" "$status" 413
( head -c 1000000 /dev/zero | tr '\0' ' '; echo "{$good}" ) >"$dir/fits"
api POST /v1/leases "@$dir/fits"
is "a body that just fits" "$status" 201
said=$(curl -sS -m 20 "${curl_auth[@]}" -X POST -H 'Transfer-Encoding: chunked' --data-binary "@$dir/large" -o /dev/null -w '%{http_code}' "$url/v1/leases")
is "a chunked body of more than 1 MiB" "$said" 413
head -c 1000000 /dev/zero | tr '\0' '[' >"$dir/deep"
api POST /v1/leases "@$dir/deep"
is "a million brackets" "$status" 413
head -c 100000 /dev/zero | tr '\0' '[' >"$dir/deep"
api POST /v1/leases "@$dir/deep"
is "a hundred thousand" "$status" 413
for n in 7 2000; do
    api POST /v1/leases "{${good/buffer/temp},\"x\":$(printf '[%.0s' $(seq $n))$(printf ']%.0s' $(seq $n))}"
    is "$n brackets, closed again" "$status" $((n == 7 ? 201 : 413))
done
api POST /v1/donors "$(sed 's/1048576/1099511627776/; s/"regions":1/"regions":65536/' <<<"{\"id\":\"a\",$donor}")"
is "a donor of 64 PiB" "$status" 400
api POST "/v1/donors/$(printf 'x%.0s' {1..2000})/drain"
is "a long id" "$status" 404
api POST /v1/donors/%ff%01%2e/drain
is "a strange id" "$status" 404

# what is slow or silent does not keep others out
exec {slow}<>"/dev/tcp/127.0.0.1/${url##*:}"
printf 'POST /v1/leases HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{' >&"$slow"
for ((i = 0; i < 50; i++)); do exec {fd}<>"/dev/tcp/127.0.0.1/${url##*:}"; silent[i]=$fd; done
api GET /v1/donors
is "with slow and silent connections it goes on" "$status" 200
exec {slow}>&-
for fd in "${silent[@]}"; do exec {fd}>&-; done

register a:1 4 i1

# a value takes some hundred bytes when it is decoded, also where its text has three
( printf '{%s,"x":[0' "$good"; head -c 392000 /dev/zero | sed 's/\x0\x0/,0/g'; printf ']}' ) >"$dir/values"
api POST /v1/leases "@$dir/values"
is "a body of 196,000 values" "$status" 201
( printf '{%s,"x":[0' "$good"; head -c 394000 /dev/zero | sed 's/\x0\x0/,0/g'; printf ']}' ) >"$dir/values"
api POST /v1/leases "@$dir/values"
is "a body of 197,000 values" "$status $(get .error)" "413 the body has more than 196608 values, or is nested deeper than 8 levels"
( printf '{"x":[{}'; head -c 1000000 /dev/zero | sed 's/\x0\x0\x0/,{}/g' | tr -d '\0'; printf ']}' ) >"$dir/values"
many=()
for ((i = 0; i < 32; i++)); do
    # one that has waited for too long for its turn is closed: 000
    for ((try = 0; try < 10; try++)); do
        curl -sS -m 60 "${curl_auth[@]}" --data-binary "@$dir/values" -o /dev/null -w '%{http_code}\n' "$url/v1/leases" >"$dir/many$i"
        [ "$(cat "$dir/many$i")" = 000 ] || break
    done &
    many+=($!)
done
wait "${many[@]}"
is "32 bodies of a third of a million objects" "$(cat "$dir"/many* | sort -u)" 413
[ "$(sed -n 's/^VmHWM:\s*\([0-9]*\) kB$/\1/p' "/proc/$broker_pid/status")" -lt 500000 ]
point $? "the broker has decoded none of them" || diagnose "$(grep VmHWM "/proc/$broker_pid/status")"

# heartbeats: each region and each lease once, and one of a donor at a time, which waits for
# a second where nothing is new
beat a:1 i1 '"clean":[0,1,2,3]'
is "a heartbeat with all regions" "$status" 200
beat a:1 i1 '"clean":[0,1,2,3,0]'
is "a heartbeat with more regions than there are" "$status" 400
beat a:1 i1 '"ended":["a","b","c","d","e"]'
is "a heartbeat with more leases than there can be" "$status" 400
start_beats()                   # start_beats NUMBER
{
    many=()
    for ((i = 0; i < $1; i++)); do
        curl -sS -m 120 "${curl_auth[@]}" --data-binary "{\"instance\":\"ib\",\"revision\":${revision[b]}}" \
            -o "$dir/beat$i" "$url/v1/donors/b/heartbeat" &
        many+=($!)
    done
}
register b 4 ib
beat b ib                       # from here on nothing is new
start=${EPOCHREALTIME/[.,]/}
start_beats 4
wait "${many[@]}"
is "four heartbeats at once are answered" "$(cat "$dir"/beat* | grep -o revision | wc -l)" 4
took=$((${EPOCHREALTIME/[.,]/} - start))
diagnose "that took $took us"
[ "$took" -ge 3000000 ]
point $? "one after the other: each waits for its turn"
rm "$dir"/beat*
start_beats 16
answered() { cat "$dir"/beat* 2>/dev/null | grep -q revision; }
until_true 60 answered
point $? "of 16 heartbeats at once, one is answered"
kill "${many[@]}" 2>/dev/null
wait "${many[@]}"
served() { beat b ib; [ "$status" = 200 ]; }
until_true 120 served
is "then it is the turn of the next one" "$status" 200

# what is written down
is "a secret is in no log" "$(grep -cE '[0-9a-f]{64}' "$log")" 0

finish
