"""The number formats and the policies of halftone. docs/python.md is the page about it.

    import halftone as ht
    y = ht.quantize(x, "nvfp4", axis=-1, seed=3)
"""
from ._native import Format, Quantizer, accumulators, formats, manual_seed, quantizers, roundings
from .errors import DeviceError, DTypeError, Error, FormatError, ShapeError, UnsupportedError, UsageError
from .numbers import matmul, quantize, round_to
from .policies import Policy
from .runs import read_runs

__version__ = "0.1.0"
__all__ = [
    "DTypeError", "DeviceError", "Error", "Format", "FormatError", "Policy", "Quantizer", "ShapeError",
    "UnsupportedError", "UsageError", "formats", "manual_seed", "quantize", "quantizers", "read_runs",
    "matmul", "round_to", "roundings",
]
