#!/usr/bin/env bash
# Each folder of the library links against the folders that layers.cmake names, and no others: the undefined symbols of a folder's objects
# must be defined there. Includes alone do not show it: a declaration can be written by hand.
# Usage: layer_symbols.sh NM LAYERS.CMAKE FOLDER OBJECT... [-- FOLDER OBJECT...]...
set -euo pipefail
nm=$1 layers=$2
shift 2

while (($#)); do
  folder=$1 objects=()
  shift
  while (($#)) && [[ $1 != -- ]]; do objects+=("$1") && shift; done
  (($#)) && shift
  ((${#objects[@]})) || { echo "no objects of $folder" >&2; exit 1; }
  "$nm" -f posix "${objects[@]}" | awk -v folder="$folder" 'NF >= 2 && $2 ~ /^[A-Za-z]$/ { print folder, $2, $1 }'
done | c++filt | awk -v layers="$layers" '
  BEGIN {
    while ((getline line < layers) > 0)
      if (match(line, /^set\(may_[a-z]+/)) {
        folder = substr(line, 9, RLENGTH - 8)
        list = substr(line, RLENGTH + 1)
        gsub(/[")]/, "", list)
        may[folder] = " " folder " " list " "
      }
    # The references that point upward, as docs/architecture.md lists them: the registries of backends and of engines, and the gradient
    # members of Tensor. Slots are virtual functions and need no symbol.
    upward["halftone::backend_for"] = "backends"
    upward["halftone::backend_statuses"] = "backends"
    upward["halftone::kernels_of"] = "backends"
    upward["halftone::cpu_threads"] = "backends"
    upward["halftone::world"] = "backends"
    upward["halftone::engine_statuses"] = "backends"
    upward["halftone::communicator_for"] = "backends"
    upward["halftone::linear_algebra"] = "backends"
    upward["halftone::Tensor"] = "autograd"
  }
  {
    folder = $1; kind = $2
    symbol = $0; sub(/^[^ ]+ [^ ]+ /, "", symbol)
    if (symbol !~ /halftone/) next
    if (kind == "U" || kind == "w" || kind == "v") wanted[folder, symbol] = 1
    else defined[symbol] = defined[symbol] " " folder
  }
  END {
    for (key in wanted) {
      split(key, part, SUBSEP)
      folder = part[1]; symbol = part[2]
      if (!(symbol in defined)) continue  # of another library, or undefined: the linker reports it
      count = split(defined[symbol], owners, " ")
      fine = 0
      for (i = 1; i <= count; ++i) if (index(may[folder], " " owners[i] " ")) fine = 1
      for (name in upward)
        if (index(symbol, name) == 1 && index(defined[symbol], upward[name])) fine = 1
      ++checked
      if (!fine) { print folder " links" defined[symbol] ": " symbol; ++violations }
    }
    if (violations) { print violations " symbols from folders that are not below"; exit 1 }
    if (checked < 500) { print "only " checked + 0 " symbols were found to check"; exit 1 }
    print checked " symbols checked"
  }'
