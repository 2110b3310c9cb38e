"""Compares TransformerEngine's references, which run without a GPU, with halftone's vectors: NVFP4 and FP8 per tensor.

    pip install numpy torch && pip download --no-deps transformer_engine
    python core/formats/vectors/check_transformer_engine.py transformer_engine-*.whl

The package itself needs CUDA to be imported, so the script takes the sources of its references from the wheel.
"""
import sys
import types
import zipfile

import numpy as np
import torch
from read_vectors import FOLDER, Report, read

wheel = zipfile.ZipFile(sys.argv[1])
RECIPES = "transformer_engine.pytorch.custom_recipes"


def module(name, source=""):
    """Makes a module, and enters it in its parent."""
    made = sys.modules[name] = types.ModuleType(name)
    parent, _, child = name.rpartition(".")
    if parent:
        setattr(sys.modules[parent], child, made)
    exec(compile(source, name, "exec"), made.__dict__)
    return made


def reference(name):
    return module(f"{RECIPES}.{name}", wheel.read(f"{RECIPES.replace('.', '/')}/{name}.py"))


for name in ("transformer_engine", "transformer_engine.pytorch", RECIPES):
    module(name)
# Names that the references mention, and do not use to round.
module(f"{RECIPES}.gemm", "class MMParams: pass\nclass GEMMType: FPROP = None\n")
module("transformer_engine.pytorch.quantized_tensor", "class QuantizedTensorStorage: pass\nclass Quantizer: pass\n")
reference("reference_utils")
nvfp4 = reference("reference_nvfp4")
current = reference("reference_current_scaling")

report = Report("TransformerEngine")
# The reference takes whole blocks of 16; the scale of the tensor comes from all of its numbers.
for case in ("random", "ties"):
    tensors, _ = read(FOLDER / "nvfp4.safetensors")
    x, columns = tensors[f"{case}.x"], 32
    codes, scales = nvfp4.NVFP4QuantizerRef._quantize_blockwise_reference(
        torch.from_numpy(x[:, :columns].copy()), torch.tensor(np.abs(x).max()), 16, 1, pow_2_scales=False, eps=0.0)
    scales = scales.to(torch.float32).numpy()
    report.compare(f"nvfp4 {case}, scales", scales, tensors[f"{case}.scale"][:, : columns // 16], scales)
    elements = nvfp4.cast_from_fp4x2(codes, torch.float32).numpy()
    got = elements * scales.repeat(16, axis=1) * tensors[f"{case}.tensor_scale"]
    report.compare(f"nvfp4 {case}", x[:, :columns], tensors[f"{case}.nearest_even"][:, :columns], got,
                   "the reference makes 0 of -0")
for case in ("random", "ties"):
    tensors, _ = read(FOLDER / "fp8_tensor.safetensors")
    x = torch.from_numpy(tensors[f"{case}.x"].copy())
    scale, inverse, _ = current.CurrentScalingQuantizerRef.compute_scale(x, torch.float8_e4m3fn)
    report.compare(f"fp8_tensor {case}, scale", scale.numpy(), tensors[f"{case}.tensor_scale"].reshape(1), inverse.numpy())
    got = (x * scale).to(torch.float8_e4m3fn).to(torch.float32) * inverse
    report.compare(f"fp8_tensor {case}", tensors[f"{case}.x"], tensors[f"{case}.nearest_even"], got.numpy())
report.end()
