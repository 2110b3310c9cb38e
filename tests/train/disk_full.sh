#!/usr/bin/env bash
# disk_full.sh PROGRAM [STRATEGY]: a training on a file system that is too small for its checkpoints, of many sizes. It ends with a clear
# error and without temporaries, and its saved checkpoints are complete. Given room, it resumes and ends with the bits of an undisturbed
# one. Exit status 77, "skipped", without the permission to mount.
set -euo pipefail
program="$1" strategy="${2:-o2-bf16}"
if [[ "${3:-}" != inside ]]; then
  for how in "unshare -m" "unshare -Urm"; do
    if $how sh -c 'mount -t tmpfs -o size=64k none /mnt' 2>/dev/null; then
      exec $how "$0" "$program" "$strategy" inside
    fi
  done
  echo "mounting is not allowed here"
  exit 77
fi

work="$(mktemp -d)"
trap 'umount "$work/small" 2>/dev/null || true; rm -rf "$work"' EXIT
mkdir "$work/small"
export OMP_NUM_THREADS=1
expected="$("$program" "$strategy" "$work/alone" 5)"
full=0 kept=0
for ((kilobytes = 4; kilobytes <= 160; kilobytes += 4)); do
  mount -t tmpfs -o "size=${kilobytes}k" none "$work/small"
  status=0
  "$program" "$strategy" "$work/small/root" 5 >"$work/out" 2>"$work/err" || status=$?
  if ((status != 0)); then
    full=$((full + 1))
    grep -qE '^\[(checkpoint|CsvLogger|JsonLinesLogger|Trainer)\] .*No space left on device' "$work/err" ||
      { echo "$kilobytes KiB: exit status $status:"; cat "$work/err"; exit 1; }
    if [[ -n "$(find "$work/small" -name '.tmp-*')" ]]; then
      echo "$kilobytes KiB: a temporary is left"; ls -AR "$work/small/root"; exit 1
    fi
    mkdir -p "$work/small/root/checkpoints"
    newest="$(find "$work/small/root/checkpoints" -maxdepth 1 -name 'step-*' -printf '%f\n' | sort | tail -1 | sed 's/^step-0*//')"
    mount -o remount,size=1m "$work/small"
    "$program" "$strategy" "$work/small/root" 5 >"$work/out" 2>"$work/err"
    if [[ -n "$newest" ]]; then
      kept=$((kept + 1))
      grep -q "^resumed after step $newest\$" "$work/err" ||
        { echo "$kilobytes KiB: step $newest was there, but:"; cat "$work/err"; exit 1; }
    fi
  fi
  [[ "$(cat "$work/out")" == "$expected" ]] || { echo "$kilobytes KiB: $(cat "$work/out")"; exit 1; }
  umount "$work/small"
done
echo "full at $full sizes; $kept times there was a checkpoint to go on from"
((full > 5 && kept > 0 && full < 40))
