"""Compares a million numbers with C++: every format, rounding and ready-made quantizer.

    python python/tests/check_all.py build/release/tools/halftone-lab [COUNT]
"""
import pathlib
import subprocess
import sys
import tempfile

import numpy as np

import halftone as ht

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "core" / "formats" / "vectors"))
from read_vectors import read  # noqa: E402

lab, count = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "1000000"
compared = different = 0
with tempfile.TemporaryDirectory() as folder:
    for name in [f.name for f in ht.formats()] + [q.name for q in ht.quantizers()]:
        path = f"{folder}/x.safetensors"
        chosen = ["--quantizer", name] if name in [q.name for q in ht.quantizers()] else [name]
        subprocess.run([lab, "vectors", *chosen, "--count", count, "--out", path], check=True, stdout=subprocess.DEVNULL)
        tensors, _ = read(path)
        for x_name in [n for n in tensors if n.split(".")[-1] == "x"]:
            for rounding in ht.roundings():
                y = ht.quantize(tensors[x_name], name, rounding=rounding, seed=7)
                expected = tensors[x_name[:-1] + rounding]
                compared += y.size
                different += int((y.view(np.uint32) != expected.view(np.uint32)).sum())
print(f"{compared} results of {len(ht.formats())} formats and {len(ht.quantizers())} quantizers in "
      f"{len(ht.roundings())} roundings: {different} differ from C++")
sys.exit(different != 0)
