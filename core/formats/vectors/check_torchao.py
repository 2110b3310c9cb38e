"""Compares torchao's MX and NVFP4 with halftone's vectors, in whole blocks, and prints where they differ.

    pip install numpy torch torchao && python core/formats/vectors/check_torchao.py
"""
import numpy as np
import torch
from read_vectors import FOLDER, Report, read
from torchao.prototype.mx_formats.mx_tensor import MXTensor
from torchao.prototype.mx_formats.nvfp4_tensor import NVFP4Tensor

MX = {
    "mxfp8": torch.float8_e4m3fn,
    "mxfp8-e5m2": torch.float8_e5m2,
    "mxfp6": "fp6_e2m3",
    "mxfp6-e3m2": "fp6_e3m2",
    "mxfp4": torch.float4_e2m1fn_x2,
}
SPECIAL = "torchao halves blocks whose scale is 2^-127; a block with infinity or NaN has scale 1 in halftone, NaN in torchao"

report = Report("torchao")


def compare(name, case, columns, convert, why=""):
    tensors, _ = read(FOLDER / f"{name}.safetensors")
    x = np.ascontiguousarray(tensors[f"{case}.x"][:, :columns])
    expected = tensors[f"{case}.nearest_even"][:, :columns]
    try:
        got = convert(torch.from_numpy(x.copy()), tensors).numpy()
    except (AssertionError, NotImplementedError, RuntimeError) as error:
        print(f"{name} {case}: torchao does not run here: {error}")
        return
    report.compare(f"{name} {case}", x, expected, got, why)


for name, kind in MX.items():
    for case in ("random", "ties", "special"):
        compare(name, case, 64, lambda x, _: MXTensor.to_mx(x, kind, 32).dequantize(torch.float32),
                SPECIAL if case == "special" else "")
for case in ("random", "ties"):
    compare("nvfp4", case, 32, lambda x, t: NVFP4Tensor.to_nvfp4(
        x, per_tensor_scale=torch.tensor(float(t[f"{case}.tensor_scale"]))).dequantize(torch.float32),
        "torchao divides by the product of scales; halftone multiplies by its reciprocal, as TransformerEngine")
report.end()
