#!/bin/sh
# Runs every fuzz target for a number of seconds: fuzz/run.sh SECONDS
# What a target finds is kept in fuzz/artifacts/TARGET; the seeds in fuzz/seeds are where it starts.
#
# The flags are the ones that cargo-fuzz gives for coverage without a sanitizer. They work with the project's own
# compiler, so that neither another tool nor a nightly is needed. With a nightly, `cargo +nightly fuzz run TARGET` adds
# the address sanitizer.
set -eu

seconds=${1:-10}
case $seconds in
'' | *[!0-9]*) echo "usage: fuzz/run.sh SECONDS" >&2; exit 2 ;;
esac
cd "$(dirname "$0")"

if ! command -v c++ >/dev/null 2>&1; then
    echo "skipped: fuzzing: the fuzzer's own library needs a C++ compiler"
    exit 0
fi

host=x86_64-unknown-linux-gnu
build=${CARGO_TARGET_DIR:-target}/fuzz
unset CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUSTFLAGS
RUSTFLAGS="--cfg fuzzing -Cdebug-assertions -Ccodegen-units=1 -Cpasses=sancov-module \
-Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
-Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares" \
    "${CARGO:-cargo}" build --quiet --locked --release --target "$host" --target-dir "$build"

TMPDIR=$(mktemp -d)
export TMPDIR
trap 'rm -rf "$TMPDIR"' EXIT

failed=""
for target in fuzz_targets/*.rs; do
    target=$(basename "$target" .rs)
    mkdir -p "corpus/$target" "artifacts/$target"
    echo "== $target for $seconds s"
    if "$build/$host/release/$target" "corpus/$target" "seeds/$target" -artifact_prefix="artifacts/$target/" \
        -max_total_time="$seconds" -max_len=65536 -rss_limit_mb=2048 -timeout=10 -verbosity=0 -print_final_stats=1 \
        >"$TMPDIR/log" 2>&1; then
        grep -E 'executed_units|new_units' "$TMPDIR/log"
    else
        cat "$TMPDIR/log"
        failed="$failed $target"
    fi
done
if [ -n "$failed" ]; then
    echo "failed:$failed (the inputs are in fuzz/artifacts)" >&2
    exit 1
fi
