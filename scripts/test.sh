#!/usr/bin/env bash
# Goes from a fresh machine to test results: installs missing packages, builds, and runs the tests with the label `quick`, which this
# machine can run in minutes. Reuses the build of scripts/run.sh.
#
# usage: scripts/test.sh [--all] [FLAG...]
#   --all   every test: all instruction sets, the CUDA objects and the emulated GPU, a minute for each fuzz target
# Flags are passed to ctest (-R name, -j 4, ...). The output ends with ctest's own summary.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if [[ "${1:-}" == --all ]]; then
  shift
  scripts/configure.sh --all
  cmake --build --preset release
  exec ctest --preset release "$@"
fi
scripts/configure.sh
cmake --build --preset release --target quick
left_out='
Left out: CUDA objects and the emulated GPU (label cuda), other instruction sets, benchmarks and
long tests (label long), and fuzzing for a minute per target. All of them: scripts/test.sh --all
'
# Prints the note just before ctest's summary.
ctest --preset release -L quick "$@" |
  awk -v note="$left_out" '/^[0-9]+% tests passed/ { print note } { print; fflush() }'
