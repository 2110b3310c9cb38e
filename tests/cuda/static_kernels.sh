#!/usr/bin/env bash
# Checks properties of compiled kernels without a GPU, from their PTX and from ptxas's output. static_kernels.sh NVCC
# INCLUDE ARCHITECTURE [MORE...] PTX is that of the first architecture. ptxas compiles it for each architecture; if
# cuobjdump and nvdisasm are found, their output is checked as well. Kernels for dense f32, f16 and bf16 have no local
# memory and no spills, and registers within a budget for two blocks. Kernels that are limited by memory load and store
# four numbers at once. Roots and quotients of updates are rounded as IEEE 754 says, so that they equal those of the CPU;
# 16-bit floats are rounded by one instruction.
set -euo pipefail
nvcc="$1" include="$2" architecture="$3"
architectures=("${@:3}")
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
failures=0

complain() {
  echo "FAILED: $*"
  failures=$((failures + 1))
}

# Makes the PTX of a file, once.
ptx_of() {
  local ptx="$work/$1.ptx"
  [[ -e "$ptx" ]] || "$nvcc" -std=c++20 -O3 --expt-relaxed-constexpr -ptx "-arch=compute_$architecture" "-I$include" \
    -o "$ptx" "$root/backends/cuda/$1.cu"
  echo "$ptx"
}

# FILE PATTERN: the kernels whose names match, as ptxas wants them: without those for f64, integers and strided tensors.
entries_of() {
  local ptx
  ptx="$(ptx_of "$1")"
  grep -oE '\.entry [A-Za-z0-9_$]+' "$ptx" | cut -d' ' -f2 > "$work/mangled"
  c++filt < "$work/mangled" | sed -E 's/\(anonymous namespace\)::|halftone::|cuda:://g; s/\(.*//' | paste "$work/mangled" - |
    awk -F'\t' -v wanted="$2" '$2 !~ /[<, ](double|long|int|unsigned)|strided/ && $2 ~ wanted { printf "%s%s", comma, $1; comma = "," }'
}

# FILE MOST_REGISTERS [PATTERN]: checks these kernels. SPILLS="90 8" in the environment allows 8 spilled bytes for sm_90.
within_budget() {
  local sm entries
  entries="$(entries_of "$1" "${3:-.}")"
  [[ -n "$entries" ]] || complain "$1 has no kernel ${3:-.}"
  for sm in "${architectures[@]}"; do within_budget_of "$sm" "$1" "$2" "$entries"; done
}
within_budget_of() {
  local sm="$1" file="$2" most="$3" entries="$4" allowed=0
  local report="$work/$file.$sm.txt"
  "$(dirname "$nvcc")/ptxas" -v "-arch=sm_$sm" --entry "$entries" -o "$work/$file.$sm.cubin" "$(ptx_of "$file")" 2> "$report" ||
    complain "$file: ptxas fails for sm_$sm"
  [[ "${SPILLS:-} " != "$sm "* ]] || allowed="${SPILLS#* }"
  c++filt < "$report" | awk -v most="$most" -v file="$file (sm_$sm)" -v allowed="$allowed" '
    /Compiling entry function/ { name = $0; sub(/.*Compiling entry function ./, "", name); sub(/\(.*/, "", name); ++kernels }
    /bytes spill stores/ {
      split($0, word, /[^0-9]+/)  # bytes of the stack, of stores and of loads
      for (n = 2; n <= 4; ++n) if (word[n] + 0 > allowed + 0) { print "FAILED: " file ": " name ": " $0; bad = 1; break } }
    /Used [0-9]+ registers/ {
      match($0, /Used [0-9]+/); used = substr($0, RSTART + 5, RLENGTH - 5)
      if (used + 0 > most + 0) { print "FAILED: " file ": " name " uses " used " registers, at most " most " are wanted"; bad = 1 }
      if (used + 0 > largest + 0) largest = used }
    END { print file ": " kernels " kernels, at most " largest " registers"; exit bad || kernels == 0 }' || failures=$((failures + 1))
}

# FILE has|has_no PATTERN, an extended regular expression.
expect() {
  local ptx
  ptx="$(ptx_of "$1")"
  if grep -Eq "$3" "$ptx"; then
    [[ "$2" == has ]] || complain "$1 has $3: $(grep -Em1 "$3" "$ptx")"
  else
    [[ "$2" == has_no ]] || complain "$1 has no $3"
  fi
}

within_budget optimizer 64
expect optimizer has 'sqrt\.rn\.f32'
expect optimizer has_no 'sqrt\.approx|rsqrt\.approx|div\.approx|div\.full'
expect optimizer has 'ld\.global(\.nc)?\.v[24]'
expect optimizer has 'st\.global\.v4\.b32'
expect optimizer has 'st\.global\.v2\.b32'
SPILLS="90 8" within_budget matmul 225
within_budget layer_norm 112
expect layer_norm has 'ld\.global(\.nc)?\.v[24]'
expect pool has 'ld\.global(\.nc)?\.v4\.u8'
expect pool has 'st\.global\.v4\.u8'
# Sums of two dtypes, four elements at a time.
within_budget movement 40 mixed_kernel
expect movement has 'ld\.global(\.nc)?\.v4\.(u|b)16'
expect movement has 'ld\.global(\.nc)?\.v4\.(f|u|b)32'
# Two blocks of attention fit on a multiprocessor, and use tensor cores.
within_budget attention 128 '(attention|query_gradient)_kernel<.*Float16, 1>'
expect attention has 'wmma\.mma\.sync\..*\.bf16'
expect attention has 'wmma\.mma\.sync\..*\.m16n16k16\.f32\.f32'
# Short floats are rounded by the hardware, not by the integer code of core/dtype.h.
for file in movement elementwise; do
  expect "$file" has 'cvt\.rn\.bf16\.f32'
  expect "$file" has 'cvt\.rn\.f16\.f32'
  expect "$file" has_no 'add\.s32.*, 32767;'
done
# FILE has|has_no OPCODE: checks the machine code that ptxas made above, for each architecture.
expect_code() {
  local sm count
  command -v cuobjdump > /dev/null || return 0
  for sm in "${architectures[@]}"; do
    count="$(cuobjdump -sass "$work/$1.$sm.cubin" | grep -cE "^ +/\*[0-9a-f]+\*/ .* $3" || true)"
    if [[ "$2" == has ]]; then ((count > 0)) || complain "$1 (sm_$sm) has no $3"
    else ((count == 0)) || complain "$1 (sm_$sm) has $3, $count times"; fi
  done
}
expect_code optimizer has 'LDG\.E\.([A-Z.]*\.)?128'
expect_code optimizer has 'STG\.E\.([A-Z.]*\.)?128'
expect_code layer_norm has 'LDG\.E\.([A-Z.]*\.)?128'
for file in optimizer layer_norm movement attention; do expect_code "$file" has_no '(LDL|STL)'; done
expect_code attention has 'HMMA\.16816\.F32\.BF16'
expect_code matmul has 'LDS\.([A-Z.]*\.)?128'
expect_code matmul has 'FFMA'
[[ "$failures" == 0 ]]
