"""Compares halftone's sums of matrix units with MMA-Sim (arXiv 2511.10909).

    git clone https://github.com/microsoft/MMA-Sim && pip install torch
    PYTHONPATH=MMA-Sim:build/release/python python check_mma_sim.py [random [adversarial [accumulators]]]

For each accumulator of the table in number_formats.md: dot products of four steps of operands in
its formats, random ones (exponents near each other, far apart, the whole range) and adversarial
ones (zeros, subnormals, the largest numbers, cancellation, ties, infinities, NaN). Prints how many
of 32-bit results differ.
"""
import sys

import numpy as np
import torch

import halftone as ht
from mmasim.simulator.arithmetic import (amd_fused_dot_rd_add, nv_fused_dot_add,
                                         nv_fused_dot_add_with_block_scale)

STEPS = 4
# name: products of a step, fraction bits, result, operands
NVIDIA = {
    "v100-mma": (4, 23, "f32", ["f16"]),
    "a100-mma": (8, 24, "f32", ["f16", "bf16"]),
    "a100-mma-tf32": (4, 24, "f32", ["tf32"]),
    "l40-mma": (8, 24, "f32", ["f16", "bf16"]),
    "l40-mma-f8": (16, 13, "f32_e8m13", ["e4m3", "e5m2"]),
    "h100-mma": (16, 25, "f32", ["f16", "bf16"]),
    "h100-mma-tf32": (8, 25, "f32", ["tf32"]),
    "h100-wgmma": (16, 25, "f32", ["f16", "bf16"]),
    "h100-wgmma-f8": (32, 13, "f32_e8m13", ["e4m3", "e5m2"]),
    "b200-tcgen05": (16, 25, "f32", ["f16", "bf16"]),
    "b200-tcgen05-tf32": (8, 25, "f32", ["tf32"]),
    "b200-tcgen05-f8": (32, 25, "f32", ["e4m3", "e5m2"]),
}
AMD = {"mi300-mfma": (8, 24, "f32", ["f16", "bf16"])}
# name: products of a step, fraction bits, numbers of a scale, numbers, scales
SCALED = {
    "b200-tcgen05-mxf8": (32, 25, 32, ["e4m3", "e5m2"], "e8m0"),
    "b200-tcgen05-mxf4": (64, 35, 32, ["e2m1"], "e8m0"),
    "b200-tcgen05-nvf4": (64, 35, 16, ["e2m1"], "e4m3"),
}
DTYPES = {"f16": torch.float16, "bf16": torch.bfloat16, "tf32": torch.float32, "e4m3": torch.float8_e4m3fn,
          "e5m2": torch.float8_e5m2, "e2m1": torch.float32, "e8m0": torch.float8_e8m0fnu}
# largest number, least exponent, significand bits
FORMATS = {"f16": (65504, -14, 11), "bf16": (3.3895314e38, -126, 8), "tf32": (3.4011621e38, -126, 11),
           "e4m3": (448, -6, 4), "e5m2": (57344, -14, 3), "e2m1": (6, 0, 2)}


def on_grid(x, operands):
    largest = FORMATS[operands][0]
    x = np.clip(x, -largest, largest)
    return ht.round_to(x.astype(np.float32), operands).astype(np.float32)


