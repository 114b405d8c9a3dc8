# SPDX-License-Identifier: MIT OR Apache-2.0
# shellcheck shell=sh
# For the cases: C programs against <infiniband/verbs.h>, compiled where they run.

# compile_verbs SOURCE PROGRAM: ends the case as skipped if there is no compiler or no header.
compile_verbs() {
    command -v cc >/dev/null || { echo "SKIP: no C compiler"; exit 77; }
    echo '#include <infiniband/verbs.h>' | cc -E - >/dev/null 2>&1 ||
        { echo "SKIP: no <infiniband/verbs.h>; install libibverbs-dev or rdma-core-devel"; exit 77; }
    cc -std=gnu11 -O1 -Wall -Wextra -Werror -o "$2" "$1" -libverbs
}
