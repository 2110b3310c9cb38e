"""Compares ml_dtypes' (and numpy's) casts with halftone's vectors, and prints where they differ.

    pip install numpy ml_dtypes && python core/formats/vectors/check_ml_dtypes.py
"""
import ml_dtypes
import numpy as np
from read_vectors import FOLDER, Report, read

TYPES = {
    "bf16": ml_dtypes.bfloat16,
    "f16": np.float16,
    "e5m2": ml_dtypes.float8_e5m2,
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e3m2": ml_dtypes.float6_e3m2fn,
    "e2m3": ml_dtypes.float6_e2m3fn,
    "e2m1": ml_dtypes.float4_e2m1fn,
    "e8m0": ml_dtypes.float8_e8m0fnu,
}

report = Report("ml_dtypes")
for name, kind in TYPES.items():
    tensors, metadata = read(FOLDER / f"{name}.safetensors")
    x, expected = tensors["x"], tensors["nearest_even"]
    with np.errstate(all="ignore"):
        got = x.astype(kind).astype(np.float32)
    most = float(metadata["grid.max"])
    inside = np.abs(x) <= most
    if name == "e8m0":
        inside &= x > 0  # the cast has no sign and no zero
    report.compare(f"{name}, up to {most:g}", x[inside], expected[inside], got[inside],
                   "the cast rounds every number between its two smallest up, and has no 0")
    report.compare(f"{name}, the others", x[~inside], expected[~inside], got[~inside],
                   "halftone saturates where the format has no infinity, and keeps NaN")
report.end()
