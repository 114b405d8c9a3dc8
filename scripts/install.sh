#!/usr/bin/env bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# Installs libraries, headers and programs by CMake, and documents: PREFIX, with DESTDIR before it.
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
case ${1:-} in
/*) prefix=$1 ;;
*)
    echo "install: PREFIX must be an absolute path, as in: make install PREFIX=/usr/local" >&2
    exit 2
    ;;
esac
begin
scripts/setup.sh
scripts/cmake-install.sh "$scratch/cmake" "$prefix" -DDLOCK_PROGRAMS=enable
bin="${DESTDIR:-}$prefix/bin"
doc="${DESTDIR:-}$prefix/share/doc/dlock"
install -d "$doc"
install -m 644 dlock-server/dlockd.toml README.md CHANGELOG.md LICENSE-MIT LICENSE-APACHE docs/*.md "$doc"
echo "installed: $bin/dlock, $bin/dlockd, ${DESTDIR:-}$prefix/lib64/libdlock*.so," \
    "manuals, headers in ${DESTDIR:-}$prefix/include/ub/umdk/ulock/dlock"
