# The one task runner. `make` alone lists what there is; `make run` and `make test` are all a newcomer needs.

CARGO ?= cargo
TARGET_DIR := $(or $(CARGO_TARGET_DIR),target)
FUZZ_SECONDS ?= 60
CHAOS_POINTS ?= 1000
LOAD_SECONDS ?= 120
API_CASES ?= 10000

# The kernel that scripts/setup-ci unpacked for the cgroup v2 tests; empty where there is none, and they are skipped.
export CUBICLE_TEST_KERNEL ?= $(wildcard $(or $(CUBICLE_CI_CACHE),$(HOME)/.cache/cubicle)/kernel/vmlinuz)

# The programs that scripts/setup-ci got for tests of the metrics and the API; likewise.
export CUBICLE_TEST_PROMTOOL ?= $(wildcard $(or $(CUBICLE_CI_CACHE),$(HOME)/.cache/cubicle)/prometheus/promtool)
export CUBICLE_TEST_SCHEMATHESIS ?= $(wildcard $(or $(CUBICLE_CI_CACHE),$(HOME)/.cache/cubicle)/schemathesis/bin/schemathesis)
export CUBICLE_TEST_MCP ?= $(wildcard $(or $(CUBICLE_CI_CACHE),$(HOME)/.cache/cubicle)/mcp)

# What makes Python environments; likewise.
export CUBICLE_TEST_UV ?= $(wildcard $(or $(CUBICLE_CI_CACHE),$(HOME)/.cache/cubicle)/uv/bin/uv)

# The AI coding agents that workers run; likewise.
export CUBICLE_TEST_AGENTS ?= $(wildcard $(or $(CUBICLE_CI_CACHE),$(HOME)/.cache/cubicle)/agents)

# mold links several times faster than the default linker. It is used only where the C compiler can drive it.
ifneq ($(shell cc -fuse-ld=mold -Wl,--version 2>/dev/null | grep -c '^mold'),0)
export CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUSTFLAGS ?= -C link-arg=-fuse-ld=mold
endif

.DEFAULT_GOAL := help
.PHONY: help up run test build bench bench-tasks chaos load fuzz fuzz-api mcp-conformance fmt clippy deny docs clean tools install-tools

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' Makefile

up: build ## build, then start the server on 127.0.0.1:7878
	$(TARGET_DIR)/release/cubicle up

run: build ## build, then run a first program in a sandbox and print its receipt
	$(TARGET_DIR)/release/cubicle first-run

test: tools ## format, lints, tests, coverage, docs and a short fuzz run; ends with a line of totals
	@scripts/test-summary scripts/test

build: tools ## build the release binary
	$(CARGO) build --release --locked -p cubicle

bench: build ## measure against posix_spawn and every installed peer, as ratios in one run
	$(TARGET_DIR)/release/cubicle bench

bench-tasks: build ## measure tasks of AI workers on the release build
	CUBICLE_TASK_FIGURES=1 CUBICLE_TASK_PROGRAM=$(abspath $(TARGET_DIR))/release/cubicle $(CARGO) test --locked -p cubicle --test task_figures -- --nocapture

chaos: tools ## the crash suite with CHAOS_POINTS (1000) kills
	CUBICLE_CHAOS_POINTS=$(CHAOS_POINTS) scripts/test-summary $(CARGO) test --locked --workspace crash -- --nocapture

load: tools ## the load test, 200 clients for LOAD_SECONDS (120)
	CUBICLE_LOAD_SECONDS=$(LOAD_SECONDS) $(CARGO) test --locked -p cubicle --test load -- --nocapture

fuzz: tools ## every fuzz target for FUZZ_SECONDS (60) each; needs a C++ compiler
	fuzz/run.sh $(FUZZ_SECONDS)

fuzz-api: tools ## the HTTP API with API_CASES (10000) made-up requests; needs schemathesis (scripts/setup-ci)
	CUBICLE_API_CASES=$(API_CASES) scripts/test-summary $(CARGO) test --locked -p cubicle --test schemathesis -- --nocapture

mcp-conformance: tools ## the conformance suite of MCP against /mcp; needs its packages (scripts/setup-ci)
	scripts/test-summary $(CARGO) test --locked -p cubicle --test mcp conformance -- --nocapture

fmt: ## format the code
	$(CARGO) fmt --all

clippy: ## lints, as strict as in `make test`
	$(CARGO) clippy --locked --workspace --all-targets -- -D warnings

deny: ## licences, advisories and crate direction; needs cargo-deny
	$(CARGO) deny check

docs: ## check the links, decisions, error pages and coverage rows
	scripts/check-coverage
	scripts/check-docs

clean: ## remove build output
	$(CARGO) clean

tools:
	@scripts/check-tools

install-tools: ## install what building and testing needs; system packages only as root
	scripts/check-tools --install
