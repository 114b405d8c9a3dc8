#!/usr/bin/env bash
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# Compiles the C and C++ tests and the examples against an installed prefix and runs them.
#
#   tests/c/run.sh PREFIX [NAME...]      NAME: only tests whose name contains it
#
#   FABRIC=NAME            which executor the clients use, or auto, and only what one is needed for;
#                          default: each that needs no device, and what needs none
#   DURATION=SECONDS       of each contention test (4; what the issue wants to see is 40)
#   VALGRIND=1             run the programs under valgrind instead, the long ones left out
#   TLS=1                  run the programs under TLS instead: FABRIC, or all fabrics, with certificates
#                          that are made for it by openssl
#   JOBS=N                 compilations at a time
#   BUILD_ONLY=FOLDER      compile into it, run nothing
#   BUILT=FOLDER           run the programs in this folder, which BUILD_ONLY has compiled
#   DLOCK_PROGRESS=1       also lines that begin with `progress: `, as it goes on
#
# Prints a line per test and, last, `N passed, N failed, N skipped`.
set -u
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
prefix=${1:?usage: tests/c/run.sh PREFIX [NAME...]}
prefix=$(cd "$prefix" && pwd) || exit 2
shift
only=("$@")
duration=${DURATION:-4}
include=$prefix/include/ub/umdk/ulock/dlock
lib=$prefix/lib64
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
built=${BUILT:-${BUILD_ONLY:-$work}}
mkdir -p "$built"
passed=0 failed=0 skipped=0
warnings=(-Wall -Wextra -Wpedantic -Werror)
libraries=(-L"$lib" "-Wl,-rpath,$lib" -ldlocks -ldlockc -ldlockm -pthread)
ulimit -n "$(ulimit -Hn)" 2>/dev/null

wanted() {
    [ ${#only[@]} -eq 0 ] && return 0
    local name
    for name in "${only[@]}"; do
        case $1 in *"$name"*) return 0 ;; esac
    done
    return 1
}

# test_case NAME COMMAND...: passes if the command does; its output is shown if it does not.
test_case() {
    local name=$1 start=$SECONDS
    shift
    wanted "$name" || return 0
    if "$@" >"$work/output" 2>&1 </dev/null; then
        passed=$((passed + 1))
        echo "ok      $name ($((SECONDS - start)) s)"
        grep '^  ' "$work/output"
    else
        failed=$((failed + 1))
        echo "FAILED  $name ($((SECONDS - start)) s)"
        sed 's/^/        /' "$work/output" | tail -60
    fi
}

# together GROUP NAME...: programs that mostly wait, at the same time.
together() {
    local group=$1 name start=$SECONDS
    shift
    for name in "$@"; do
        wanted "$group/$name" || continue
        {
            "$built/$name" >"$work/$name.output" 2>&1 </dev/null
            echo "$? $((SECONDS - start))" >"$work/$name.status"
        } &
    done
    wait
    for name in "$@"; do
        wanted "$group/$name" || continue
        test_case "$group/$name" recorded "$name"
    done
    echo "  together $((SECONDS - start)) s"
}

recorded() {
    local status seconds
    cat "$work/$1.output"
    read -r status seconds <"$work/$1.status"
    echo "  $1 ended after $seconds s"
    [ "$status" = 0 ]
}

# progress: lines that show that it goes on, for scripts/lib.sh and tests/rxe/run.sh.
progress() {
    if [ -n "${DLOCK_PROGRESS:-}" ]; then sed -u 's/^/progress: /'; else cat >/dev/null; fi
}

skip() {
    wanted "$1" || return 0
    skipped=$((skipped + 1))
    echo "skipped $1: $2"
}

# ---- compiling ----
header_alone() { # STANDARD HEADER
    case $1 in
    c++*) g++ -x c++ -std="$1" "${warnings[@]}" -I"$include" -fsyntax-only "$include/$2" ;;
    *) gcc -x c -std="$1" "${warnings[@]}" -I"$include" -fsyntax-only "$include/$2" ;;
    esac
}

header_strictly() { # STANDARD HEADER
    local warnings=("${warnings[@]}" -Wconversion -Wshadow -Wcast-qual -Wundef)
    header_alone "$@"
}

