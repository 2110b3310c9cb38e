#!/usr/bin/env bash
# configure.sh [--all] [FLAG...]: installs missing packages and configures build/release. Without --all it compiles what this machine can
# run: SIMD kernels for this CPU, and the CUDA backend if there is a GPU, for that GPU. With --all it compiles the kernels of every
# instruction set, and the CUDA backend if there is a toolkit. Flags are passed to cmake.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

what=(-DHALFTONE_INSTRUCTION_SETS=native -DHALFTONE_CUDA=OFF -DHALFTONE_FUZZ_SECONDS=2)
[[ ! -e /dev/nvidia0 ]] || what+=(-DHALFTONE_CUDA=AUTO -DHALFTONE_CUDA_ARCHITECTURES=native)
if [[ "${1:-}" == --all ]]; then
  shift
  what=(-DHALFTONE_INSTRUCTION_SETS=all -DHALFTONE_CUDA=AUTO -DHALFTONE_CUDA_ARCHITECTURES= -DHALFTONE_FUZZ_SECONDS=60)
fi
scripts/setup.sh
exec cmake --preset release "${what[@]}" "$@"
