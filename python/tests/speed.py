"""Times quantize() against other packages that emulate formats on the CPU: the fastest of seven calls.

    python python/tests/speed.py [COUNT]
"""
import importlib
import sys
import time

import numpy as np

import halftone as ht


def best(function):
    times = []
    for _ in range(7):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return min(times) * 1e3


count = int(sys.argv[1]) if len(sys.argv) > 1 else 1 << 22
x = np.random.default_rng(0).standard_normal((count // 1024, 1024)).astype(np.float32)
print(f"{count} numbers, f32")
for name in ("e4m3", "bf16", "mxfp8", "mxfp4", "nvfp4"):
    print(f"halftone {name:24} {best(lambda: ht.quantize(x, name)):9.2f} ms")
print(f"halftone {'e4m3, stochastic':24} {best(lambda: ht.round_to(x, 'e4m3', 'stochastic', 1)):9.2f} ms")


def pychop_chop():
    pychop = importlib.import_module("pychop")
    pychop.backend("numpy")
    for mode, name in ((1, "e4m3"), (5, "e4m3, stochastic")):
        chop = pychop.Chop(exp_bits=4, sig_bits=3, rmode=mode)
        yield f"pychop {name}", lambda: chop(x)


def microxcaling():
    import torch
    from mx.mx_ops import _quantize_mx

    t = torch.from_numpy(x)
    for name, kind in (("mxfp8", "fp8_e4m3"), ("mxfp4", "fp4_e2m1")):
        yield f"microxcaling {name}", lambda: _quantize_mx(
            t, 8, kind, shared_exp_method="max", axes=[-1], block_size=32, round="even", custom_cuda=False)


def torchao():
    import torch
    from torchao.prototype.mx_formats.mx_tensor import MXTensor

    t = torch.from_numpy(x)
    yield "torchao mxfp8", lambda: MXTensor.to_mx(t, torch.float8_e4m3fn, 32).dequantize(torch.float32)


def ml_dtypes():
    kind = importlib.import_module("ml_dtypes").float8_e4m3fn
    yield "ml_dtypes e4m3", lambda: x.astype(kind).astype(np.float32)


def gfloat():
    import gfloat as g
    from gfloat.formats import format_info_ocp_e4m3

    yield "gfloat e4m3", lambda: g.round_ndarray(format_info_ocp_e4m3, x, sat=True)


for package in (pychop_chop, microxcaling, torchao, ml_dtypes, gfloat):
    try:
        for name, function in package():
            print(f"{name:33} {best(function):9.2f} ms")
    except Exception as error:  # any of them may be absent, or fail
        print(f"{package.__name__}: {type(error).__name__}: {error}")
