#!/usr/bin/env bash
# output.sh CASE PROGRAM ARGUMENTS...: runs a program whose standard output is one of these. full:
# takes nothing (/dev/full); the program says so, and its exit status is 1. closed: is closed, as
# are standard input and error; the program does its work, and none of its files gets their
# numbers, so that printed text is in no file. unread: is a pipe whose reader ends; the program
# does its work nevertheless. --directory shows the work: logs with a header and only records, and
# a checkpoint.
set -euo pipefail
case="$1" directory=""
shift
for ((i = 1; i < $#; ++i)); do
  if [[ "${!i}" == --directory ]]; then next=$((i + 1)) directory="${!next}"; fi
done
if [[ -n "$directory" ]]; then rm -rf "$directory"; fi
errors="$(mktemp)"
trap 'rm -f "$errors"' EXIT
fail() { echo "$*"; cat "$errors"; exit 1; }

status=0 wanted=0
case "$case" in
  full) wanted=1; "$@" >/dev/full 2>"$errors" || status=$? ;;
  closed) "$@" <&- >&- 2>&- || status=$? ;;
  unread) { "$@" 2>"$errors" || echo $? >"$errors.status"; } | true
          if [[ -e "$errors.status" ]]; then status="$(cat "$errors.status")"; rm "$errors.status"; fi ;;
esac
[[ "$status" == "$wanted" ]] || fail "exit status $status instead of $wanted"
if [[ "$case" == full ]] && ! grep -q "cannot write everything to standard output" "$errors"; then fail "no message"; fi
if [[ -n "$directory" ]]; then
  ls "$directory"/checkpoints/step-*/manifest.json >/dev/null || fail "no checkpoint"
  awk 'NR == 1 ? !/^step,time/ : !/^[0-9]+,[0-9.]+,/' "$directory/metrics.csv" | grep . && fail "other text in metrics.csv"
fi
echo "as it should be"
