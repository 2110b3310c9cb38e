#!/usr/bin/env python3
"""The MLPs and LeNet of bench/train_step in JAX: whole training steps, compiled as one function, with optax's AdamW.

usage: jax_step.py [--workload W[,W]] [--strategy S[,S]] [--threads N] [--steps N] [--seconds N]
Needs `pip install "jax[cpu]" optax`. Prints one JSON object per line, with the fields of train_step.
"""

import argparse
import functools
import json
import os
import statistics
import time

LAYERS = {"mlp_tiny": (784, 128, 10), "mlp": (784, 2048, 2048, 10)}
BATCHES = {"mlp_tiny": (64, 784), "mlp": (512, 784), "lenet": (128, 28, 28, 1)}  # images NHWC, XLA's layout
STRATEGIES = ("fp32", "amp-bf16", "full-bf16", "o2-bf16")


def initial_parameters(name, key):
    import jax

    def layer(key, *shape):
        fan_in = functools.reduce(int.__mul__, shape[:-1])
        return {"w": jax.random.uniform(key, shape, minval=-1, maxval=1) / fan_in**0.5, "b": jax.numpy.zeros(shape[-1])}

    if name == "lenet":
        shapes = [(3, 3, 1, 32), (3, 3, 32, 64), (3136, 128), (128, 10)]
    else:
        shapes = list(zip(LAYERS[name], LAYERS[name][1:]))
    return [layer(k, *s) for k, s in zip(jax.random.split(key, len(shapes)), shapes)]


def forward(params, x):
    import jax

    for i, layer in enumerate(params):
        if layer["w"].ndim == 4:
            x = jax.lax.conv_general_dilated(x, layer["w"], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
            x = jax.nn.relu(x + layer["b"])
            x = jax.lax.reduce_window(x, -jax.numpy.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        else:
            x = x.reshape(x.shape[0], -1) @ layer["w"] + layer["b"]
            x = x if i + 1 == len(params) else jax.nn.relu(x)
    return x


def measure(name, strategy, threads, steps, seconds):
    """fp32; amp: weights in f32, cast for each step; full: all in bf16; o2: weights in bf16 with f32 masters."""
    import jax
    import optax

    low = jax.numpy.bfloat16
    keys = jax.random.split(jax.random.key(0), 3)
    params = initial_parameters(name, keys[0])
    inputs = jax.random.normal(keys[1], BATCHES[name])
    targets = jax.random.randint(keys[2], BATCHES[name][:1], 0, 10)
    in_bf16 = functools.partial(jax.tree.map, lambda x: x.astype(low))
    masters = params
    if strategy == "full-bf16":
        masters = in_bf16(params)
    optimizer = optax.adamw(1e-4, weight_decay=0.01)

    def loss_of(params, inputs):
        if strategy != "fp32":
            params, inputs = in_bf16(params), inputs.astype(low)
        logits = forward(params, inputs).astype(jax.numpy.float32)
        return optax.softmax_cross_entropy_with_integer_labels(logits, targets).mean()

    @functools.partial(jax.jit, donate_argnums=(0, 1, 2))
    def step(masters, weights, state, inputs):
        loss, gradients = jax.value_and_grad(loss_of)(weights if strategy == "o2-bf16" else masters, inputs)
        if strategy == "o2-bf16":
            gradients = jax.tree.map(lambda x: x.astype(jax.numpy.float32), gradients)
        updates, state = optimizer.update(gradients, state, masters)
        masters = optax.apply_updates(masters, updates)
        return masters, in_bf16(masters) if strategy == "o2-bf16" else None, state, loss

    weights = in_bf16(params) if strategy == "o2-bf16" else None
    state = optimizer.init(masters)
    times, warm_up, begin = [], 4, time.perf_counter()
    for i in range(warm_up + steps):
        start = time.perf_counter()
        masters, weights, state, loss = step(masters, weights, state, inputs)
        loss.block_until_ready()
        jax.block_until_ready(masters)
        if i < warm_up:
            begin = time.perf_counter()
            continue
        times.append(1e3 * (time.perf_counter() - start))
        if time.perf_counter() - begin > seconds:
            break
    median = statistics.median(times)
    return {
        "workload": name, "strategy": strategy, "device": "cpu", "threads": threads, "ms": median,
        "min_ms": min(times), "samples_per_s": 1e3 * inputs.shape[0] / median, "n": len(times),
        "params": sum(x.size for x in jax.tree.leaves(masters)), "loss": float(loss), "peer": "jax " + jax.__version__,
    }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--workload", default=",".join(BATCHES))
    parser.add_argument("--strategy", default="fp32")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--seconds", type=float, default=12)
    parser.add_argument("--device", choices=["cpu"], default="cpu")
    a = parser.parse_args()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: a.threads])  # XLA starts as many threads as it sees cores
    for name in a.workload.split(","):
        for strategy in a.strategy.split(","):
            if name not in BATCHES or strategy not in STRATEGIES:
                parser.error(f"{name} under {strategy} is not there; {', '.join(BATCHES)} under {', '.join(STRATEGIES)} are.")
            print(json.dumps(measure(name, strategy, a.threads, a.steps, a.seconds)), flush=True)


if __name__ == "__main__":
    main()
