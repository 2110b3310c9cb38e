#!/usr/bin/env bash
# Grades an exercise (examples/exercises/README.md). It needs g++ and nothing else: the library does not have to be built.
#
# usage: scripts/exercise.sh N [--solution FILE]    grades examples/exercises/NN_*/task.h, or FILE in its place
#        scripts/exercise.sh N --fault NAME         grades the solution with a fault of examples/exercises/faults.txt
#        scripts/exercise.sh all                    grades every task, a line for each
#        scripts/exercise.sh list                   lists the tasks
#
# Exit codes: 0 passed, 1 failed, 2 wrong usage. Variables: CXX, the compiler (g++); EXERCISE_SECONDS, the limit of CPU time (5);
# EXERCISE_GRADER, a folder that keeps the compiled grader for the next call.
set -euo pipefail
usage() { sed -n 's/^# \(usage: \|       \)\(scripts.*\)/\2/p' "${BASH_SOURCE[0]}" >&2; exit 2; }
(($# == 1 || $# == 3)) || usage
number="$1" solution="" shown="" fault=""
if (($# == 3)) && [[ "$2" == --fault ]]; then
  fault="$3"
elif (($# == 3)); then
  [[ "$2" == --solution ]] || usage
  [[ -f "$3" ]] || { echo "[exercise.sh] there is no file $3. Give the path of a header with your solution." >&2; exit 2; }
  solution="$(realpath "$3")" shown="$3"
fi
cd "$(dirname "${BASH_SOURCE[0]}")/../examples/exercises"

case "$number" in
  list)
    for folder in [0-9]*_*/; do
      sed -n 's|^// Task \([0-9]*\): \([^.]*\)\..*|\1\t\2|p' "$folder/task.h" | expand -t 4
      topic="$(tr '\n' ' ' < "$folder/tests.cpp" | grep -oE 'group\("([^"]|\\")*", *"[a-z_0-9]+"' | head -n 1 | sed -E 's/.*"([a-z_0-9]+)"$/\1/')"
      sed -n "s/^$topic | /    read before: /p" lessons.txt
    done
    exit 0 ;;
  all)
    passed=0 count=0 once="$(mktemp -d)"  # the grader is compiled once
    trap 'rm -rf "$once"' EXIT
    for folder in [0-9]*_*/; do
      count=$((count + 1))
      line="$(EXERCISE_GRADER="${EXERCISE_GRADER:-$once}" "../../scripts/exercise.sh" "$((10#${folder%%_*}))" | tail -n 1)" || true
      [[ "$line" != *": PASSED"* ]] || passed=$((passed + 1))
      echo "$line"
    done
    echo "$passed of $count passed"
    ((passed == count)) || exit 1
    exit 0 ;;
esac

[[ "$number" =~ ^[0-9]+$ ]] && folder="$(printf '%02d' "$((10#$number))")" && task="$(compgen -G "${folder}_*")" ||
  { echo "[exercise.sh] there is no task \"$number\". Use a number that \"scripts/exercise.sh list\" prints." >&2; exit 2; }
seconds="${EXERCISE_SECONDS:-5}"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
if [[ -n "$fault" ]]; then
  solution="$work/$fault.h" shown="the solution with the fault $fault"
  [[ "$fault" =~ ^[a-z0-9_]+$ ]] && awk -v task="$task" -v name="$fault" -f fault.awk faults.txt "solutions/$task.h" > "$solution" ||
    { echo "[exercise.sh] Give the name of a fault of this task:"; awk -v task="$task" -f fault.awk faults.txt; exit 2; } >&2
fi
: "${solution:=$PWD/$task/task.h}" "${shown:=examples/exercises/$task/task.h}"

# compile FLAG...: tests.cpp with the solution, and the grader, at the same time.
compile() {
  local flags=(-std=c++20 -O1 -g -ffp-contract=off -pthread -Werror=return-type "$@") ok=0 pid=""
  local grader="${EXERCISE_GRADER:-$work}/grader_with_$#_flags.o"
  : > "$work/grader_errors"
  if [[ ! "$grader" -nt grade.cpp || ! "$grader" -nt grade.h ]]; then
    mkdir -p "${grader%/*}"
    "${CXX:-g++}" "${flags[@]}" -c grade.cpp -o "$work/grade.o" 2> "$work/grader_errors" & pid=$!
  fi
  "${CXX:-g++}" "${flags[@]}" -I. -I"$task" "-DTASK=\"$solution\"" -c "$task/tests.cpp" -o "$work/tests.o" 2> "$work/errors" || ok=1
  if [[ -n "$pid" ]]; then wait "$pid" && mv "$work/grade.o" "$grader" || ok=1; fi
  ((ok == 0)) && "${CXX:-g++}" "$@" "$work/tests.o" "$grader" -o "$work/program" 2>> "$work/errors"
}
sanitizers=(-fsanitize=address,undefined -fno-sanitize-recover=all)
if ! compile "${sanitizers[@]}" && { ! grep -qE 'cannot find .*(asan|ubsan)' "$work/errors" || ! compile; }; then
  cat "$work/grader_errors" >> "$work/errors"
  echo "  FAILED    $shown does not compile. The first errors:"
  grep -v -E '^(In file included|  +from)' "$work/errors" | head -n 12 | sed "s|$PWD/||g; s|^|  |"
  echo "$task: FAILED, compile error"
  exit 1
fi

status=0
ASAN_OPTIONS=abort_on_error=1:detect_leaks=0 UBSAN_OPTIONS=abort_on_error=1:print_stacktrace=0 \
  timeout -k 1 15 "$work/program" "$task" "$seconds" lessons.txt > "$work/verdict" 2> "$work/report" || status=$?
last="$(tail -n 1 "$work/verdict")"
[[ "$last" == "$task: "* ]] && sed '$d' "$work/verdict" || { cat "$work/verdict"; last=""; }
# One line of a sanitizer's report: what it found, and the first line of the solution in its stack.
problem="$(sed -n -E 's/.*(ERROR: AddressSanitizer|runtime error): ?(.*)/\2/p' "$work/report" | head -n 1 | sed -E 's/ on (unknown )?address.*//')"
if [[ -n "$problem" ]]; then
  line="$(grep -o -m 1 -E "$(basename "$solution"):[0-9]+" "$work/report" || true)"
  echo "  sanitizer $problem${line:+, at $line}"
fi
echo "${last:-$task: FAILED, the program ended with status $status before its last test}"
[[ "$last" == "$task: PASSED"* ]]
