#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# The conformance suite of all executors on verbs, in one process and across several.
# net: pair
# here: yes
set -e
# shellcheck source=tests/rxe/guest/rust.sh
. tests/rxe/guest/rust.sh
rust_tests conformance-executors verbs
