#!/usr/bin/env bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# Makes the packages twice from one source archive, and installs and uses them; nothing of it touches
# the packages of this machine. Takes four release builds, up to an hour, and installs the tools.
#   DLOCK_PACKAGES=FOLDER   keep what is made there, and use what is there already
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/../../scripts/lib.sh"
# shellcheck source=scripts/packages.sh
. "$root/scripts/packages.sh"
begin
work=$(realpath -m "${DLOCK_PACKAGES:-$target_dir/packages-test}")
[ -n "${DLOCK_PACKAGES:-}" ] || rm -rf "$work"
mkdir -p "$work"
scripts/setup.sh
have apt-get || { echo "packages-test: runs on Debian, where both kinds of packages can be made" >&2; exit 1; }
install_tools rpm debugedit elfutils rpmlint debhelper dpkg-dev fakeroot lintian debootstrap
export -f hardened use_installed rust_first no_network install_tools archive tool_of have
export version root

part() { # name seconds function: in a shell of its own that ends at the first failure
    step "$1" "$2" bash -c "set -euo pipefail
        . packaging/tests/parts.sh
        . packaging/tests/roots.sh
        $3" || true
}
export work scratch target_dir

# What finds most faults comes first; the second builds, which find one kind, come last.
part "source archive, twice" 600 archives
export DLOCK_ARCHIVE="$work/1/umdk-$version.tar.gz"
part "a root of Debian's" 1200 base_root
part "deb" 3600 "debs 1"
part "lintian" 600 deb_lint
part "deb, in an empty root" 600 deb_root
part "completions in bash, zsh and fish" 300 completions
part "manual pages" 300 manuals
part "docs/operations.md, step by step" 600 operations
part "rpm" 3600 "rpms 1"
part "rpmlint" 600 rpm_lint
part "rpm, in an empty root" 600 rpm_root
part "rpm, over the packages before" 600 rpm_upgrade
part "rpm, its scriptlets" 600 rpm_scriptlets
part "service, under systemd, in a virtual machine" 1800 service
part "deb, removed and installed again" 600 deb_again
part "deb, the same again" 3600 "debs 2"
part "rpm, the same again" 3600 "rpms 2"
finish packages:
