#!/usr/bin/env bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# Makes the packages twice from one source archive, and installs and uses them; nothing of it touches
# the packages of this machine. Takes four release builds, up to an hour, and installs the tools.
#   DLOCK_PACKAGES=FOLDER   keep what is made there, and use what is there already
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
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
    step "$1" "$2" bash -c "set -euo pipefail; . scripts/packages-test-parts.sh; $3" || true
}
export work scratch target_dir

part "source archive, twice" 600 archives
export DLOCK_ARCHIVE="$work/1/umdk-$version.tar.gz"
part "rpm" 3600 "rpms 1"
part "deb" 3600 "debs 1"
part "rpm, in an empty root" 600 rpm_root
part "rpm, over the packages before" 600 rpm_upgrade
part "rpmlint" 600 rpm_lint
part "deb, in an empty root" 1200 deb_root
part "docs/operations.md, step by step" 600 operations
part "service, under systemd, in a virtual machine" 1600 service
part "deb, removed and installed again" 600 deb_again
part "lintian" 600 deb_lint
part "rpm, the same again" 3600 "rpms 2"
part "deb, the same again" 3600 "debs 2"
finish packages:
