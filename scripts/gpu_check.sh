#!/usr/bin/env bash
# What there is to check on a machine with a GPU, in one report: builds, runs the CUDA tests, compute-sanitizer on a
# selection, examples, benchmarks, and PyTorch beside them where a Python with torch is named. Needs no network, and goes on
# after a failure: the report says what failed.
#
# usage: scripts/gpu_check.sh [REPORT]      default: gpu_report.txt
#   PYTHON=...           an interpreter that can import torch; without one nothing is compared
#   ARCHITECTURES=90     compiles for this GPU alone, which is faster; default: that of the first GPU
#   QUICK=1              leaves out the sanitizers
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
report="$(realpath -m "${1:-gpu_report.txt}")"
build="$PWD/build/gpu"
failures=()
: >"$report"

# section TITLE COMMAND...: runs it into the report; remembers if it failed.
section() {
  local title="$1" start="$SECONDS" code=0
  shift
  printf '\n== %s\n$ %s\n' "$title" "$*" | tee -a "$report"
  "$@" >>"$report" 2>&1 || code=$?
  printf '   exit %d after %d s\n' "$code" "$((SECONDS - start))" | tee -a "$report"
  ((code == 0)) || failures+=("$title")
}

date -u >>"$report"
section "machine" nvidia-smi
if [[ -z "${ARCHITECTURES:-}" ]]; then
  ARCHITECTURES="$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -1 | tr -d '.')"
fi
section "configure" cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DHALFTONE_CUDA=ON \
  "-DHALFTONE_CUDA_ARCHITECTURES=${ARCHITECTURES:-90}"
section "build" cmake --build "$build"
section "halftone-info" "$build/tools/halftone-info"

tests="$build/tests/halftone_tests"
export HALFTONE_TEST_BACKENDS=cuda
section "operations on the GPU" "$tests" "--source-file=*/tests/ops/properties*"
section "operations on the GPU, own kernels alone" env HALFTONE_CUDA_LIBRARIES=off "$tests" "--source-file=*/tests/ops/properties*"
section "training, capture, memory on the GPU" "$tests" "--source-file=*/tests/device/*"
if [[ -z "${QUICK:-}" ]] && command -v compute-sanitizer >/dev/null; then
  # Exact allocations, so that memcheck sees their ends.
  for tool in memcheck racecheck synccheck; do
    section "compute-sanitizer $tool" env HALFTONE_CUDA_CACHE=off HALFTONE_CUDA_LIBRARIES=off compute-sanitizer --tool "$tool" \
      --error-exitcode 9 "$tests" "--source-file=*/tests/ops/properties.cpp" "--test-case=every backend equals*"
  done
fi
unset HALFTONE_TEST_BACKENDS

if [[ -e data/fashion-mnist || -e /usr/share/datasets/fashion-mnist ]]; then
  section "strategies compared" "$build/examples/compare_strategies" --device cuda --epochs 3
fi
section "single operations, and what the device reaches at best" "$build/bench/op_bench" --device cuda --dtypes f32,bf16,f16
section "training steps" env HALFTONE_CUDA_LOG=1 "$build/bench/train_step" --device cuda --strategy fp32,amp-bf16,amp-fp16,o2-bf16,full-bf16 --json
section "training steps, captured" "$build/bench/train_step" --device cuda --capture --strategy amp-bf16 --json
if [[ -n "${PYTHON:-}" ]]; then
  workloads=mlp_tiny,mlp,lenet,resnet18_cifar,resnet18_224,gpt_char,gpt2_124m
  section "beside PyTorch, eager" "$PYTHON" bench/compare_with_torch.py "$build/bench/train_step" --python "$PYTHON" \
    --device cuda --workload "$workloads" --strategy amp-bf16 --rounds 3
  section "captured beside PyTorch, eager" "$PYTHON" bench/compare_with_torch.py "$build/bench/train_step" --python "$PYTHON" \
    --device cuda --capture --workload mlp_tiny,lenet --strategy amp-bf16 --rounds 3
  section "beside PyTorch, compiled" "$PYTHON" bench/compare_with_torch.py "$build/bench/train_step" --python "$PYTHON" \
    --device cuda --peers torch-compiled --workload "$workloads" --strategy amp-bf16 --rounds 3
fi

if ((${#failures[@]})); then
  printf '\nfailed: %s\n' "$(IFS=';'; echo "${failures[*]}")" | tee -a "$report"
  exit 1
fi
echo "all passed; the report is in $report" | tee -a "$report"
