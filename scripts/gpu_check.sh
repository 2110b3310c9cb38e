#!/usr/bin/env bash
# Checks and measures halftone on a machine with a GPU, and writes one report, which can be copied into docs/. Needs no network. Continues
# after a failure, and the report names it. Each section has a time limit, and so have all together; the report names those that found no
# time, and is rewritten after each.
#
# usage: scripts/gpu_check.sh [SECTION...]      default: all, in this order
#   tests        operations, training, captured steps, memory and kernels compared with the reference and with finite differences; with
#                NVIDIA's libraries and without; several programs at once
#   steps        training steps in turn with PyTorch, eager and compiled; captured; the share of the device's limit; launches of a step
#   profile      the time of a step by kernel, beside PyTorch's (ncu)
#   operations   single operations, and what the device reaches at best
#   python       the Python module on tensors of PyTorch on the GPU, in their streams
#   sums         how tensor cores add up, compared with a model (Hopper only)
#   fp8          products of f8 numbers by the GPU: their bits compared with the emulated ones, their steps with those of bf16
#   sanitizers   compute-sanitizer: racecheck, memcheck, initcheck, synccheck
#   distributed  two processes that share the GPU end with the bits of one
#   strategies   compare_strategies, where Fashion-MNIST is at hand
# variables:
#   REPORT=gpu_report.md
#   BUDGET=1800          seconds for everything but the build
#   PYTHON=...           an interpreter that can import torch (and pytest and nanobind for `python`); default: python3, if it can
#   ARCHITECTURES=90     compiles only for this GPU, which is faster; default: the first GPU's
#   BUILD=...            an existing build folder with HALFTONE_CUDA=ON; default: build/gpu, which is made. Build before time
#                        on the GPU counts: the build needs only ARCHITECTURES and the targets below
#   TESTS=...            more flags for the test programs, such as --subcase=*softmax*
#   WORKLOADS=a,b        for bench/train_step; default: the nine named below
#   STRATEGIES=a,b       compared with PyTorch; default: amp-bf16,fp32,o2-bf16
#   PROFILED=a           workloads of `profile`; default: gpt2_124m resnet18_224
#   PROFILED_AS=fp32     their strategy
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit
all=(tests steps profile operations python sums fp8 sanitizers distributed strategies)
for name in "$@"; do
  [[ " ${all[*]} " == *" $name "* ]] || { echo "gpu_check.sh: there is no section '$name'. Use some of: ${all[*]}."; exit 2; }
done
wanted=" ${*:-${all[*]}} "
report="$(realpath -m "${REPORT:-gpu_report.md}")"
budget="${BUDGET:-1800}"
workloads="${WORKLOADS:-gpt2_124m,llama_124m,resnet18_224,gpt_char,resnet18_cifar,vit_tiny,lenet,mlp,mlp_tiny}"
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

# at_once NAME... : runs the functions NAME at the same time, shows the end of what each printed, and fails if one fails.
at_once() {
  local name failed=0 folder
  folder="$(mktemp -d)"
  local -A process=()
  for name in "$@"; do
    "$name" >"$folder/$name" 2>&1 &
    process[$name]="$!"
  done
  for name in "$@"; do
    wait "${process[$name]}" && outcome=passed || { outcome="exit $?"; failed=1; }
    printf -- '-- %s: %s\n' "$name" "$outcome"
    if [[ "$outcome" == passed ]]; then tail -n 4 "$folder/$name"; else tail -n 60 "$folder/$name"; fi
  done
  rm -rf "$folder"
  return "$failed"
}
on_the_gpu() { HALFTONE_TEST_BACKENDS=cuda "$tests" "--source-file=$1" "${@:2}" $test_flags; }
operations() { on_the_gpu '*/tests/ops/properties.cpp'; }
operations_by_own_kernels() { HALFTONE_CUDA_LIBRARIES=off on_the_gpu '*/tests/ops/properties.cpp'; }
gradients() { on_the_gpu '*/tests/ops/properties_gradients.cpp'; }
second_gradients() { on_the_gpu '*/tests/ops/properties_second_gradients.cpp'; }
taps() { on_the_gpu '*/tests/ops/properties_taps.cpp'; }
training() { on_the_gpu '*/tests/device/*'; }
numerics() { on_the_gpu '*/tests/backends/numerics_test.cpp,*/tests/train/metrics*,*/tests/amp/cast_policy_test.cpp'; }
families() { HALFTONE_CUDA_LIBRARIES=off "$families" $test_flags; }
families_with_libraries() { "$families" $test_flags; }

