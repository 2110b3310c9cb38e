#!/usr/bin/env bash
# sweep_killed.sh HALFTONE_LAB: a second sweep of the folder is refused while the first runs. Killing a sweep ends its runs; then the folder
# is free again.
set -euo pipefail
lab="$1"
work="$(mktemp -d)"
trap 'kill -9 "$sweep" 2>/dev/null || true; rm -rf "$work"' EXIT
fail() { echo "$*"; exit 1; }
arguments=(sweep fp32 --workload student_teacher --steps 100000000 --axis lr=0.001,0.002 --jobs 2 --out "$work/s")
runs() { cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\0' ' ' | { grep -o "job $work/s/logs/" || true; } | wc -l; }
wait_for() {  # COUNT: until this number of runs is alive, at most 20 s
  for _ in $(seq 200); do
    [[ "$(runs)" != "$1" ]] || return 0
    sleep 0.1
  done
  fail "$(runs) runs are alive, not $1"
}

"$lab" "${arguments[@]}" >"$work/out" 2>&1 &
sweep=$!
wait_for 2
if "$lab" "${arguments[@]}" 2>"$work/err"; then fail "a second sweep began"; fi
grep -q "another process is at work in $work/s: process $sweep" "$work/err" || fail "$(cat "$work/err")"
kill -9 "$sweep"
wait_for 0
"$lab" sweep fp32 --workload student_teacher --steps 2 --axis lr=0.001 --out "$work/s" 2>"$work/err" && fail "other steps ran"
grep -q "was begun with" "$work/err" || fail "the folder is still locked: $(cat "$work/err")"
"$lab" sweep fp32 --workload student_teacher --steps 2 --axis lr=0.001 --out "$work/t" >"$work/out" 2>&1 || fail "$(cat "$work/out")"
grep -q '"lr": "0.001"' "$work/t/student_teacher-fp32-lr=0.001-0/cell.json" || fail "a run has no cell.json: $(ls -R "$work/t")"
