"""Compares Microsoft's microxcaling with halftone's vectors, in whole blocks, and prints where they differ.

    pip install numpy torch packaging && git clone https://github.com/microsoft/microxcaling &&
        PYTHONPATH=microxcaling python core/formats/vectors/check_microxcaling.py
"""
import numpy as np
import torch
from mx.mx_ops import _quantize_mx
from read_vectors import FOLDER, Report, read

MX = {
    "mxfp8": "fp8_e4m3",
    "mxfp8-e5m2": "fp8_e5m2",
    "mxfp6": "fp6_e2m3",
    "mxfp6-e3m2": "fp6_e3m2",
    "mxfp4": "fp4_e2m1",
    "mxint8": "int8",
}
WHY = "-0 becomes 0 in microxcaling, and a block with infinity or NaN becomes NaN"
ROUNDINGS = {"nearest_even": "even", "nearest_away": "nearest", "toward_zero": "floor"}

report = Report("microxcaling")


def compare(name, case, rounding):
    tensors, _ = read(FOLDER / f"{name}.safetensors")
    if f"{case}.{rounding}" not in tensors:
        return
    x = np.ascontiguousarray(tensors[f"{case}.x"][:, :64])
    expected = tensors[f"{case}.{rounding}"][:, :64]
    got = _quantize_mx(torch.from_numpy(x.copy()), 8, MX[name], axes=[-1], block_size=32, round=ROUNDINGS[rounding])
    report.compare(f"{name} {case} {rounding}", x, expected, got.numpy(), WHY)


for name in MX:
    for case in ("random", "ties", "special"):
        for rounding in ROUNDINGS:
            compare(name, case, rounding)
report.end()
