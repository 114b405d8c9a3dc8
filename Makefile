# SPDX-License-Identifier: MIT OR Apache-2.0
# One command per thing a person wants to do; the work itself is in scripts/ and in cargo.
# `make` or `make help` lists them. None of them reads standard input.

PREFIX ?= /usr/local
DESTDIR ?=
BENCH_ARGS ?=
DENY ?= auto
SOAK ?=

.DEFAULT_GOAL := help
.PHONY: help setup build demo test soak check bench install dist rpm deb packages-test manuals fmt clean

help: ## This list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-13s %s\n", $$1, $$2}' Makefile
	@echo
	@echo "  make install PREFIX=/usr/local    where to install (DESTDIR= is put before it)"
	@echo "  make bench BENCH_ARGS='--quick'   arguments for 'dlock bench'"
	@echo "  make soak SOAK='sim fuzz'         only some of them (scripts/soak.sh names them)"
	@echo "  make check DENY=install           also installs cargo-deny (takes minutes)"

setup: ## Install what is missing (only as root or with passwordless sudo) and say what still is
	@scripts/setup.sh

build: ## Release build of everything: dlockd, dlock and the C libraries
	@scripts/build.sh

demo: ## A guided tour of about 20 seconds, with real processes
	@scripts/demo.sh

test: ## All tests: Rust, doc tests, C and C++ programs, valgrind, symbols, SoftRoCE
	@scripts/test.sh

soak: ## The long runs, hours: simulator, fuzzers, large models, contention, dlock exec
	@scripts/soak.sh $(SOAK)

check: ## Formatting, lints, docs, house style, licences and dependencies
	@DENY=$(DENY) scripts/check.sh

bench: ## Measure this machine: lock cycles, batches, hand-over, beside the raw baseline
	@scripts/bench.sh $(BENCH_ARGS)

install: ## Install libraries, headers, dlockd and dlock under PREFIX
	@DESTDIR=$(DESTDIR) scripts/install.sh $(PREFIX)

dist: ## Source archive with all crates in it: builds without a network
	@scripts/dist.sh

rpm: ## RPM packages from that archive (installs rpm if it may)
	@scripts/rpm.sh

deb: ## Debian packages from that archive (installs debhelper if it may)
	@scripts/deb.sh

packages-test: ## Builds both twice, installs them in empty roots, and uses them: an hour
	@packaging/tests/run.sh

manuals: ## Write the manual pages and completions anew, from command lines, headers and documents
	@DLOCK_WRITE_MANUALS=1 cargo test --quiet --locked -p dlock-manuals -p dlock-cli -p dlock-server \
	    --lib --bins manuals

fmt: ## Format the Rust code
	@cargo fmt --all

clean: ## Remove what was built
	@cargo clean
	@rm -rf build
