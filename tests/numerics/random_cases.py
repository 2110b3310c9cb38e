"""Random cases of operations, and the same operations in PyTorch: what compare_numerics.py runs. run_cases.cpp knows them by
the same names.
"""

import math
import random

import torch
import torch.nn.functional as F


class Case:
    def __init__(self, family, op, inputs, constants=(), **attributes):
        self.family, self.op, self.inputs, self.constants = family, op, list(inputs), list(constants)
        self.attributes = attributes

    def description(self):
        shapes = " ".join(str(list(x.shape)) for x in self.inputs)
        return f"{self.op} {shapes} {self.attributes or ''}".strip()


# --- values


def size(low=1, high=40):
    return random.randint(low, high)


def shape(rank=None, high=24):
    return [size(1, high) for _ in range(rank or random.choice([1, 2, 2, 3, 3, 4]))]


def normal(dims, scale=1.0, shift=0.0):
    return torch.randn(dims, dtype=torch.float64) * scale + shift


def uniform(dims, low, high):
    return torch.rand(dims, dtype=torch.float64) * (high - low) + low


def varied(dims):
    """Ordinary numbers, numbers far from zero, large and small ones, and such with few digits."""
    kind = random.choice(["normal", "normal", "offset", "large", "small", "few digits"])
    if kind == "offset":
        return normal(dims, 1, random.choice([-8, 5, 30]))
    if kind == "large":
        return normal(dims, 12)
    if kind == "small":
        return normal(dims, 0.02)
    if kind == "few digits":
        return torch.randint(-8, 9, dims).double() / 4
    return normal(dims)


def some_dims(rank):
    if random.random() < 0.3:
        return []
    return sorted(random.sample(range(rank), random.randint(1, rank)))


def long_shape():
    return random.choice([lambda: [size(1, 8), size(100, 5000)], lambda: [size(100, 3000), size(1, 12)],
                          lambda: shape(3), lambda: shape(2, 120), lambda: [size(1, 6), size(1, 40), size(1, 300)]])()


# --- families: each gives one random case


def elementwise():
    plain = ["relu", "leaky_relu", "gelu", "gelu_erf", "silu", "tanh", "sigmoid", "softplus", "exp", "expm1", "square", "abs", "clamp"]
    positive = ["log", "log2", "log10", "log1p", "sqrt", "rsqrt", "reciprocal", "pow_scalar"]
    binary = ["add", "sub", "mul", "div", "maximum", "minimum", "pow", "where"]
    op = random.choice(plain + positive + binary)
    dims = shape()
    if op in plain:
        return Case("elementwise", op, [normal(dims, random.choice([0.3, 1, 3]))])
    if op in positive:
        attributes = {"exponent": random.choice([2.0, 3.0, 0.5, -1.5])} if op == "pow_scalar" else {}
        return Case("elementwise", op, [uniform(dims, 0.1, random.choice([2, 40]))], **attributes)
    other = [n if random.random() < 0.7 else 1 for n in dims]
    if random.random() < 0.3:
        other = other[1:] or [1]
    if op == "pow":
        return Case("elementwise", op, [uniform(dims, 0.2, 3), uniform(other, -2, 2)])
    if op == "div":
        return Case("elementwise", op, [normal(dims), uniform(other, 0.3, 4)])
    constants = [torch.rand(dims) < 0.5] if op == "where" else []
    return Case("elementwise", op, [varied(dims), varied(other)], constants)


def reductions():
    op = random.choice(["sum", "mean", "var", "var", "norm", "prod", "max", "min", "cumsum", "logsumexp"])
    dims = long_shape()
    if op in ("cumsum", "logsumexp"):
        return Case("reductions", op, [varied(dims)], dim=random.randrange(len(dims)))
    reduced = some_dims(len(dims))
    if op == "prod":
        dims = shape(2, 12)
        return Case("reductions", op, [uniform(dims, 0.6, 1.5)], dims=some_dims(2))
    if op == "var":
        while math.prod(dims[d] for d in reduced or range(len(dims))) < 2:
            dims = long_shape()
            reduced = some_dims(len(dims))
        return Case("reductions", op, [varied(dims)], dims=reduced, correction=float(random.choice([0, 1])))
    return Case("reductions", op, [varied(dims)], dims=reduced)


def softmaxes():
    dims = long_shape()
    return Case("softmax", random.choice(["softmax", "log_softmax"]),
                [normal(dims, random.choice([0.5, 2, 6]), random.choice([0, 0, 40, 300]))], dim=random.randrange(len(dims)))


