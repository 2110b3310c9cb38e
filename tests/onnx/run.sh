#!/usr/bin/env bash
# run.sh EXPORT_MODELS DIRECTORY: exports models as ONNX files and compares onnxruntime's outputs with halftone's. The interpreter is
# HALFTONE_PYTHON (default: python3); it needs numpy, ml_dtypes, onnx and onnxruntime. Without them the test is skipped: exit code 77.
set -euo pipefail
export_models=$1 directory=$2
python=${HALFTONE_PYTHON:-python3}
for package in numpy ml_dtypes onnx onnxruntime; do
  if ! "$python" -c "import $package" 2>/dev/null; then
    echo "skipped: $python has no $package. Make an environment: python3 -m venv DIR && DIR/bin/pip install onnx onnxruntime ml_dtypes," \
         "then set HALFTONE_PYTHON=DIR/bin/python."
    exit 77
  fi
done
rm -rf "$directory"
"$export_models" "$directory"
exec "$python" "$(dirname "${BASH_SOURCE[0]}")/check_models.py" "$directory"
