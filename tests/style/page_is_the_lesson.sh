#!/usr/bin/env bash
# page_is_the_lesson.sh ROOT COMPILER INCLUDE WORK PAGE SOURCE PIECES OWN: each block of C++ in PAGE is a piece of SOURCE, except for white
# space, or compiles by itself. There are at least PIECES pieces and OWN others. A block after <!-- not compiled: REASON --> is left out.
set -euo pipefail
root=$1 compiler=$2 include=$3 work=$4 page=$5 source=$6
rm -rf "$work" && mkdir -p "$work"
awk -v work="$work" '/^<!-- not compiled: .* -->$/ {skip = 1; next} /^```cpp$/ {if (!skip) file = work "/" ++count ".cpp"; skip = 0; next}
  /^```$/ {file = ""} file {print > file}' "$root/$page"

flat() { tr -s ' \n' ' ' <"$1"; }
lesson=$(flat "$root/$source")
pieces=0 own=0
for block in "$work"/*.cpp; do
  if [[ "$lesson" == *"$(flat "$block")"* ]]; then
    pieces=$((pieces + 1))
    continue
  fi
  own=$((own + 1))
  printf '#include <halftone/halftone.h>\nnamespace ht = halftone;\n' | cat - "$block" >"$block.cpp"
  if ! "$compiler" -std=c++20 -fsyntax-only -Wall -Wextra -I"$include" "$block.cpp"; then
    echo "this block of $page is not a piece of $source, and does not compile:"
    cat "$block"
    exit 1
  fi
done
echo "$pieces blocks are pieces of $source, $own compile"
((pieces >= $7 && own >= $8))
