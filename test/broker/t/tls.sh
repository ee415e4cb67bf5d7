#!/usr/bin/env bash
#
# HTTPS: the broker's certificate, its own or another one, replaced on SIGHUP; whom
# remote_bp_ctl and donors believe, and what they send to others.

. "$(dirname "$0")/../lib.sh"

: "${RBP_DONOR:=$root/build/remote_bp_donor}"
credentials=$made/broker.credentials

# ctl ARGUMENT...: sets code, out, err
ctl()
{
    code=0
    out=$("$RBP_CTL" "$@" 2>"$dir/err") || code=$?
    err=$(cat "$dir/err")
}

# shows PIN [URL]: that is the pin of who serves there
shows() { curl -sS --pinnedpubkey "sha256//$(perl -e 'print pack "H*", shift' "$1" | base64)" -o /dev/null "${2:-$url}/healthz" 2>"$dir/err"; }

# reload TEXT: SIGHUP; waits for one more line like this in the log
reload()
{
    local before

    before=$(grep -cF "$1" "$log")
    kill -HUP "$broker_pid"
    until_true 10 eval "[ \$(grep -cF '$1' '$log') -gt $before ]"
}

# a certificate of its own
ctl --credentials "$credentials" credential add operator first
is "before there is a certificate, a credential has no pin" "$code $(cut -d . -f 4 <<<"$out") $(grep -c 'has no pin' <<<"$err")" "0 - 1"
start_broker --credentials "$credentials"
is "the broker makes key and certificate" "$(stat -c '%n %a' "$made/broker.crt" "$made/broker.key")" "$(printf '%s 600\n' "$made/broker.crt" "$made/broker.key")"
is "which the log says" "$(grep -cE "info: made \"$made/broker\.(key|crt)\"\$" "$log")" 2
is "it has a name of its own, and no end" "$(openssl x509 -in "$made/broker.crt" -noout -subject -ext subjectAltName -checkend 2000000000 | grep -cE 'CN = remote-bp-broker|DNS:remote-bp-broker|will not expire')" 3
pin=$(pin_of "$made/broker.crt")
shows "$pin"
point $? "it shows that"
shows "${pin%?}$([ "${pin: -1}" = 0 ] && echo 1 || echo 0)"
is "curl would find another one wrong" $? 90
ctl --credentials "$credentials" credential add operator '*'
operator=$out
is "a credential has its pin, found beside the file" "$code $(cut -d . -f 4 <<<"$operator") $err" "0 $pin "
reload 'info: accepting 2 credentials of'
in_file "$operator" token
ctl --broker "$url" --token-file "$dir/token" donors
is "who has it is served" "$code $err" "0 "
for version in 1.0 1.1; do
    curl -sS --tls-max $version -o /dev/null "$url/healthz" 2>/dev/null
    is "not over TLS $version" $? 35
done
curl -sS --tlsv1.3 -o /dev/null "$url/healthz"
point $? "but over 1.3"
! curl -sS -m 20 -o /dev/null "http://${url#*://}/healthz" 2>/dev/null
point $? "nor without TLS"

# who is not believed is told nothing: the secret is wrong, which the broker would log
refused() { grep -c 'refused a request' "$log"; }
before=$(refused)
wrong="operator.*.$(printf '0%.0s' {1..64})"
in_file "$wrong.$pin" other
ctl --broker "$url" --token-file "$dir/other" donors
is "a wrong secret is told to who has the pin" "$code $(grep -c 'credential is missing or wrong' <<<"$err") $(refused)" "1 1 $((before + 1))"
in_file "$wrong.$(printf '0%.0s' {1..64})" other
ctl --broker "$url" --token-file "$dir/other" donors
is "not to who has another one" "$code $(grep -c 'does not match pinned public key' <<<"$err") $(refused)" "3 1 $((before + 1))"
ctl --broker "$url" --broker-ca "$made/broker.crt" --token-file "$dir/other" donors
is "whatever the CA" "$code $(grep -c 'does not match pinned public key' <<<"$err") $(refused)" "3 1 $((before + 1))"
in_file "$wrong.-" other
ctl --broker "$url" --token-file "$dir/other" donors
is "nor, without a pin, to who has no CA's word" "$code $(grep -ci 'certificate' <<<"$err") $(refused)" "3 1 $((before + 1))"
ctl --broker "$url" --broker-ca "$made/broker.crt" --token-file "$dir/other" donors
is "nor to who has it for another host" "$code $(grep -c 'no alternative certificate subject name matches' <<<"$err") $(refused)" "3 1 $((before + 1))"
ctl --broker "http://${url#*://}" --token-file "$dir/token" donors
is "with a pin, nothing is sent without TLS" "$code $(grep -c 'needs a URL of https://' <<<"$err")" "3 1"

# the key of before, at another start
kill_broker
start_broker --credentials "$credentials"
shows "$pin"
is "another start makes none" "$? $(grep -c 'info: made' "$log")" "0 0"
kill_broker
rm "$made/broker.crt"
start_broker --credentials "$credentials"
shows "$pin"
is "for a certificate that is lost, it makes another one, with the key that it has" "$? $(grep -c 'info: made' "$log")" "0 1"

