#!/usr/bin/env bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# Installs what building and testing need and this machine lacks, through the distribution's own
# package manager (Debian, Ubuntu: apt; Fedora, openEuler: dnf), if permitted: as root or with a
# passwordless sudo. It asks nothing. What it cannot install it names, with the command.
#
#   scripts/setup.sh            install; exit status 1 if something required is still missing
#   scripts/setup.sh --check    only say what is missing
#   scripts/setup.sh --rdma     also what only the tests of RDMA, of OpenSSL's callbacks and of
#                               deploy/ need; without it they are skipped
#   DLOCK_SETUP=no              the same as --check, for every script that calls this one
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"

rust_min=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
mode=${1:-}
install=yes
[ "$mode" != --check ] && [ "${DLOCK_SETUP:-yes}" != no ] || install=no

manager=
if have apt-get; then manager=apt; elif have dnf; then manager=dnf; fi

# The command prefix that may install packages; fails if there is none.
may_install() {
    [ "$install" = yes ] && [ -n "$manager" ] || return 1
    [ "$(id -u)" = 0 ] || { have sudo && sudo -n true 2>/dev/null; }
}

as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"; else sudo -n "$@"; fi
}

# Two version numbers: is the first at least the second?
at_least() { [ "$(printf '%s\n%s\n' "$2" "$1" | sort -V | head -n 1)" = "$2" ]; }

rust_version() { rustc --version 2>/dev/null | awk '{print $2}'; }

rust_good() { have cargo && have rustc && at_least "$(rust_version)" "$rust_min"; }

# tool -> its package; $1 tool
package_of() {
    case $manager:$1 in
    apt:c++) echo g++ ;;
    apt:cc) echo gcc ;;
    apt:pkg-config) echo pkg-config ;;
    apt:nm) echo binutils ;;
    dnf:c++) echo gcc-c++ ;;
    dnf:cc) echo gcc ;;
    dnf:pkg-config) echo pkgconf-pkg-config ;;
    dnf:nm) echo binutils ;;
    apt:xz) echo xz-utils ;;
    apt:cargo-clippy) echo rust-clippy ;;
    dnf:cargo-clippy) echo clippy ;;
    *:cargo-fmt) echo rustfmt ;;
    *) echo "$1" ;;
    esac
}

updated=no
install_packages() {
    if [ "$manager" = apt ]; then
        if [ "$updated" = no ]; then
            as_root apt-get -o DPkg::Lock::Timeout=300 -qq update || true
            updated=yes
        fi
        as_root env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300 \
            -qq -y --no-install-recommends install "$@"
    else
        as_root dnf -q -y install "$@"
    fi
}

command_for() {
    case $manager in
    apt) echo "apt-get install $*" ;;
    dnf) echo "dnf install $*" ;;
    *) echo "your package manager: install $*" ;;
    esac
}

lacking() { # the tools of a list that are not there
    local tool
    for tool in "$@"; do have "$tool" || printf '%s ' "$tool"; done
}

packages_of() {
    local tool
    for tool in "$@"; do printf '%s ' "$(package_of "$tool")"; done
}

# The version of a package that would be installed; empty if unknown.
offered() {
    case $manager in
    apt) apt-cache policy "$1" 2>/dev/null | awk '/Candidate:/ && $2 != "(none)" {print $2}' ;;
    dnf) dnf -q repoquery --latest-limit 1 --qf '%{version}\n' "$1" 2>/dev/null | tail -n 1 ;;
    esac
}

install_rust() {
    if [ "$install" = yes ] && have rustup; then
        rustup toolchain install stable --profile minimal -c clippy -c rustfmt </dev/null || true
        rust_good || rustup default stable </dev/null || true
        rust_good && return
    fi
    may_install || return 0
    [ "$manager" != apt ] || install_packages ca-certificates || true
    local version
    version=$(offered rustc)
    [ -n "$version" ] || version=$(offered rust)
    if [ -n "$version" ] && at_least "$version" "$rust_min"; then
        if [ "$manager" = apt ]; then
            install_packages cargo rustc rustfmt rust-clippy || true
        else
            install_packages cargo rust rustfmt clippy || true
        fi
    elif [ -n "$(offered rustup)" ]; then
        install_packages rustup || true
        if have rustup-init && ! have rustup; then # Fedora's package brings the installer only
            rustup-init -y --profile minimal -c clippy -c rustfmt --no-modify-path </dev/null || true
            PATH="${CARGO_HOME:-$HOME/.cargo}/bin:$PATH"
        else
            rustup default stable </dev/null || true
        fi
    fi
}

