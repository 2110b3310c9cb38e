"""Compares gfloat's rounding with halftone's vectors in six roundings, and its MX blocks; prints where they differ.

    pip install numpy gfloat && python core/formats/vectors/check_gfloat.py
"""
import numpy as np
from gfloat import RoundMode, compute_scale_amax, formats, quantize_block, round_ndarray
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
    "stochastic": RoundMode.StochasticFastest,
}
BLOCKS = {
    "mxfp8": formats.format_info_mxfp8_e4m3,
    "mxfp8-e5m2": formats.format_info_mxfp8_e5m2,
    "mxfp6": formats.format_info_mxfp6_e2m3,
    "mxfp6-e3m2": formats.format_info_mxfp6_e3m2,
    "mxfp4": formats.format_info_mxfp4_e2m1,
    "mxint8": formats.format_info_mxint8,
}
INT8 = "gfloat's int8 has -2 and no -0; halftone's has a sign and a magnitude"

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
        why = INT8
    for rounding, mode in ROUNDINGS.items():
        x, expected = tensors["x"][usable], tensors[rounding][usable]
        words = tensors["random"][usable].astype(np.int64)
        got = round_ndarray(info, x.astype(np.float64), mode, sat=saturates, srbits=words, srnumbits=32)
        report.compare(f"{name} {rounding}", x, expected, got.astype(np.float32), why)

for name, info in BLOCKS.items():
    tensors, _ = read(FOLDER / f"{name}.safetensors")
    for case in ("random", "ties", "special"):
        x, expected = tensors[f"{case}.x"], tensors[f"{case}.nearest_even"]
        starts = [(row, at) for row in range(len(x)) for at in range(0, x.shape[1], 32)]
        # gfloat has no result for a block with infinity or NaN.
        starts = [(row, at) for row, at in starts if np.isfinite(x[row, at : at + 32]).all()]
        got = [quantize_block(info, x[row, at : at + 32].astype(np.float64), compute_scale_amax) for row, at in starts]
        inputs, results = (np.concatenate([v[row, at : at + 32] for row, at in starts]) for v in (x, expected))
        with np.errstate(over="ignore"):  # -2 * 2^127 is beyond f32
            got = np.concatenate(got).astype(np.float32)
        report.compare(f"{name} {case}", inputs, results, got, INT8)
report.end()
