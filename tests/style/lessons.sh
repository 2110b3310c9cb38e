#!/usr/bin/env bash
# lessons.sh ROOT: each lesson says its number and what it shows at its top, includes at most one helper, and ends with a conclusion and
# two to four exercises of the known kinds. The class of a lesson "in N lines" has no more lines. Lessons, examples/README.md and
# examples/CMakeLists.txt agree; docs/course.md has each lesson.
set -euo pipefail
(($# == 1)) || { echo "usage: lessons.sh ROOT"; exit 1; }
cd "$1/examples"
failures=0
fail() { echo "$1"; failures=$((failures + 1)); }
lessons=([0-9][0-9]_*.cpp)
numbers=" "
for file in "${lessons[@]}"; do
  number=$((10#${file%%_*}))
  [[ "$numbers" != *" $number "* ]] || fail "$file: another lesson has the number $number"
  numbers+="$number "
  [[ "$(head -1 "$file")" == "// Lesson $number: "* ]] || fail "$file: begins with another line than \"// Lesson $number: ...\""
  (($(grep -c '^#include "' "$file") <= 1)) || fail "$file: includes more than one helper"
  end="$(sed -n '/^\/\/ Conclusion\. /,$p' "$file")"
  [[ -n "$end" ]] || { fail "$file: has no conclusion at its end"; continue; }
  grep -qx '// Exercises' <<< "$end" || fail "$file: has no exercises at its end"
  [[ -z "$(grep -v '^//' <<< "$end" || true)" ]] || fail "$file: has code after its conclusion"
  count=$(grep -cE '^// [1-9] \((pencil|predict|implement|design)\)\. ' <<< "$end" || true)
  ((count >= 2 && count <= 4)) || fail "$file: has $count exercises; 2 to 4 are expected, each (pencil), (predict), (implement) or (design)"
  [[ "$count" == "$(grep -cE '^// [1-9] ' <<< "$end")" ]] || fail "$file: has an exercise of another kind"
  # x_in_40_lines: its class has no more.
  if [[ "$file" =~ _in_([0-9]+)_lines ]]; then
    most="${BASH_REMATCH[1]}" lines="$(awk '/^class /{n = 0; inside = 1} inside {++n} /^};/ && inside {print n; exit}' "$file")"
    ((${lines:-1000} <= most)) || fail "$file: its class has ${lines:-no} lines, at most $most are expected"
  fi
  grep -q "^| \`${file%.cpp}\` |" README.md || fail "$file: has no row in examples/README.md"
  grep -qw "${file%.cpp}" CMakeLists.txt || fail "$file: is not built by examples/CMakeLists.txt"
  grep -qE "^\|.*lessons?.*[ ,;]$number[ ,;]" ../docs/course.md || fail "$file: is in no step of docs/course.md"
done
echo "${#lessons[@]} lessons, $failures failures"
((${#lessons[@]} > 20 && failures == 0))
