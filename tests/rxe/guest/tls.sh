# SPDX-License-Identifier: MIT OR Apache-2.0
# shellcheck shell=sh
# For the cases: a CA of this guest, and one certificate for both sides, which programs of the
# environment use. $primary_tls: the options of dlockd.
certificates=$(mktemp -d)/certs
"${RXE_BIN:?}/dlock" certs init --dir "$certificates" >/dev/null
"$RXE_BIN/dlock" certs server tester --dir "$certificates" --host "${RXE_VM_IP:?}" >/dev/null
export DLOCK_TLS_CA="$certificates/ca.crt" DLOCK_TLS_CERT="$certificates/tester.crt"
export DLOCK_TLS_KEY="$certificates/tester.key"
# shellcheck disable=SC2034 # of the cases
primary_tls="--tls-ca $DLOCK_TLS_CA --tls-cert $DLOCK_TLS_CERT --tls-key $DLOCK_TLS_KEY"
