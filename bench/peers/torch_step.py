#!/usr/bin/env python3
"""The workloads of bench/train_step in PyTorch: whole training steps in eager mode, with the fused AdamW.

usage: torch_step.py [--workload W[,W]] [--threads N] [--steps N]
Prints one JSON object a line, with the fields of train_step.
"""

import argparse
import json
import statistics
import time

import torch
import torch.nn as nn
import torch.nn.functional as F


def mlp(*sizes):
    layers = []
    for inputs, outputs in zip(sizes, sizes[1:]):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def lenet():
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(3136, 128), nn.ReLU(), nn.Linear(128, 10),
    )


WORKLOADS = {
    "mlp_tiny": (lambda: mlp(784, 128, 10), (64, 784)),
    "mlp": (lambda: mlp(784, 2048, 2048, 10), (512, 784)),
    "lenet": (lenet, (128, 1, 28, 28)),
}


def measure(name, threads, steps):
    torch.manual_seed(0)
    make_model, shape = WORKLOADS[name]
    model, inputs, targets = make_model(), torch.randn(shape), torch.randint(0, 10, shape[:1])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01, fused=True)
    times = []
    for step in range(3 + steps):
        start = time.perf_counter()
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step >= 3:
            times.append(1e3 * (time.perf_counter() - start))
    median = statistics.median(times)
    return {
        "workload": name, "strategy": "fp32", "device": "cpu", "threads": threads, "ms": median,
        "min_ms": min(times), "samples_per_s": 1e3 * shape[0] / median, "n": steps,
        "params": sum(p.numel() for p in model.parameters()), "loss": loss.item(),
        "peer": "torch " + torch.__version__,
    }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--workload", default=",".join(WORKLOADS))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=30)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    for name in arguments.workload.split(","):
        print(json.dumps(measure(name, arguments.threads, arguments.steps)), flush=True)


if __name__ == "__main__":
    main()