headers_together() { # STANDARD: the drop-in headers and dlock.h in one program
    local language=c
    case $1 in c++*) language=c++ ;; esac
    printf '#include "%s"\n' dlock_client_api.h dlock.h dlock_server_api.h dlock_log.h |
        gcc -x $language -std="$1" "${warnings[@]}" -I"$include" -fsyntax-only -
}

header_installed() { # as a program of the original includes it
    printf '#include <ub/umdk/ulock/dlock/dlock_%s_api.h>\n' client server |
        g++ -x c++ -std=c++11 "${warnings[@]}" -I"$prefix/include" -fsyntax-only -
}

have_openssl() { # its headers, 1.1.1 or later
    printf '#include <openssl/ssl.h>\n#if OPENSSL_VERSION_NUMBER < 0x10101000L\n#error old\n#endif\n' |
        gcc -x c -fsyntax-only - 2>/dev/null
}

build_c() { # SOURCE NAME STANDARD
    local libraries=("${libraries[@]}") warnings=("${warnings[@]}")
    case $2 in
    loaded) libraries=(-ldl -pthread) ;; # it finds the libraries itself
    no_libcrypto) libraries+=(-ldl) ;;
    cert_verify)
        have_openssl || return 0
        libraries+=(-lssl -lcrypto)
        ;;
    esac
    case $2 in modern* | tour | fenced_store) warnings+=(-Wconversion) ;; esac
    gcc -std="$3" -g -O1 -D_GNU_SOURCE "${warnings[@]}" -I"$include" "$1" -o "$built/$2" "${libraries[@]}"
}

build_cpp() { # SOURCE NAME STANDARD LIBRARIES...
    local source=$1 name=$2 standard=$3 warnings=("${warnings[@]}")
    shift 3
    case $name in modern*) standard=c++17 warnings+=(-Wconversion) ;; esac
    g++ -x c++ -std="$standard" -g -O1 "${warnings[@]}" -I"$include" "$source" -o "$built/$name" \
        "${@:-${libraries[@]}}"
}

build_all() {
    local source name jobs=0
    build() {
        "$@" 2>>"$work/compile.log" || echo "$*" >>"$work/compile.failed"
        echo "$*" | progress
    }
    for source in "$here"/*.c "$here"/*.cpp "$root"/examples/*.{c,cpp}; do
        name=$(basename "${source%.*}")
        case $source in
        *.c) build build_c "$source" "$name" c11 & ;;
        *) build build_cpp "$source" "$name" c++11 & ;;
        esac
        jobs=$((jobs + 1))
        [ $((jobs % ${JOBS:-4})) -eq 0 ] && wait
    done
    build build_c "$here/abi_layout.c" abi_layout_c17 c17 &
    build build_cpp "$here/abi_layout.c" abi_layout_cpp11 c++11 &
    build build_cpp "$here/abi_layout.c" abi_layout_cpp17 c++17 &
    build build_cpp "$here/abi_layout.c" abi_layout_cpp20 c++20 &
    build build_cpp "$here/one_process.cpp" one_process_cpp17 c++17 &
    # The link lines of existing build files: one library and the common one.
    build build_cpp "$root/examples/dlock_client_test.cpp" link_client c++11 \
        -L"$lib" "-Wl,-rpath,$lib" -ldlockc -ldlockm -lpthread &
    build build_cpp "$root/examples/dlock_primary_test.cpp" link_server c++11 \
        -L"$lib" "-Wl,-rpath,$lib" -ldlocks -ldlockm -lpthread &
    wait
    if [ -e "$work/compile.failed" ]; then
        tail -40 "$work/compile.log" >&2
        echo "not compiled:" >&2
        cat "$work/compile.failed" >&2
        return 1
    fi
}

# ---- what the libraries are ----
symbols_are() { # LIBRARY NAMES...
    local library=$1
    shift
    nm -D --defined-only "$lib/$library" | awk '$2 != "A" { sub(/@.*/, "", $3); print $3 }' |
        sort >"$work/symbols"
    printf '%s\n' "$@" | sort | diff - "$work/symbols"
}

