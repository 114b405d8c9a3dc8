#!/usr/bin/env bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# Makes what depends on every change of the core or of the simulator anew: the digest of the
# traces and the table of planted bugs. About five minutes on two cores.
set -euo pipefail
cd "$(dirname "$0")/.."

cargo run -q --release --locked -p dlock-sim --bin sim -- --digest >target/hashes.txt
mv target/hashes.txt tests/sim/hashes.txt
cargo run -q --release --locked -p dlock-sim --bin sim --features planted \
    --target-dir target/planted -- --planted-table >target/planted.csv
mv target/planted.csv tests/sim/planted.csv
