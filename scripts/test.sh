#!/usr/bin/env bash
# Goes from a fresh machine to test results: installs missing packages, builds, and runs the tests with the label `quick`, which this
# machine can run in minutes. Reuses the build of scripts/run.sh.
#
# usage: scripts/test.sh [--all] [FLAG...]
#   --all   every test: all instruction sets, the CUDA objects and the emulated GPU, a minute for each fuzz target
# Flags are passed to ctest (-R name, -j 4, ...). The output ends with ctest's own summary.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# Runs ctest and shows what took the time, just before ctest's summary: seconds of the clock and of the CPU, the build
# included, and the ten longest tests.
run_tests() {
  local work status=0
  work="$(mktemp -d)"
  ctest --preset release "$@" | awk -v work="$work" '
    /^[0-9]+% tests passed/ { summary = 1 }
    summary { print > (work "/summary"); next }
    { print; fflush() }
    match($0, /[0-9.]+ sec/) && /Test +#[0-9]+:/ { print $(NF - 1), $4 > (work "/tests") }' || status=$?
  times > "$work/times"  # not in a subshell, whose own times begin at 0
  printf '\n%s\nThis took %d s, and %d s of CPU time. The longest tests: %s.\n\n' "$note" "$SECONDS" "$(cpu_seconds "$work/times")" \
    "$(sort -rn "$work/tests" | head -n 10 | awk '{ printf "%s%s %.0f s", (NR > 1 ? ", " : ""), $2, $1 }')"
  cat "$work/summary"
  rm -r "$work"
  return "$status"
}
# The CPU time of this script and of everything that it started and that has ended.
cpu_seconds() { tr 'ms\n' '   ' < "$1" | awk '{ print int(60 * ($1 + $3 + $5 + $7) + $2 + $4 + $6 + $8) }'; }

if [[ "${1:-}" == --all ]]; then
  shift
  scripts/configure.sh --all
  cmake --build --preset release
  note=""
  run_tests "$@"
else
  scripts/configure.sh
  cmake --build --preset release --target quick
  note='Left out: CUDA objects and the emulated GPU (label cuda), other instruction sets, benchmarks and
long tests (label long), and fuzzing (label fuzz). All of them: scripts/test.sh --all'
  run_tests -L quick "$@"
fi
