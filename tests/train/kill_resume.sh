#!/usr/bin/env bash
# kill_resume.sh PROGRAM STRATEGY [KILLS [STEPS [SIGNAL]]]: kills a training that saves after every step at
# random moments (with SIGKILL, 9, by default), lets it resume, and compares its final bits and its logs with
# those of an undisturbed training. A checkpoint that has its final name when a process is killed must be
# complete: the next process has to resume from the newest. A run that ends before all kills are done is
# compared as well, and a new one begins. The seed of the moments is printed; HALFTONE_KILL_SEED repeats
# them.
set -euo pipefail
program="$1" strategy="$2" kills="${3:-10}" steps="${4:-40}" signal="${5:-9}"
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
root="$work/round0"
checkpoints="$root/checkpoints"
newest_step() {  # among the checkpoints that have their final name; nothing if there are none
  mkdir -p "$checkpoints"
  find "$checkpoints" -maxdepth 1 -name 'step-*' -printf '%f\n' | sort | tail -1 | sed 's/^step-0*//'
}
check_resumed() {  # FROM: the checkpoint that the process that wrote err had to find
  if [[ -z "$1" ]]; then return; fi
  if grep -q "^resumed after step $1\$" "$work/err"; then
    resumed=$((resumed + 1))
  elif grep -q . "$work/err" || [[ "$2" == 0 ]]; then
    echo "step $1 was there, but:"; cat "$work/err"; exit 1
  fi  # else it was killed before it printed anything
}
# The last record of each step: its number and the loss. Steps that were run again have two records.
csv_losses() {
  awk -F, 'NR == 1 { for (i = 1; i <= NF; ++i) if ($i == "train/loss") c = i; next } { last[$1] = $c }
           END { for (step in last) print step, last[step] }' "$1/metrics.csv" | sort -n
}
json_losses() {
  sed -E 's/.*"step": ([0-9]+),.*"train\/loss": ([^,}]+).*/\1 \2/' "$1/metrics.jsonl" |
    awk '{ last[$1] = $2 } END { for (step in last) print step, last[step] }' | sort -n
}
compare() {
  [[ "$1" == "$expected" ]] || { echo "after $killed kills: $1 instead of $expected"; exit 1; }
  local left
  left="$(find "$checkpoints" -mindepth 1 -maxdepth 1 | wc -l)"
  [[ "$left" == 2 ]] || { echo "$left entries are left, not 2:"; ls -A "$checkpoints"; exit 1; }
  for log in csv_losses json_losses; do
    "$log" "$root" | cmp - <("$log" "$work/alone") || { echo "after $killed kills: $log differ"; exit 1; }
    [[ "$("$log" "$root" | wc -l)" == "$steps" ]] || { echo "$log: not $steps of them"; exit 1; }
  done
  completed=$((completed + 1)) round=$((round + 1))
  root="$work/round$round"
  checkpoints="$root/checkpoints"
}
while ((killed < kills)); do
  from="$(newest_step)"
  : >"$work/err"  # the next line may be killed before it opens its files
  "$program" "$strategy" "$root" "$steps" >"$work/out" 2>"$work/err" &
  pid=$!
  delay=$((RANDOM % (took / 2 + 1)))
  sleep "$((delay / 1000)).$(printf %03d $((delay % 1000)))"
  kill "-$signal" "$pid" 2>/dev/null || true
  status=0
  wait "$pid" 2>/dev/null || status=$?
  check_resumed "$from" "$status"
  case "$status" in
    $((128 + signal))) killed=$((killed + 1)) ;;
    0) compare "$(cat "$work/out")" ;;
    *) echo "exit status $status:"; cat "$work/err"; exit 1 ;;
  esac
done
from="$(newest_step)"
"$program" "$strategy" "$root" "$steps" >"$work/out" 2>"$work/err"
check_resumed "$from" 0
compare "$(cat "$work/out")"
echo "$killed kills, $resumed resumed, $completed completed with the same bits"
((resumed > 0))
