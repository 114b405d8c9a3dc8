#!/usr/bin/env bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# The exhaustive models of tests/models, optimised, with a table of their sizes. The small ones are
# tests as well, so `make test` has them.
#   scripts/models.sh            the small ones
#   scripts/models.sh large      the others: minutes to hours, gigabytes
#   scripts/models.sh bugs       the planted bugs
#   scripts/models.sh NAME       those whose name has NAME in it
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
exec cargo run --release --locked --quiet -p dlock-models -- "$@"
