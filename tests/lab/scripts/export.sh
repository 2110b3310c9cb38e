#!/usr/bin/env bash
# export.sh HALFTONE_LAB POLICIES FOLDER TO STACK LEAST: exports every shipped policy to a stack, and loads those that it can
# say, at least so many.
set -euo pipefail
lab=$1 policies=$2 folder=$3 to=$4 stack=$5 least=$6
rm -rf "$folder" && mkdir -p "$folder"
# A block that chooses its grid has the first one's scale, but is not of that format.
cat >"$folder/choice.json" <<'JSON'
{"halftone_policy": 1, "name": "choice", "extends": "amp-bf16", "rules": [{"match": {"op": "linear"}, "compute": "f32",
 "weight": {"like": "nvfp4", "grid": {"choose": ["e2m1", "int4"]}}}]}
JSON
# Formats that no shipped policy gives to forward alone, and a name that would end the module's docstring and run.
cat >"$folder/forward.json" <<'JSON'
{"halftone_policy": 1, "name": "forward\"\"\";import sys;sys.exit(3);\"\"\"", "extends": "amp-bf16", "quantizers": {
 "tensor": {"format": "e4m3", "scale": {"per": "tensor", "from": "current"}}, "even": {"like": "mxfp4", "scale": {"per": "block", "block": [1, 32], "rule": "even"}}},
 "rules": [{"match": {"op": "linear"}, "compute": "f32", "input": "tensor", "weight": "tensor"},
 {"match": {"op": "linear", "path": "<head>"}, "input": "even", "weight": "even"}]}
JSON
made=()
for policy in "$policies"/*.json; do
  name=$(basename "$policy" .json)
  status=0
  "$lab" export "$policy" --workload gpt_tiny --to "$to" -o "$folder/$name" >"$folder/$name.txt" || status=$?
  if [ $status = 0 ]; then made+=("$folder/$name")
  elif [ $status != 1 ] || ! grep -q "not in $stack: " "$folder/$name.txt"; then
    cat "$folder/$name.txt"; echo "$name to $to: exit code $status without a reason"; exit 1
  fi
done
if "$lab" export "$folder/choice.json" --workload gpt_tiny --to "$to" -o "$folder/choice" >"$folder/choice.txt"; then
  cat "$folder/choice.txt"; echo "a choice of grids was exported to $to"; exit 1
fi
grep -q "it has no tables, choices of grids" "$folder/choice.txt"
echo "${#made[@]} policies were exported to $to"
[ ${#made[@]} -ge "$least" ]
"$lab" export "$folder/forward.json" --workload gpt_tiny --to "$to" -o "$folder/forward" >"$folder/forward.txt" &&
  made+=("$folder/forward")
if command -v python3 >/dev/null; then python3 "$(dirname "$0")/load_exports.py" "$to" "${made[@]}"; fi
