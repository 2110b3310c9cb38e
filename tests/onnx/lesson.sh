#!/usr/bin/env bash
# lesson.sh SCRIPT DIRECTORY: the Python part of lesson 29 agrees with the files that the program wrote, and finds a wrong number. The
# interpreter is HALFTONE_PYTHON (default: python3); it needs numpy and onnxruntime. Without them the test is skipped: exit code 77.
set -euo pipefail
script=$1 directory=$2
python=${HALFTONE_PYTHON:-python3}
for package in numpy onnxruntime; do
  if ! "$python" -c "import $package" 2>/dev/null; then
    echo "skipped: $python has no $package. Make an environment: python3 -m venv DIR && DIR/bin/pip install numpy onnxruntime," \
         "then set HALFTONE_PYTHON=DIR/bin/python."
    exit 77
  fi
done
"$python" "$script" "$directory"

work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
cp "$directory"/* "$work"
printf '\0\0\200\77' | dd of="$work/logits.f32" bs=4 seek=7 conv=notrunc status=none  # the logit 7 of the first image becomes 1
if "$python" "$script" "$work" > "$work/output"; then
  echo "a wrong logit was not found:"; cat "$work/output"; exit 1
fi
grep -q "relative error" "$work/output" || { echo "the script failed for another reason:"; cat "$work/output"; exit 1; }
