#!/usr/bin/env bash
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# Builds on this machine what the cases run in the virtual machine: FOLDER, then holds
#   dlock, dlockd, chaos   debug builds
#   tests/NAME             the test programs of the crates, by their target's name
#   verbs_smoke            if <infiniband/verbs.h> is here
#   prefix                 the installed C libraries: $PREFIX if it is set, else built
#   exclusion, stopped, capture   cases/NAME.c, linked against it
#   c/                     the C and C++ programs of tests/c, linked against it: $BUILT if it is
#                          set, else built
#
#   tests/rxe/build.sh FOLDER
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
mkdir -p "$1"
bin=$(cd "$1" && pwd)
cd "$root"
exec </dev/null
# The whole workspace with its default features, as `make test` has built it.
rm -rf "$bin/tests"
mkdir "$bin/tests"
cargo test --workspace --no-run --locked --message-format json |
    python3 -c '
import json, os, sys
folder = sys.argv[1]
def link(source, name):
    path = os.path.join(folder, name)
    if os.path.lexists(path):
        os.unlink(path)
    os.symlink(source, path)
for line in sys.stdin:
    message = json.loads(line)
    if message.get("reason") == "compiler-message":
        sys.stderr.write(message["message"].get("rendered") or "")
    if message.get("reason") != "compiler-artifact" or not message.get("executable"):
        continue
    name = message["target"]["name"]
    if message["profile"]["test"]:
        package = os.path.basename(os.path.dirname(message["manifest_path"]))
        link(message["executable"], "tests/%s-%s" % (package, name))
    elif name in ("dlock", "dlockd", "chaos"):
        link(message["executable"], name)
' "$bin"
[ -e "$bin/dlock" ] && [ -e "$bin/dlockd" ] && [ -e "$bin/chaos" ]

rm -f "$bin/verbs_smoke"
if echo '#include <infiniband/verbs.h>' | cc -E - >/dev/null 2>&1; then
    cc -std=gnu11 -O1 -Wall -Wextra -Werror -o "$bin/verbs_smoke" tests/rxe/cases/verbs_smoke.c \
        -libverbs
fi

if [ -z "${PREFIX:-}" ]; then
    PREFIX=$bin/installed
    scripts/cmake-install.sh "$bin/cmake" "$PREFIX"
fi
ln -sfn "$PREFIX" "$bin/prefix"
for name in exclusion stopped capture; do
    cc -std=c11 -D_GNU_SOURCE -O1 -Wall -Wextra -Werror -o "$bin/$name" "tests/rxe/cases/$name.c" \
        -Itests/c -I"$PREFIX/include/ub/umdk/ulock/dlock" \
        -L"$PREFIX/lib64" -Wl,-rpath,"$PREFIX/lib64" -ldlocks -ldlockc -ldlockm
done
rm -rf "$bin/c"
if [ -n "${BUILT:-}" ]; then
    ln -s "$BUILT" "$bin/c"
else
    BUILD_ONLY=$bin/c tests/c/run.sh "$PREFIX"
fi
echo "built: $bin"