# a donor, and another key: its file has a credential with the new pin before that
donor_runs() { donor_is d1 '.state == "up" and .heard_ms < 1500'; }
ctl --credentials "$credentials" credential add donor '*'
in_file "$out" donor_token
donor_secret=${out%.*}
reload 'info: accepting 3 credentials of'
as "$operator"
"$RBP_DONOR" --broker "$url" --token-file "$dir/donor_token" --listen 127.0.0.1:0 --rdma-device none --memory 4MB --region-size 1MB --min-free 0 \
    --id d1 2>"$dir/donor.log" &
pump_pids+=($!)
until_true 20 donor_runs
point $? "a donor runs"
make_cert new
new_pin=$(pin_of "$dir/new.crt")
in_file "$donor_secret.$new_pin" donor_token
cp "$made/broker.crt" "$dir/former.crt" && cp "$made/broker.key" "$dir/former.key"
cp "$dir/new.key" "$made/broker.key"
reload "warning: certificate \"$made/broker.crt\" with key \"$made/broker.key\" is not used: The certificate and the given key do not match.; that of before stays in use"
shows "$pin"
point $? "a key without its certificate is not used"
cp "$dir/new.crt" "$made/broker.crt"
chmod 604 "$made/broker.key"
reload "with key \"$made/broker.key\" is not used: others may read it: chmod 640 it"
shows "$pin"
point $? "nor one that others may read"
chmod 600 "$made/broker.key"
: >"$made/broker.crt"
reload "is not used: "
shows "$pin"
point $? "nor an empty file"
cp "$dir/new.crt" "$made/broker.crt"
reload "info: serving HTTPS with certificate"
shows "$new_pin"
point $? "both are used from SIGHUP on"
shows "$pin"
is "and the former ones no more" $? 90
port=${url##*:}
kill_broker
start_broker --credentials "$credentials" --listen "127.0.0.1:$port"
until_true 60 grep -q 'the broker accepts the new credential of' "$dir/donor.log" && until_true 60 donor_runs
point $? "the donor has found the credential with the new pin"
stop_pumps
kill_broker

# certificates of others
make_cert here
make_cert elsewhere DNS:elsewhere.test
ctl --credentials "$credentials" --tls-cert "$dir/here.crt" credential add operator named
is "a certificate that is named has a pin, too" "$code $(cut -d . -f 4 <<<"$out")" "0 $(pin_of "$dir/here.crt")"
in_file "${out%.*}.-" ca_token
start_broker --credentials "$credentials" --tls-cert "$dir/here.crt" --tls-key "$dir/here.key"
ctl --broker "$url" --token-file "$dir/ca_token" donors
is "a CA that the system does not know" "$code $(grep -ci 'certificate' <<<"$err")" "3 1"
ctl --broker "$url" --broker-ca "$dir/here.crt" --token-file "$dir/ca_token" donors
is "is believed by --broker-ca" "$code $err" "0 "
ctl --broker "https://localhost:${url##*:}" --broker-ca "$dir/here.crt" --token-file "$dir/ca_token" donors
is "for each of its names" "$code $err" "0 "
ctl --broker "$url" --broker-ca "$dir/elsewhere.crt" --token-file "$dir/ca_token" donors
is "another CA is not" "$code $(grep -ci 'certificate' <<<"$err")" "3 1"
ctl --broker "$url" --broker-ca "$dir/none" --token-file "$dir/ca_token" donors
is "nor a file that is not there" "$code" 3
kill_broker
cat "$dir/elsewhere.crt" "$dir/here.crt" >"$dir/chain.crt"
start_broker --credentials "$credentials" --tls-cert "$dir/chain.crt" --tls-key "$dir/elsewhere.key"
is "a chain is shown as a whole" "$(openssl s_client -connect "${url#*://}" -showcerts </dev/null 2>/dev/null | grep -c 'BEGIN CERTIFICATE')" 2
ctl --broker "$url" --broker-ca "$dir/elsewhere.crt" --token-file "$dir/ca_token" donors
is "a certificate for another host is not believed" "$code $(grep -c 'no alternative certificate subject name matches' <<<"$err")" "3 1"
kill_broker
start_broker --tls-cert "$dir/here.crt" --tls-key "$dir/here.key"
ctl --broker "$url" --broker-ca "$dir/here.crt" donors
is "a broker without credentials serves HTTPS if it is given a certificate" "$url $code" "https://127.0.0.1:${url##*:} 0"
kill_broker
for files in "here.crt elsewhere.key" "none here.key" "here.crt none" "here.key here.key"; do
    read -r cert key <<<"$files"
    timeout 20 "$RBP_BROKER" --listen 127.0.0.1:0 --dir "$made" --tls-cert "$dir/$cert" --tls-key "$dir/$key" 2>"$dir/err"
    is "no broker starts with $files" "$? $(grep -cF "error: cannot use certificate \"$dir/$cert\" with key \"$dir/$key\": " "$dir/err")" "1 1"
done
start_broker
is "without any of it, it serves HTTP" "$url" "http://127.0.0.1:${url##*:}"

finish
