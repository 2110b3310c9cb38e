#!/usr/bin/env bash
# check_records.sh [BUILD] [PAGE...]: repeats the commands whose output pages quote, with portable bits, and compares. A page marks a block
# by the line before it:  <!-- printed by: halftone-lab experiment E3 -->  A line "..." in the block is any number of lines. Without pages:
# README.md and docs/*.md. Exit code 1: an output differs from its page.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
build=$(realpath "${1:-build/release}")
shift || true
(($# > 0)) || set -- README.md docs/*.md
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT

# Writes the blocks of all pages to $work/N.page and their commands to $work/N.command, "PAGE:LINE COMMAND".
awk -v work="$work" '
  /^<!-- printed by: .* -->$/ { command = $0; sub(/^<!-- printed by: /, "", command); sub(/ -->$/, "", command); next }
  inside && /^```$/ { inside = 0; close(out); next }
  inside { print > out; next }
  command != "" && /^```/ {
    inside = 1; ++count; out = work "/" count ".page"
    printf "" > out
    print FILENAME ":" FNR " " command > (work "/" count ".command"); command = ""
  }' "$@"

# same PAGE OUTPUT: whether the output is the block.
same() {
  awk 'NR == FNR { page[++lines] = $0; next } { got[++count] = $0 }
    END {
      g = 1
      for (p = 1; p <= lines; ++p) {
        if (page[p] != "...") { if (page[p] != got[g++]) exit 1; continue }
        if (p == lines) exit 0
        while (g <= count && got[g] != page[p + 1]) ++g
      }
      exit g == count + 1 ? 0 : 1
    }' "$1" "$2"
}

export HALFTONE_PORTABLE_BITS=1 PATH="$build/tools:$build/examples:$build/bench:$PATH"
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-2}
root=$PWD differences=0 count=0
for command in "$work"/*.command; do
  [[ -e $command ]] || { echo "[check_records] no page has a marked block."; exit 1; }
  read -r place line < "$command"
  count=$((count + 1))
  mkdir -p "$work/here"
  (cd "$work/here" && HALFTONE_ROOT=$root bash -c "$line") > "$work/output" 2> "$work/errors" || true
  if same "${command%.command}.page" "$work/output"; then
    echo "$place: as printed: $line"
  else
    echo "$place: OTHERS: $line"
    diff "${command%.command}.page" "$work/output" || true
    head -3 "$work/errors"
    differences=$((differences + 1))
  fi
done
echo "$count outputs repeated, $differences differ"
((differences == 0))
