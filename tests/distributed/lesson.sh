#!/usr/bin/env bash
# lesson.sh LAUNCH PROGRAM: lesson 28 prints the same hash on one and on two processes, once. Each of two processes keeps half of the
# optimizer's state. Exit status 77, "skipped", without mpirun.
set -euo pipefail
arguments=(--batches 8 --batches-per-step 4 --hash)
alone="$("$1" 0 "$2" "${arguments[@]}" | tee /dev/stderr)"
status=0
two="$("$1" 2 "$2" "${arguments[@]}")" || status=$?
((status != 77)) || exit 77
echo "$two"
((status == 0)) && [[ "$(grep '^hash ' <<<"$two")" == "$(grep '^hash ' <<<"$alone")" ]] &&
  grep -q '^2 processes; test accuracy' <<<"$two" &&
  grep -q '^rank 0 sent gradient [0-9.]* [KM]iB in ' <<<"$two" &&
  grep -q '^rank 0 keeps 14 bytes' <<<"$alone" && grep -q '^rank 0 keeps 8\.' <<<"$two"
