#!/usr/bin/env python3
"""The workloads of bench/train_step in PyTorch: whole training steps in eager mode, with the fused AdamW.

usage: torch_step.py [--workload W[,W]] [--strategy S[,S]] [--threads N] [--steps N] [--seconds N]
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


STRATEGIES = ("fp32", "amp-bf16", "amp-fp16", "full-bf16", "o2-bf16")


def measure(name, strategy, threads, steps, seconds):
    """fp32; autocast (f16 with a GradScaler); everything in bf16; bf16 weights with f32 masters, written by hand."""
    torch.manual_seed(0)
    make_model, shape = WORKLOADS[name]
    model, inputs, targets = make_model(), torch.randn(shape), torch.randint(0, 10, shape[:1])
    low = torch.float16 if strategy.endswith("fp16") else torch.bfloat16
    amp, master = strategy.startswith("amp"), strategy.startswith("o2")
    if not amp and strategy != "fp32":
        model, inputs = model.to(low), inputs.to(low)
    params = list(model.parameters())
    weights = [p.detach().float().requires_grad_() for p in params] if master else params
    optimizer = torch.optim.AdamW(weights, lr=1e-4, weight_decay=0.01, fused=True)
    scaler = torch.amp.GradScaler("cpu", enabled=strategy == "amp-fp16")

    def step():
        with torch.autocast("cpu", dtype=low, enabled=amp):
            logits = model(inputs)
            loss = F.cross_entropy(logits if amp else logits.float(), targets)
        scaler.scale(loss).backward()
        if master:
            for weight, param in zip(weights, params):
                weight.grad = param.grad.float()
        scaler.step(optimizer)
        scaler.update()
        if master:
            with torch.no_grad():
                torch._foreach_copy_(params, weights)
            model.zero_grad(set_to_none=True)
        optimizer.zero_grad(set_to_none=True)
        return loss

    times, begin = [], time.perf_counter()
    for i in range(3 + steps):
        start = time.perf_counter()
        loss = step()
        if i >= 3:
            times.append(1e3 * (time.perf_counter() - start))
            if time.perf_counter() - begin > seconds:
                break
    median = statistics.median(times)
    return {
        "workload": name, "strategy": strategy, "device": "cpu", "threads": threads, "ms": median,
        "min_ms": min(times), "samples_per_s": 1e3 * shape[0] / median, "n": len(times),
        "params": sum(p.numel() for p in params), "loss": loss.item(),
        "peer": "torch " + torch.__version__,
    }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--workload", default=",".join(WORKLOADS))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--seconds", type=float, default=12)
    parser.add_argument("--strategy", default="fp32", help="of " + ", ".join(STRATEGIES))
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    for name in arguments.workload.split(","):
        for strategy in arguments.strategy.split(","):
            cell = measure(name, strategy, arguments.threads, arguments.steps, arguments.seconds)
            print(json.dumps(cell), flush=True)


if __name__ == "__main__":
    main()
