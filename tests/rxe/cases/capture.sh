#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# What a reader of the network sees of a client on another device: without TLS names, words and
# values; with sealed verbs none of them; with one-sided verbs beside TLS words and values.
# net: pair
set -e
name=payroll/7f3a
name_hex=$(printf %s "$name" | od -An -tx1 | tr -d ' \n')
value=5ec7e7a1b2c3d4e6 value_reversed=e6d4c3b2a1e7c75e
folder=$(mktemp -d)
capture=${RXE_BIN:?}/capture
port=21616
# shellcheck source=tests/rxe/guest/tls.sh
. tests/rxe/guest/tls.sh
tls_ca=$DLOCK_TLS_CA tls_cert=$DLOCK_TLS_CERT tls_key=$DLOCK_TLS_KEY

# Waits until a file has this line.
says() { # FILE LINE
    tries=0
    until grep -q "$2" "$1"; do
        tries=$((tries + 1))
        [ $tries -le 300 ] || { echo "no '$2' in $1:"; cat "$folder"/*.log; exit 1; }
        sleep 0.1
    done
}

# The bytes of a client's session in $folder/packets: OPTIONS of dlockd, and its fabric.
look() { # FABRIC OPTION...
    fabric=$1
    shift
    "$RXE_BIN/dlockd" --listen "$RXE_VM_IP" --port $port --device "$RXE_VM_DEV" \
        --state-file none "$@" >"$folder/ready" 2>"$folder/primary.log" &
    primary=$!
    says "$folder/ready" "^dlockd ready"
    "$capture" record "$folder/packets" >"$folder/recorder" 2>"$folder/recorder.log" &
    recorder=$!
    says "$folder/recorder" recording
    DLOCK_FABRIC=$fabric "$capture" client "$name" "$RXE_VM_IP" $port "$RXE_VM_DEV2" \
        >"$folder/client" 2>"$folder/client.log" || { cat "$folder"/*.log; exit 1; }
    kill $recorder
    wait $recorder
    kill $primary
    wait $primary
    word=$(tail -n 1 "$folder/client")
    reversed=$(echo "$word" | sed 's/\(..\)\(..\)\(..\)\(..\)/\4\3\2\1/')
    "$capture" search "$folder/packets" "$name_hex" "$value" "$value_reversed" "$word" \
        "$reversed" >"$folder/found"
    seen() { sed -n "s/^$1 //p" "$folder/found"; }
    names=$(seen "$name_hex")
    values=$(($(seen $value) + $(seen $value_reversed)))
    words=$(($(seen "$word") + $(seen "$reversed")))
    roce=$(seen roce)
    shift $(($# - 1))
    echo "  $fabric, verbs = $1: names $names, values $values, words $words, RoCE packets $roce"
    # both directions of 20 rounds of three chains
    [ "$roce" -ge 60 ] || { echo "the data path was another one"; cat "$folder"/*.log; exit 1; }
}
must() { [ "$@" ] || { echo "not: $*"; exit 1; }; }

unset DLOCK_TLS_CA DLOCK_TLS_CERT DLOCK_TLS_KEY
look verbs --insecure --verbs on
must "$names" -gt 0
must "$values" -ge 20
must "$words" -ge 20
export DLOCK_TLS_CA="$tls_ca" DLOCK_TLS_CERT="$tls_cert" DLOCK_TLS_KEY="$tls_key"
# shellcheck disable=SC2086 # several options
look sealed $primary_tls --verbs sealed
must "$names" = 0
must "$values" = 0
must "$words" = 0
# shellcheck disable=SC2086 # as above
look verbs $primary_tls --verbs one-sided
must "$names" = 0
must "$values" -ge 20
must "$words" -ge 20
