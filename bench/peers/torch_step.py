#!/usr/bin/env python3
"""The workloads of bench/train_step in PyTorch: whole training steps in eager mode, with the fused AdamW.

usage: torch_step.py [--workload W[,W]] [--strategy S[,S]] [--device cpu|cuda] [--compile] [--threads N] [--steps N] [--seconds N]
Prints one JSON object per line, with the fields of train_step.
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


class Block(nn.Module):
    """A block of ResNet-18: two convolutions and a residual connection."""

    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn1, self.bn2 = nn.BatchNorm2d(outputs), nn.BatchNorm2d(outputs)
        self.around = None
        if stride != 1 or inputs != outputs:
            self.around = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x):
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)), inplace=True)))
        return F.relu(y + (self.around(x) if self.around else x), inplace=True)


def resnet18(classes, cifar):
    stem = nn.Conv2d(3, 64, 3, 1, 1, bias=False) if cifar else nn.Conv2d(3, 64, 7, 2, 3, bias=False)
    layers, inputs = [stem, nn.BatchNorm2d(64), nn.ReLU(inplace=True)], 64
    if not cifar:
        layers.append(nn.MaxPool2d(3, 2, 1))
    for outputs, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        layers += [Block(inputs, outputs, stride), Block(outputs, outputs, 1)]
        inputs = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, classes))


class GptBlock(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        n, length, width = x.shape
        q, k, v = (
            t.view(n, length, self.heads, width // self.heads).transpose(1, 2)
            for t in self.qkv(self.ln_1(x)).split(width, 2)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(n, length, width))
        return x + self.down(F.gelu(self.up(self.ln_2(x)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self, vocabulary, context, layers, heads, width):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(GptBlock(width, heads) for _ in range(layers)))
        self.ln_f = nn.LayerNorm(width)
        for m in self.modules():
            if isinstance(m, (nn.Linear, nn.Embedding)):
                nn.init.normal_(m.weight, std=0.02)

    def forward(self, tokens):
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1], device=tokens.device))
        return F.linear(self.ln_f(self.blocks(x)), self.wte.weight)


def conv_net_48():
    def block(inputs, outputs, kernel, stride=1):
        return [nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)]

    return nn.Sequential(
        *block(3, 48, 3), *block(48, 96, 3, 2), nn.MaxPool2d(3, 2, 1), *block(96, 96, 5), nn.Conv2d(96, 333, 1), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(333, 10),
    )


class DepthwiseBlock(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.depthwise, self.bn = nn.Conv2d(width, width, 7, padding=3, groups=width), nn.BatchNorm2d(width)
        self.up, self.down = nn.Conv2d(width, 4 * width, 1), nn.Conv2d(4 * width, width, 1)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.bn(self.depthwise(x))), approximate="tanh"))


def depthwise_net():
    return nn.Sequential(
        nn.Conv2d(3, 48, 3, padding=1), DepthwiseBlock(48), nn.Conv2d(48, 96, 2, 2), DepthwiseBlock(96),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(96, 10),
    )


class LstmClassifier(nn.Module):
    def __init__(self, vocabulary, width, hidden, layers, classes):
        super().__init__()
        self.embedding, self.fc = nn.Embedding(vocabulary, width), nn.Linear(hidden, classes)
        self.lstm = nn.LSTM(width, hidden, layers, batch_first=True)

    def forward(self, tokens):
        return self.fc(self.lstm(self.embedding(tokens))[1][0][-1])


class LlamaBlock(nn.Module):
    def __init__(self, width, heads, key_heads, hidden):
        super().__init__()
        self.heads, self.key_heads, e = heads, key_heads, width // heads
        self.input_norm, self.post_norm = nn.RMSNorm(width, eps=1e-5), nn.RMSNorm(width, eps=1e-5)
        self.q, self.o = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.k, self.v = nn.Linear(width, key_heads * e, bias=False), nn.Linear(width, key_heads * e, bias=False)
        self.gate, self.up = nn.Linear(width, hidden, bias=False), nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    @staticmethod
    def turned(x, cos, sin):
        a, b = x.chunk(2, -1)
        return x * cos + torch.cat([-b, a], -1) * sin

    def forward(self, x, cos, sin):
        y = self.input_norm(x)
        q, k, v = (f(y).unflatten(-1, (n, -1)).transpose(1, 2) for f, n in
                   ((self.q, self.heads), (self.k, self.key_heads), (self.v, self.key_heads)))
        q, k = self.turned(q, cos, sin).to(v.dtype), self.turned(k, cos, sin).to(v.dtype)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.o(y.transpose(1, 2).flatten(2))
        y = self.post_norm(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    def __init__(self, vocabulary, layers, width, heads, key_heads, hidden):
        super().__init__()
        self.embedding, self.norm = nn.Embedding(vocabulary, width), nn.RMSNorm(width, eps=1e-5)
        self.layers = nn.ModuleList(LlamaBlock(width, heads, key_heads, hidden) for _ in range(layers))
        self.head, self.e = nn.Linear(width, vocabulary, bias=False), width // heads

    def forward(self, tokens):
        rates = 10000.0 ** (-torch.arange(0, self.e, 2, device=tokens.device) / self.e)
        angles = torch.outer(torch.arange(tokens.shape[1], device=tokens.device).float(), rates).repeat(1, 2)
        cos, sin, x = angles.cos(), angles.sin(), self.embedding(tokens)
        for layer in self.layers:
            x = layer(x, cos, sin)
        return self.head(self.norm(x))


class Vit(nn.Module):
    def __init__(self, width, heads, layers, patches):
        super().__init__()
        self.proj, self.head = nn.Conv2d(1, width, 4, 4), nn.Linear(width, 10)
        self.cls, self.position = nn.Parameter(torch.zeros(1, 1, width)), nn.Parameter(torch.zeros(1, patches + 1, width))
        self.blocks = nn.ModuleList(nn.TransformerEncoderLayer(width, heads, 4 * width, 0.0, F.gelu, 1e-6, True, True)
                                    for _ in range(layers))
        self.norm = nn.LayerNorm(width, eps=1e-6)

    def forward(self, x):
        x = self.proj(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(x.shape[0], -1, -1).to(x.dtype), x], 1) + self.position
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)[:, 0])


def images(*shape, classes):
    return lambda: (torch.randn(shape), torch.randint(0, classes, shape[:1]))


def tokens(n, length, vocabulary):
    return lambda: tuple(torch.randint(0, vocabulary, (n, length)) for _ in range(2))


def sequences(n, length, vocabulary, classes):
    return lambda: (torch.randint(0, vocabulary, (n, length)), torch.randint(0, classes, (n,)))


WORKLOADS = {
    "mlp_tiny": (lambda: mlp(784, 128, 10), images(64, 784, classes=10)),
    "mlp": (lambda: mlp(784, 2048, 2048, 10), images(512, 784, classes=10)),
    "lenet": (lenet, images(128, 1, 28, 28, classes=10)),
    "resnet18_cifar": (lambda: resnet18(10, True), images(64, 3, 32, 32, classes=10)),
    "resnet18_224": (lambda: resnet18(37, False), images(16, 3, 224, 224, classes=37)),
    "gpt_char": (lambda: Gpt(65, 256, 6, 6, 384), tokens(8, 256, 65)),
    "gpt2_124m": (lambda: Gpt(50304, 1024, 12, 12, 768), tokens(1, 512, 50304)),
    "llama_tiny": (lambda: Llama(85, 4, 128, 4, 2, 512), tokens(16, 64, 85)),
    "llama_124m": (lambda: Llama(32000, 12, 768, 12, 4, 2048), tokens(1, 512, 32000)),
    "vit_tiny": (lambda: Vit(64, 4, 4, 49), images(128, 1, 28, 28, classes=10)),
}

# Shapes that were not chosen for speed, as in lab/workload.cpp.
UNTUNED = {
    "mlp_100": (lambda: mlp(784, 1000, 333, 10), images(100, 784, classes=10)),
    "mlp_1": (lambda: mlp(784, 1000, 333, 10), images(1, 784, classes=10)),
    "conv_48": (conv_net_48, images(10, 3, 45, 37, classes=10)),
    "depthwise_7x7": (depthwise_net, images(10, 3, 45, 37, classes=10)),
    "gpt_48": (lambda: Gpt(333, 100, 2, 5, 240), tokens(3, 100, 333)),
    "lstm_100": (lambda: LstmClassifier(333, 48, 100, 2, 10), sequences(10, 25, 333, 10)),
}
WORKLOADS |= UNTUNED

# Batches that keep a GPU busy, as in lab/workload.cpp.
ON_A_GPU = {
    "mlp": (lambda: mlp(784, 8192, 8192, 10), images(8192, 784, classes=10)),
    "resnet18_cifar": (lambda: resnet18(10, True), images(512, 3, 32, 32, classes=10)),
    "resnet18_224": (lambda: resnet18(1000, False), images(256, 3, 224, 224, classes=1000)),
    "gpt_char": (lambda: Gpt(65, 256, 6, 6, 384), tokens(64, 256, 65)),
    "gpt2_124m": (lambda: Gpt(50304, 1024, 12, 12, 768), tokens(16, 1024, 50304)),
    "llama_124m": (lambda: Llama(32000, 12, 768, 12, 4, 2048), tokens(16, 1024, 32000)),
    "vit_tiny": (lambda: Vit(64, 4, 4, 49), images(1024, 1, 28, 28, classes=10)),
}

STRATEGIES = ("fp32", "amp-bf16", "amp-fp16", "full-bf16", "o2-bf16")


def measure(name, strategy, device, compiled, threads, steps, seconds, warm_up, wrap=lambda model: model):
    """fp32; autocast (f16 with a GradScaler); everything in bf16; bf16 weights with f32 masters, written by hand.
    wrap: makes a substitute for the model, such as DistributedDataParallel."""
    torch.manual_seed(0)
    gpu = device.startswith("cuda")
    make_model, make_batch = ON_A_GPU.get(name, WORKLOADS[name]) if gpu else WORKLOADS[name]
    model, (inputs, targets) = make_model().to(device), (x.to(device) for x in make_batch())
    if name.startswith(("resnet", "conv_", "depthwise_")):
        model, inputs = (x.to(memory_format=torch.channels_last) for x in (model, inputs))
    low = torch.float16 if strategy.endswith("fp16") else torch.bfloat16
    amp, master = strategy.startswith("amp"), strategy.startswith("o2")
    if not amp and strategy != "fp32":
        model = model.to(low)
        if inputs.is_floating_point():
            inputs = inputs.to(low)
        if master:
            for module in model.modules():
                if isinstance(module, nn.BatchNorm2d):
                    module.float()
    params = list(model.parameters())
    weights = [p.detach().float().requires_grad_() for p in params] if master else params
    optimizer = torch.optim.AdamW(weights, lr=1e-4, weight_decay=0.01, fused=True)
    kind = "cuda" if gpu else "cpu"
    scaler = torch.amp.GradScaler(kind, enabled=strategy == "amp-fp16")
    run = wrap(torch.compile(model) if compiled else model)

    def step():
        with torch.autocast(kind, dtype=low, enabled=amp):
            logits = run(inputs).flatten(0, -2)
            loss = F.cross_entropy(logits if amp else logits.float(), targets.flatten())
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

    # On a GPU, ten steps at a time are issued without waiting.
    at_a_time = 10 if gpu else 1
    wait = torch.cuda.synchronize if gpu else lambda: None
    if gpu:
        torch.cuda.reset_peak_memory_stats()
    times, begin = [], time.perf_counter()
    for i in range(warm_up + steps):
        wait()
        start = time.perf_counter()
        for _ in range(at_a_time):
            loss = step()
        wait()
        if i >= warm_up:
            times.append(1e3 * (time.perf_counter() - start) / at_a_time)
            if time.perf_counter() - begin > seconds:
                break
    median = statistics.median(times)
    return {
        "workload": name, "strategy": strategy, "device": device, "threads": threads, "ms": median,
        "min_ms": min(times), "samples_per_s": 1e3 * inputs.shape[0] / median, "n": len(times),
        "params": sum(p.numel() for p in params), "loss": loss.item(),
        "peer": "torch " + torch.__version__ + (" compiled" if compiled else ""),
        "peak_bytes": torch.cuda.max_memory_allocated() if gpu else None,
    }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--workload", default=",".join(w for w in WORKLOADS if w not in UNTUNED), help="or untuned: " + ", ".join(UNTUNED))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--seconds", type=float, default=12)
    parser.add_argument("--warm-up", type=int, default=3, help="steps that are not timed")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--compile", action="store_true", help="the model through torch.compile")
    parser.add_argument("--strategy", default="fp32", help="of " + ", ".join(STRATEGIES))
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.backends.cudnn.allow_tf32 = False  # fp32 means f32, as in halftone
    for name in arguments.workload.replace("untuned", ",".join(UNTUNED)).split(","):
        for strategy in arguments.strategy.split(","):
            cell = measure(
                name, strategy, arguments.device, arguments.compile, arguments.threads, arguments.steps,
                arguments.seconds, arguments.warm_up,
            )
            print(json.dumps(cell), flush=True)


if __name__ == "__main__":
    main()
