#!/usr/bin/env bash
# Runs the loom models: the best-fit allocator of plimsoll-core, the thread pool and the copier of plimsoll-cpu, the ring
# and the decode pool of plimsoll-data.
# Building takes some minutes on two cores; the models of plimsoll-data then run for 10 seconds. An argument selects
# models by name, such as `tools/loom.sh threads`.
set -euo pipefail
cd "$(dirname "$0")/.."
export RUSTFLAGS="${RUSTFLAGS:-} --cfg loom"
# The flag changes every crate, so these builds get a folder of their own.
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-target}/loom"
for crate in plimsoll-core plimsoll-cpu plimsoll-data; do
    cargo test --release -p "$crate" --lib "${1:-loom}"
done