rust_good || install_rust
if [ "$install" = yes ] && have rustup && [ -n "$(lacking cargo-fmt cargo-clippy)" ]; then
    rustup component add rustfmt clippy </dev/null || true
fi

required=$(lacking cc c++ cmake make pkg-config nm tar xz)
optional=$(lacking valgrind strace python3 cargo-fmt cargo-clippy)
if [ -n "$required$optional" ] && may_install; then
    # shellcheck disable=SC2046,SC2086 # lists of words
    set -- $(packages_of $required $optional)
    echo "installing: $*"
    install_packages "$@" || true
fi
# Headers and libraries, for tests/verbs-abi and tests/c/cert_verify.c. tests/rxe fetches its own things.
missing_for_tests() {
    local clang
    have openssl || [ -z "$manager" ] || echo openssl
    echo '#include <openssl/ssl.h>' | cc -E - >/dev/null 2>&1 ||
        case $manager in
        apt) echo libssl-dev ;;
        dnf) echo openssl-devel ;;
        esac
    echo '#include <infiniband/verbs.h>' | cc -E - >/dev/null 2>&1 ||
        case $manager in
        apt) echo libibverbs-dev ;;
        dnf) echo rdma-core-devel ;;
        esac
    ldconfig -p 2>/dev/null | grep -qE 'libclang(-[0-9.]+)?\.so' ||
        case $manager in
        apt)
            # The library, and the headers of the compiler that bindgen reads.
            clang=$(apt-cache depends libclang1 2>/dev/null | sed -n 's/.*Depends: libclang1-//p')
            [ -z "$clang" ] || echo "libclang1 libclang-common-$clang-dev"
            ;;
        dnf) echo clang-libs clang-resource-filesystem ;;
        esac
    pkg-config --exists libnl-3.0 libnl-route-3.0 2>/dev/null ||
        case $manager in
        apt) echo libnl-3-dev libnl-route-3-dev ;;
        dnf) echo libnl3-devel ;;
        esac
}

if [ "$mode" = --rdma ] && [ -n "$(missing_for_tests)" ]; then
    if may_install; then
        [ "$manager" != apt ] || [ "$updated" = yes ] || as_root apt-get -qq update || true
        updated=yes
        # shellcheck disable=SC2046 # a list of words
        set -- $(missing_for_tests)
        echo "installing: $*"
        install_packages "$@" || true
    else
        # shellcheck disable=SC2046 # a list of words
        set -- $(missing_for_tests)
        echo "setup: missing, tests of RDMA and OpenSSL that need it are skipped: $*"
    fi
fi
# Prometheus for tests/deploy. A package of apt would start it as a service, so it is unpacked only.
fetch_prometheus() {
    local folder=$target_dir/prometheus
    if have prometheus && have promtool; then return; fi
    if [ -x "$folder/usr/bin/promtool" ] || [ "$install" = no ]; then return; fi
    echo "fetching: prometheus"
    case $manager in
    apt)
        rm -rf "$folder"
        mkdir -p "$folder"
        (cd "$folder" && apt-get -qq download prometheus && dpkg-deb -x prometheus_*.deb . &&
            rm prometheus_*.deb) || true
        ;;
    dnf) ! may_install || install_packages golang-github-prometheus || true ;;
    esac
}

if [ "$mode" = --rdma ]; then fetch_prometheus; fi
hash -r
# shellcheck disable=SC2086
required=$(lacking $required) optional=$(lacking $optional)

status=0
if ! rust_good; then
    status=1
    if have cargo; then
        echo "setup: rust $(rust_version) is too old: at least $rust_min is needed"
    else
        echo "setup: cargo and rustc are missing: at least rust $rust_min is needed"
    fi
    echo "  remedy: install rustup (https://rustup.rs), then: rustup toolchain install stable"
fi
if [ -n "$required" ]; then
    status=1
    echo "setup: missing and required: $required"
    # shellcheck disable=SC2046,SC2086
    echo "  remedy: $(command_for $(packages_of $required))   (as root)"
fi
if [ -n "$optional" ]; then
    echo "setup: missing, what needs it is skipped or fails: $optional"
    # shellcheck disable=SC2046,SC2086
    echo "  remedy: $(command_for $(packages_of $optional))   (as root)"
fi
[ "$status" != 0 ] || echo "setup: rust $(rust_version) (at least $rust_min), $(cmake --version | head -n 1), $(cc --version | head -n 1)"
exit "$status"
