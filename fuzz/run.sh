#!/bin/sh
# Runs every fuzz target for a number of seconds: fuzz/run.sh SECONDS
# What a target finds is kept in fuzz/artifacts/TARGET; the seeds in fuzz/seeds are where it starts.
set -eu

seconds=${1:-10}
case $seconds in
'' | *[!0-9]*) echo "usage: fuzz/run.sh SECONDS" >&2; exit 2 ;;
esac
cd "$(dirname "$0")"

if ! command -v cargo-fuzz >/dev/null 2>&1; then
    echo "skipped: fuzzing needs cargo-fuzz: cargo install cargo-fuzz --locked"
    exit 0
fi
if ! cargo +nightly --version >/dev/null 2>&1; then
    echo "skipped: fuzzing needs a nightly compiler: rustup toolchain install nightly"
    exit 0
fi

TMPDIR=$(mktemp -d)
export TMPDIR
trap 'rm -rf "$TMPDIR"' EXIT

failed=""
for target in fuzz_targets/*.rs; do
    target=$(basename "$target" .rs)
    mkdir -p "corpus/$target"
    echo "== $target for $seconds s"
    if ! cargo +nightly fuzz run --fuzz-dir . "$target" "corpus/$target" "seeds/$target" -- \
        -max_total_time="$seconds" -max_len=65536 -rss_limit_mb=2048 -timeout=10 -verbosity=0 -print_final_stats=1; then
        failed="$failed $target"
    fi
done
if [ -n "$failed" ]; then
    echo "failed:$failed (the inputs are in fuzz/artifacts)" >&2
    exit 1
fi
