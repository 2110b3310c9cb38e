#!/usr/bin/env bash
# exercises.sh ROOT WORK COMPILER PART: tests of exercises/. Parts:
#   some      every solution passes, every skeleton says that it is not written yet, and the first two wrong ones of each task fail
#   all       the same with every wrong one
#   verdicts  scripts/exercise.sh turns crashes, endless loops and compile errors into verdicts
# A wrong one has to fail in the group of tests that its second line names. Two at a time, compiled without optimization.
set -euo pipefail
(($# == 4)) || { echo "usage: exercises.sh ROOT WORK COMPILER some|all|verdicts"; exit 1; }
cd "$1/exercises"
export work="$2/$4" compiler="$3" part="$4"
mkdir -p "$work"

# verdict EXIT PATTERN ARGUMENTS...: runs exercise.sh; prints what it said if exit code or output differ.
verdict() {
  local exit="$1" pattern="$2" output code=0
  shift 2
  output="$(CXX="$compiler" EXERCISE_SECONDS=1 ../scripts/exercise.sh "$@" 2>&1)" || code=$?
  [[ "$code" == "$exit" ]] && grep -qE "$pattern" <<< "$(tr '\n' ' ' <<< "$output")" ||
    printf 'exercise.sh %s: exit code %s, wanted %s and "%s":\n%s\n' "$*" "$code" "$exit" "$pattern" "$output"
}
# verdict_of NAME PATTERN BODY: the same for a to_bf16() with that body.
verdict_of() {
  printf '#include <cstdint>\n#include <cstdlib>\n#include <stdexcept>\n\ninline uint16_t to_bf16(float x) { %s }\n' "$3" > "$work/$1.h"
  verdict 1 "$2" 1 --solution "$work/$1.h"
}
if [[ "$part" == verdicts ]]; then
  one() {
    verdict_of loop 'got +no result within the time limit.*FAILED' 'for (;;) { x += 1; if (x < -5) return 3; }'
    verdict_of crash 'FAILED +the examples.*input +x = 1 .*got +a crash.*FAILED' 'volatile int* p = nullptr; return uint16_t(*p);'
    verdict_of exits 'ended with status 0 before its last test' 'std::exit(0);'
    verdict 0 '01_round_to_bf16: PASSED, 6 tests' 1 --solution solutions/01_round_to_bf16.h
  }
  two() {
    verdict_of no_semicolon 'no_semicolon.h does not compile.*no_semicolon.h:5.*compile error' 'return 3 '
    verdict_of throws 'an exception: too hard.*read +.*FAILED' 'throw std::runtime_error("too hard");'
    verdict 1 'NOT YET +to_bf16 is not written yet.*FAILED, not written yet' 1
    verdict 1 'survivors: 1 +- growth' 14 --solution wrong/14_test_scaler/too_few_rows.h
    verdict 0 '^1 .*15 ' list
    verdict 2 'there is no task "16"' 16
    verdict 2 'exercise.sh N' 1 2 3 4
  }
  one > "$work/one" & two > "$work/two"; wait
  cat "$work/one" "$work/two"
  [[ ! -s "$work/one" && ! -s "$work/two" ]] || exit 1
  echo "11 verdicts"
  exit 0
fi

export flags="-std=c++20 -O0 -ffp-contract=off -pthread -Werror=return-type"
"$compiler" $flags -c grade.cpp -o "$work/grade.o" & grader=$!
"$compiler" $flags -w -x c++-header grade.h -o "$work/grade.h.gch"  # found before grade.h
wait "$grader"

# grade TASK HEADER: prints a line for each mistake.
grade() {
  local task="$1" header="$2" output first second
  local program="$work/${header//\//_}"
  if ! "$compiler" $flags -I"$work" -I. -I"$task" "-DTASK=\"$PWD/$header\"" "$task/tests.cpp" "$work/grade.o" -o "$program" 2> "$program.errors"; then
    echo "$header does not compile: $(grep -m 1 error "$program.errors")"
    return
  fi
  output="$("$program" "$task" 2 lessons.txt 2> "$program.errors")" || true
  rm -f "$program" "$program.errors"
  case "$header" in
    solutions/*) [[ "$output" == *"$task: PASSED"* ]] || printf '%s fails:\n%s\n' "$header" "$output" ;;
    wrong/*)
      { read -r first; read -r second; } < "$header"
      [[ "$first" == "// wrong: "?* && "$second" == "// caught by: "?* ]] || echo "$header: its first two lines are not \"wrong\" and \"caught by\""
      [[ "$output" == *"FAILED    ${second#// caught by: }"* ]] || printf '%s should fail in "%s":\n%s\n' "$header" "${second#// caught by: }" "$output" ;;
    *) [[ "$output" == *"NOT YET"*"is not written yet"* ]] || printf '%s: no word that it is not written yet:\n%s\n' "$header" "$output" ;;
  esac
}
export -f grade

tasks=([0-9]*_*)
for task in "${tasks[@]}"; do
  [[ -f "solutions/$task.h" ]] || echo "$task has no solution"
  wrong=("wrong/$task"/*.h)
  ((${#wrong[@]} >= 3)) || echo "$task has ${#wrong[@]} wrong solutions; 3 are wanted"
  for topic in $(tr '\n' ' ' < "$task/tests.cpp" | grep -oE 'group\("([^"]|\\")*", *"[a-z_0-9]+"' | sed -E 's/.*"([a-z_0-9]+)"$/\1/'); do
    grep -q "^$topic | " lessons.txt || echo "$task/tests.cpp: lessons.txt has no topic $topic"
  done
done > "$work/mistakes"
for path in $(sed '/^#/d' lessons.txt | grep -oE '[a-z_]+/[A-Za-z0-9_./]+\.(cpp|h|md)'); do
  [[ -e "../$path" ]] || echo "lessons.txt: there is no $path"
done >> "$work/mistakes"

list() {
  for task in "${tasks[@]}"; do
    wrong=("wrong/$task"/*.h)
    [[ "$part" == all ]] || wrong=("${wrong[@]:0:2}")
    for header in "$task/task.h" "solutions/$task.h" "${wrong[@]}"; do printf '%s %s\n' "$task" "$header"; done
  done
}
list > "$work/list"
xargs -P 2 -n 2 bash -c 'grade "$@"' grade < "$work/list" >> "$work/mistakes"
cat "$work/mistakes"
[[ ! -s "$work/mistakes" ]] || exit 1
echo "${#tasks[@]} tasks: $(grep -c ' solutions/' "$work/list") solutions pass, $(grep -c ' wrong/' "$work/list") wrong ones fail"
