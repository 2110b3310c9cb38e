#!/usr/bin/env bash
# clang_compiles.sh BUILD CLANG: every source of the library that BUILD compiles with g++ also compiles with CLANG. Only the front end runs,
# with the flags of BUILD/compile_commands.json; no object file is written.
set -euo pipefail
build=$1 clang=$2
# A line for each source: the command after the name of the compiler. JSON escapes quotes and backslashes.
sed -nE 's|^ *"command": "([^ ]*ccache )?[^ ]*/[cg]\+\+[^ ]* (.*)",?$|\2|p' "$build/compile_commands.json" | sed 's/\\\(["\\]\)/\1/g' |
  grep -E -- ' -o (backends/)?CMakeFiles/halftone_' > "$build/clang_compiles.txt" || true
count=$(wc -l < "$build/clang_compiles.txt")
((count > 40)) || { echo "[clang] $count sources of the library are in $build/compile_commands.json. Configure again." >&2; exit 1; }
compile() { eval "$clang -fsyntax-only -Wno-unknown-warning-option $1" 2>&1 || { echo "[clang] does not compile: ${1##* }"; return 1; }; }
export -f compile
export clang
cd "$build"
tr '\n' '\0' < clang_compiles.txt | xargs -0 -n 1 -P "$(nproc)" bash -c 'compile "$1"' _ || exit 1
echo "$count sources of the library compile with $("$clang" --version | head -1)"
