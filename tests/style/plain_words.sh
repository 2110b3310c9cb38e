#!/usr/bin/env bash
# plain_words.sh ROOT ALLOWED PATH...: pages (.md) and comments of code (.h, .cpp, .cu, .sh, .cmake) use plain words. Each PATH is a file or
# a folder below ROOT. The script prints every marker of a sentence that has to be read twice. It fails if all pages together, or the
# comments of a top-level folder, have more than 1 marker in 1,000 words, or a file of more than 300 words has more than 3 in 1,000. A PATH
# that begins with - is left out. A line of ALLOWED, "file | phrase | reason", permits markers in the sentences of that file that have that
# phrase; an entry that permits nothing is an error. Code blocks, `code` and the addresses of links are not prose.
set -euo pipefail
(($# > 2)) || { echo "usage: plain_words.sh ROOT ALLOWED PATH..."; exit 1; }
cd "$1"
allowed="$2"
shift 2
paths=() without=()
for path in "$@"; do
  [[ -e "${path#-}" ]] || { echo "no file or folder ${path#-}"; exit 1; }
  if [[ "$path" == -* ]]; then without+=(-path "${path#-}" -prune -o); else paths+=("$path"); fi
done
mapfile -t files < <(find "${paths[@]}" "${without[@]}" -type f \( -name '*.md' -o -name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.sh' \
  -o -name '*.cmake' -o -name CMakeLists.txt \) -print | LC_ALL=C sort -u)
((${#files[@]} > 0)) || { echo "no pages and no sources in: $*"; exit 1; }

awk -v allowed="$allowed" '
BEGIN {
  # The pattern of a marker gets a sentence in lower case with a space at both ends; w: the characters allowed before and after a word.
  w = "[^a-z0-9_-]"
  pattern["nobody, somebody, whoever"] = w "(nobody|somebody|whoever)" w
  pattern["behind, beside"] = w "(behind|beside)" w
  pattern["so many"] = w "so many" w
  pattern["..., too"] = ", too" w
  pattern["is no ..."] = w "(is|are) no [a-z0-9]"
  pattern["lies, stands"] = w "(lies|lie|stands|stand)" w
  pattern["mends"] = w "(mend|mends|mended)" w
  while ((getline line < allowed) > 0) {
    if (line ~ /^#/ || line == "") continue
    if (split(line, part, / *\| */) != 3 || part[3] == "") { print allowed ": an entry is \"file | phrase | reason\": " line; failed = 1; continue }
    entry_file[++entries] = part[1]; entry_phrase[entries] = tolower(part[2])
  }
}
function permitted(sentence,   i, found) {
  for (i = 1; i <= entries; i++)
    if (entry_file[i] == file && index(sentence, entry_phrase[i])) { used[i] = 1; found = 1 }
  return found
}
function hit(name, text, times) {
  if (permitted(tolower(text))) return
  printf "%s:%d: %s: %s\n", file, block_line, name, text
  markers[file] += times; group_markers[group] += times
}
function sentence(text,   name, lower) {
  lower = " " tolower(text) " "
  for (name in pattern) { copy = lower; times = gsub(pattern[name], " ", copy); if (times) hit(name, text, times) }
  if (text ~ /^[("]*Of [^?]*$/) hit("starts with Of", text, 1)
  if (text ~ /^[("]*What / && text !~ /\?[)"]*$/) hit("starts with What", text, 1)
  if (text ~ /^[("]*Who / && text !~ /\?[)"]*$/) hit("starts with Who", text, 1)
}
function flush(   n, i, parts, text) {  # a paragraph, heading, table cell or item of a list is complete
  gsub(/`[^`]*`/, "`code`", block); gsub(/\]\([^)]*\)/, "]", block); gsub(/[][*]/, "", block); gsub(/  +/, " ", block); sub(/^ +/, "", block); sub(/ +$/, "", block)
  if (block == "") return
  n = split(block, parts, " ")
  for (i = 1; i <= n; i++) if (parts[i] ~ /[A-Za-z]/) { words[file]++; group_words[group]++ }
  gsub(/[.!?][)"]* /, "&\n", block)
  n = split(block, parts, "\n")
  for (i = 1; i <= n; i++) { text = parts[i]; sub(/ +$/, "", text); if (text != "") sentence(text) }
  block = ""
}
function add(text) { if (block == "") block_line = FNR; block = block " " text }
FNR == 1 {
  flush()
  file = FILENAME; fenced = 0; page = file ~ /\.md$/; hash = file ~ /(\.sh|\.cmake|CMakeLists\.txt)$/; group = file; sub(/\/.*/, "", group); group = page ? "pages" : "comments of " group
}
page && /^ *```/ { flush(); fenced = !fenced; next }
page && fenced { next }
page && /^ *\|/ {
  flush(); cells = $0; gsub(/\\\|/, "/", cells); count = split(cells, cell, "|")
  for (c = 2; c < count; c++) if (cell[c] !~ /^[-: ]*$/) { add(cell[c]); flush() }
  next
}
page && /^ *$/ { flush(); next }
page && /^#/ { flush(); sub(/^#+ /, ""); add($0); flush(); next }
page { if (/^ *([-*]|[0-9]+\.) /) flush(); sub(/^ *([-*]|[0-9]+\.) /, ""); add($0); next }
hash && /^#!/ { next }
hash && /^ *#/ { sub(/^ *# ?/, ""); if (/^ *$/) flush(); else add($0); next }
hash { flush(); if (match($0, /[^"$({]  ?# /)) { add(substr($0, RSTART + RLENGTH)); flush() } next }
/^ *\/\/\/?/ { sub(/^ *\/\/\/?/, ""); if (/^ *$/) flush(); else add($0); next }
{ flush(); if (match($0, /[^:"]\/\/ /)) { add(substr($0, RSTART + RLENGTH)); flush() } }
END {
  flush()
  for (name in words) {
    rate = words[name] ? 1000 * markers[name] / words[name] : 0
    if (words[name] > 300 && rate > 3) { printf "%s: %d markers in %d words, %.1f in 1,000; at most 3\n", name, markers[name], words[name], rate; failed = 1 }
  }
  for (name in group_words) {
    rate = 1000 * group_markers[name] / group_words[name]
    printf "%s: %d markers in %d words, %.2f in 1,000\n", name, group_markers[name], group_words[name], rate
    if (rate > 1) { print name ": at most 1 in 1,000. Rewrite the sentences above."; failed = 1 }
  }
  for (i = 1; i <= entries; i++)
    if (!used[i] && entry_file[i] in words) { print allowed ": permits nothing, take it out: " entry_file[i] " | " entry_phrase[i]; failed = 1 }
  exit failed
}
' "${files[@]}"