def losses():
    op = random.choice(["cross_entropy", "cross_entropy", "nll_loss", "mse", "l1", "smooth_l1", "huber", "kl_div", "bce",
                        "bce_with_logits", "cosine_similarity"])
    if op in ("cross_entropy", "nll_loss"):
        rows, classes = size(1, 60), random.choice([size(2, 12), size(100, 2000)])
        x = normal([rows, classes], random.choice([1, 4]), random.choice([0, 0, 50, 500]))
        target = torch.randint(0, classes, [rows])
        target[1:][torch.rand(rows - 1) < 0.2] = -100
        constants = [target]
        if random.random() < 0.3:
            constants.append(uniform([classes], 0.2, 2))
        attributes = {"smoothing": 0.125} if op == "cross_entropy" and random.random() < 0.4 else {}
        if op == "nll_loss":
            x = F.log_softmax(x, 1)
        return Case("losses", op, [x], constants, **attributes)
    dims = shape(2, 90)
    if op == "kl_div":
        return Case("losses", op, [F.log_softmax(normal(dims), 1), F.softmax(normal(dims), 1)])
    if op == "bce":
        return Case("losses", op, [uniform(dims, 0.05, 0.95), uniform(dims, 0.1, 0.9)])
    if op == "bce_with_logits":
        return Case("losses", op, [normal(dims, 3), uniform(dims, 0, 1)])
    return Case("losses", op, [normal(dims, 2), normal(dims, 2)])


def norms():
    op = random.choice(["layer_norm", "rms_norm", "group_norm", "batch_norm", "batch_norm"])
    if op in ("layer_norm", "rms_norm"):
        dims = [size(1, 200), random.choice([size(4, 40), size(100, 1500)])]
        weights = [uniform([dims[1]], 0.5, 1.5), normal([dims[1]])]
        return Case("norms", op, [varied(dims)] + weights[:1 if op == "rms_norm" else 2])
    groups = random.choice([1, 2, 4])
    channels = groups * size(1, 12)
    dims = [size(2, 12), channels, size(1, 20), size(1, 20)]
    if op == "batch_norm" and random.random() < 0.3:
        dims = [size(2, 400), channels]
    weights = [uniform([channels], 0.5, 1.5), normal([channels])]
    if op == "group_norm":
        while math.prod(dims[2:]) * channels // groups < 4:
            dims[2] += 2
        return Case("norms", op, [varied(dims)] + weights, groups=groups)
    while dims[0] * math.prod(dims[2:]) < 8:
        dims[0] += 4
    running = [normal([channels]), uniform([channels], 0.5, 2)]
    return Case("norms", op, [varied(dims)] + weights, running, training=random.random() < 0.7)


def products():
    op = random.choice(["matmul", "matmul", "linear", "linear"])
    m, n = size(1, 70), size(1, 70)
    k = random.choice([size(1, 64), size(64, 2000)])
    if op == "linear":
        rows = [size(1, 40)] if random.random() < 0.6 else [size(1, 6), size(1, 12)]
        inputs = [normal(rows + [k]), normal([n, k], k ** -0.5)]
        return Case("matmul", op, inputs + ([normal([n])] if random.random() < 0.7 else []))
    batch = [size(1, 8)] if random.random() < 0.5 else [size(1, 4), size(1, 4)]
    kind = random.choice(["plain", "plain", "batch", "batch", "first", "second", "both"])
    k = min(k, 400)
    a, b = {"plain": ([], []), "batch": (batch, batch), "first": ([1] * len(batch), batch), "second": (batch, [1] * len(batch)),
            "both": (batch + [1], [1] * len(batch) + [size(1, 5)])}[kind]
    return Case("matmul", op, [normal(a + [m, k]), normal(b + [k, n], random.choice([1, k ** -0.5]))])


