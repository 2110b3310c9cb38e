#!/usr/bin/env bash
# check_records.sh [BUILD] [PAGE...]: repeats the commands of pages, with portable bits, and compares their outputs. The line before a block
# marks it:
#   <!-- printed by: COMMAND -->        each line of the block is a line of the command's output, in this order
#   <!-- runs -->                       each command of the block has exit code 0
#   <!-- runs, with NEW for OLD; NEW for OLD -->  the same, with other texts, so that a long command is short
#   <!-- file: NAME -->                 later commands of the page find the block as this file
# The commands of a page run in one folder, which has build/release and amp/policies/. Without pages: README.md and docs/*.md. Exit code 1: an
# output lacks a line, or a command fails.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
build=$(realpath "${1:-build/release}")
shift || true
(($# > 0)) || set -- README.md docs/*.md
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT

# Writes each marked block to $work/N.block and its mark to $work/N.mark: a line "PAGE:LINE KIND", then the rest of the mark.
awk -v work="$work" '
  FNR == 1 { inside = 0; kind = "" }
  /^<!-- (printed by|file): .* -->$/ || /^<!-- runs(, with .* for .*)? -->$/ {
    text = substr($0, 6, length($0) - 9); kind = "runs"
    if (text ~ /^runs/) sub(/^runs(, with )?/, "", text)
    else { kind = text ~ /^file/ ? "file" : "printed"; sub(/^[a-z ]+: /, "", text) }
    next
  }
  inside && /^```$/ { inside = 0; close(out); next }
  inside { print > out; next }
  kind != "" && /^```/ {
    inside = 1; out = sprintf("%s/%03d.block", work, ++count); mark = sprintf("%s/%03d.mark", work, count)
    printf "" > out
    print FILENAME ":" FNR " " kind "\n" text > mark; close(mark); kind = ""
  }' "$@"

# missing PAGE OUTPUT: prints the lines of the page that the output does not have, in the page's order. Empty lines do not count.
missing() {
  awk '{ sub(/ +$/, "") } FILENAME == ARGV[1] { got[++count] = $0; next }
    $0 == "" { next }
    { for (g = at + 1; g <= count && got[g] != $0; ++g) {} ; if (g <= count) at = g; else print "  missing: " $0 }' "$2" "$1"
}
# shortened BLOCK "NEW for OLD; NEW for OLD": prints the block with the new texts. Exit code 1: the block lacks an old text.
shortened() {
  local text pair
  text=$(< "$1")
  while read -r pair; do
    [[ -n "$pair" ]] || continue
    [[ "$text" == *"${pair#* for }"* ]] || { echo "the block has no \"${pair#* for }\"" >&2; return 1; }
    text=${text//"${pair#* for }"/"${pair%% for *}"}
  done <<< "${2//; /$'\n'}"
  printf '%s\n' "$text"
}

export HALFTONE_PORTABLE_BITS=1 PATH="$build/tools:$build/examples:$build/bench:$build/tests:$PATH"
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-2}
export HALFTONE_ROOT=$PWD OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
differences=0 count=0
differs() { echo "$place: $*"; head -3 "$work/errors"; differences=$((differences + 1)); }
for mark in "$work"/*.mark; do
  [[ -e $mark ]] || { echo "[check_records] no page has a marked block."; exit 1; }
  block=${mark%.mark}.block
  { read -r place kind; read -r line || true; } < "$mark"
  page=${place%%:*} here=$work/in_${page//\//_}
  [[ -d $here ]] || { mkdir -p "$here/build" && ln -s "$build" "$here/build/release" && ln -s "$HALFTONE_ROOT/amp" "$here/amp"; }
  [[ $kind != file ]] || { cp "$block" "$here/$line"; continue; }
  count=$((count + 1))
  : > "$work/errors"
  if [[ $kind == runs ]]; then
    if shortened "$block" "$line" > "$work/commands" 2> "$work/errors" &&
       [[ -s "$block" ]] && (cd "$here" && bash -euo pipefail "$work/commands") > "$work/output" 2> "$work/errors"; then
      echo "$place: runs"
    else
      differs "FAILS"
    fi
  else
    (cd "$here" && bash -c "$line") > "$work/output" 2> "$work/errors" || true
    lines=$(missing "$block" "$work/output")
    if [[ -z "$lines" && -s "$block" ]]; then echo "$place: as printed: $line"; else differs "OTHERS: $line"$'\n'"$lines"; fi
  fi
done
echo "$count blocks repeated, $differences differ"
((differences == 0))
