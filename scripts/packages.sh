# SPDX-License-Identifier: MIT OR Apache-2.0
# shellcheck shell=bash
# Sourced, after lib.sh, by the scripts that make and test packages.
#
#   install_tools NAME...   Debian packages of tools that are missing, if that is permitted
#   archive FOLDER          the source archive, made there unless DLOCK_ARCHIVE names one; prints its path
#   no_network COMMAND...   runs it where no network is
#   version                 of the packages

version=$(sed -n 's/^Version: *//p' "$root/umdk.spec")

# Of each: the tool that shows whether it is there, and the package of Debian, and of Fedora.
tool_of() {
    case $1 in
    rpm) echo rpmbuild ;;
    rpm-build) echo rpmbuild ;;
    debhelper) echo dh ;;
    dpkg-dev) echo dpkg-buildpackage ;;
    mandoc) echo mandoc ;;
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
