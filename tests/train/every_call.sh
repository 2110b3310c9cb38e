#!/usr/bin/env bash
# every_call.sh PROGRAM MODE CALL...: a training of three steps that saves after each and removes all but
# the last two checkpoints. Each of its system calls of these names in turn fails as on a full disk (MODE
# fail: halftone's error, and no temporary left) or is the moment at which the process is killed (MODE
# kill). Then the training is started again: it resumes from the newest checkpoint that has its final name,
# and ends with the bits of an undisturbed one. Exit status 77, "skipped", if strace is absent or may not
# trace.
set -euo pipefail
program="$1" mode="$2" strategy=o2-bf16
shift 2
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
export OMP_NUM_THREADS=1
command -v strace >/dev/null || { echo "strace is not installed"; exit 77; }
strace -qq -o "$work/log" -e trace=fsync -e inject=fsync:error=EIO:when=1 true 2>/dev/null ||
  { echo "strace may not trace here"; exit 77; }

expected="$("$program" "$strategy" "$work/alone" 3)"
case "$mode" in
  fail) fault="error=ENOSPC" ;;
  kill) fault="signal=SIGKILL" ;;
esac
root="$work/root/checkpoints" tried=0 kept=0
for call in "$@"; do
  for ((n = 1; n <= 200; ++n)); do
    rm -rf "$work/root"
    mkdir -p "$root"
    status=0
    # In a separate shell, whose report of a killed process goes to its errors.
    (strace -f -qq -o "$work/log" -e trace="$call" -e inject="$call:$fault:when=$n" \
      "$program" "$strategy" "$work/root" 3 >"$work/out" 2>"$work/err"; exit $?) 2>/dev/null || status=$?
    if ! grep -q -e INJECTED -e SIGKILL "$work/log"; then break; fi  # there are fewer than n
    tried=$((tried + 1))
    if [[ "$mode" == fail ]]; then
      if [[ -n "$(find "$work/root" -name '.tmp-*')" ]]; then
        echo "$call $n: a temporary is left"; ls -A "$root"; cat "$work/err"; exit 1
      fi
      if ((status != 0)) && ! grep -qE '^\[(checkpoint|CsvLogger|JsonLinesLogger)\] ' "$work/err"; then
        echo "$call $n: exit status $status without an error of ours:"; cat "$work/err"; exit 1
      fi
    fi
    newest="$(find "$root" -maxdepth 1 -name 'step-*' -printf '%f\n' | sort | tail -1 | sed 's/^step-0*//')"
    again="$("$program" "$strategy" "$work/root" 3 2>"$work/err")" || { echo "$call $n:"; cat "$work/err"; exit 1; }
    [[ "$again" == "$expected" ]] || { echo "$call $n: $again instead of $expected"; exit 1; }
    if [[ -n "$newest" ]]; then
      kept=$((kept + 1))
      grep -q "^resumed after step $newest\$" "$work/err" ||
        { echo "$call $n: step $newest was there, but:"; cat "$work/err"; exit 1; }
    fi
    if [[ "$(find "$root" -mindepth 1 -maxdepth 1 | wc -l)" != 2 ]]; then
      echo "$call $n: not two checkpoints:"; ls -A "$root"; exit 1
    fi
  done
done
echo "$tried calls, $mode; $kept times there was a checkpoint to go on from"
((tried > 5 && kept > 3))
