#!/usr/bin/env bash
# kill_rank.sh LAUNCH PROGRAM STRATEGY [KILLS]: a training on several processes that saves after every step. A random process is killed at a
# random moment; all must end within seconds. The training resumes, each time on a random number of processes, and ends with the bits of an
# undisturbed one on one process. A run that ends before its kill is compared as well, and a new one begins. The seed of the moments is
# printed; HALFTONE_KILL_SEED repeats them. Exit status 77 without mpirun.
set -euo pipefail
launch="$1" program="$2" strategy="$3" kills="${4:-3}"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
RANDOM="${HALFTONE_KILL_SEED:=$(($(date +%s%N) % 32768))}"
echo "seed $HALFTONE_KILL_SEED"
training=(strategy="$strategy" model=mlp batches=6 epochs=12)
milliseconds() { echo $(($(date +%s%N) / 1000000)); }
ended() {  # TRIES PID...: whether the processes end within TRIES times 50 ms; zombies count as ended
  local pid tries most="$1"
  shift
  for ((tries = 0; tries < most; ++tries)); do
    for pid in "$@"; do
      if [[ "$(ps -o stat= -p "$pid")" == [!Z]* ]]; then sleep 0.05; continue 2; fi
    done
    return 0
  done
  return 1
}

"$launch" 1 true >/dev/null || exit $?
expected="$("$launch" 0 "$program" "${training[@]}" directory="$work/alone")"
begin="$(milliseconds)"
"$launch" 3 "$program" "${training[@]}" directory="$work/three" | diff - <(echo "$expected")
took=$(($(milliseconds) - begin))

killed=0 completed=0 attempts=0 root="$work/root0"
run() {  # RANKS: starts it in the background; launcher is the process that waits for it
  "$launch" "$1" "$program" "${training[@]}" directory="$root" >"$work/out" 2>"$work/err" &
  launcher=$!
}
finish() {  # checks the output of a run that was not killed
  [[ "$(cat "$work/out")" == "$expected" ]] || { echo "after $killed kills: $(cat "$work/out" "$work/err") instead of $expected"; exit 1; }
  completed=$((completed + 1))
  root="$work/root$completed"
}
while ((killed < kills && attempts++ < 20 * kills)); do
  run $((RANDOM % 2 + 2))
  delay=$((RANDOM % took))
  sleep "$((delay / 1000)).$(printf %03d $((delay % 1000)))"
  mpirun="$(pgrep -P "$launcher" | head -1 || true)"  # timeout's child
  mapfile -t ranks < <([[ -z "$mpirun" ]] || pgrep -P "$mpirun" || true)
  if ((${#ranks[@]} > 0)) && kill -9 "${ranks[RANDOM % ${#ranks[@]}]}" 2>/dev/null; then
    begin="$(milliseconds)" status=0
    ended 100 "${ranks[@]}" || { echo "5 s after the kill: ${ranks[*]}"; cat "$work/err"; exit 1; }
    # Open MPI's mpirun sometimes waits for its own lock after all of its processes have ended.
    ended 100 "$launcher" || { echo "mpirun did not end, so it is killed"; kill -9 "$mpirun"; }
    wait "$launcher" 2>/dev/null || status=$?
    if ((status == 0)); then finish; continue; fi  # it had ended already
    killed=$((killed + 1))
  else
    wait "$launcher" || { echo "not killed, but:"; cat "$work/err"; exit 1; }
    finish
  fi
done
((killed == kills)) || { echo "only $killed kills in $attempts attempts"; exit 1; }
run 0
wait "$launcher" || { cat "$work/err"; exit 1; }
finish
echo "$killed kills, $completed trainings with the same bits"
