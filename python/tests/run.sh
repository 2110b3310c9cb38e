#!/usr/bin/env bash
# run.sh BUILD DIRECTORY: links the Python module to the halftone of a build, and runs its tests. The interpreter is
# HALFTONE_PYTHON (default: python3); it needs numpy, pytest and nanobind. Without them the test is skipped: exit code 77.
set -euo pipefail
build=$1 directory=$2
source=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
python=${HALFTONE_PYTHON:-python3}
for package in numpy pytest nanobind; do
  if ! "$python" -c "import $package" 2>/dev/null; then
    echo "skipped: $python has no $package. Make an environment: python3 -m venv DIR && DIR/bin/pip install numpy pytest nanobind," \
         "then set HALFTONE_PYTHON=DIR/bin/python. With torch in it the parts about PyTorch are tested as well."
    exit 77
  fi
done
rm -rf "$directory" && mkdir -p "$directory/package"
cmake --install "$build" --prefix "$directory/prefix" --component dev >/dev/null
cmake -S "$source" -B "$directory/build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DHALFTONE_PREFIX="$directory/prefix" \
      -DPython_EXECUTABLE="$("$python" -c 'import sys; print(sys.executable)')" >/dev/null
cmake --build "$directory/build" --target _native gpt_gradients
cp -r "$source/halftone" "$directory/package/"
cp "$directory"/build/_native*.so "$directory/package/halftone/"
export HALFTONE_GPT_GRADIENTS=$directory/build/gpt_gradients
PYTHONPATH=$directory/package exec "$python" -m pytest -q -p no:cacheprovider "$source/tests"
