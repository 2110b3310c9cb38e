#!/usr/bin/env bash
# From a fresh machine to tested: installs what is missing, builds everything, runs every test.
# Arguments go to ctest (-R name, -j 4, ...). Ends with ctest's own summary.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

scripts/setup.sh
cmake --preset release -DHALFTONE_CUDA=AUTO  # scripts/run.sh leaves it out where there is no GPU
cmake --build --preset release
exec ctest --preset release "$@"
