#!/usr/bin/env bash
# exercises.sh ROOT WORK COMPILER PART: tests of examples/exercises/. Parts:
#   faults    every solution passes, every empty task says that it is not written yet, and every solution with a fault of
#             examples/exercises/faults.txt fails in the group of tests that the fault names
#   verdicts  scripts/exercise.sh turns crashes, endless loops and compile errors into verdicts
# Environment: FAULTS, another file of faults, for trials by hand.
set -euo pipefail
(($# == 4)) || { echo "usage: exercises.sh ROOT WORK COMPILER faults|verdicts"; exit 1; }
cd "$1/examples/exercises"
export work="$2/$4" compiler="$3" part="$4" faults="${FAULTS:-faults.txt}"
mkdir -p "$work"

# verdict EXIT PATTERN ARGUMENTS...: runs exercise.sh; prints what it said if exit code or output differ.
verdict() {
  local exit="$1" pattern="$2" output code=0
  shift 2
  output="$(CXX="$compiler" EXERCISE_SECONDS=1 EXERCISE_GRADER="$work/grader" ../../scripts/exercise.sh "$@" 2>&1)" || code=$?
  [[ "$code" == "$exit" ]] && grep -qE "$pattern" <<< "$(tr '\n' ' ' <<< "$output")" ||
    printf 'exercise.sh %s: exit code %s, wanted %s and "%s":\n%s\n' "$*" "$code" "$exit" "$pattern" "$output"
}
# verdict_of NAME PATTERN BODY: the same for a to_bf16() with that body.
verdict_of() {
  printf '#include <cstdint>\n#include <cstdlib>\n#include <stdexcept>\n\ninline uint16_t to_bf16(float x) { %s }\n' "$3" > "$work/$1.h"
  verdict 1 "$2" 1 --solution "$work/$1.h"
}
if [[ "$part" == verdicts ]]; then
  rm -rf "$work/grader"
  one() {
    verdict_of loop 'got +no result within the time limit.*FAILED' 'for (;;) { x += 1; if (x < -5) return 3; }'
    verdict_of crash 'FAILED +the examples.*input +x = 1 .*got +a crash.*FAILED' 'volatile int* p = nullptr; return uint16_t(*p);'
    verdict_of exits 'ended with status 0 before its last test' 'std::exit(0);'
    verdict 2 'exercise.sh N' 1 2 3 4
  }
  two() {
    verdict_of no_semicolon 'no_semicolon.h does not compile.*no_semicolon.h:5.*compile error' 'return 3 '
    verdict_of throws 'an exception: too hard.*read +.*FAILED' 'throw std::runtime_error("too hard");'
    verdict 1 'survivors: 1 +- growth' 14 --fault too_few_rows
    verdict 2 'cion: there is no such fault.*coin \| A coin decides' 3 --fault cion
  }
  {  # the first of them compiles the grader, which the others use
    verdict 0 '01_round_to_bf16: PASSED, 6 tests' 1 --solution solutions/01_round_to_bf16.h
    verdict 1 'NOT YET +to_bf16 is not written yet.*FAILED, not written yet' 1
    verdict 0 '^1 .*15 ' list
    verdict 2 'there is no task "16"' 16
  } > "$work/zero"
  one > "$work/one" & two > "$work/two"; wait
  cat "$work/zero" "$work/one" "$work/two"
  [[ ! -s "$work/zero" && ! -s "$work/one" && ! -s "$work/two" ]] || exit 1
  echo "12 verdicts"
  exit 0
fi

export flags="-std=c++20 -O0 -ffp-contract=off -pthread -Werror=return-type"
"$compiler" $flags -c grade.cpp -o "$work/grade.o" & grader=$!
cp -p grade.h "$work"
"$compiler" $flags -w -I. -x c++-header "$work/grade.h" -o "$work/grade.h.gch"
wait "$grader"

# names TASK: the names of its faults.
names() { awk -v task="$1" -f fault.awk "$faults" | sed 's/ *|.*//'; }

# program_of TASK VARIANT...: a program with the tests of the task many times, each for another solution VARIANT.h, in a namespace of
# that name. The environment variable VARIANT chooses one. Headers are included first, outside of the namespaces.
program_of() {
  local task="$1" variant
  shift
  printf '#include "grade.h"\n'  # the precompiled header has to be the first
  cat "$task/tests.cpp" "${@/%/.h}" | grep '^#include [<"]' | sort -u
  for variant in "$@"; do
    printf 'namespace %s {\nnamespace grade {\nusing namespace ::grade;\nvoid tests();\n}\n' "${variant##*/}"
    printf '#define TASK "%s.h"\n#include "tests.cpp"\n#undef TASK\n}\n' "$variant"
  done
  printf 'void grade::tests() {\n  const std::string variant = std::getenv("VARIANT");\n'
  for variant in "${@##*/}"; do printf '  if (variant == "%s") %s::grade::tests();\n' "$variant" "$variant"; done
  printf '}\n'
}

# grade TASK: prints a line for each mistake.
grade() {
  local task="$1" of="$work/$1" name what group variants output
  rm -rf "$of" && mkdir "$of"
  cp "$task/task.h" "$of/empty.h"
  cp "solutions/$task.h" "$of/solution.h"
  variants=("$of/empty" "$of/solution")
  for name in $(names "$task"); do
    awk -v task="$task" -v name="$name" -f fault.awk "$faults" "solutions/$task.h" > "$of/fault_$name.h" || return 0
    variants+=("$of/fault_$name")
  done 2>&1
  program_of "$task" "${variants[@]}" > "$of/program.cpp"
  if ! "$compiler" $flags -I"$work" -I. -I"$task" "$of/program.cpp" "$work/grade.o" -o "$of/program" 2> "$of/errors"; then
    echo "$task does not compile: $(grep -m 1 error "$of/errors")"
    return
  fi
  run() { VARIANT="$1" "$of/program" "$task" 1 lessons.txt 2> /dev/null || true; }
  output="$(run empty)"
  [[ "$output" == *"NOT YET"*"is not written yet"* ]] || printf '%s/task.h: no word that it is not written yet:\n%s\n' "$task" "$output"
  output="$(run solution)"
  [[ "$output" == *"$task: PASSED"* ]] || printf 'solutions/%s.h fails:\n%s\n' "$task" "$output"
  awk -v task="$task" -f fault.awk "$faults" | while IFS='|' read -r name what group; do
    output="$(run "fault_${name% }")"
    [[ -n "${what// }" && "$output" == *"FAILED    ${group# }"$'\n'* ]] ||
      printf '%s, fault %s: it should fail in "%s":\n%s\n' "$task" "${name% }" "${group# }" "$output"
  done
  rm -rf "$of"
}
export -f grade program_of names

tasks=([0-9]*_*)
for task in "${tasks[@]}"; do
  [[ -f "solutions/$task.h" ]] || echo "$task has no solution"
  count="$(names "$task" | wc -l)"
  ((count >= 3)) || echo "faults.txt: $task has $count faults; 3 are wanted"
  names "$task" | sed -n "/^[a-z0-9_]*\$/! s/.*/faults.txt, $task: \"&\" is not a name/p"
  for topic in $(tr '\n' ' ' < "$task/tests.cpp" | grep -oE 'group\( *"([^"]|\\")*", *"[a-z_0-9]+"' | sed -E 's/.*"([a-z_0-9]+)"$/\1/'); do
    grep -q "^$topic | " lessons.txt || echo "$task/tests.cpp: lessons.txt has no topic $topic"
  done
done > "$work/mistakes"
for path in $(sed '/^#/d' lessons.txt | grep -oE '[a-z_]+/[A-Za-z0-9_./]+\.(cpp|h|md)'); do
  [[ -e "../../$path" ]] || echo "lessons.txt: there is no $path"
done >> "$work/mistakes"

printf '%s\n' "${tasks[@]}" | xargs -P 2 -n 1 bash -c 'grade "$@"' grade >> "$work/mistakes"
cat "$work/mistakes"
[[ ! -s "$work/mistakes" ]] || exit 1
echo "${#tasks[@]} tasks: ${#tasks[@]} solutions pass, $(for task in "${tasks[@]}"; do names "$task"; done | wc -l) with a fault fail"
