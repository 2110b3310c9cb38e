#!/usr/bin/env bash
# Goes from a fresh machine to the comparison of strategies: installs missing packages, builds, and trains a small CNN on Fashion-MNIST
# under seven precision strategies. Arguments are passed to the program (--help lists them). Figures are also written to
# build/release/comparison.json, and with pictures to build/release/comparison.html; the last line names that page.
set -euo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"

"$root/scripts/configure.sh"
(cd "$root" && cmake --build --preset release --target compare_strategies)
exec "$root/build/release/examples/compare_strategies" --json "$root/build/release/comparison.json" \
  --html "$(realpath -m --relative-to="$PWD" "$root/build/release/comparison.html")" "$@"