# profiled STEPS COMMAND...: the time of a step by kernel.
profiled() {
  local steps="$1" profiler
  shift
  profiler="$(command -v ncu || ls /usr/local/cuda/bin/ncu /opt/nvidia/nsight-compute/*/ncu 2>/dev/null | head -1)"
  [[ -n "$profiler" ]] || { echo "there is no ncu in PATH or /usr/local/cuda/bin"; return 1; }
  echo "$*"
  "$profiler" --csv --clock-control none --metrics gpu__time_duration.sum "$@" | scripts/kernel_times.py "$steps"
}
# A run of train_step has four steps of warm-up and ten that are timed; torch_step.py has ten and ten.
profile_ours() { profiled 14 "$build/bench/train_step" --device cuda --no-limit --steps 1 --strategy "$2" --workload "$1"; }
profile_torch() { profiled 20 "$PYTHON" bench/peers/torch_step.py --device cuda --warm-up 1 --steps 1 --strategy "$2" --workload "$1"; }

# sanitize TOOL...: uses exact allocations, so that memcheck sees their ends. Checks only own kernels, not NVIDIA's.
sanitize() {
  local program tool
  program="$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null)"
  for tool in "$@"; do
    if [[ -z "$program" ]]; then note "compute-sanitizer $tool" "not run: there is none in PATH or /usr/local/cuda/bin"
    else
      section 240 "compute-sanitizer $tool" env HALFTONE_CUDA_CACHE=off HALFTONE_CUDA_LIBRARIES=off \
        "$program" --tool "$tool" --error-exitcode 9 "$families" $test_flags
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
  section 5400 "build" cmake --build "$build" --target halftone-info halftone_tests halftone_gpu_tests same_training \
    compare_strategies op_bench train_step || finish
  budget="$whole" spent="$used"
fi
tests="$build/tests/halftone_tests" families="$build/tests/cuda/halftone_gpu_tests" test_flags="${TESTS:-}"
export -f a_gpu_is_there launches all_launches at_once on_the_gpu operations operations_by_own_kernels gradients second_gradients taps \
  training numerics families families_with_libraries profiled profile_ours profile_torch
export build workloads tests families test_flags
section 120 "halftone-info" bash -c a_gpu_is_there || finish

if [[ "$wanted" == *" tests "* ]]; then
  section 240 "operations, gradients, training and kernels on the GPU" bash -c "at_once operations operations_by_own_kernels gradients \
    second_gradients taps training numerics families families_with_libraries"
fi
if [[ "$wanted" == *" steps "* || "$wanted" == *" profile "* || "$wanted" == *" python "* ]]; then
  if [[ -z "${PYTHON:-}" ]] && python3 -c 'import torch' 2>/dev/null; then PYTHON=python3; fi
  torch=""
  if [[ -z "${PYTHON:-}" ]]; then
    note "compared with PyTorch" "not run: python3 cannot import torch, and PYTHON names no other"
  elif section 60 "PyTorch" "$PYTHON" -c 'import torch; print(torch.__version__, torch.version.cuda, torch.cuda.get_device_name())'; then
    torch=yes
    export PYTHON
  fi
fi
if [[ "$wanted" == *" steps "* ]]; then
  strategies="${STRATEGIES:-amp-bf16,fp32,o2-bf16}"
  if [[ -n "$torch" ]]; then
    compare=("$PYTHON" bench/compare_with_torch.py "$build/bench/train_step" --python "$PYTHON" --device cuda --workload "$workloads")
    section 240 "compared with PyTorch, eager" "${compare[@]}" --seconds 1 --strategy "$strategies" --rounds 1
    section 240 "compared with PyTorch, compiled" "${compare[@]}" --seconds 1 --strategy amp-bf16 --rounds 1 --peers torch-compiled
  else
    section 200 "training steps" "$build/bench/train_step" --device cuda --strategy "$strategies" --workload "$workloads" --seconds 1
  fi
  section 60 "training steps, captured" "$build/bench/train_step" --device cuda --capture --strategy amp-bf16 \
    --workload "$workloads" --seconds 1
  section 120 "launches of a step" bash -c all_launches
fi
if [[ "$wanted" == *" profile "* ]]; then
  for workload in ${PROFILED:-gpt2_124m resnet18_224}; do
    section 90 "kernels of $workload" bash -c "profile_ours $workload ${PROFILED_AS:-fp32}"
    [[ -z "$torch" ]] || section 90 "PyTorch's kernels of $workload" bash -c "profile_torch $workload ${PROFILED_AS:-fp32}"
  done
fi
[[ "$wanted" != *" operations "* ]] ||
  section 120 "single operations, and what the device reaches at best" "$build/bench/op_bench" --device cuda --dtypes f32,bf16,f16
# With a package in BUILD/python/package, which has the module linked already, nothing is compiled.
python_module() {
  local package="$build/python/package"
  [[ -d "$package" ]] || HALFTONE_PYTHON="$PYTHON" python/tests/run.sh "$build" "$build/python" || return
  PYTHONPATH="$package" "$PYTHON" -m pytest -q -rs -p no:cacheprovider python/tests/test_gpu.py
}
export -f python_module
[[ "$wanted" != *" python "* || -z "$torch" ]] || section 240 "the Python module" bash -c python_module
sums() {
  local program
  program="$(mktemp)"
  nvcc -O3 -std=c++17 -gencode=arch=compute_90a,code=sm_90a tests/cuda/tensor_core_sums.cu -o "$program" && "$program"
}
export -f sums
if [[ "$wanted" == *" sums "* ]]; then
  if ! command -v nvcc >/dev/null; then note "sums of tensor cores" "not run: there is no nvcc in PATH"
  elif [[ "$(first_of compute_cap)" != 9.* ]]; then note "sums of tensor cores" "not run: this is no Hopper GPU"
  else section 120 "sums of tensor cores" bash -c sums; fi
fi
# fp8 SUMS: te_current, the same with a scale for each row, and on sm_100 mxfp8, with products in hardware instead of emulated.
fp8() {
  local folder base policies=amp-bf16
  folder="$(mktemp -d)"
  for base in te_current mxfp8 rows; do
    local extends="$base" operands=""
    [[ "$base" != mxfp8 || "$1" == b200* ]] || continue
    if [[ "$base" == rows ]]; then
      extends=amp-bf16
      for role in input weight grad_output input.backward weight.backward grad_output.weight; do
        operands+=", \"$role\": {\"format\": \"e4m3\", \"scale\": {\"per\": \"row\"}}"
      done
    fi
    cat >"$folder/fp8_$base.json" <<END
{"halftone_policy": 1, "name": "fp8_$base", "extends": "$extends", "rules": [{"match": {"op": "linear", "path": "**", "except": "<head>"},
 "compute": "hardware", "accumulate": "$1"$operands}]}
END
    policies+=",$folder/fp8_$base.json"
  done
  "$tests" "--source-file=*/tests/device/hardware_test.cpp" $test_flags &&
    "$build/bench/train_step" --device cuda --workload "${WORKLOADS:-gpt2_124m,mlp}" --strategy "$policies" \
      --seconds 3 || return
  profile_ours gpt2_124m "$folder/fp8_te_current.json"
}
export -f fp8
if [[ "$wanted" == *" fp8 "* ]]; then
  case "$(first_of compute_cap)" in
    8.9) section 200 "products of f8 numbers" bash -c "fp8 l40-mma-f8" ;;
    9.*) section 200 "products of f8 numbers" bash -c "fp8 h100-wgmma-f8" ;;
    10.*) section 200 "products of f8 numbers" bash -c "fp8 b200-tcgen05-f8" ;;
    *) note "products of f8 numbers" "not run: the GPU has none, or halftone does not know how it adds" ;;
  esac
