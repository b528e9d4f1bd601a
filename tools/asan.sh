#!/usr/bin/env bash
# Runs the tests of plimsoll-core, plimsoll-data and plimsoll-cpu under AddressSanitizer, built the way the fuzz targets
# are: a stable compiler that accepts a nightly one's flags. Allow an hour on two cores: plimsoll-data takes 3 minutes,
# `--test device` of plimsoll-cpu 11, and the integration tests of plimsoll-core are longest. Arguments replace the
# selection and are passed to `cargo test`, such as `tools/asan.sh -p plimsoll-cpu --test gemm`.
set -euo pipefail
cd "$(dirname "$0")/.."
target="$(rustc -vV | sed -n 's/^host: //p')"
export RUSTC_BOOTSTRAP=1
export RUSTFLAGS="${RUSTFLAGS:-} -Zsanitizer=address -Copt-level=2"
# A test asks for more memory than there is and expects an error. Whatever a test leaks on purpose (payloads of panics,
# tables that live as long as the process) is not an error of memory access. Tests that count allocations run too: their
# allocators pass every call on to that of the sanitizer.
export ASAN_OPTIONS="${ASAN_OPTIONS:-detect_leaks=0:detect_stack_use_after_return=1:allocator_may_return_null=1}"
# The flags change every crate, so these builds get a folder of their own.
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-target}/asan"
if [ $# -eq 0 ]; then
    set -- -p plimsoll-core -p plimsoll-cpu -p plimsoll-data --lib --tests
fi
# The target is named so that build scripts are built without the sanitizer. Documentation tests are left out: rustdoc
# builds them without it.
cargo test --target "$target" "$@"
