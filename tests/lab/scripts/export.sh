#!/usr/bin/env bash
# export.sh HALFTONE_LAB POLICIES FOLDER: exports every shipped policy to TransformerEngine, and loads those that it can say.
set -euo pipefail
lab=$1 policies=$2 folder=$3
rm -rf "$folder" && mkdir -p "$folder"
made=()
for policy in "$policies"/*.json; do
  name=$(basename "$policy" .json)
  status=0
  "$lab" export "$policy" --workload gpt_tiny --to te -o "$folder/$name" >"$folder/$name.txt" || status=$?
  if [ $status = 0 ]; then made+=("$folder/$name")
  elif [ $status != 1 ] || ! grep -q "cannot be said: " "$folder/$name.txt"; then
    cat "$folder/$name.txt"; echo "$name: exit code $status without a reason"; exit 1
  fi
done
echo "${#made[@]} recipes were exported"
[ ${#made[@]} -ge 15 ]
command -v python3 >/dev/null || exit 0
python3 "$(dirname "$0")/load_te_recipes.py" "${made[@]}"