def random_operands(rng, rows, k, operands):
    _, least, bits = FORMATS[operands]
    span = rng.choice([1, 4, 12, 40, 2 * -least + 8], size=(rows, 1))
    middle = rng.integers(-(-least) // 2, -least // 2 + 1, size=(rows, 1)) * (rng.random((rows, 1)) < 0.5)
    exponents = middle + (rng.random((rows, k)) - 0.5) * span
    x = rng.choice([-1, 1], size=(rows, k)) * (1 + rng.random((rows, k))) * 2.0 ** np.floor(exponents)
    x[rng.random((rows, k)) < 0.02] = 0
    return on_grid(x, operands)


def adversarial_operands(rng, rows, k, operands):
    largest, least, bits = FORMATS[operands]
    smallest = 2.0 ** (least - bits + 1)
    special = [0.0, -0.0, smallest, -smallest, 2.0**least, 2.0**least - smallest, largest, -largest, 1.0, -1.0,
               1 + 2.0 ** (1 - bits), 2 - 2.0 ** (1 - bits), 2.0 ** (least // 2), 3 * smallest]
    if operands in ("f16", "bf16", "e5m2"):
        special += [np.inf, -np.inf, np.nan] if rng.random() < 0.1 else []
    a = rng.choice(special, size=(rows, k))
    near = random_operands(rng, rows, k, operands)
    a = np.where(rng.random((rows, k)) < rng.random((rows, 1)), a, near).astype(np.float32)
    half = k // 2  # the second half of some rows cancels the first
    cancels = rng.random(rows) < 0.3
    a[cancels, half:] = -a[cancels, :half]
    return a


def simulated(name, a, b, operands):
    count, fraction, result, _ = (NVIDIA | AMD)[name]
    a, b = torch.from_numpy(a).to(DTYPES[operands]), torch.from_numpy(b).to(DTYPES[operands])
    total = torch.tensor(0.0)
    for at in range(0, a.numel(), count):
        x, y = a[at:at + count], b[at:at + count]
        if name in AMD:
            total = torch.tensor(amd_fused_dot_rd_add(x, y, total, fraction), dtype=torch.float32)
        else:
            total = nv_fused_dot_add(x, y, total, fraction, result)
    return total.item()


def unit_of(name, operands):
    """The accumulator with the subnormals of these operands."""
    return {"like": name, "least_exponent": FORMATS[operands][1]}


def random_scales(rng, rows, blocks, scales):
    """Rows differ in how far their scales are apart."""
    if scales == "e8m0":
        middle, span = rng.integers(-30, 31, size=(rows, 1)), rng.choice([2, 15, 30], size=(rows, 1))
        exponents = middle + np.round((rng.random((rows, blocks)) - 0.5) * 2 * span)
        exponents = np.where(rng.random((rows, blocks)) < 0.02, -127, exponents)
        return (2.0 ** exponents).astype(np.float32)
    exponents = (rng.random((rows, blocks)) - 0.5) * rng.choice([2, 8, 20], size=(rows, 1))
    x = 2.0 ** exponents
    x[rng.random((rows, blocks)) < 0.05] = 2.0 ** -9
    x[rng.random((rows, blocks)) < 0.02] = 0
    return on_grid(x, "e4m3")


def simulated_scaled(name, a, b, a_scales, b_scales, operands):
    count, fraction, block, _, scales = SCALED[name]
    tensors = [torch.from_numpy(x).to(DTYPES[dtype])
               for x, dtype in ((a, operands), (b, operands), (a_scales, scales), (b_scales, scales))]
    each, total = count // block, torch.tensor(0.0)
    for i in range(a.size // count):
        x, y = (t[i * count:(i + 1) * count] for t in tensors[:2])
        s, t = (t[i * each:(i + 1) * each] for t in tensors[2:])
        if operands == "e2m1":
            total = nv_fused_dot_add_with_block_scale(x, y, total, s, t, fraction)
        else:
            total = nv_fused_dot_add(x, y, total, fraction, "f32", s[0], t[0])
    return total.item()


def compared_scaled(name, count, make, seed):
    step, _, block, operands_of, scales = SCALED[name]
    different, k = 0, STEPS * step
    for operands in operands_of:
        rng, rows = np.random.default_rng(seed), count // len(operands_of)
        a, b = make(rng, rows, k, operands), make(rng, rows, k, operands)
        s, t = random_scales(rng, rows, k // block, scales), random_scales(rng, rows, k // block, scales)
        if make is adversarial_operands:  # the halves cancel
            b[:, k // 2:], s[:, k // block // 2:] = b[:, :k // 2], s[:, :k // block // 2]
            t[:, k // block // 2:] = t[:, :k // block // 2]
        least = {} if operands == "e2m1" else {"least_exponent": FORMATS[operands][1]}
        unit = {"like": name, **least}
        products = np.concatenate([
            ht.matmul(a[at:at + 64], b[at:at + 64].T.copy(), unit,
                      scales=(s[at:at + 64], t[at:at + 64].T.copy())).diagonal()
            for at in range(0, rows, 64)])
        for i, got in enumerate(products):
            wanted = np.float32(simulated_scaled(name, a[i], b[i], s[i], t[i], operands))
            if got.tobytes() != wanted.tobytes() and not (np.isnan(got) and np.isnan(wanted)):
                if different == 0:
                    print(f"{name} of {operands}: {got!r}, MMA-Sim {wanted!r}, row {i}")
                different += 1
    return different


def compared(name, count, make, seed):
    if name in SCALED:
        return compared_scaled(name, count, make, seed)
    operands_of, different = (NVIDIA | AMD)[name][3], 0
    for operands in operands_of:
        rng, rows = np.random.default_rng(seed), count // len(operands_of)
        k = STEPS * (NVIDIA | AMD)[name][0]
        a, b = make(rng, rows, k, operands), make(rng, rows, k, operands)
        if make is adversarial_operands:  # the same factors for the halves that cancel
            b[:, k // 2:] = b[:, :k // 2]
        products = np.concatenate([  # of each row with itself: the diagonals of small products
            ht.matmul(a[at:at + 64], b[at:at + 64].T.copy(), unit_of(name, operands)).diagonal()
            for at in range(0, rows, 64)])
        for i, got in enumerate(products):
            wanted = np.float32(simulated(name, a[i], b[i], operands))
            if got.tobytes() != wanted.tobytes() and not (np.isnan(got) and np.isnan(wanted)):
                if different == 0:
                    print(f"{name} of {operands}: {got!r}, MMA-Sim {wanted!r}, row {i}")
                different += 1
    return different


if __name__ == "__main__":
    torch.set_num_threads(1)
    random, adversarial = (int(x) for x in (sys.argv[1:] + ["1000000", "10000"])[:2])
    bad = 0
    for name in sys.argv[3:] or NVIDIA | AMD | SCALED:
        found = compared(name, random, random_operands, 1), compared(name, adversarial, adversarial_operands, 2)
        print(f"{name}: {found[0]} of {random} random and {found[1]} of {adversarial} adversarial dot products differ",
              flush=True)
        bad += sum(found)
    sys.exit(1 if bad else 0)
