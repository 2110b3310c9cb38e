#!/usr/bin/env python3
"""train_step and its peers in turn, several rounds; prints medians, minima and their ratios per cell.

usage: compare_with_torch.py TRAIN_STEP [--peers torch,torch-compiled,jax] [--compile] [--python PYTHON] [--device cpu|cuda] [--capture] [--rounds N] [--threads N] [--busy N] [--steps N] [--workload W[,W]] [--strategy S[,S]] [--json FILE]
PYTHON is an interpreter that can import the peers: torch, or jax and optax (mlp_tiny, mlp and lenet only). A machine's speed drifts, and noise only
adds: compare only figures of one run. With --busy N, N other processes compute without end at the same time. Ratios above 1 say that halftone is faster; share is the part of the machine's limit that halftone's fastest step reaches.
"""

import argparse
import contextlib
import json
import pathlib
import statistics
import subprocess
import sys

PEERS = pathlib.Path(__file__).parent / "peers"
PROGRAMS = {"torch": ["torch_step.py"], "torch-compiled": ["torch_step.py", "--compile"], "jax": ["jax_step.py"]}
UNTUNED = "mlp_100,mlp_1,conv_48,depthwise_7x7,gpt_48,lstm_100"  # lab/workload_data.h
OF_JAX = ("mlp_tiny", "mlp", "lenet")


def cells(command):
    """Returns the cells that a program printed, by workload and strategy, and what went wrong."""
    run = subprocess.run(command, capture_output=True, text=True)
    found = [json.loads(line) for line in run.stdout.splitlines() if line.startswith("{")]
    wrong = f"{' '.join(map(str, command))}\nends with {run.returncode}: {run.stderr[-2000:]}" if run.returncode else ""
    return {(c["workload"], c["strategy"]): c for c in found}, wrong


@contextlib.contextmanager
def busy(count):
    """Runs processes that compute without end while it is active."""
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def compare(command, peers, a):
    """Returns a list of rounds for halftone and each peer, and what went wrong."""
    rounds, wrong = {name: [] for name in ("halftone", *peers)}, ""
    for _ in range(a.rounds):
        for name, program in (("halftone", command), *peers.items()):
            with busy(0 if name == "halftone" else a.busy):
                found, failure = cells(program)
            rounds[name].append(found)
            wrong = wrong or failure
    return rounds, wrong


def show(workload, strategy, rounds):
    """Prints the rows of a cell; returns its records."""
    ours = [r[workload, strategy] for r in rounds["halftone"]]
    # A disturbed machine measures itself as too slow, so the least limit is used.
    share = min(c["limit_ms"] for c in ours) / min(c["min_ms"] for c in ours) if "limit_ms" in ours[0] else None
    for name in [name for name in rounds if name != "halftone"]:
        theirs = [r[workload, strategy] for r in rounds[name]]
        median, least = ([f([c[key] for c in each]) for each in (ours, theirs)] for f, key in ((statistics.median, "ms"), (min, "min_ms")))
        of_rounds = " ".join(f"{t['ms'] / o['ms']:.2f}" for o, t in zip(ours, theirs))
        print(f"{workload:14} {strategy:10} {name:14} {median[0]:9.3f} {least[0]:9.3f} {median[1]:9.3f} {least[1]:9.3f} "
              f"{median[1] / median[0]:5.2f} {least[1] / least[0]:5.2f} {f'{100 * share:.0f} %' if share else '-':>6}   {of_rounds}", flush=True)
    return [{"program": name, **r[workload, strategy]} for name, each in rounds.items() for r in each]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("train_step")
    parser.add_argument("--peers", default="torch", help=", ".join(PROGRAMS))
    parser.add_argument("--compile", action="store_true", help="also compares with torch-compiled")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--workload", default="mlp_tiny,mlp,lenet", help="the workloads of train_step; untuned: shapes that are not round")
    parser.add_argument("--strategy", default="fp32", help="strategies that the peer also has")
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--capture", action="store_true", help="train_step replays a CUDA graph")
    parser.add_argument("--json", type=pathlib.Path, help="also writes each cell to a file, one line each")
    for name, default in (("--rounds", 5), ("--threads", 2), ("--steps", 3000), ("--busy", 0)):
        parser.add_argument(name, type=int, default=default)
    a = parser.parse_args()
    names = list(dict.fromkeys(a.peers.split(",") + ["torch-compiled"] * a.compile))
    unknown = [p for p in names if p not in PROGRAMS]
    if unknown:
        parser.error(f"there is no peer {unknown[0]}; {', '.join(PROGRAMS)} are.")
    if a.rounds < 1:
        parser.error("at least one round is needed.")
    print(f"{'workload':14} {'strategy':10} {'peer':14} {'halftone ms':>19} {'peer ms':>19} {'ratios':>11} {'share':>6}   ratios of the rounds")
    print(f"{'':40} {'median':>9} {'min':>9} {'median':>9} {'min':>9} {'med.':>5} {'min':>5}")
    lines, failed = a.json.open("w") if a.json else None, False
    workloads, strategies = a.workload.replace("untuned", UNTUNED).split(","), a.strategy.split(",")
    # A GPU is quiet, and a start of a program is long beside its steps: there, a process runs all cells.
    turns = [(workloads, strategies)] if a.device != "cpu" else [([w], [s]) for w in workloads for s in strategies]
    for some, under in turns:
        flags = ["--workload", ",".join(some), "--strategy", ",".join(under), "--threads", str(a.threads),
                 "--steps", str(a.steps), "--seconds", str(a.seconds), "--device", a.device]
        peers = {name: [a.python, PEERS / PROGRAMS[name][0], *flags, *PROGRAMS[name][1:]] for name in names
                 if name != "jax" or (some[0] in OF_JAX and a.device == "cpu")}
        rounds, wrong = compare([a.train_step, *flags, "--busy", str(a.busy), "--json", *(["--capture"] if a.capture else [])], peers, a)
        for workload, strategy in [(w, s) for w in some for s in under]:
            missing = [name for name, each in rounds.items() if any((workload, strategy) not in r for r in each)]
            if missing:  # the other cells are still useful
                print(f"{workload:14} {strategy:10} no step by {', '.join(missing)}", flush=True)
                failed = True
                continue
            for record in show(workload, strategy, rounds):
                if lines:
                    print(json.dumps(record), file=lines, flush=True)
        if wrong:
            print(wrong, flush=True)
            failed = True
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
