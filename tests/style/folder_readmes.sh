#!/usr/bin/env bash
# folder_readmes.sh ROOT: each folder of code has a README.md that names, in `code`, every file (by its stem: `x.h` names x.h and
# x.cpp) and every sub-folder with files (`x/`). A README may not name a file that exists neither in its folder nor from ROOT.
# A folder has at most 40 files of its own. Needs no git.
set -euo pipefail
(($# == 1)) || { echo "usage: folder_readmes.sh ROOT"; exit 1; }
cd "$1"

with_sub_folders=(core autograd distributed nn optim amp data train onnx lab backends bench examples cmake scripts web)
alone=(examples/exercises cmake/packaging tests tests/cuda_emulation tests/fuzz tests/ptx)  # the folders in tests/ are rows of its README
sources=(-name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.py' -o -name '*.sh' -o -name '*.cmake' -o -name '*.inc')

folders_with_files() { find "$@" -type f ! -name '*.pyc' -printf '%h\n' | LC_ALL=C sort -u; }
# The folders of one task and of one package are rows of their README.
mapfile -t described < <(folders_with_files "${with_sub_folders[@]}" | grep -vE '^(examples/exercises|cmake/packaging)(/|$)'; printf '%s\n' "${alone[@]}")
failures=0 names=0
fail() { echo "$1"; failures=$((failures + 1)); }

for folder in "${described[@]}"; do
  readme="$folder/README.md"
  [[ -f "$readme" ]] || { fail "$folder: has no README.md"; continue; }
  text="$(sed '/^ *```/,/^ *```/d' "$readme" | tr '\n' ' ')"
  code="$(grep -oE '`[^`]+`' <<< "$text" || true)"
  links="$(grep -oE '\]\([^)]+/README\.md\)' <<< "$text" || true)"
  # A path into another folder, `core/tensor.h`, is not a file of this one.
  words=" $(tr -c 'A-Za-z0-9_/.*-' ' ' <<< "$code" | sed 's| [^ ]*/[^ ]*| |g' | tr -c 'A-Za-z0-9_-' ' ') "
  paths=" $(tr -c 'A-Za-z0-9_/.-' ' ' <<< "$code $links" | sed 's|/README\.md|/|g') "
  while read -r file; do
    names=$((names + 1))
    stem="${file%.*}"
    [[ "$words" == *" $stem "* ]] || fail "$readme: does not name \`$file\`"
  done < <(find "$folder" -maxdepth 1 -type f \( "${sources[@]}" \) -printf '%f\n' | LC_ALL=C sort)
  while read -r sub; do
    [[ -n "$(find "$folder/$sub" -type f -print -quit)" ]] || continue
    names=$((names + 1))
    [[ "$paths" == *" $sub/"* ]] || fail "$readme: does not name the folder \`$sub/\`"
  done < <(find "$folder" -mindepth 1 -maxdepth 1 -type d ! -name __pycache__ -printf '%f\n' | LC_ALL=C sort)
  for path in $paths; do
    [[ "$path" =~ \.(h|cpp|cu|sh|py)$ && ! "$path" =~ ^\. && "$path" != /* && "$path" != build/* ]] || continue
    # The rest of a pattern (`e*_x.cu`, `<name>.h`) is not a name.
    grep -qE "(^|[^A-Za-z0-9_/.*>}-])${path//./\\.}" <<< "$code" || continue
    [[ -e "$folder/$path" || -e "$path" ]] || fail "$readme: there is no \`$path\`"
  done
done

mapfile -t counted < <(folders_with_files "${with_sub_folders[@]}" tests)
for folder in "${counted[@]}"; do
  [[ "$folder" == tests/fuzz/corpus/* ]] && continue
  count="$(find "$folder" -maxdepth 1 -type f ! -name README.md ! -name '*.pyc' | wc -l)"
  ((count <= 40)) || fail "$folder: $count files; at most 40. Cut it into folders by what is read together."
done

echo "${#described[@]} folders, $names names"
((names >= 500)) || fail "only $names names were checked: is $PWD the root?"
((failures == 0)) || { echo "$failures failures"; exit 1; }
