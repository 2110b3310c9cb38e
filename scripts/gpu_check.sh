#!/usr/bin/env bash
# Runs all checks for a machine with a GPU and writes one report, which can be copied into docs/: correctness of all operations and of
# training, races, the share of the device's bandwidth and arithmetic that single operations and whole steps reach, launches of a step, and
# the same steps in PyTorch, eager and compiled, if a Python has torch. Needs no network. Continues after a failure, and the report names
# it. Each section has a time limit, and so have all together: the most important sections come first, and the report names those that found
# no time. It is rewritten after each section.
#
# usage: scripts/gpu_check.sh [REPORT]      default: gpu_report.md
#   BUDGET=1800          seconds for everything but the build
#   PYTHON=...           an interpreter that can import torch; default: python3, if it can
#   ARCHITECTURES=90     compiles only for this GPU, which is faster; default: the first GPU's
#   BUILD=...            an existing build folder with HALFTONE_CUDA=ON; default: build/gpu, which is made. Build before time
#                        on the GPU counts: the build needs only ARCHITECTURES and the targets below
#   QUICK=1              leaves out the sanitizers
#   TESTS=...            more flags for the test programs, such as --subcase=*softmax*
#   WORKLOADS=a,b        for bench/train_step; default: the seven named below
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit
report="$(realpath -m "${1:-gpu_report.md}")"
budget="${BUDGET:-1800}"
workloads="${WORKLOADS:-gpt2_124m,resnet18_224,gpt_char,resnet18_cifar,lenet,mlp,mlp_tiny}"
read -ra test_flags <<<"${TESTS:-}"
details="$(mktemp)"
summary=() failures=() spent=0 running=""
first_of() { nvidia-smi "--query-gpu=$1" --format=csv,noheader 2>/dev/null | head -1; }
write_report() {
  {
    printf '# A check on %s\n\n' "$(first_of name || echo 'no GPU')"
    printf 'Commit %s, %s, driver %s, `scripts/gpu_check.sh`. What stands here was printed by the commands that it names.\n\n' \
      "$(git rev-parse --short HEAD 2>/dev/null || echo unknown)" "$(date -u +%F)" "$(first_of driver_version || echo none)"
    printf '| section | outcome | seconds |\n|---|---|---|\n'
    printf '%s\n' "${summary[@]}"
    cat "$details"
  } >"$report.new" && mv "$report.new" "$report"
}
trap 'write_report; rm -f "$details"' EXIT
trap 'kill $running 2>/dev/null; exit 130' INT TERM
finish() {
  if ((${#failures[@]})); then
    printf '\nfailed: %s; the report is in %s\n' "$(IFS=';'; echo "${failures[*]}")" "$report"
    exit 1
  fi
  echo "all passed; the report is in $report"
  exit 0
}
# note TITLE OUTCOME: records a section that did not run.
note() {
  summary+=("| $1 | $2 | 0 |")
  echo "== $1: $2"
}

# section SECONDS TITLE COMMAND...: runs a command, writes its output into the report, and returns its status. The time limit is SECONDS, or
# the rest of the budget if that is less. Remembers failures.
section() {
  local limit="$1" title="$2" start="$SECONDS" code=0 outcome left=$((budget - spent)) took
  shift 2
  if ((left < limit)); then limit="$left"; fi
  if ((limit < 1)); then
    note "$title" "**not begun: the $budget s of BUDGET are spent**"
    failures+=("$title")
    return 1
  fi
  echo "== $title"
  { printf '\n## %s\n\n```\n' "${title^}"; } >>"$details"
  timeout --kill-after=10 "$limit" "$@" </dev/null >>"$details" 2>&1 &
  running="$!"
  wait "$running" || code=$?
  running=""
  took=$((SECONDS - start)) spent=$((spent + SECONDS - start))
  printf '```\n\n`%s`: exit %d after %d s\n' "$*" "$code" "$took" >>"$details"
  outcome="passed"
  ((code == 0)) || outcome="**exit $code**" failures+=("$title")
  ((code != 124 && code != 137)) || outcome="**not done in $limit s**"
  summary+=("| $title | $outcome | $took |")
  echo "   $outcome after $took s"
  write_report
  return "$code"
}

# launches STRATEGY WORKLOAD [FLAG...]: counts kernel launches and library calls of a step of train_step. It subtracts the counts of two
# runs of different length, so that one-time work cancels.
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
  # A measurement has ten steps, so the differences are for 20.
  awk -v w="$workload" -v s="$strategy" -v k="$((kernels[3] - kernels[1]))" -v l="$((library[3] - library[1]))" \
    'BEGIN { printf "%-16s %-10s %7.1f own kernels and %6.1f calls of libraries a step\n", w, s, k / 20, l / 20 }'
}
all_launches() {
  local workload failed=0
  for workload in ${workloads//,/ }; do
    launches amp-bf16 "$workload" || { echo "$workload: no counts"; failed=1; }
  done
  return "$failed"
}
# Without a GPU, tests skip the parts that need one. That must not count as passed.
a_gpu_is_there() {
  local text
  text="$("$build/tools/halftone-info" 2>&1)"
  echo "$text"
  grep -qE '^cuda +[^ ].*sm_[0-9]+' <<<"$text" || {
    echo "This build sees no GPU that it can use: the line of cuda says why."
    return 1
  }
}

# sanitize TOOL...: uses exact allocations, so that memcheck sees their ends. Checks only own kernels, not NVIDIA's.
sanitize() {
  local program tool
  program="$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null)"
  for tool in "$@"; do
    if [[ -n "${QUICK:-}" ]]; then note "compute-sanitizer $tool" "not run: QUICK"
    elif [[ -z "$program" ]]; then note "compute-sanitizer $tool" "not run: there is none in PATH or /usr/local/cuda/bin"
    else
      section 200 "compute-sanitizer $tool" env HALFTONE_TEST_BACKENDS=cuda HALFTONE_CUDA_CACHE=off HALFTONE_CUDA_LIBRARIES=off \
        "$program" --tool "$tool" --error-exitcode 9 "$tests" "--source-file=*/tests/ops/properties.cpp" \
        "--test-case=every backend equals*" "${test_flags[@]}"
    fi
  done
}

section 60 "machine" nvidia-smi
build="$(realpath -m "${BUILD:-build/gpu}")"
if [[ -z "${BUILD:-}" || -e "$build/CMakeCache.txt" ]]; then
  if [[ ! "${ARCHITECTURES:=$(first_of compute_cap | tr -d '.')}" =~ ^[0-9]+a?$ ]]; then ARCHITECTURES=80; fi
  whole="$budget" budget=7200 used="$spent"  # the build has its own budget
  if [[ -z "${BUILD:-}" ]]; then
    section 300 "configure" cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DHALFTONE_CUDA=ON \
      "-DHALFTONE_CUDA_ARCHITECTURES=$ARCHITECTURES" || finish
  fi
  section 5400 "build" cmake --build "$build" --target halftone-info halftone_tests halftone_gpu_tests compare_strategies op_bench \
    train_step || finish
  budget="$whole" spent="$used"
fi
export -f a_gpu_is_there launches all_launches
export build workloads
section 120 "halftone-info" bash -c a_gpu_is_there || finish

tests="$build/tests/halftone_tests"
export HALFTONE_TEST_BACKENDS=cuda
section 240 "operations on the GPU" "$tests" "--source-file=*/tests/ops/properties*" "${test_flags[@]}"
section 180 "training, capture, memory on the GPU" "$tests" "--source-file=*/tests/device/*" "${test_flags[@]}"
section 120 "families of kernels compared with the reference" env HALFTONE_CUDA_LIBRARIES=off "$build/tests/cuda/halftone_gpu_tests" \
  "${test_flags[@]}"
unset HALFTONE_TEST_BACKENDS

section 200 "training steps, and their share of the device's bandwidth and arithmetic" env HALFTONE_CUDA_LOG=1 \
  "$build/bench/train_step" --device cuda --strategy amp-bf16,fp32,amp-fp16,o2-bf16,full-bf16 --workload "$workloads" --seconds 2
section 120 "launches of a step" bash -c all_launches
sanitize racecheck
if [[ -z "${PYTHON:-}" ]] && python3 -c 'import torch' 2>/dev/null; then PYTHON=python3; fi
if [[ -z "${PYTHON:-}" ]]; then
  note "compared with PyTorch" "not run: python3 cannot import torch, and PYTHON names no other"
elif section 60 "PyTorch" "$PYTHON" -c 'import torch; print(torch.__version__, torch.version.cuda, torch.cuda.get_device_name())'; then
  # A round takes about 10 s per cell, compiled up to a minute.
  compare=("$PYTHON" bench/compare_with_torch.py "$build/bench/train_step" --python "$PYTHON" --device cuda --seconds 2 --workload)
  section 300 "compared with PyTorch, eager" "${compare[@]}" "$workloads" --strategy amp-bf16,fp32 --rounds 1
  section 300 "compared with PyTorch, compiled" "${compare[@]}" "$workloads" --strategy amp-bf16 --rounds 1 --peers torch-compiled
fi
section 60 "training steps, captured" "$build/bench/train_step" --device cuda --capture --strategy amp-bf16 \
  --workload "$workloads" --seconds 2
section 120 "single operations, and what the device reaches at best" "$build/bench/op_bench" --device cuda --dtypes f32,bf16,f16

sanitize memcheck initcheck synccheck
HALFTONE_TEST_BACKENDS=cuda section 240 "operations on the GPU, own kernels alone" env HALFTONE_CUDA_LIBRARIES=off "$tests" \
  "--source-file=*/tests/ops/properties*" "${test_flags[@]}"
if [[ -e data/fashion-mnist || -e /usr/share/datasets/fashion-mnist ]]; then
  section 120 "strategies compared" "$build/examples/compare_strategies" --device cuda --epochs 3
else note "strategies compared" "not run: no Fashion-MNIST in data/ or /usr/share/datasets"; fi
finish
