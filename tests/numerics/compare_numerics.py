#!/usr/bin/env python3
"""Compares the rounding errors of halftone and PyTorch: random operations, forward and backward, in six modes.

usage: compare_numerics.py RUN_CASES [--cases N] [--seed N] [--backend reference|cpu|cuda] [--only OP[,OP]] [--keep DIR]
RUN_CASES is the program of tests/numerics/run_cases.cpp. Needs torch and safetensors. Inputs are rounded to the mode's
dtype first; the truth is PyTorch's f64 on these rounded inputs, that of f64 exact.py's, in 80-bit floats. The error of a
tensor (a result or a gradient) is the root of the mean square of its distances from the truth; the ratio is halftone's
over PyTorch's, and PyTorch's counts as half a unit in the last place of the result's dtype at least. A case has the
largest ratio among its tensors. Prints a Markdown table by family and mode - the share of cases at most 1.5, the largest
ratio, and the geometric mean of the ratios of all tensors whose errors are both not 0 - and the cases above 1.5.
"""

import argparse
import json
import math
import pathlib
import random
import subprocess
import tempfile
import warnings

import numpy as np
import torch
from exact import exact_results
from random_cases import FAMILIES, TORCH
from safetensors.torch import load_file, save_file

MODES = {"f64": (torch.float64, None), "f32": (torch.float32, None), "bf16": (torch.bfloat16, None),
         "f16": (torch.float16, None), "autocast-bf16": (torch.float32, torch.bfloat16),
         "autocast-f16": (torch.float32, torch.float16)}


def results_of(case, inputs, constants, dtype, region, dy=None):
    """The result and the gradients of all inputs; the dy that was used."""
    leaves = [x.to(dtype, copy=True).requires_grad_() for x in inputs]
    constants = [c.to(dtype) if c.is_floating_point() else c for c in constants]
    with torch.autocast("cpu", dtype=region or torch.bfloat16, enabled=region is not None):
        y = TORCH[case.op](case, leaves, constants)
    if dy is None:
        dy = torch.randn(y.shape, dtype=torch.float64).to(region or dtype).double()
    y.backward(dy.to(y.dtype))
    return [y.detach()] + [x.grad for x in leaves], dy


# --- errors


def rms(x):
    return math.sqrt(float((x * x).mean())) if x.size else 0.0


def relative_errors(got, truth):
    """(root of the mean square of the distances, of the truth), over what is finite in the truth."""
    finite = np.isfinite(truth)
    truth = np.where(finite, truth, 0)
    distance = np.where(finite, got.double().numpy() - truth, 0)
    return rms(distance) if np.isfinite(distance).all() else math.inf, rms(truth)


def ratio_of(ours, theirs, truth, dtype):
    """halftone's error over PyTorch's, which counts as half a unit in the last place at least."""
    error, scale = relative_errors(ours, truth)
    peer = relative_errors(theirs, truth)[0]
    if error == peer or not math.isfinite(peer):  # an overflow of the format, which both may have
        return 1.0, error, peer, scale
    floor = max(torch.finfo(dtype).eps / 2 * scale, torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps)
    return error / max(peer, floor), error, peer, scale


def truth_of(case, inputs, constants, mode, dy):
    """The result and the gradients as numpy arrays."""
    if mode == "f64":
        return exact_results(case, [x.numpy() for x in inputs], [c.numpy() for c in constants], dy.numpy())
    return [x if x is None else x.numpy() for x in results_of(case, inputs, constants, torch.float64, None, dy)[0]]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("run_cases")
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--backend", default="cpu")
    parser.add_argument("--only", default="", help="operations")
    parser.add_argument("--modes", default=",".join(MODES))
    parser.add_argument("--keep", help="a directory for the cases and results")
    a = parser.parse_args()
    warnings.filterwarnings("ignore")
    torch.manual_seed(a.seed)
    random.seed(a.seed)
    makers = [maker for maker, weight in FAMILIES for _ in range(weight)]
    cases, only = [], set(filter(None, a.only.split(",")))
    while len(cases) < a.cases:
        case = makers[len(cases) % len(makers)]() if not only else random.choice(makers)()
        if not only or case.op in only:
            cases.append(case)
    with tempfile.TemporaryDirectory() as temporary:
        compare(a, cases, pathlib.Path(a.keep or temporary))


