#!/usr/bin/env bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# RPM packages from the source archive, without a network: FOLDER (default: rpm in the target folder)
# gets RPMS/ and SRPMS/.
#   DLOCK_ARCHIVE=FILE   from this archive, instead of the commit that is checked out
# On a system whose database of packages is not rpm's (Debian) the build requirements cannot be looked
# up there: they are checked by running the tools, and rpmbuild is called with --nodeps.
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=scripts/packages.sh
. "$root/scripts/packages.sh"
begin
out=$(realpath -m "${1:-$target_dir/rpm}")
scripts/setup.sh
if have apt-get; then install_tools rpm debugedit elfutils; else install_tools rpm-build; fi
rust_first

nodeps=()
if ! rpm -q rpm >/dev/null 2>&1; then
    nodeps=(--nodeps)
    echo "rpm: the packages of this system are not in rpm's database: BuildRequires are not checked (--nodeps)"
fi
# Always the same folder: the source package has the commands of the spec with their paths in its header,
# and all others have its digest in theirs. Two builds at a time take turns.
top=/var/tmp/dlock-rpmbuild
exec 9>"$top.lock"
flock 9
rm -rf "$top" "$out"
mkdir -p "$top/SOURCES" "$out"
cp "$(archive "$scratch")" "$top/SOURCES/umdk-$version.tar.gz"
tar -x -C "$scratch" --strip-components=1 -f "$top/SOURCES/umdk-$version.tar.gz" "umdk-$version/umdk.spec"
# _buildhost: what else is not of the archive.
no_network rpmbuild -ba --with dlock "${nodeps[@]}" --define "_topdir $top" \
    --define "_buildhost localhost" "$scratch/umdk.spec"
mv "$top/RPMS" "$top/SRPMS" "$out"
rm -rf "$top"
find "$out" -name '*.rpm' | sort
