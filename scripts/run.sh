#!/usr/bin/env bash
# From a fresh machine to the comparison of strategies: installs what is missing, builds, and trains
# a small CNN on Fashion-MNIST under six precision strategies. Arguments go to the program (--help
# lists them); figures also go to build/release/comparison.json, and with pictures to
# build/release/comparison.html, a page whose path is the last line. The SIMD kernels are compiled for this CPU alone, the
# CUDA backend where there is a GPU, for that GPU: what this machine cannot run is not waited for (scripts/test.sh builds it).
set -euo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"

"$root/scripts/setup.sh"
here=(-DHALFTONE_INSTRUCTION_SETS=native -DHALFTONE_CUDA=OFF)
[[ -e /dev/nvidia0 ]] && here=(-DHALFTONE_INSTRUCTION_SETS=native -DHALFTONE_CUDA=AUTO -DHALFTONE_CUDA_ARCHITECTURES=native)
(cd "$root" && cmake --preset release "${here[@]}" && cmake --build --preset release --target compare_strategies)
exec "$root/build/release/examples/compare_strategies" --json "$root/build/release/comparison.json" \
  --html "$(realpath -m --relative-to="$PWD" "$root/build/release/comparison.html")" "$@"