def convolutions():
    groups = random.choice([1, 1, 1, 2, 3])
    channels, filters = groups * size(1, 12), groups * size(1, 12)
    kernel = [random.choice([1, 2, 3, 3, 5]) for _ in range(2)]
    dilation, stride = random.choice([[1, 1], [1, 1], [2, 1], [2, 2]]), random.choice([[1, 1], [2, 2], [2, 1]])
    padding = [random.choice([0, 1, 2]) if k > 1 else 0 for k in kernel]
    image = [max(size(5, 18), dilation[i] * (kernel[i] - 1) + 1) for i in range(2)]
    attributes = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    bias = [normal([filters])] if random.random() < 0.6 else []
    scale = (channels // groups * math.prod(kernel)) ** -0.5
    if random.random() < 0.65:
        return Case("convolutions", "conv2d", [normal([size(1, 4), channels] + image), normal([filters, channels // groups] + kernel, scale)]
                    + bias, **attributes)
    attributes["padding"] = [min(p, dilation[i] * (kernel[i] - 1)) for i, p in enumerate(padding)]
    attributes["output_padding"] = [random.randrange(s) for s in stride]
    return Case("convolutions", "conv_transpose2d",
                [normal([size(1, 4), channels] + image), normal([channels, filters // groups] + kernel, scale)] + bias, **attributes)


def pools():
    op = random.choice(["max_pool2d", "avg_pool2d", "adaptive_avg_pool2d"])
    dims = [size(1, 4), size(1, 20), size(4, 20), size(4, 20)]
    if op == "adaptive_avg_pool2d":
        return Case("pools", op, [varied(dims)], size=[size(1, 6), size(1, 6)])
    kernel = [size(1, 4), size(1, 4)]
    attributes = {"kernel": kernel, "stride": [size(1, 3), size(1, 3)], "padding": [size(0, k // 2) for k in kernel]}
    if op == "avg_pool2d":
        attributes["without_padding"] = random.random() < 0.5
    return Case("pools", op, [varied(dims)], **attributes)


def attention():
    l, s = random.choice([(size(1, 5), size(1, 200)), (size(1, 200), size(1, 5)), (size(20, 150), size(20, 150)), (3, 129),
                          (size(200, 400), size(200, 400))])
    e, ev, heads = random.choice([8, 16, 17, 32, 64]), random.choice([8, 16, 23, 64]), size(1, 3)
    scale = random.choice([0.5, 1, 1, 2, 3])
    q, k, v = normal([1, heads, l, e], scale), normal([1, heads, s, e], scale), normal([1, heads, s, ev])
    kind = random.choice(["plain", "causal", "condition", "added", "trained"])
    if kind == "condition":
        seen = torch.rand([l, s]) < 0.7
        seen[:, 0] = True
        return Case("attention", "attention", [q, k, v], [seen])
    if kind == "added":
        return Case("attention", "attention", [q, k, v], [normal([heads, l, s])])
    if kind == "trained":
        return Case("attention", "attention", [q, k, v, normal([l, s])])
    return Case("attention", "attention", [q, k, v], causal=kind == "causal")


def embeddings():
    rows, width = size(2, 60), size(1, 40)
    return Case("embedding", "embedding", [varied([rows, width])], [torch.randint(0, rows, [size(1, 40), size(1, 30)])])


def recurrent():
    op = random.choice(["lstm", "gru"])
    gates = 4 if op == "lstm" else 3
    time, n, width, hidden = size(1, 20), size(1, 12), size(1, 40), size(1, 40)
    bound = hidden ** -0.5
    return Case("recurrent", op, [normal([time, n, width]), uniform([gates * hidden, width], -bound, bound),
                                  uniform([gates * hidden, hidden], -bound, bound), uniform([gates * hidden], -bound, bound),
                                  uniform([gates * hidden], -bound, bound)])


def interpolations():
    bilinear = random.random() < 0.7
    return Case("interpolate", "interpolate", [varied([size(1, 3), size(1, 8), size(2, 14), size(2, 14)])],
                size=[size(2, 30), size(2, 30)], bilinear=bilinear, align_corners=bilinear and random.random() < 0.4)


FAMILIES = [(elementwise, 16), (reductions, 18), (softmaxes, 8), (losses, 11), (norms, 12), (products, 12), (convolutions, 10),
            (pools, 5), (attention, 11), (embeddings, 3), (recurrent, 3), (interpolations, 3)]


# --- PyTorch


def reduced(function):
    def call(case, x, c):
        dims = case.attributes["dims"] or list(range(x[0].dim()))
        return function(x[0], dims, case)
    return call


def product_over(x, dims):
    for d in sorted(dims, reverse=True):
        x = torch.prod(x, d)
    return x


def loss_options(case, c):
    return {"weight": c[1] if len(c) > 1 else None}


def recurrent_of(case, x, c):
    kind = torch.nn.LSTM if case.op == "lstm" else torch.nn.GRU
    layer = kind(x[0].shape[2], x[2].shape[1]).to(x[0].dtype)
    names = ["weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"]
    return torch.func.functional_call(layer, dict(zip(names, x[1:])), (x[0],))[0]


def unary(function):
    return lambda case, x, c: function(x[0])


def binary(function):
    return lambda case, x, c: function(x[0], x[1])


TORCH = {
    "relu": unary(F.relu), "leaky_relu": unary(lambda x: F.leaky_relu(x, 0.1)), "gelu": unary(lambda x: F.gelu(x, approximate="tanh")),
    "gelu_erf": unary(F.gelu), "silu": unary(F.silu), "tanh": unary(torch.tanh), "sigmoid": unary(torch.sigmoid),
    "softplus": unary(F.softplus), "exp": unary(torch.exp), "expm1": unary(torch.expm1), "log": unary(torch.log),
    "log2": unary(torch.log2), "log10": unary(torch.log10), "log1p": unary(torch.log1p), "sqrt": unary(torch.sqrt),
    "rsqrt": unary(torch.rsqrt), "reciprocal": unary(torch.reciprocal), "square": unary(torch.square), "abs": unary(torch.abs),
    "clamp": unary(lambda x: torch.clamp(x, -0.5, 1)),
    "pow_scalar": lambda case, x, c: torch.pow(x[0], case.attributes["exponent"]),
    "add": binary(torch.add), "sub": binary(torch.sub), "mul": binary(torch.mul), "div": binary(torch.div),
    "maximum": binary(torch.maximum), "minimum": binary(torch.minimum), "pow": binary(torch.pow),
    "where": lambda case, x, c: torch.where(c[0], x[0], x[1]),
    "sum": reduced(lambda x, d, case: torch.sum(x, d)), "mean": reduced(lambda x, d, case: torch.mean(x, d)),
    "var": reduced(lambda x, d, case: torch.var(x, d, correction=case.attributes["correction"])),
    "norm": reduced(lambda x, d, case: torch.linalg.vector_norm(x, dim=d)), "prod": reduced(lambda x, d, case: product_over(x, d)),
    "max": reduced(lambda x, d, case: torch.amax(x, d)), "min": reduced(lambda x, d, case: torch.amin(x, d)),
    "cumsum": lambda case, x, c: torch.cumsum(x[0], case.attributes["dim"]),
    "logsumexp": lambda case, x, c: torch.logsumexp(x[0], case.attributes["dim"]),
    "softmax": lambda case, x, c: torch.softmax(x[0], case.attributes["dim"]),
    "log_softmax": lambda case, x, c: torch.log_softmax(x[0], case.attributes["dim"]),
    "cross_entropy": lambda case, x, c: F.cross_entropy(x[0], c[0], label_smoothing=case.attributes.get("smoothing", 0.0), **loss_options(case, c)),
    "nll_loss": lambda case, x, c: F.nll_loss(x[0], c[0], **loss_options(case, c)),
    "mse": binary(F.mse_loss), "l1": binary(F.l1_loss), "smooth_l1": binary(F.smooth_l1_loss), "huber": binary(F.huber_loss),
    "kl_div": binary(lambda a, b: F.kl_div(a, b, reduction="mean")), "bce": binary(F.binary_cross_entropy),
    "bce_with_logits": binary(F.binary_cross_entropy_with_logits), "cosine_similarity": binary(F.cosine_similarity),
    "layer_norm": lambda case, x, c: F.layer_norm(x[0], x[0].shape[-1:], x[1], x[2]),
    "rms_norm": lambda case, x, c: F.rms_norm(x[0], x[0].shape[-1:], x[1], 1e-6),
    "group_norm": lambda case, x, c: F.group_norm(x[0], case.attributes["groups"], x[1], x[2]),
    "batch_norm": lambda case, x, c: F.batch_norm(x[0], c[0].clone(), c[1].clone(), x[1], x[2], training=case.attributes["training"]),
    "matmul": binary(torch.matmul), "linear": lambda case, x, c: F.linear(*x),
    "conv2d": lambda case, x, c: F.conv2d(*x, **case.attributes),
    "conv_transpose2d": lambda case, x, c: F.conv_transpose2d(*x, **case.attributes),
    "max_pool2d": lambda case, x, c: F.max_pool2d(x[0], case.attributes["kernel"], case.attributes["stride"], case.attributes["padding"]),
    "avg_pool2d": lambda case, x, c: F.avg_pool2d(x[0], case.attributes["kernel"], case.attributes["stride"], case.attributes["padding"],
                                                  count_include_pad=not case.attributes["without_padding"]),
    "adaptive_avg_pool2d": lambda case, x, c: F.adaptive_avg_pool2d(x[0], case.attributes["size"]),
    "attention": lambda case, x, c: F.scaled_dot_product_attention(
        x[0], x[1], x[2], attn_mask=x[3] if len(x) > 3 else (c[0] if c else None), is_causal=case.attributes.get("causal", False)),
    "embedding": lambda case, x, c: F.embedding(c[0], x[0]), "lstm": recurrent_of, "gru": recurrent_of,
    "interpolate": lambda case, x, c: F.interpolate(
        x[0], case.attributes["size"], mode="bilinear" if case.attributes["bilinear"] else "nearest",
        align_corners=case.attributes["align_corners"] if case.attributes["bilinear"] else None),
}

