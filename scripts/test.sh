#!/usr/bin/env bash
# From a fresh machine to tested: installs what is missing, builds everything, runs every test.
# Arguments go to ctest (-R name, -j 4, ...). Ends with ctest's own summary.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

scripts/setup.sh
# scripts/run.sh leaves out what this machine cannot run.
cmake --preset release -DHALFTONE_INSTRUCTION_SETS=all -DHALFTONE_CUDA=AUTO
cmake --build --preset release
exec ctest --preset release "$@"
