#!/usr/bin/env bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# Debian packages from the source archive, without a network: FOLDER (default: deb in the target
# folder) gets them and their source package.
#   DLOCK_ARCHIVE=FILE   from this archive, instead of the commit that is checked out
# Where Rust is not installed from Debian's packages, dpkg cannot know that it is there: then, and only
# then, the build dependencies are not checked (-d).
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=scripts/packages.sh
. "$root/scripts/packages.sh"
begin
out=$(realpath -m "${1:-$target_dir/deb}")
scripts/setup.sh
install_tools debhelper dpkg-dev fakeroot
rust_first

rm -rf "$out"
mkdir -p "$out"
cp "$(archive "$scratch")" "$out/dlock_$version.orig.tar.gz"
tar -x -C "$out" -f "$out/dlock_$version.orig.tar.gz"
cd "$out/umdk-$version"
unchecked=()
if ! wanting=$(dpkg-checkbuilddeps 2>&1); then
    wanting=${wanting##*dependencies: }
    if [ -n "$(sed -E 's/(cargo|rustc)(-web)? \(>= [0-9.]+\)( \|)? *//g' <<<"$wanting")" ]; then
        echo "deb: missing: $wanting" >&2
        exit 1
    fi
    echo "deb: Rust is here, but not from a package: dpkg does not check build dependencies (-d)"
    unchecked=(-d)
fi
no_network dpkg-buildpackage -us -uc "${unchecked[@]}"
cd "$out"
rm -rf "umdk-$version"
ls "$out"
