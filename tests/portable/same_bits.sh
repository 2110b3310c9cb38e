#!/usr/bin/env bash
# same_bits.sh PROGRAM PART SET...: runs `PROGRAM PART` with portable bits under each instruction set (as HALFTONE_MAX_ISA), each with another
# number of threads, and under the first also with 8. Compares the printed hashes. A set that this CPU or build lacks repeats a smaller one.
set -euo pipefail
program=$1 part=$2; shift 2
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
export HALFTONE_PORTABLE_BITS=1 HALFTONE_FIXED_TEAM=1

run() { OMP_NUM_THREADS=$2 HALFTONE_MAX_ISA=$1 "$program" "$part" > "$work/now"; }
first=$1
run "$first" 2
mv "$work/now" "$work/first"
lines=$(wc -l < "$work/first")
((lines > 5)) || { echo "only $lines lines"; exit 1; }
differs=0
compare() {
  run "$1" "$2"
  if ! diff "$work/first" "$work/now" > "$work/diff"; then
    echo "$1 with $2 threads differs from $first with 2 in $(grep -c '^>' "$work/diff") of $lines hashes:"
    head -20 "$work/diff"
    differs=1
  fi
}
threads=(1 3 5 7)
for set in "${@:2}"; do
  compare "$set" "${threads[0]}"
  threads=("${threads[@]:1}")
done
compare "$first" 8
((differs == 0)) && echo "$lines hashes are equal: $*; several numbers of threads"
