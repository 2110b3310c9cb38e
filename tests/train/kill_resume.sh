#!/usr/bin/env bash
# kill_resume.sh PROGRAM STRATEGY [KILLS [STEPS]]: kills a training that saves after every step at random moments
# (kill -9), lets it go on, and compares the bits at its end with those of a training that was left alone.
# A run that ends before all kills are done is compared, too, and a new one begins. The seed of the moments is
# printed; HALFTONE_KILL_SEED repeats them.
set -euo pipefail
program="$1" strategy="$2" kills="${3:-10}" steps="${4:-40}"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
RANDOM="${HALFTONE_KILL_SEED:=$(($(date +%s%N) % 32768))}"
echo "seed $HALFTONE_KILL_SEED"

milliseconds() { echo $(($(date +%s%N) / 1000000)); }
begin="$(milliseconds)"
expected="$("$program" "$strategy" "$work/alone" "$steps")"
took=$(($(milliseconds) - begin))
echo "alone: $expected, $took ms"

killed=0 resumed=0 completed=0 round=0
compare() {
  [[ "$1" == "$expected" ]] || { echo "after $killed kills: $1 instead of $expected"; exit 1; }
  local left
  left="$(find "$work/round$round" -mindepth 1 -maxdepth 1 | wc -l)"
  [[ "$left" == 2 ]] || { echo "$left entries are left, not 2:"; ls -A "$work/round$round"; exit 1; }
  completed=$((completed + 1)) round=$((round + 1))
}
while ((killed < kills)); do
  "$program" "$strategy" "$work/round$round" "$steps" >"$work/out" 2>"$work/err" &
  pid=$!
  delay=$((RANDOM % (took / 2 + 1)))
  sleep "$((delay / 1000)).$(printf %03d $((delay % 1000)))"
  if kill -9 "$pid" 2>/dev/null; then :; fi
  status=0
  wait "$pid" 2>/dev/null || status=$?
  if grep -q resumed "$work/err"; then resumed=$((resumed + 1)); fi
  case "$status" in
    137) killed=$((killed + 1)) ;;
    0) compare "$(cat "$work/out")" ;;
    *) echo "exit status $status:"; cat "$work/err"; exit 1 ;;
  esac
done
compare "$("$program" "$strategy" "$work/round$round" "$steps" 2>"$work/err")"
if grep -q resumed "$work/err"; then resumed=$((resumed + 1)); fi
echo "$killed kills, $resumed resumed, $completed completed with the same bits"
((resumed > 0))
