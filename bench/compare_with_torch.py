#!/usr/bin/env python3
"""train_step and its PyTorch peer in turn, several rounds; prints medians and the ratio of medians per workload.

usage: compare_with_torch.py TRAIN_STEP [--python PYTHON] [--device cpu|cuda] [--capture] [--compile] [--rounds N] [--threads N] [--steps N] [--workload W[,W]] [--strategy S[,S]]
PYTHON is an interpreter that can import torch. A machine's speed drifts: only figures of one run compare.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys

PEER = pathlib.Path(__file__).parent / "peers" / "torch_step.py"


def cell(command):
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("train_step")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--workload", default="mlp_tiny,mlp,lenet")
    parser.add_argument("--strategy", default="fp32", help="those that the peer knows, too")
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--capture", action="store_true", help="train_step replays a CUDA graph")
    parser.add_argument("--compile", action="store_true", help="PyTorch compiles the model")
    for name, default in (("--rounds", 5), ("--threads", 2), ("--steps", 60)):
        parser.add_argument(name, type=int, default=default)
    a = parser.parse_args()
    print(f"{'workload':14} {'strategy':10} {'halftone ms':>12} {'torch ms':>10} {'ratio':>6}   ratios of the rounds")
    for workload in a.workload.split(","):
        for strategy in a.strategy.split(","):
            flags = ["--workload", workload, "--strategy", strategy, "--threads", str(a.threads),
                     "--steps", str(a.steps), "--seconds", str(a.seconds), "--device", a.device]
            ours, theirs = [], []
            for _ in range(a.rounds):
                ours.append(cell([a.train_step, *flags, "--json", *(["--capture"] if a.capture else [])])["ms"])
                theirs.append(cell([a.python, str(PEER), *flags, *(["--compile"] if a.compile else [])])["ms"])
            ours_ms, theirs_ms = statistics.median(ours), statistics.median(theirs)
            rounds = " ".join(f"{t / o:.2f}" for o, t in zip(ours, theirs))
            print(f"{workload:14} {strategy:10} {ours_ms:12.3f} {theirs_ms:10.3f} {theirs_ms / ours_ms:6.2f}   {rounds}",
                  flush=True)


if __name__ == "__main__":
    main()
