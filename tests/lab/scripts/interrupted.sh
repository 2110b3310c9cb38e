#!/usr/bin/env bash
# interrupted.sh HALFTONE_LAB: SIGINT ends a training with exit code 3 and a message that says what is left. The training begins within
# seconds, also with the most steps.
set -euo pipefail
lab="$1"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
fail() { echo "$*"; exit 1; }
# Interrupts `halftone-lab ARGUMENT...` once (a second SIGINT, to the group, would end it at once) and requires exit code 3; its messages are in $work/err.
interrupt() {
  local code=0
  timeout --foreground --preserve-status -k 60 -s INT 5 "$lab" "$@" >"$work/out" 2>"$work/err" || code=$?
  [[ $code == 3 ]] || fail "halftone-lab $*: exit code $code: $(cat "$work/out" "$work/err")"
}
says() { grep -qF "$1" "$work/err" || fail "not \"$1\" but: $(cat "$work/err")"; }

training=(--workload student_teacher --steps 1099511627776)
interrupt run fp32 "${training[@]}"
says "stopped: 0 of 1 runs are finished. Give --out DIR to keep finished runs for the next call"
! grep -q "same command" "$work/err" || fail "$(cat "$work/err")"
interrupt run fp32 "${training[@]}" --out "$work/runs"
says "stopped: 0 of 1 runs are finished. The same command reads these and trains the others from step 0"
"$lab" run fp32 --workload student_teacher --steps 3 --out "$work/short" >"$work/out" 2>&1 || fail "$(cat "$work/out")"
run=$work/short/student_teacher-fp32-0
sed -i 's/"steps": 3,/"steps": 1099511627776,/' "$run/summary.json"
interrupt rerun "$run" --check
says "stopped before the last step, so no weights were compared"
