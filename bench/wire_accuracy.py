#!/usr/bin/env python3
"""Test accuracy by wire format and batches per step, from lesson 28. Its one process computes what one process per batch would compute.

usage: wire_accuracy.py 28_DISTRIBUTED [--wire W[,W]] [--batches-per-step K[,K]] [--strategy S] [--seeds N] [--epochs N] [--batches N]
Prints the mean over the seeds and their standard deviation, in percent.
"""

import argparse
import re
import statistics
import subprocess
import sys


def accuracy(command):
    run = subprocess.run(command, capture_output=True, text=True)
    found = re.search(r"test accuracy ([0-9.]+) ?%", run.stdout)
    if run.returncode != 0 or not found:
        sys.exit(f"{' '.join(command)}\nends with {run.returncode}: {run.stdout[-500:]}{run.stderr[-2000:]}")
    return float(found[1])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("lesson")
    parser.add_argument("--wire", default="own,bf16,bf16-sr,f16,f8_e4m3,f8_e4m3+feedback,f8_e5m2,f8_e5m2+feedback")
    parser.add_argument("--batches-per-step", default="4,16,64")
    parser.add_argument("--strategy", default="fp32")
    for name, default in (("--seeds", 3), ("--epochs", 2), ("--batches", 0)):
        parser.add_argument(name, type=int, default=default)
    a = parser.parse_args()
    several = a.batches_per_step.split(",")
    print(f"{a.strategy}, {a.epochs} epochs, {a.seeds} seeds\n{'wire':20}" + "".join(f"{'K = ' + k:>16}" for k in several))
    for wire in a.wire.split(","):
        line = f"{wire:20}"
        for k in several:
            found = [accuracy([a.lesson, "--strategy", a.strategy, "--wire", wire, "--batches-per-step", k, "--seed", str(seed),
                               "--epochs", str(a.epochs), "--batches", str(a.batches)]) for seed in range(a.seeds)]
            spread = statistics.stdev(found) if len(found) > 1 else 0
            line += f"{statistics.mean(found):9.2f} ± {spread:4.2f}"
        print(line, flush=True)


if __name__ == "__main__":
    main()
