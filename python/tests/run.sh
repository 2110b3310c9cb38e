#!/usr/bin/env bash
# run.sh BUILD DIRECTORY: links the Python module to the halftone of a build, and runs its tests. The interpreter is
# HALFTONE_PYTHON (default: python3); it needs numpy, pytest and nanobind. Without them the test is skipped: exit code 77.
# With torch, and if the build has an emulated GPU, test_gpu.py runs again with the module linked to it.
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
emulated=()
objects=$build/tests/cuda_emulation/library_objects.txt
if [[ -e $objects ]] && "$python" -c "import torch" 2>/dev/null; then
  emulated=(emulated)
  cmake "-DHALFTONE_EMULATED_OBJECTS=$objects" "$directory/build" >/dev/null
fi
cmake --build "$directory/build" --target _native gpt_gradients "${emulated[@]}"
cp -r "$source/halftone" "$directory/package/"
cp "$directory"/build/_native*.so "$directory/package/halftone/"
export HALFTONE_GPT_GRADIENTS=$directory/build/gpt_gradients
PYTHONPATH=$directory/package "$python" -m pytest -q -p no:cacheprovider "$source/tests"
if ((${#emulated[@]})); then
  mkdir -p "$directory/with_gpu"
  cp -r "$source/halftone" "$directory/with_gpu/"
  cp "$directory"/build/emulated/_native*.so "$directory/with_gpu/halftone/"
  HALFTONE_EMULATED_GPU=1 PYTHONPATH=$directory/with_gpu "$python" -m pytest -q -p no:cacheprovider "$source/tests/test_gpu.py"
fi
