# SPDX-License-Identifier: MIT OR Apache-2.0
# shellcheck shell=bash
# Sourced, after lib.sh, by the scripts that make and test packages.
#
#   install_tools NAME...   Debian packages of tools that are missing, if that is permitted
#   archive FOLDER          the source archive, made there unless DLOCK_ARCHIVE names one; prints its path
#   no_network COMMAND...   runs it where no network is
#   $version                of the packages

# shellcheck disable=SC2154 # root is of lib.sh
version=$(sed -n 's/^Version: *//p' "$root/umdk.spec")

# The tool that shows whether a package is there.
tool_of() {
    case $1 in
    rpm) echo rpmbuild ;;
    rpm-build) echo rpmbuild ;;
    debhelper) echo dh ;;
    dpkg-dev) echo dpkg-buildpackage ;;
    elfutils) echo eu-strip ;;
    *) echo "$1" ;;
    esac
}

install_tools() {
    local name missing=()
    for name in "$@"; do have "$(tool_of "$name")" || missing+=("$name"); done
    [ ${#missing[@]} != 0 ] || return 0
    if [ "${DLOCK_SETUP:-yes}" != no ] && [ "$(id -u)" = 0 ]; then
        echo "installing: ${missing[*]}"
        if have apt-get; then
            apt-get -o DPkg::Lock::Timeout=300 -qq update || true
            DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=600 -qq -y \
                --no-install-recommends install "${missing[@]}" >/dev/null || true
        elif have dnf; then
            dnf -q -y install "${missing[@]}" || true
        fi
    fi
    hash -r
    for name in "${missing[@]}"; do
        have "$(tool_of "$name")" || { echo "missing: $name" >&2; return 1; }
    done
}

archive() {
    if [ -n "${DLOCK_ARCHIVE:-}" ]; then
        realpath "$DLOCK_ARCHIVE"
        return
    fi
    "$root/scripts/dist.sh" "$1" >&2
    echo "$1/umdk-$version.tar.gz"
}

# The loopback interface alone, in a network of its own; where that is not permitted, cargo and the
# vendored crates do without a network all the same, and this says that nothing enforces it.
no_network() {
    if unshare --net true 2>/dev/null; then
        unshare --net "$@"
    elif unshare --user --map-root-user --net true 2>/dev/null; then
        unshare --user --map-root-user --net "$@"
    else
        echo "note: the network cannot be taken away here" >&2
        "$@"
    fi
}

# The compilers themselves: a rustup proxy looks for its toolchain in a HOME that builds replace.
rust_first() {
    PATH="$(rustc --print sysroot)/bin:$PATH"
    export PATH
}

# What a distribution demands of a program or library: RELRO, BIND_NOW, PIE or shared, no executable
# stack, no RPATH. Stack protectors are for C; Rust needs none, and its compiler has none to offer.
hardened() {
    local file=$1 headers dynamic bad=()
    headers=$(readelf -W -l "$file") dynamic=$(readelf -W -d "$file")
    grep -q GNU_RELRO <<<"$headers" || bad+=("no RELRO")
    grep -qE 'BIND_NOW|FLAGS_1.*NOW' <<<"$dynamic" || bad+=("no BIND_NOW")
    ! grep -qE 'RPATH|RUNPATH' <<<"$dynamic" || bad+=("RPATH")
    ! grep -q TEXTREL <<<"$dynamic" || bad+=("text relocations")
    ! grep -E 'GNU_STACK' <<<"$headers" | grep >/dev/null 'RWE' || bad+=("executable stack")
    readelf -h "$file" | grep >/dev/null -E 'Type: +DYN' || bad+=("not position independent")
    [ ${#bad[@]} = 0 ] || { echo "$file: ${bad[*]}" >&2; return 1; }
}

# Compiles and runs users' programs against an installed prefix: those of packaging/tests, which have
# the drop-in calls, and those of examples/ that have dlock.h; in the three ways that there are, with
# the server's program DLOCKD, beside which `dlock` is: ROOT PREFIX LIBDIR DLOCKD SCRATCH
use_installed() {
    local at=$1$2 libdir=$3 dlockd=$4 work=$5 sources=$root/packaging/tests port pid=
    local include=$at/include/ub/umdk/ulock/dlock name flags
    mkdir -p "$work"
    # The build lines of the original's examples.
    c++ "$sources/program.cpp" -I "$include" -L "$at/$libdir" -ldlockc -ldlockm -lpthread -o "$work/lines"
    c++ "$sources/primary.cpp" -I "$include" -L "$at/$libdir" -ldlocks -ldlockm -lpthread \
        -o "$work/primary"
    cmake -S "$sources" -B "$work/cmake" -DCMAKE_PREFIX_PATH="$at" -DCMAKE_BUILD_TYPE=Release \
        -DCMAKE_LIBRARY_ARCHITECTURE="$(basename "$libdir")" -DLIB64="${LIB64:-OFF}" >/dev/null
    cmake --build "$work/cmake" >/dev/null
    # The prefix in the files is that of the packages; the root is where they are now.
    flags=$(PKG_CONFIG_PATH="$at/$libdir/pkgconfig" PKG_CONFIG_LIBDIR='' PKG_CONFIG_SYSROOT_DIR="$1" \
        pkg-config --cflags --libs libdlockc libdlockm)
    # shellcheck disable=SC2086 # a list of words
    c++ "$sources/program.cpp" $flags -o "$work/pkg"
    for name in tour fenced_store; do
        # shellcheck disable=SC2086
        cc "$root/examples/$name.c" -std=c11 -D_GNU_SOURCE $flags -o "$work/$name"
    done
    "$dlockd" --port 0 --verbs off --admin-socket "$work/admin" >"$work/ready" 2>"$work/errors" &
    pid=$!
    for _ in $(seq 100); do ! grep -q ready "$work/ready" || break; sleep 0.1; done
    port=$(sed -n 's/^dlockd ready: listening on 127.0.0.1:\([0-9]*\),.*/\1/p' "$work/ready")
    local failed=0 program dlock=${dlockd%/*}/dlock
    for program in lines pkg cmake/program; do
        LD_LIBRARY_PATH="$at/$libdir" timeout 60 "$work/$program" "$port" || failed=1
    done
    for program in primary cmake/primary; do
        LD_LIBRARY_PATH="$at/$libdir" timeout 60 "$work/$program" || failed=1
    done
    for program in tour cmake/tour; do
        LD_LIBRARY_PATH="$at/$libdir" timeout 120 "$work/$program" "$port" "$dlock" "$work/admin" || failed=1
    done
    LD_LIBRARY_PATH="$at/$libdir" timeout 120 "$root/tests/c/fenced_store.sh" "$work/fenced_store" \
        "$port" "$dlock" || failed=1
    kill "$pid"
    wait "$pid" || failed=1
    return "$failed"
}
