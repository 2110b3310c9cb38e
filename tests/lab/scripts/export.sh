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
  elif [ $status != 1 ] || ! grep -q "not in TransformerEngine: " "$folder/$name.txt"; then
    cat "$folder/$name.txt"; echo "$name: exit code $status without a reason"; exit 1
  fi
done
# A block that chooses its grid has the first one's scale, but is not of that format.
cat >"$folder/choice.json" <<'JSON'
{"halftone_policy": 1, "name": "choice", "extends": "amp-bf16", "rules": [{"match": {"op": "linear"}, "compute": "f32",
 "weight": {"like": "nvfp4", "grid": {"choose": ["e2m1", "int4"]}}}]}
JSON
if "$lab" export "$folder/choice.json" --workload gpt_tiny -o "$folder/choice" >"$folder/choice.txt"; then
  cat "$folder/choice.txt"; echo "a choice of grids was exported"; exit 1
fi
grep -q "weight: it has no tables, choices of grids" "$folder/choice.txt"
echo "${#made[@]} recipes were exported"
[ ${#made[@]} -ge 15 ]
command -v python3 >/dev/null || exit 0
python3 "$(dirname "$0")/load_te_recipes.py" "${made[@]}"
