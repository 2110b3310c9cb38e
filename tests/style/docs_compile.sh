#!/usr/bin/env bash
# docs_compile.sh ROOT INCLUDE WORK COMPILER...: every block of C++ in README.md, docs/*.md and the READMEs of folders compiles, by each
# compiler. A block with a main() is a program by itself. Any other block is the body of a function, unless the line before it says
#   <!-- in: function with NAME, NAME -->  it uses these names, which docs_names.txt declares
#   <!-- in: header -->                    it declares types
#   <!-- not compiled: REASON -->          it is not C++ as it is; the reason is printed
# `ht` is the namespace halftone, whose names may be used without it. docs/your_own_data.md and docs/from_libtorch.md are left out:
# style.page_is_the_lesson and style.page_is_the_test compare them with a lesson and a test.
set -euo pipefail
root=$1 include=$2 work=$3
shift 3
rm -rf "$work" && mkdir -p "$work"
cd "$root"
mapfile -t pages < <(find . -name '*.md' -not -path './build*' -not -path './docs/your_own_data.md' \
  -not -path './docs/from_libtorch.md' -printf '%P\n' | LC_ALL=C sort)

awk -v work="$work" -v names="$root/tests/style/docs_names.txt" '
BEGIN {
  head = work "/head.h"; blocks = work "/pieces.h"
  print "#include <filesystem>\n#include <iostream>\n#include <halftone/halftone.h>\nnamespace ht = halftone;" >head
  while ((getline line < names) > 0) if (line !~ /^#/ && split(line, part, / \| /) == 2) declared[part[1]] = part[2]
}
function fail_here(text) { print FILENAME ":" FNR ": " text; failed = 1 }
function begin(   list, n, i, parameters) {
  id = FILENAME; gsub(/[^A-Za-z0-9]/, "_", id); id = id "_" FNR
  print "namespace " id " {\nusing namespace halftone;" >blocks
  if (how !~ /^header/) {
    list = how; sub(/^function( with )?/, "", list); n = split(list, name, /, */)
    for (i = 1; i <= n; i++) {
      if (!(name[i] in declared)) fail_here("docs_names.txt does not declare \"" name[i] "\"")
      parameters = parameters (i > 1 ? ", " : "") declared[name[i]]
    }
    print "void block(" parameters ") {" >blocks
  }
  printf "#line %d \"%s\"\n", FNR + 1, FILENAME >blocks
}
FNR == 1 { inside = 0; comment = "" }
!inside && /^ *<!-- (in|not compiled): .* -->$/ { comment = $0; next }
!inside && /^ *```cpp$/ {
  inside = 1; text = raw = includes = ""; first = FNR + 1; count++
  how = "function"
  if (comment ~ /not compiled: /) { skipped++; how = "not"; sub(/.*<!-- /, "", comment); sub(/ -->/, "", comment); print FILENAME ":" FNR ": " comment }
  else if (comment != "") { how = comment; sub(/.*<!-- in: /, "", how); sub(/ -->/, "", how) }
  if (how !~ /^(not|header|function( with [a-z_]+(, [a-z_]+)*)?)$/) fail_here("no such place for a block: " how)
  comment = ""
  next
}
inside && /^ *```$/ {
  inside = 0
  if (how == "not") next
  if (raw ~ /int main\(/) { printf "%s", raw >(work "/program_" ++programs ".cpp"); next }
  end = FNR; FNR = first - 1; begin(); FNR = end
  printf "%s", includes >head
  printf "%s%s}\n", text, how ~ /^header/ ? "" : "}\n" >blocks
  fragments++
  next
}
inside { raw = raw $0 "\n"; if (/^ *#include /) { includes = includes $0 "\n"; text = text "\n" } else text = text $0 "\n"; next }
!/^ *$/ { comment = "" }
END {
  printf "%d blocks: %d programs, %d pieces, %d not compiled\n", count, programs, fragments, skipped
  if (programs < 2 || fragments < 20) { print "too few blocks were found"; failed = 1 }
  exit failed
}' "${pages[@]}"

cat "$work/head.h" "$work/pieces.h" >"$work/pieces.cpp"
flags=(-std=c++20 -fsyntax-only -Wall -Wextra -Werror -I"$include")
for compiler in "$@"; do
  for program in "$work"/program_*.cpp; do "$compiler" "${flags[@]}" "$program"; done
  "$compiler" "${flags[@]}" -Wno-unused "$work/pieces.cpp"  # a piece may end before it uses a variable
done