def compare(a, cases, directory):
    directory.mkdir(exist_ok=True)
    listed = {str(i): {"op": c.op, "inputs": len(c.inputs), "constants": len(c.constants), "attributes": c.attributes}
              for i, c in enumerate(cases)}
    (directory / "cases.json").write_text(json.dumps(listed))
    found, absent, logs = [], {}, {}
    for mode in a.modes.split(","):
        dtype, region = MODES[mode]
        tensors, expected = {}, {}
        for i, case in enumerate(cases):
            torch.manual_seed(i)
            inputs = [x.to(dtype).double() for x in case.inputs]
            constants = [c.to(dtype).double() if c.is_floating_point() else c for c in case.constants]
            if region and case.op == "bce":  # halftone's default policy is that of PyTorch on CUDA, which refuses it
                continue
            try:
                theirs, dy = results_of(case, inputs, constants, dtype, region)
            except RuntimeError as error:  # PyTorch has no kernel for it
                absent[mode, case.op] = str(error).split("\n")[0]
                continue
            expected[i] = theirs, truth_of(case, inputs, constants, mode, dy)
            for j, x in enumerate(inputs):
                tensors[f"{i}.x{j}"] = x.contiguous()
            for j, c in enumerate(constants):
                tensors[f"{i}.c{j}"] = c.contiguous()
            tensors[f"{i}.dy"] = dy.contiguous()
        save_file(tensors, directory / f"inputs-{mode}.safetensors")
        output = directory / f"results-{mode}.safetensors"
        subprocess.run([a.run_cases, directory / "cases.json", directory / f"inputs-{mode}.safetensors", mode, a.backend, output], check=True)
        results = load_file(output)
        for i, (theirs, truth) in expected.items():
            names = [f"{i}.y"] + [f"{i}.g{j}" for j in range(len(theirs) - 1)]
            worst = (0.0,)
            for name, peer, exact in zip(names, theirs, truth):
                kind = name.split(".")[1]
                if peer is None:  # PyTorch has no gradient for it
                    continue
                if name not in results:
                    worst = (math.inf, kind, "no result", "", "")
                    break
                ratio, error, peer_error, scale = ratio_of(results[name], peer, exact, peer.dtype)
                worst = max(worst, (ratio, kind, error, peer_error, scale))
                if 0 < error < math.inf and 0 < peer_error < math.inf:
                    logs.setdefault((mode, cases[i].family), []).append(math.log(error / peer_error))
            found.append((mode, i, worst))
    report(a, cases, found, absent, logs)


def report(a, cases, found, absent, logs):
    families = list(dict.fromkeys(c.family for c in cases))
    modes = [m for m in MODES if any(f[0] == m for f in found)]
    print(f"{len(cases)} cases, seed {a.seed}, backend {a.backend}, PyTorch {torch.__version__}\n")
    print("| family | " + " | ".join(modes) + " |\n|---|" + "---|" * len(modes))
    for family in families + ["all"]:
        row = [family]
        for mode in modes:
            ratios = [f[2][0] for f in found if f[0] == mode and family in (cases[f[1]].family, "all")]
            good = sum(r <= 1.5 for r in ratios)
            both = [x for (m, f), values in logs.items() if m == mode and family in (f, "all") for x in values]
            mean = f", {math.exp(sum(both) / len(both)):.2f}" if both else ""
            row.append(f"{100 * good / len(ratios):.1f} %, {max(ratios):.2f}{mean}" if ratios else "-")
        print("| " + " | ".join(row) + " |")
    total = [f[2][0] for f in found]
    print(f"\n{len(total)} comparisons: {100 * sum(r <= 1.5 for r in total) / len(total):.2f} % at most 1.5, "
          f"{sum(r > 4 for r in total)} above 4\n")
    for ratio, mode, i, worst in sorted(((f[2][0], f[0], f[1], f[2]) for f in found if f[2][0] > 1.5), reverse=True, key=lambda f: f[0]):
        kind, error, peer, scale = (list(worst) + [""] * 4)[1:5]
        numbers = f"error {error:.2e}, PyTorch {peer:.2e}, values {scale:.2e}" if scale != "" else error
        print(f"{ratio:8.2f} {mode:14} case {i:4} {kind:3} {cases[i].description()}  ({numbers})")
    for (mode, op), message in absent.items():
        print(f"not in PyTorch: {op} in {mode}: {message}")


if __name__ == "__main__":
    main()