declared_in() { # HEADER: the functions it declares
    sed 's@/\*.*\*/@@' "$include/$1" |
        grep -oE '^(int|void|dlock_log_callback_t|dlock_error|uint32_t|const char) [*a-z0-9_]+\(' |
        sed 's/.* \**//; s/(//' | sort -u
}

versions_are() { # LIBRARY HEADER VERSION: the version of the symbols that the header declares
    local name
    nm -D --with-symbol-versions --defined-only "$lib/$1" | awk '{ print $3 }' >"$work/versions"
    for name in $(declared_in "$2"); do
        grep -qx "$name@@$3" "$work/versions" || { grep "^$name@" "$work/versions"; return 1; }
    done
}

library_names() { # LETTER
    local file=$lib/libdlock$1.so
    [ "$(readlink "$file")" = "libdlock$1.so.0" ] &&
        [ "$(readlink "$file.0")" = "libdlock$1.so.0.0.1" ] &&
        readelf -d "$file" | grep -q "SONAME.*\[libdlock$1.so.0\]"
}

library_stripped() { # LETTER: or it is a package's, whose debug files are elsewhere
    local file=$lib/libdlock$1.so.0.0.1 debug=$lib/.debug/libdlock$1.so.0.0.1.debug
    readelf -SW "$file" | grep -q ' \.symtab ' && { echo "$file has its symbols"; return 1; }
    [ ! -d "$lib/.debug" ] || {
        readelf --string-dump=.gnu_debuglink "$file" | grep -q "libdlock$1.so.0.0.1.debug" &&
            readelf -SW "$debug" | grep -q ' \.symtab '
    }
}

count_is() { [ "$(declared_in "$1" | wc -l)" -eq "$2" ]; }

pkg_config_works() {
    local flags
    command -v pkg-config >/dev/null || return 0
    flags=$(PKG_CONFIG_PATH=$lib/pkgconfig pkg-config --cflags --libs libdlockc libdlocks libdlockm) &&
        g++ -std=c++11 "$here/one_process.cpp" -o "$work/by_pkg_config" $flags -pthread
}

# The packages replace the original's 26.06, so theirs must not be lower.
package_version() {
    local spec pattern='s/^project(.* VERSION \([0-9.]*\) .*/\1/p' file
    spec=$(sed -n 's/^Version: *//p' "$root/umdk.spec")
    for file in CMakeLists.txt cmake/CMakeLists.txt; do
        [ "$(sed -n "$pattern" "$root/$file")" = "$spec" ] || { echo "$file: not $spec"; return 1; }
    done
    grep -q "^Version: $spec\$" "$lib/pkgconfig/libdlockc.pc" || { echo "libdlockc.pc"; return 1; }
    [ "$(printf '26.06.99\n%s\n' "$spec" | sort -V | tail -n 1)" = "$spec" ]
}

# ---- examples ----
run_example() { # PROGRAM PORT
    case $1 in
    fenced_store) "$here/fenced_store.sh" "$built/$1" "$2" ;;
    tour) "$built/$1" "$2" ;;
    *) "$built/$1" -p "$2" ;;
    esac
}

examples_work() { # PRIMARY CLIENT [MORE...]
    local port status=0
    port=$((20000 + RANDOM % 12000)) # below the ports that the system hands out
    coproc PRIMARY { exec "$built/$1" -p "$port"; }
    local pid=$PRIMARY_PID line program
    read -r -t 20 line <&"${PRIMARY[0]}" || status=1
    echo "$line"
    shift
    for program in "$@"; do
        [ $status -eq 0 ] && { run_example "$program" "$port" || status=1; }
    done
    kill -TERM "$pid" 2>/dev/null
    wait "$pid" || status=1
    return $status
}

failover_works() {
    "$built/failover" "$built/dlock_primary_test" -p $((20000 + RANDOM % 12000)) -c 4 -l 50
}

# ---- the programs ----
checked() { # under valgrind: no errors, no definite leaks
    DLOCK_TEST_SLOWNESS=20 valgrind --quiet --error-exitcode=99 --leak-check=full \
        --errors-for-leak-kinds=definite --show-leak-kinds=definite --fair-sched=yes "$@"
}

