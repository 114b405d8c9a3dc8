#!/usr/bin/env bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# The source archive of the commit that is checked out, with all crates that it needs, so that it
# builds without a network: umdk.spec and debian/ are made for it. The same commit gives the same
# archive, byte for byte (with the same cargo, tar and gzip).
#
#   scripts/dist.sh [FOLDER]    writes FOLDER/umdk-VERSION.tar.gz (default: dist in the target folder)
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
begin
out=${1:-$target_dir/dist}
if ! have git || ! git rev-parse --verify --quiet HEAD >/dev/null; then
    echo "dist: this is no checkout of git; a source archive needs none: build from it directly" >&2
    exit 1
fi
[ -z "$(git status --porcelain)" ] || echo "dist: what is not committed is left out"
version=$(sed -n 's/^Version: *//p' umdk.spec)
name=umdk-$version
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct HEAD)
export SOURCE_DATE_EPOCH LC_ALL=C

tree="$scratch/$name"
mkdir -p "$tree" "$out"
git archive --format=tar HEAD | tar -x -C "$tree"
(
    cd "$tree"
    # What git leaves in the repository for itself and for CI is of no use in an archive.
    rm -rf .ci .gitignore
    # --versioned-dirs: the names of the folders do not depend on which versions there are.
    cargo vendor --locked --quiet --versioned-dirs vendor >/dev/null
    mkdir .cargo
    cat >.cargo/config.toml <<'END'
[source.crates-io]
replace-with = "vendored-sources"

[source.vendored-sources]
directory = "vendor"

[net]
offline = true
END
    python3 packaging/vendor.py .
    # debian/ is at the top where dpkg-buildpackage looks for it.
    [ ! -d packaging/debian ] || mv packaging/debian debian
)
tar -c -C "$scratch" --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 \
    --numeric-owner --mode=u=rwX,go=rX --format=gnu "$name" | gzip -n -9 >"$out/$name.tar.gz.part"
mv "$out/$name.tar.gz.part" "$out/$name.tar.gz"
echo "made: $out/$name.tar.gz, $(stat -c %s "$out/$name.tar.gz") bytes, sha256" \
    "$(sha256sum "$out/$name.tar.gz" | cut -d' ' -f1)"
