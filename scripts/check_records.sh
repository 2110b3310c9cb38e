#!/usr/bin/env bash
# check_records.sh [BUILD] [PAGE...]: repeats the commands whose output pages quote, with portable bits, and compares. A page marks a block
# by the line before it:  <!-- printed by: halftone-lab experiment E3 -->  Each line of the block is a line of the output, in this order.
# Without pages: README.md and docs/*.md. Exit code 1: an output lacks a line.
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

# missing PAGE OUTPUT: prints the lines of the page that the output does not have, in the page's order. Empty lines do not count.
missing() {
  awk '{ sub(/ +$/, "") } NR == FNR { got[++count] = $0; next }
    $0 == "" { next }
    { for (g = at + 1; g <= count && got[g] != $0; ++g) {} ; if (g <= count) at = g; else print "  missing: " $0 }' "$2" "$1"
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
  lines=$(missing "${command%.command}.page" "$work/output")
  if [[ -z "$lines" && -s "${command%.command}.page" ]]; then
    echo "$place: as printed: $line"
  else
    echo "$place: OTHERS: $line"
    echo "$lines"
    head -3 "$work/errors"
    differences=$((differences + 1))
  fi
done
echo "$count outputs repeated, $differences differ"
((differences == 0))
