#!/usr/bin/env bash
# gpu_check.sh CHECK [TESTS TRAIN_STEP [LIBRARY_CALLS]]: tests scripts/gpu_check.sh (CHECK) on simulated machines. Programs are substitutes
# that print their arguments. With TESTS and TRAIN_STEP, which are programs of the emulated GPU, it is a dry run: tests, steps and counts
# are those of that GPU. LIBRARY_CALLS is the number of calls in a step of mlp_tiny (a regular expression; 1 or more).
set -uo pipefail
check="$(realpath "$1")"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
mkdir -p "$work"/{bin,build/{tools,tests/cuda,bench,examples}}
export PATH="$work/bin:$PATH" BUILD="$work/build"
report="$work/report.md"

program() { # PATH, with its text on standard input
  { echo '#!/usr/bin/env bash'; cat; } >"$work/$1"
  chmod +x "$work/$1"
}
fail() { echo "$*"; echo "--- the report:"; cat "$report"; exit 1; }
says() { grep -qE -- "$1" "$report" || fail "the report does not say: $1"; }
run() { # WANTED_STATUS [VARIABLE=...]...
  local wanted="$1" status=0
  shift
  rm -f "$report"
  env "$@" REPORT="$report" "$check" ${sections:-} >"$work/output" 2>&1 || status=$?
  [[ "$status" == "$wanted" ]] || { cat "$work/output"; fail "exit status $status instead of $wanted"; }
}

