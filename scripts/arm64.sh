#!/usr/bin/env bash
# arm64.sh [--tests] [PART...]: cross-compiles for AArch64 into build/arm64 and runs it under qemu: the hashes of portable bits
# (docs/same_bits.md) must be those of build/release. PART: shapes, operations, strategies (the default), policies, workloads
# (long under qemu).
# --tests: also the unit tests of number formats, operations and AMP. Needs, as root:
#   dpkg --add-architecture arm64 && apt-get update && apt-get install g++-aarch64-linux-gnu qemu-user zlib1g-dev:arm64
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
tests=0
[[ "${1:-}" != --tests ]] || { tests=1; shift; }
parts=(shapes operations strategies)
(($# == 0)) || parts=("$@")
for program in aarch64-linux-gnu-g++ qemu-aarch64; do
  command -v $program > /dev/null || { echo "[arm64] $program is missing. Install the packages that the script names at its top." >&2; exit 1; }
done
hashes=build/release/tests/portable/portable_hashes
[[ -x $hashes ]] || { echo "[arm64] $hashes is not built. Run: scripts/configure.sh && ninja -C build/release portable_hashes" >&2; exit 1; }

cmake -S . -B build/arm64 -G Ninja -DCMAKE_BUILD_TYPE=Release "-DCMAKE_CXX_FLAGS_RELEASE=-O2 -DNDEBUG" -DCMAKE_SYSTEM_NAME=Linux \
  -DCMAKE_SYSTEM_PROCESSOR=aarch64 -DCMAKE_C_COMPILER=aarch64-linux-gnu-gcc -DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++ \
  -DHALFTONE_UNITY=ON -DHALFTONE_ONEDNN=OFF -DHALFTONE_CUDA=OFF -DHALFTONE_MPI=OFF > build/arm64.log 2>&1 ||
  { cat build/arm64.log; exit 1; }
targets=(portable_hashes)
((!tests)) || targets+=(halftone_tests)
ninja -C build/arm64 "${targets[@]}"

export HALFTONE_PORTABLE_BITS=1 HALFTONE_FIXED_TEAM=1 OMP_NUM_THREADS=1  # threads that wait are slow under qemu
# All libraries must come from the folder of the loader. With the C library of libc6:arm64, which is another version, pthread_create
# does not return.
libraries=/usr/aarch64-linux-gnu
emulated=(qemu-aarch64 -L $libraries -E LD_LIBRARY_PATH=$libraries/lib)
differs=0
for part in "${parts[@]}"; do
  SECONDS=0
  "$hashes" $part > "build/arm64.$part.here"
  "${emulated[@]}" build/arm64/tests/portable/portable_hashes $part > "build/arm64.$part"
  if diff "build/arm64.$part.here" "build/arm64.$part" > build/arm64.diff; then
    echo "$part: all $(wc -l < "build/arm64.$part") hashes are those of this machine ($SECONDS s)"
  else
    echo "$part: $(grep -c '^>' build/arm64.diff) of $(wc -l < "build/arm64.$part") hashes differ from this machine's:"
    head -20 build/arm64.diff
    differs=1
  fi
done
if ((tests)); then
  unset HALFTONE_PORTABLE_BITS
  "${emulated[@]}" build/arm64/tests/halftone_tests --source-file='*/tests/core/*,*/tests/ops/*,*/tests/amp/*' || differs=1
fi
((differs == 0))
