#!/usr/bin/env python3
"""distributed_step and PyTorch's DistributedDataParallel on gloo in turn, several rounds: prints samples per second and their ratio.

usage: compare_with_ddp.py DISTRIBUTED_STEP [--python PYTHON] [--launch SCRIPT] [--forms 1x1,2x1,1x2] [--rounds N] [--steps N] [--workload W[,W]] [--strategy S[,S]] [--wire own|bf16] [--json FILE]
A form is PROCESSES x THREADS; PYTHON can import torch. Each process has a batch of the workload. Compare only figures of one run. Ratios above 1 say that halftone is faster;
"of 2" is the speed of two processes over twice that of one, and of 1x2 over twice 1x1: the gain of two threads on this machine.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys

HERE = pathlib.Path(__file__).parent
LAUNCH = HERE.parent / "tests" / "distributed" / "launch.sh"


def cell(command):
    environment = {**os.environ, "HALFTONE_LAUNCH_LIMIT": "3600"}
    run = subprocess.run(command, capture_output=True, text=True, env=environment)
    if run.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}\nends with {run.returncode}: {run.stdout[-1000:]}{run.stderr[-2000:]}")
    lines = [line for line in run.stdout.splitlines() if line.startswith("{")]
    return json.loads(lines[-1])


def commands(a, workload, strategy, form):
    processes, threads = form
    flags = ["--workload", workload, "--strategy", strategy, "--wire", a.wire, "--threads", str(threads), "--steps", str(a.steps)]
    ours = [a.launch, str(processes if processes > 1 else 0), a.distributed_step, *flags, "--json"]
    theirs = [a.python, HERE / "peers" / "torch_ddp_step.py", "--processes", str(processes), *flags]
    return {"halftone": ours, "torch": theirs}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("distributed_step")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--launch", default=LAUNCH, help="starts N processes: launch.sh N PROGRAM ...")
    parser.add_argument("--forms", default="1x1,2x1,1x2")
    parser.add_argument("--workload", default="mlp,lenet,resnet18_cifar,gpt_char")
    parser.add_argument("--strategy", default="fp32,o2-bf16", help="strategies that the peer also has")
    parser.add_argument("--wire", default="own", choices=("own", "bf16"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--json", type=pathlib.Path, help="also writes each cell to a file, one line each")
    a = parser.parse_args()
    if a.rounds < 1:
        parser.error("at least one round is needed.")
    forms = [tuple(map(int, form.split("x"))) for form in a.forms.split(",")]
    lines = a.json.open("w") if a.json else None
    print(f"{'workload':14} {'strategy':10} {'form':5} {'halftone':>10} {'torch':>10} {'ratio':>6} {'of 2':>11}   ratios of the rounds, samples/s")
    for workload in a.workload.split(","):
        for strategy in a.strategy.split(","):
            speeds = {(form, who): [] for form in forms for who in ("halftone", "torch")}
            for _ in range(a.rounds):
                for form in forms:
                    for who, command in commands(a, workload, strategy, form).items():
                        found = cell(command)
                        speeds[form, who].append(found["samples_per_s"])
                        if lines:
                            print(json.dumps({"program": who, **found}), file=lines, flush=True)
            median = {key: statistics.median(values) for key, values in speeds.items()}
            for form in forms:
                ours, theirs = median[form, "halftone"], median[form, "torch"]
                scaled = [median[form, who] / (2 * median[(1, 1), who]) if (1, 1) in forms and form != (1, 1) else None
                          for who in ("halftone", "torch")]
                of_two = "/".join("-" if s is None else f"{s:.2f}" for s in scaled)
                rounds = " ".join(f"{o / t:.2f}" for o, t in zip(speeds[form, "halftone"], speeds[form, "torch"]))
                print(f"{workload:14} {strategy:10} {form[0]}x{form[1]:<3} {ours:10.1f} {theirs:10.1f} {ours / theirs:6.2f} {of_two:>11}   {rounds}", flush=True)


if __name__ == "__main__":
    main()
