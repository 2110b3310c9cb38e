#!/usr/bin/env bash
# Prints how big the project is: files, lines, folders. docs/development.md has the limits.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

product=(core autograd distributed nn optim data amp train onnx lab backends bench python halftone.h)
# The C++ files of some folders: their number and their lines.
count() { git ls-files -- "$@" | grep -E '\.(h|cpp|cu)$' | tr '\n' '\0' | xargs -0 cat | wc -l; }
files() { git ls-files -- "$@" | grep -cE '\.(h|cpp|cu)$'; }
row() { printf '%-58s %s\n' "$@"; }

row "C++ files of the product" "$(files "${product[@]}")"
row "their lines" "$(count "${product[@]}")"
row "C++ files of tests" "$(files tests)"
row "their lines" "$(count tests)"
row "folder with the most C++ files" "$(git ls-files -- "${product[@]}" tests | grep -E '\.(h|cpp|cu)$' | xargs -n 1 dirname | sort | uniq -c | sort -rn |
  awk 'NR == 1 { print $2 ": " $1 }')"
row "headers that only forward" "$(git ls-files -- "${product[@]}" | grep '\.h$' | grep -v '^halftone.h$' |
  xargs grep -LE '^ *[^#/ ]' | wc -l)"
row "top-level folders" "$(git ls-files | grep / | cut -d/ -f1 | grep -v '^\.' | sort -u | wc -l)"
row "files and lines of examples/exercises" "$(git ls-files -- examples/exercises | wc -l), $(git ls-files -z -- examples/exercises | xargs -0 cat | wc -l)"
