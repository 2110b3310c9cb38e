#!/usr/bin/env bash
# exercises.sh ROOT WORK COMPILER: grades every solution of exercises/ (it must pass), every wrong one (it must fail in the group of tests
# that its second line names) and every skeleton (it must say that it is not written yet). Two at a time, compiled without optimization.
set -euo pipefail
(($# == 3)) || { echo "usage: exercises.sh ROOT WORK COMPILER"; exit 1; }
cd "$1/exercises"
export work="$2" compiler="$3"
mkdir -p "$work"
flags=(-std=c++20 -O0 -ffp-contract=off -pthread -Werror=return-type)
"$compiler" "${flags[@]}" -c grade.cpp -o "$work/grade.o" & grader=$!
"$compiler" "${flags[@]}" -w -x c++-header grade.h -o "$work/grade.h.gch"  # found before grade.h
wait "$grader"

# grade TASK HEADER: prints a line for each mistake.
grade() {
  local task="$1" header="$2" name="${2//\//_}" output wanted
  local program="$work/${name%.h}"
  if ! "$compiler" -std=c++20 -O0 -ffp-contract=off -pthread -Werror=return-type -I"$work" -I. -I"$task" "-DTASK=\"$PWD/$header\"" \
      "$task/tests.cpp" "$work/grade.o" -o "$program" 2> "$program.errors"; then
    echo "$header does not compile: $(grep -m 1 error "$program.errors")"
    return
  fi
  output="$("$program" "$task" 2 lessons.txt 2> "$program.errors")" || true
  rm -f "$program" "$program.errors"
  case "$header" in
    solutions/*) [[ "$output" == *"$task: PASSED"* ]] || printf '%s fails:\n%s\n' "$header" "$output" ;;
    wrong/*)
      [[ "$(sed -n 1p "$header")" =~ ^//\ wrong:\ .+ ]] || echo "$header: its first line does not say what is wrong"
      wanted="$(sed -n 's|^// caught by: ||p' "$header")"
      [[ -n "$wanted" && "$output" == *"FAILED    $wanted"* ]] || printf '%s should fail in "%s":\n%s\n' "$header" "$wanted" "$output" ;;
    *) [[ "$output" == *"NOT YET"*"is not written yet"* ]] || printf '%s: no word that it is not written yet:\n%s\n' "$header" "$output" ;;
  esac
  [[ "$output" != *"has no topic"* ]] || printf '%s: %s\n' "$header" "$(grep 'has no topic' <<< "$output")"
}
export -f grade

tasks=([0-9]*_*)
for task in "${tasks[@]}"; do
  [[ -f "solutions/$task.h" ]] || echo "$task has no solution"
  wrong=("wrong/$task"/*.h)
  ((${#wrong[@]} >= 3)) || echo "$task has ${#wrong[@]} wrong solutions; 3 are wanted"
  # Topics of lessons.txt, also those of groups that no wrong solution fails in.
  for topic in $(tr '\n' ' ' < "$task/tests.cpp" | grep -oE 'group\("([^"]|\\")*", *"[a-z_]+"' | sed -E 's/.*"([a-z_]+)"$/\1/'); do
    grep -q "^$topic | " lessons.txt || echo "$task/tests.cpp: lessons.txt has no topic $topic"
  done
done > "$work/mistakes"
# Paths in lessons.txt exist.
for path in $(sed '/^#/d' lessons.txt | grep -oE '[a-z_]+/[A-Za-z0-9_./]+\.(cpp|h|md)'); do
  [[ -e "../$path" ]] || echo "lessons.txt: there is no $path"
done >> "$work/mistakes"

list() {
  for task in "${tasks[@]}"; do
    printf '%s %s\n' "$task" "$task/task.h"
    for header in "solutions/$task.h" "wrong/$task"/*.h; do printf '%s %s\n' "$task" "$header"; done
  done
}
list | xargs -P 2 -n 2 bash -c 'grade "$@"' grade >> "$work/mistakes"
cat "$work/mistakes"
echo "${#tasks[@]} tasks, $(find solutions -name '*.h' | wc -l) solutions, $(find wrong -name '*.h' | wc -l) wrong ones"
[[ ! -s "$work/mistakes" ]] || exit 1
