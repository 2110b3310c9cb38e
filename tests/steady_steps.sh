#!/usr/bin/env bash
# steady_steps.sh PROGRAM CASE [STRATEGY]: no system call for memory (brk, mmap, munmap, madvise, ...) in steps
# 3 to 50 of a training run, and no more bytes of the heap in use after step 50 than after step 10. Exit status 77, "skipped", where strace is absent or may not trace.
set -euo pipefail
log="$(mktemp)"
trap 'rm -f "$log"' EXIT

command -v strace >/dev/null || { echo "strace is not installed"; exit 77; }
strace -qq -o "$log" true 2>/dev/null || { echo "strace may not trace here"; exit 77; }

# glibc trims its heap to the page. In some runs libgomp's small records, freed by the last thread, make it
# return or request a page; and a heap near its end may exceed it once. A margin at the end and a high
# threshold of trimming prevent both. Tensors are larger than blocks of the heap and always show. Small blocks
# that accumulate within the margin are found by the program's own check, which needs the caches per thread
# off.
export GLIBC_TUNABLES=glibc.malloc.tcache_count=0:glibc.malloc.top_pad=33554432:glibc.malloc.trim_threshold=1073741824
export HALFTONE_FIXED_TEAM=1  # a team of another size allocates workspaces
strace -f -qq -e trace=%memory,access,faccessat,faccessat2 -o "$log" "$@"
grep -q halftone-marker-begin "$log" && grep -q halftone-marker-end "$log" ||
  { echo "the markers are not in the log"; exit 1; }
calls="$(sed -n '/halftone-marker-begin/,/halftone-marker-end/p' "$log" | grep -v access || true)"
if [[ -n "$calls" ]]; then
  echo "system calls for memory in steps 3 to 50:"
  echo "$calls" | head -20
  exit 1
fi
echo "none in steps 3 to 50; $(grep -cv access "$log") in the whole run"
