#!/usr/bin/env bash
# page_is_the_lesson.sh ROOT COMPILER INCLUDE WORK: each block of C++ in docs/your_own_data.md is a piece of lesson 25, except for white
# space, or compiles by itself.
set -euo pipefail
root=$1 compiler=$2 include=$3 work=$4
rm -rf "$work" && mkdir -p "$work"
awk -v work="$work" '/^```cpp$/ {file = work "/" ++count ".cpp"; next} /^```$/ {file = ""} file {print > file}' \
  "$root/docs/your_own_data.md"

flat() { tr -s ' \n' ' ' <"$1"; }
lesson=$(flat "$root/examples/25_your_own_data.cpp")
pieces=0 own=0
for block in "$work"/*.cpp; do
  if [[ "$lesson" == *"$(flat "$block")"* ]]; then
    pieces=$((pieces + 1))
    continue
  fi
  own=$((own + 1))
  printf '#include <halftone/halftone.h>\nnamespace ht = halftone;\n' | cat - "$block" >"$block.cpp"
  if ! "$compiler" -std=c++20 -fsyntax-only -Wall -Wextra -I"$include" "$block.cpp"; then
    echo "this block of docs/your_own_data.md is not a piece of the lesson, and does not compile:"
    cat "$block"
    exit 1
  fi
done
echo "$pieces blocks are pieces of the lesson, $own compile"
((pieces >= 9 && own >= 1))
