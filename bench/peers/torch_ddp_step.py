#!/usr/bin/env python3
"""The workloads of bench/distributed_step in PyTorch: DistributedDataParallel on gloo, its processes on this machine.

usage: torch_ddp_step.py [--processes N] [--workload W[,W]] [--strategy S[,S]] [--wire own|bf16] [--threads N] [--steps N]
Buckets of 25 MiB, gradient_as_bucket_view; --wire bf16 is its bf16_compress_hook. One process: no DDP. Prints one JSON object per line, for all processes together.
"""

import argparse
import json
import math
import pathlib
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.nn.parallel import DistributedDataParallel

import torch_step


def parallel(model, wire):
    model = DistributedDataParallel(model, gradient_as_bucket_view=True, bucket_cap_mb=25)
    if wire == "bf16":
        model.register_comm_hook(None, bf16_compress_hook)
    return model


def work(rank, a, meeting):
    torch.set_num_threads(a.threads)
    several = a.processes > 1
    if several:
        dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=a.processes)
    for name in a.workload.split(","):
        for strategy in a.strategy.split(","):
            wrap = (lambda model: parallel(model, a.wire)) if several else (lambda model: model)
            cell = torch_step.measure(name, strategy, "cpu", False, a.threads, a.steps, math.inf, 3, wrap)
            cell.update(ranks=a.processes, wire=a.wire, samples_per_s=cell["samples_per_s"] * a.processes)
            if rank == 0:
                print(json.dumps(cell), flush=True)
    if several:
        dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--workload", default="mlp,lenet,resnet18_cifar,gpt_char")
    parser.add_argument("--strategy", default="fp32", help="of " + ", ".join(torch_step.STRATEGIES))
    parser.add_argument("--wire", default="own", choices=("own", "bf16"))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--steps", type=int, default=20)
    a = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        meeting = pathlib.Path(folder) / "meeting"
        if a.processes == 1:
            work(0, a, meeting)
        else:
            mp.spawn(work, (a, meeting), nprocs=a.processes)


if __name__ == "__main__":
    main()