# Instructions of an uncontended acquire and release through the C API, under callgrind.
instructions_of() { # KIND AT_MOST
    local count
    count=$(valgrind --tool=callgrind --callgrind-out-file=/dev/null --toggle-collect=cycles \
        "$built/instructions" "$1" 2>&1 | sed -n 's/.*Collected : *//p')
    echo "$((${count:-0} / 1000)) instructions, $2 at most"
    [ "${count:-0}" -gt 0 ] && [ "$count" -le $(($2 * 1000)) ]
}

# The program that uses OpenSSL, if it could be compiled.
cert_verify_on() { # FABRIC COMMAND...: what comes before the program
    local name=$1/cert_verify
    [ "${2:-}" = checked ] && name=valgrind/$name
    if [ "$1" = verbs ]; then
        skip "$name" "one-sided verbs beside TLS are for dlockd to ask for"
    elif [ -x "$built/cert_verify" ]; then
        test_case "$name" "${@:2}" "$built/cert_verify"
    else
        skip "$name" "no headers of OpenSSL: install libssl-dev or openssl-devel"
    fi
}

# A CA, and a certificate of it with an encrypted key, as check.h wants them.
make_certificates() { # FOLDER
    local key=(-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes)
    (
        umask 077
        mkdir -p "$1" && cd "$1" || exit
        printf 'basicConstraints=CA:FALSE\nkeyUsage=digitalSignature\n%s\n' \
            'extendedKeyUsage=clientAuth,serverAuth' >extensions
        openssl req -x509 "${key[@]}" -keyout ca.key -out ca.pem -days 2 -subj '/CN=tests of dlock' &&
            openssl req -new "${key[@]}" -keyout plain.key -out request.pem -subj /CN=test &&
            openssl x509 -req -in request.pem -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 \
                -extfile extensions -out cert.pem &&
            openssl pkcs8 -topk8 -in plain.key -v2 aes-256-cbc -v2prf hmacWithSHA256 \
                -passout 'pass:correct horse' -out key.pem
    ) >"$work/certificates.log" 2>&1
}

# All programs that say in their configuration what check.h does. The examples have no TLS in theirs,
# and without verbs the names in devices.c are not looked at.
tls_on() { # FABRIC
    local fabric=tls/$1 name
    if [ -z "${DLOCK_TEST_TLS:-}" ]; then
        if ! command -v openssl >/dev/null; then
            skip "$fabric" "openssl, which makes the certificates, is not installed"
            return
        fi
        if ! make_certificates "$work/tls"; then
            test_case "$fabric/certificates" cat_and_fail "$work/certificates.log"
            return
        fi
        export DLOCK_TEST_TLS=$work/tls
    fi
    for name in unset_fields logging one_process one_process_cpp17 one_process_c11 prebuilt \
        state_table identity good_guest strangers forked cost least_stack limits modern modern_many; do
        case $fabric/$name in
        # as below; and without TLS, which these turn off, nothing is sealed
        tls/sealed/limits | tls/sealed/one_process_cpp17) [ -n "${RXE_VM:-}" ] && continue ;;
        tls/sealed/unset_fields | tls/sealed/prebuilt) continue ;;
        esac
        test_case "$fabric/$name" "$built/$name"
    done
    together "$fabric" leases endings fair_views objects waits recovery frozen threads \
        views_and_counters unchanged
    test_case "$fabric/loaded" "$built/loaded" "$lib"
    test_case "$fabric/two_process" "$built/two_process" "$built/tls_primary"
    test_case "$fabric/contention_threads" "$built/contention" -t 8 -p 1 -d "$duration"
    test_case "$fabric/contention_processes" "$built/contention" -t 1 -p 4 -d "$duration"
    test_case "$fabric/contention_both" "$built/contention" -t 2 -p 4 -d "$duration"
    test_case "$fabric/key_password" "$built/key_password"
    as_the_original "$fabric"
}