program bin/nvidia-smi <<<'case "$*" in *query-gpu=name*) echo "Test GPU";; *compute_cap*) echo 9.0;; *) echo "a table";; esac'
program bin/compute-sanitizer <<<'echo "sanitized with $2"'
program bin/ncu <<'PROFILE'
echo '==PROF== Connected'
echo '"ID","Kernel Name","Metric Name","Metric Unit","Metric Value"'
for i in $(seq 28); do echo '"'$i'","void halftone::cuda::some_kernel<float, (int)1>(int)","gpu__time_duration.sum","us","1,000.00"'; done
PROFILE
program bin/nvcc <<<'echo "#!/bin/sh
echo 0 of 5 differ" >"${@: -1}"; chmod +x "${@: -1}"'
program bin/python3 <<<'[[ "$1" != -c ]] || exit 1; exec /usr/bin/env -u PATH /usr/bin/python3 "$@"'
program build/tools/halftone-info <<<'echo "cuda          0: Test GPU (sm_90, 80000 MiB); CUDA 13.0"'
program build/tests/halftone_tests <<<'echo "tests $*"'
program build/tests/cuda/halftone_gpu_tests <<<'echo "families $*"'
program bin/mpirun <<<'[[ "$*" == *same_training* ]] || exit 0; while [[ "$1" != */same_training ]]; do shift; done; exec "$@"'
program build/tests/same_training <<<'echo "a training: $*"'
program build/bench/op_bench <<<'echo "operations $*"'
program build/examples/compare_strategies <<<'echo "strategies $*"'
program build/bench/train_step <<'STEP'
echo "a step: $*"
steps=0
while (($#)); do if [[ "$1" == --steps ]]; then steps="$2"; fi; shift; done
echo "[cuda] the end; calls so far: matmul $((50 * steps)) by cuBLASLt, 3 by own kernels; kernels $((100 * steps + 7))" >&2
STEP

if (($# > 1)); then # on the emulated GPU
  program build/tests/halftone_tests <<<"[[ \"\$*\" != */hardware_test* ]] || exec '$2' \"\$@\"
[[ \"\$*\" == */properties.cpp* ]] || exit 0; exec '$2' \"\$@\" '--test-case=every backend equals*'"
  program build/tests/cuda/halftone_gpu_tests <<<"exec '$2' \"\$@\" '--source-file=*/norms_test.cpp'"
  program build/bench/train_step <<<"exec '$3' \"\$@\""
  sections="tests steps"
  run 0 WORKLOADS=mlp_tiny STRATEGIES=amp-bf16,full-bf16 'TESTS=--subcase=*softmax*'
  says '\| operations, gradients, training and kernels on the GPU \| passed'
  says 'test cases: +1 .* 0 failed'
  says 'mlp_tiny +amp-bf16 +[1-9][0-9.]* own kernels and +'"${4:-[1-9][0-9.]*}"' calls of libraries a step'
  says 'mlp_tiny +full-bf16 .*%'
  if (($# == 3)); then # with the substitute for cuBLASLt
    sections="fp8"
    run 0 WORKLOADS=mlp_tiny
    says '\| products of f8 numbers \| passed'
    says 'test cases: +8 .* 0 failed'
    says 'mlp_tiny +\S*json .*%'
  fi
  echo "as it should be"
  exit
fi

# Everything exists except PyTorch.
run 0
says '^# A check on Test GPU'
for title in "machine" "operations, gradients, training and kernels on the GPU" "training steps" "training steps, captured" \
  "launches of a step" "compute-sanitizer racecheck" "products of f8 numbers" "compute-sanitizer synccheck" "two processes on one GPU"; do
  says "^\| $title \| passed \| [0-9]+ \|"
done
says '^\| compared with PyTorch \| not run: python3 cannot import torch'
says 'gpt2_124m +amp-bf16 +10\.0 own kernels and +5\.0 calls of libraries a step'
says 'sanitized with racecheck'
says '2\.000 ms a step in kernels, 2\.0 launches'
says '2\.000 ms 100\.0 % +2\.0 x  some_kernel<float, 1>'
says '^0 of 5 differ'
says '^a training: device=cuda strategy=o2-bf16 model=resnet'

# A part that fails, or takes too long, does not affect the others.
program build/tests/halftone_tests <<<'[[ "$*" != */ops/* ]] || { echo "half of it"; exit 3; }'
program build/bench/train_step <<<'sleep 15'
run 1 BUDGET=8
says '^\| operations, gradients, training and kernels on the GPU \| \*\*exit 1\*\*'
says '^-- operations: exit 3'
says '^-- training: passed'
says '^half of it'
says '^\| training steps \| \*\*not done in [0-9] s\*\*'
says '^\| launches of a step \| \*\*not begun: the 8 s of BUDGET are spent\*\*'
grep -q 'failed: operations, gradients, training and kernels on the GPU;training steps' "$work/output" || fail "the last line names no failures"

# Two processes with other bits than one.
sections="distributed"
program build/tests/same_training <<<'echo "$$"'
run 1
says 'two processes end with other bits'

# A section alone, and one that does not exist.
sections="operations"
run 0
says '^\| single operations, and what the device reaches at best \| passed'
if grep -q '| training steps' "$report"; then fail "other sections ran"; fi
sections="operation"
run 2
grep -q "there is no section 'operation'" "$work/output" || fail "a wrong section is not named"
sections=""

# If it is interrupted, the report has the finished parts; also if it is killed.
for signal in TERM KILL; do
  rm -f "$report"
  REPORT="$report" setsid "$check" >"$work/output" 2>&1 &
  check_id=$!
  for ((i = 0; i < 100; ++i)); do
    grep -q '| operations, gradients' "$report" 2>/dev/null && break
    sleep 0.1
  done
  kill "-$signal" -- "-$check_id"
  wait "$check_id" 2>/dev/null
  says '^\| operations, gradients, training and kernels on the GPU \| \*\*exit 1\*\*'
done

# The Python module, with a PyTorch.
program bin/python-with-torch <<<'echo "with $PYTHONPATH: $*"'
mkdir -p "$work/build/python/package"
sections="python"
run 0 PYTHON=python-with-torch
says '^\| the Python module \| passed'
says 'with .*/build/python/package: -m pytest .*/test_gpu.py'
sections=""

# No GPU that the build can use: the tests would be skipped, which does not count as passed.
program build/tools/halftone-info <<<'echo "cuda          absent: there is no NVIDIA driver. Install 580 or newer"'
run 1
says '^\| halftone-info \| \*\*exit 1\*\*'
says 'sees no GPU that it can use'
if grep -q '| operations' "$report"; then fail "tests ran without a GPU"; fi

# No driver, or no build that works.
program build/tools/halftone-info <<<'exit 127'
rm "$work/bin/nvidia-smi"
run 1
says '^\| machine \| \*\*exit 127\*\*'

# A Python whose torch finds no GPU.
program build/tools/halftone-info <<<'echo "cuda          0: Test GPU (sm_90, 80000 MiB); CUDA 13.0"'
program bin/python-with-torch <<<'echo "RuntimeError: no NVIDIA driver" >&2; exit 1'
sections="steps python"
program build/bench/train_step <<<'echo "[cuda] the end; calls so far: matmul 3 by cuBLASLt; kernels 7" >&2'
run 1 PYTHON=python-with-torch
says '^\| PyTorch \| \*\*exit 1\*\*'
if grep -qE '\| (compared with PyTorch|the Python module)' "$report"; then fail "compared with a PyTorch that sees no GPU"; fi
echo "as it should be"