fi
[[ "$wanted" != *" sanitizers "* ]] || sanitize racecheck memcheck initcheck synccheck
# two_processes: trainings on the GPU, alone and as two processes, whose gradients go through the host.
two_processes() {
  local case alone together
  for case in "strategy=fp32 model=mlp" "strategy=o2-bf16 model=resnet" "strategy=amp-bf16 model=llama"; do
    alone="$(tests/distributed/launch.sh 0 "$build/tests/same_training" device=cuda $case)" || return 1
    together="$(tests/distributed/launch.sh 2 "$build/tests/same_training" device=cuda $case)" || return 1
    printf '%s\n%s\n' "$alone" "$together"
    [[ "$alone" == "$together" ]] || { echo "two processes end with other bits"; return 1; }
  done
}
export -f two_processes
if [[ "$wanted" == *" distributed "* ]]; then
  if ! command -v "${HALFTONE_MPIRUN:-mpirun}" >/dev/null; then note "two processes on one GPU" "not run: there is no mpirun in PATH"
  else section 180 "two processes on one GPU" bash -c two_processes; fi
fi
if [[ "$wanted" == *" strategies "* ]]; then
  if [[ -e data/fashion-mnist || -e /usr/share/datasets/fashion-mnist ]]; then
    section 120 "strategies compared" "$build/examples/compare_strategies" --device cuda --epochs 3
  else note "strategies compared" "not run: no Fashion-MNIST in data/ or /usr/share/datasets"; fi
fi
finish