# The CA, and a certificate of it, by the commands of the original's generator: X.509 v1 with OpenSSL
# before 3.2, and a key that is encrypted as that version does it.
make_certificates_as_the_original() { # FOLDER
    (
        umask 077
        mkdir -p "$1" && cd "$1" || exit
        openssl req -newkey rsa:2048 -passout pass:A123 -keyout ca.key -x509 -days 365 -out ca.crt \
            -subj /CN=ca &&
            openssl req -newkey rsa:2048 -passout pass:'correct horse' -keyout side.key -out side.csr \
                -subj /CN=side &&
            openssl x509 -req -days 365 -in side.csr -CA ca.crt -CAkey ca.key -passin pass:A123 \
                -CAcreateserial -out side.crt &&
            mv ca.crt ca.pem && mv side.crt cert.pem && mv side.key key.pem
    ) >"$work/certificates.log" 2>&1
}

# What the original's four tests of TLS do: transmission and recovery after a failure, with keys and
# certificates as its generator makes them.
as_the_original() { # FABRIC
    local fabric=$1/original name
    if ! make_certificates_as_the_original "$work/original"; then
        test_case "$fabric/certificates" cat_and_fail "$work/certificates.log"
        return
    fi
    for name in one_process one_process_c11 recovery key_password no_libcrypto; do
        DLOCK_TEST_TLS=$work/original test_case "$fabric/$name" "$built/$name"
    done
    DLOCK_TEST_TLS=$work/original test_case "$fabric/two_process" "$built/two_process" \
        "$built/tls_primary"
}

cat_and_fail() {
    cat "$1"
    return 1
}

run_on() { # FABRIC
    local fabric=$1 run=()
    export DLOCK_FABRIC=$fabric
    [ "$fabric" = auto ] && unset DLOCK_FABRIC
    if [ -n "${TLS:-}" ]; then
        tls_on "$fabric"
        return
    fi
    if [ -n "${VALGRIND:-}" ]; then
        if ! command -v valgrind >/dev/null; then
            skip "valgrind/$fabric" "valgrind is not installed"
            return
        fi
        # Not forked: in a child the memory of the parent's threads is lost, by nature.
        for name in unset_fields logging one_process one_process_c11 leases prebuilt state_table \
            identity objects recovery endings modern modern_many modern_flight modern_threads; do
            test_case "valgrind/$fabric/$name" checked "$built/$name"
        done
        # What AES-GCM in assembler writes is uninitialised to memcheck: memory and leaks alone.
        cert_verify_on "$fabric" checked --undef-value-errors=no
        test_case "valgrind/$fabric/two_process" checked "$built/two_process" \
            "$built/dlock_primary_test"
        [ "$fabric" = shm ] || return
        test_case "callgrind/shm/atomic" instructions_of a 911
        test_case "callgrind/shm/rw" instructions_of r 868
        test_case "callgrind/shm/rw_shared" instructions_of h 1607
        test_case "callgrind/shm/fair" instructions_of f 1854
        test_case "callgrind/shm/fair_shared" instructions_of s 1883
        return
    fi
    for name in unset_fields devices logging one_process one_process_cpp17 one_process_c11 prebuilt \
        state_table identity good_guest strangers forked cost least_stack limits descriptors \
        no_libcrypto modern modern_downgrade modern_events modern_failover modern_flight modern_forked \
        modern_frozen modern_many modern_threads; do
        # 1,000 clients need more memory than the others' virtual machine has: tests/rxe/cases/limits.sh
        # A standard of C++ makes no difference to verbs.
        case ${RXE_VM:+guest/}$fabric/$name in
        verbs/descriptors | auto/descriptors) continue ;;
        guest/verbs/descriptors | guest/verbs/limits | guest/verbs/one_process_cpp17) continue ;;
        esac
        test_case "$fabric/$name" "$built/$name"
    done
    cert_verify_on "$fabric"
    together "$fabric" leases endings fair_views objects waits recovery frozen threads \
        views_and_counters unchanged
    test_case "$fabric/loaded" "$built/loaded" "$lib"
    test_case "$fabric/two_process" "$built/two_process" "$built/dlock_primary_test"
    test_case "$fabric/examples" examples_work dlock_primary_test dlock_client_test \
        dlock_client_object_test row_locks work_queue connection_server leader_election fenced_store tour
    test_case "$fabric/examples_linked_apart" examples_work link_server link_client
    [ "$fabric" = auto ] || [ "$fabric" = verbs ] ||
        test_case "$fabric/options" "$here/options.sh" "$prefix"
    test_case "$fabric/failover" failover_works
    test_case "$fabric/contention_threads" "$built/contention" -t 8 -p 1 -d "$duration"
    test_case "$fabric/contention_processes" "$built/contention" -t 1 -p 4 -d "$duration"
    test_case "$fabric/contention_both" "$built/contention" -t 2 -p 4 -d "$duration"
}

