#!/usr/bin/env bash
# Every row of a table in a page has as many cells as the table's head. Two rows in one line, or a line that was wrapped, have not.
# usage: tables.sh ROOT
set -euo pipefail
cd "$1"
find . -name '*.md' -not -path './build/*' -not -path './.git/*' | sort | xargs awk '
function cells(line) {
  gsub(/`[^`]*`/, "x", line); gsub(/\\\|/, "x", line)
  return gsub(/\|/, "", line) - 1
}
FNR == 1 { code = 0; want = 0 }
/^ *```/ { code = !code; want = 0; next }
code { next }
!/^\|/ { want = 0; if ($0 ~ / \| /) { plain = $0; gsub(/`[^`]*`/, "x", plain); if (plain ~ / \| /) report("a row that starts in another line") } next }
/^\|[ :|-]+\|$/ && /-/ { want = cells($0); if (cells(before) != want) report("a head of " cells(before) " cells over " want); next }
want && cells($0) != want { report(cells($0) " cells, the head has " want) }
{ before = $0 }
function report(what) { printf "%s:%d: %s: %s\n", FILENAME, FNR, what, substr($0, 1, 90); bad = 1 }
END { exit bad }'
