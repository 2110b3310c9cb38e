#!/usr/bin/env bash
# What there is to check on a machine with a GPU, in one report that can go into docs/ as it is: correctness of all
# operations and of training, races, what single operations and whole steps reach of the device's bandwidth and arithmetic,
# launches of a step, and the same steps in PyTorch, eager and compiled, where a Python with torch is named. Needs no
# network, and goes on after a failure: the report says what failed. Every section has a time limit, so that all of it fits
# into about half an hour.
#
# usage: scripts/gpu_check.sh [REPORT]      default: gpu_report.md
#   PYTHON=...           an interpreter that can import torch; without one nothing is compared
#   ARCHITECTURES=90     compiles for this GPU alone, which is faster; default: that of the first GPU
#   BUILD=...            a build folder with HALFTONE_CUDA=ON that is there already; default: build/gpu, which is made
#   QUICK=1              leaves out the sanitizers
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit
report="$(realpath -m "${1:-gpu_report.md}")"
details="$(mktemp)"
summary=()
failures=()
# Also where somebody stops the check in its middle.
write_report() {
  {
    printf '# A check on %s\n\n' "$(nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null | head -1 || true)"
    printf 'Commit %s, %s, `scripts/gpu_check.sh`. What stands here was printed by the commands that it names.\n\n' \
      "$(git rev-parse --short HEAD 2>/dev/null || echo unknown)" "$(date -u +%F)"
    printf '| section | outcome | seconds |\n|---|---|---|\n'
    printf '%s\n' "${summary[@]}"
    cat "$details"
  } >"$report"
  rm -f "$details"
}
trap write_report EXIT
trap 'exit 130' INT TERM

# section SECONDS TITLE COMMAND...: runs it into the report, at most so long; remembers if it failed.
section() {
  local limit="$1" title="$2" start="$SECONDS" code=0 outcome
  shift 2
  echo "== $title"
  { printf '\n## %s\n\n```\n' "${title^}"; } >>"$details"
  timeout --kill-after=10 "$limit" "$@" >>"$details" 2>&1 || code=$?
  printf '```\n\n`%s`: exit %d after %d s\n' "$*" "$code" "$((SECONDS - start))" >>"$details"
  outcome="passed"
  ((code == 0)) || outcome="**exit $code**" failures+=("$title")
  ((code != 124)) || outcome="**not done in $limit s**"
  summary+=("| $title | $outcome | $((SECONDS - start)) |")
  echo "   $outcome after $((SECONDS - start)) s"
}

# launches STRATEGY WORKLOAD [FLAG...]: kernels that a step of train_step starts, and calls of libraries: the counts
# of two runs of different length, which share what is done once.
launches() {
  local strategy="$1" workload="$2"
  shift 2
  local -A kernels=() library=()
  local steps log
  for steps in 1 3; do
    log="$(HALFTONE_CUDA_LOG=1 "$build/bench/train_step" --device cuda --no-limit --seconds 600 --steps "$steps" \
      --strategy "$strategy" --workload "$workload" "$@" 2>&1 >/dev/null | grep '\[cuda\] the end')" || return 1
    kernels[$steps]="$(sed -E 's/.*kernels ([0-9]+).*/\1/' <<<"$log")"
    library[$steps]="$(grep -oE '[0-9]+ by (cuBLASLt|cuDNN)' <<<"$log" | awk '{ sum += $1 } END { print sum + 0 }')"
  done
  # Ten steps each.
  awk -v w="$workload" -v s="$strategy" -v k="$((kernels[3] - kernels[1]))" -v l="$((library[3] - library[1]))" \
    'BEGIN { printf "%-16s %-10s %7.1f own kernels and %6.1f calls of libraries a step\n", w, s, k / 20, l / 20 }'
}
all_launches() {
  local workload
  for workload in mlp_tiny mlp lenet resnet18_cifar gpt_char gpt2_124m; do launches amp-bf16 "$workload" || return 1; done
}

section 60 "machine" nvidia-smi
if [[ -z "${ARCHITECTURES:-}" ]]; then
  ARCHITECTURES="$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -1 | tr -d '.')"
fi
build="$(realpath -m "${BUILD:-build/gpu}")"
if [[ -z "${BUILD:-}" ]]; then
  section 120 "configure" cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DHALFTONE_CUDA=ON \
    "-DHALFTONE_CUDA_ARCHITECTURES=${ARCHITECTURES:-90}"
fi
section 1800 "build" cmake --build "$build" --target halftone-info halftone_tests compare_strategies op_bench train_step
section 60 "halftone-info" "$build/tools/halftone-info"

tests="$build/tests/halftone_tests"
export HALFTONE_TEST_BACKENDS=cuda
section 300 "operations on the GPU" "$tests" "--source-file=*/tests/ops/properties*"
section 300 "operations on the GPU, own kernels alone" env HALFTONE_CUDA_LIBRARIES=off "$tests" \
  "--source-file=*/tests/ops/properties*"
section 300 "training, capture, memory on the GPU" "$tests" "--source-file=*/tests/device/*"
if [[ -z "${QUICK:-}" ]] && command -v compute-sanitizer >/dev/null; then
  # Exact allocations, so that memcheck sees their ends. Own kernels: NVIDIA's are not ours to check.
  for tool in memcheck racecheck synccheck initcheck; do
    section 240 "compute-sanitizer $tool" env HALFTONE_CUDA_CACHE=off HALFTONE_CUDA_LIBRARIES=off compute-sanitizer \
      --tool "$tool" --error-exitcode 9 "$tests" "--source-file=*/tests/ops/properties.cpp" "--test-case=every backend equals*"
  done
fi
unset HALFTONE_TEST_BACKENDS

if [[ -e data/fashion-mnist || -e /usr/share/datasets/fashion-mnist ]]; then
  section 120 "strategies compared" "$build/examples/compare_strategies" --device cuda --epochs 3
fi
section 180 "single operations, and what the device reaches at best" "$build/bench/op_bench" --device cuda --dtypes f32,bf16,f16
workloads=mlp_tiny,mlp,lenet,resnet18_cifar,resnet18_224,gpt_char,gpt2_124m
section 300 "training steps, and their share of the device's bandwidth and arithmetic" env HALFTONE_CUDA_LOG=1 \
  "$build/bench/train_step" --device cuda --strategy fp32,amp-bf16,amp-fp16,o2-bf16,full-bf16 --workload "$workloads" --seconds 3
section 120 "training steps, captured" "$build/bench/train_step" --device cuda --capture --strategy amp-bf16 \
  --workload "$workloads" --seconds 3
section 180 "launches of a step" bash -c "$(declare -f launches all_launches); build='$build'; all_launches"
if [[ -n "${PYTHON:-}" ]]; then
  compare=("$PYTHON" bench/compare_with_torch.py "$build/bench/train_step" --python "$PYTHON" --device cuda
    --strategy "fp32,amp-bf16" --rounds 3 --seconds 2 --workload)
  section 400 "beside PyTorch, eager" "${compare[@]}" "$workloads"
  section 200 "captured beside PyTorch, eager" "${compare[@]}" mlp_tiny,lenet,gpt_char --capture
  section 600 "beside PyTorch, compiled" "${compare[@]}" "$workloads" --peers torch-compiled
fi

if ((${#failures[@]})); then
  printf '\nfailed: %s; the report is in %s\n' "$(IFS=';'; echo "${failures[*]}")" "$report"
  exit 1
fi
echo "all passed; the report is in $report"