if [ -n "${BUILD_ONLY:-}" ]; then
    build_all
    exit
fi
if [ -z "${VALGRIND:-}${TLS:-}${FABRIC:-}" ]; then
    for standard in c11 c17 c2x c++17 c++20; do
        test_case "header/dlock.h/$standard" header_strictly "$standard" dlock.h
        test_case "header/beside/$standard" headers_together "$standard"
    done
    for header in dlock_client_api.h dlock_server_api.h dlock_types.h dlock_log.h; do
        for standard in c11 c17 c2x c++11 c++17 c++20; do
            test_case "header/$header/$standard" header_alone "$standard" "$header"
        done
    done
    test_case header/installed header_installed
    test_case names "$here/names.sh" "$prefix"
    for letter in c s m; do
        test_case "library/names/$letter" library_names "$letter"
        test_case "library/stripped/$letter" library_stripped "$letter"
    done
    test_case library/declares/c count_is dlock_client_api.h 30
    test_case library/declares/s count_is dlock_server_api.h 6
    test_case library/declares/modern count_is dlock.h 37
    test_case library/symbols/c symbols_are libdlockc.so.0 $(declared_in dlock_client_api.h) \
        $(declared_in dlock.h)
    test_case library/versions versions_are libdlockc.so.0 dlock.h DLOCK_API_1
    test_case library/versions/drop_in versions_are libdlockc.so.0 dlock_client_api.h DLOCK_26.06
    test_case library/symbols/s symbols_are libdlocks.so.0 $(declared_in dlock_server_api.h)
    test_case library/symbols/m symbols_are libdlockm.so.0 $(declared_in dlock_log.h)
    test_case library/pkg_config pkg_config_works
    test_case package_version package_version
fi
# Those of the core's list that need no device.
fabrics() {
    sed -nE 's/^ *[A-Z][A-Za-z]* = [0-9]+, "([a-z]+)", (Client|Primary);$/\1/p' \
        "$root/dlock-core/src/wire/fabric.rs" | grep -vx sealed
}

# Most programs wait, or work on one processor at a time: a fabric for each of two.
fabrics_together() {
    local fabric log count
    for fabric in $(fabrics); do
        FABRIC=$fabric BUILT=$built "$here/run.sh" "$prefix" "${only[@]}" 2>&1 |
            tee "$work/$fabric.log" | progress &
    done
    wait
    for fabric in $(fabrics); do
        log=$work/$fabric.log
        grep -v ' passed, .* skipped$' "$log"
        count=$(grep ' passed, .* skipped$' "$log" || echo "0 passed, 1 failed, 0 skipped")
        read -r count _ <<<"$count" # passed
        passed=$((passed + count))
        count=$(sed -n 's/.* passed, \([0-9]*\) failed, .*/\1/p' "$log")
        failed=$((failed + ${count:-1}))
        count=$(sed -n 's/.* failed, \([0-9]*\) skipped$/\1/p' "$log")
        skipped=$((skipped + ${count:-0}))
    done
}

if [ -n "${BUILT:-}" ] || build_all; then
    if [ -z "${VALGRIND:-}${TLS:-}${FABRIC:-}" ]; then
        for name in abi_layout abi_layout_c17 abi_layout_cpp11 abi_layout_cpp17 abi_layout_cpp20; do
            test_case "$name" "$built/$name"
        done
    fi
    if [ -z "${FABRIC:-}" ]; then
        fabrics_together
    else
        for fabric in ${FABRIC:-$(fabrics)}; do
            run_on "$fabric"
        done
    fi
else
    failed=$((failed + 1))
    echo "FAILED  compiling"
fi
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
