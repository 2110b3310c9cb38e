#!/usr/bin/env bash
# every_call.sh PROGRAM MODE [STRATEGY]: the second of two steps of a training, with each of its system calls on files
# in turn (fsync, rename, write, mkdir, openat to write):
#   MODE fail  the call fails as on a full disk: a clear error, no temporary left, the first checkpoint still loads;
#   MODE kill  the process is killed at it.
# In both the training then goes on, and ends with the bits of one that was left alone. Exit status 77, "skipped",
# where strace is absent or may not trace.
set -euo pipefail
program="$1" mode="$2" strategy="${3:-o2-bf16}"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
export OMP_NUM_THREADS=1
command -v strace >/dev/null || { echo "strace is not installed"; exit 77; }
strace -qq -o "$work/log" -e inject=fsync:error=EIO:when=1 true 2>/dev/null || { echo "strace may not trace here"; exit 77; }

"$program" "$strategy" "$work/one" 1 >/dev/null
expected="$("$program" "$strategy" "$work/alone" 2)"
# The schedule's length is part of the training, so the first step is taken again from scratch, with two in view.
calls="mkdir fsync renameat2 rename write rmdir"
tried=0
for call in $calls; do
  for ((n = 1; n <= 60; ++n)); do
    rm -rf "$work/root"
    fault="error=ENOSPC"
    if [[ "$mode" == kill ]]; then fault="signal=SIGKILL"; fi
    status=0
    strace -f -qq -o "$work/log" -e trace="$call" -e inject="$call:$fault:when=$n" \
      "$program" "$strategy" "$work/root" 2 >"$work/out" 2>"$work/err" || status=$?
    if ! grep -q -e INJECTED -e SIGKILL "$work/log"; then break; fi  # fewer calls than n
    tried=$((tried + 1))
    if [[ "$mode" == fail ]]; then
      if [[ -d "$work/root" && "$call" != rmdir ]] && find "$work/root" -name '.tmp-*' | grep -q .; then
        echo "$call $n: a temporary is left"; ls -A "$work/root"; cat "$work/err"; exit 1
      fi
      if ((status != 0)) && ! grep -q '^\[' "$work/err" && [[ "$call" != mkdir ]]; then
        echo "$call $n: exit status $status without an error of ours"; cat "$work/err"; exit 1
      fi
    fi
    again="$("$program" "$strategy" "$work/root" 2 2>"$work/err")" || { echo "$call $n:"; cat "$work/err"; exit 1; }
    [[ "$again" == "$expected" ]] || { echo "$call $n: $again instead of $expected"; exit 1; }
    if find "$work/root" -name '.tmp-*' | grep -q .; then echo "$call $n: a temporary stays"; exit 1; fi
  done
done
echo "$tried calls: $mode"
((tried > 20))
