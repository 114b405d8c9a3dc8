#!/usr/bin/env bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# The checks that need no running: formatting, lints, docs, house style, dependencies, scripts.
#   DENY=auto      use cargo-deny if it is installed; in CI (CI is set) install it (the default)
#   DENY=install   install it first, into the target folder, which takes minutes
#   DENY=no        do without
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
begin
scripts/setup.sh

step "formatting (cargo fmt)" 120 cargo fmt --all --check || true
step "lints (cargo clippy)" 1500 \
    cargo clippy --workspace --all-targets --locked -- -D warnings || true
# The packages that are workspaces of their own: what they are built with is what is committed.
for manifest in tests/*/Cargo.toml; do
    if [ -e "${manifest%.toml}.lock" ]; then
        step "lock file of $(dirname "$manifest")" 300 \
            cargo fetch --locked --quiet --manifest-path "$manifest" || true
    fi
done
step "docs (cargo doc)" 900 \
    env RUSTDOCFLAGS='-D warnings' cargo doc --workspace --no-deps --locked --quiet || true
step "crates (cargo package)" 300 scripts/crates.sh || true
step "house style, licences (tests/tidy)" 900 \
    env RUST_BACKTRACE=0 cargo test -p dlock-tidy --locked --quiet || true

tools="$target_dir/tools"
PATH="$PATH:$tools/bin"
deny=${DENY:-auto}
if [ "$deny" = auto ] && [ -n "${CI:-}" ]; then deny=install; fi
if [ "$deny" = install ] && ! have cargo-deny; then
    echo
    echo "installing cargo-deny into $tools, which takes two to three minutes"
    cargo install cargo-deny --locked --quiet --root "$tools" </dev/null ||
        echo "cargo-deny could not be installed"
fi
if [ "$deny" != no ] && have cargo-deny; then
    step "dependencies (cargo deny)" 300 \
        cargo deny --locked --color never check licenses bans sources || true
    # The advisories are a repository of their own, which not every machine reaches.
    if cargo deny --color never fetch db >"$scratch/db.log" 2>&1 </dev/null; then
        step "advisories (cargo deny)" 300 cargo deny --locked --color never check advisories || true
    else
        skip "advisories (cargo deny)" "the advisory database cannot be reached from here"
    fi
else
    skip "dependencies (cargo deny)" \
        "cargo-deny is not installed (make check DENY=install); tests/tidy has checked licences"
    skip "advisories (cargo deny)" "cargo-deny is not installed"
fi
if have shellcheck; then
    step "scripts (shellcheck)" 120 \
        shellcheck --external-sources .ci/run scripts/*.sh packaging/tests/*.sh tests/rxe/*.sh tests/rxe/cases/*.sh \
        tests/rxe/guest/*.sh tests/rxe/guest/rxe-link tests/rxe/bench/*.sh || true
else
    skip "scripts (shellcheck)" "shellcheck is not installed"
fi
step "scripts (the step runner)" 120 scripts/lib-test.sh || true
if have python3; then
    step "scripts (python)" 60 env PYTHONPYCACHEPREFIX="$scratch/python" \
        python3 -m py_compile packaging/vendor.py tests/deploy/run.py tests/rxe/vm tests/rxe/runner/*.py tests/rxe/bench/*.py || true
else
    skip "scripts (python)" "python3 is not installed"
fi
finish check:
