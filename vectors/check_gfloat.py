"""Compares gfloat's rounding with halftone's vectors in five roundings, and prints where they differ.

    pip install numpy gfloat && python vectors/check_gfloat.py
"""
import numpy as np
from gfloat import RoundMode, formats, round_ndarray
from read_vectors import FOLDER, Report, read

FORMATS = {
    "f32": formats.format_info_binary32,
    "f16": formats.format_info_binary16,
    "bf16": formats.format_info_bfloat16,
    "e5m2": formats.format_info_ocp_e5m2,
    "e4m3": formats.format_info_ocp_e4m3,
    "e3m2": formats.format_info_ocp_e3m2,
    "e2m3": formats.format_info_ocp_e2m3,
    "e2m1": formats.format_info_ocp_e2m1,
    "e8m0": formats.format_info_ocp_e8m0,
    "int8": formats.format_info_ocp_int8,
}
ROUNDINGS = {
    "nearest_even": RoundMode.TiesToEven,
    "nearest_away": RoundMode.TiesToAway,
    "toward_zero": RoundMode.TowardZero,
    "up": RoundMode.TowardPositive,
    "down": RoundMode.TowardNegative,
}

report = Report("gfloat")
for name, info in FORMATS.items():
    tensors, metadata = read(FOLDER / f"{name}.safetensors")
    saturates = metadata["grid.infinity"] == "false"
    usable = np.isfinite(tensors["x"])  # gfloat refuses NaN in formats that have none
    why = ""
    if name == "e8m0":
        usable &= tensors["x"] >= float(2.0**-127)
        why = "gfloat rounds ties of one significand bit to the even code"
    if name == "int8":
        why = "gfloat's int8 has -2 and no -0; halftone's has a sign and a magnitude"
    for rounding, mode in ROUNDINGS.items():
        x, expected = tensors["x"][usable], tensors[rounding][usable]
        got = round_ndarray(info, x.astype(np.float64), mode, sat=saturates)
        report.compare(f"{name} {rounding}", x, expected, got.astype(np.float32), why)
report.end()
