#!/usr/bin/env bash
# From a fresh machine to a trained network: installs what is missing, builds, and trains a small
# CNN on Fashion-MNIST. Arguments go to the training program (--help lists them).
set -euo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"

"$root/scripts/setup.sh"
(cd "$root" && cmake --preset release && cmake --build --preset release --target 03_train_fashion_mnist)
exec "$root/build/release/examples/03_train_fashion_mnist" \
  --save "$root/build/release/lenet.safetensors" "$@"
