#!/usr/bin/env bash
# openmp_races.sh [PART...]: searches data races among the OpenMP threads of kernels and trainings. Builds portable_hashes with clang's
# ThreadSanitizer in build/races (6 minutes on two cores) and runs it with four threads, with and without portable bits. PART: operations,
# shapes, strategies (the default), policies, workloads. Exit code 1: a race was found. Needs the Debian packages clang, libclang-rt-dev and
# libomp-dev. Only clang's OpenMP library tells ThreadSanitizer where threads wait for each other (by Archer); g++'s does not.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
parts=(operations shapes strategies)
(($# == 0)) || parts=("$@")
cmake -S . -B build/races -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_COMPILER=clang++ "-DCMAKE_CXX_FLAGS_RELEASE=-O1 -g1" \
  -DHALFTONE_SANITIZERS=thread -DHALFTONE_UNITY=ON -DHALFTONE_CUDA=OFF -DHALFTONE_ONEDNN=OFF -DHALFTONE_MPI=OFF \
  -DHALFTONE_INSTRUCTION_SETS=native > build/races.log 2>&1 || { cat build/races.log; exit 1; }
ninja -C build/races portable_hashes
archer=$(find /usr/lib/llvm-*/lib -name 'libarcher.so' | sort -V | tail -1)
[[ -n $archer ]] || { echo "[races] libarcher.so is missing. Install libomp-dev." >&2; exit 1; }
export OMP_NUM_THREADS=4 HALFTONE_FIXED_TEAM=1 OMP_TOOL_LIBRARIES=$archer ARCHER_OPTIONS=verbose=1
export TSAN_OPTIONS="ignore_noninstrumented_modules=1 exitcode=66"
found=0
for part in "${parts[@]}"; do
  for portable in 0 1; do
    HALFTONE_PORTABLE_BITS=$portable build/races/tests/portable/portable_hashes "$part" > build/races.out 2> build/races.err || found=1
    grep -q 'Archer detected OpenMP application with TSan' build/races.err build/races.out ||
      { echo "[races] Archer did not start, so every result would be wrong: $archer" >&2; exit 1; }
    count=$(grep -c 'WARNING: ThreadSanitizer' build/races.err || true)
    echo "$part, portable bits $portable: $count races in $(grep -vc Archer build/races.out) results"
    ((count == 0)) || { found=1; head -40 build/races.err; }
  done
done
((found == 0))
