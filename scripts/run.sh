#!/usr/bin/env bash
# From a fresh machine to the comparison of strategies: installs what is missing, builds, and trains
# a small CNN on Fashion-MNIST under six precision strategies. Arguments go to the program (--help
# lists them); figures also go to build/release/comparison.json.
set -euo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"

"$root/scripts/setup.sh"
(cd "$root" && cmake --preset release && cmake --build --preset release --target compare_strategies)
exec "$root/build/release/examples/compare_strategies" \
  --json "$root/build/release/comparison.json" "$@"
