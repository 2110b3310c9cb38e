"""The operations of random_cases.py with their gradients in 80-bit floats: the truth that f64 is compared with. Plain
formulas with 11 bits to spare; EXACT knows the operations by the names of TORCH.
"""

import math

import numpy as np
from wide_tape import (Node, Real, backward, cumulative, erf, exp, extreme, larger, log, log_softmax, log_sum_exp, map_of, node,
                       power, sigmoid, softplus, tanh, where)


def gelu(x):
    inner = (x + power(x, 3) * Real(0.044715)) * np.sqrt(1 / (2 * np.arctan(Real(1))))
    return x * (tanh(inner) + 1) * 0.5


def normalized(x, dims, eps, centred=True):
    if centred:
        x = x - x.mean(dims, True)
    return x * power(power(x, 2).mean(dims, True) + Real(eps), -0.5)


def per_channel(v, rank):
    return v.reshape(*[-1 if d == 1 else 1 for d in range(rank)])


def group_norm(case, x, c):
    n, groups = x[0].shape[0], case.attributes["groups"]
    y = normalized(x[0].reshape(n, groups, -1), [2], 1e-5).reshape(*x[0].shape)
    return y * per_channel(x[1], len(x[0].shape)) + per_channel(x[2], len(x[0].shape))


def batch_norm(case, x, c):
    rank = len(x[0].shape)
    if case.attributes["training"]:
        y = normalized(x[0], [d for d in range(rank) if d != 1], 1e-5)
    else:
        y = (x[0] - per_channel(node(c[0]), rank)) * per_channel(power(node(c[1]) + Real(1e-5), -0.5), rank)
    return y * per_channel(x[1], rank) + per_channel(x[2], rank)


def variance(case, x, c):
    dims = case.attributes["dims"] or list(range(len(x[0].shape)))
    squares = power(x[0] - x[0].mean(dims, True), 2)
    total = squares.sum(dims)
    return total / (Real(squares.value.size // total.value.size) - Real(case.attributes["correction"]))


def reduced(function):
    return lambda case, x, c: function(x[0], case.attributes["dims"] or list(range(len(x[0].shape))))


def prod(x, dims):
    return exp(log(x).sum(dims))


def cross_entropy(case, x, c, logs=log_softmax):
    target, smoothing = c[0], case.attributes.get("smoothing", 0.0)
    rows, classes = x[0].shape
    weight = np.asarray(c[1]) if len(c) > 1 else np.ones(classes, Real)
    counted = np.nonzero(target != -100)[0]
    chosen = target[counted]
    y = logs(x[0], 1)[counted]
    own = (y[np.arange(len(counted)), chosen] * weight[chosen]).sum()
    total = weight[chosen].sum()
    smooth = (y * weight).sum() * (Real(smoothing) / classes) if smoothing else node(0)
    return -(own * (1 - Real(smoothing)) + smooth) / total


def smooth_l1(a, b):
    d = a - b
    near = np.abs(d.value) < 1
    return where(near, d * d * 0.5, d * np.sign(d.value) - 0.5).mean()


def cosine(a, b):
    return (a * b).sum([1]) / (power((a * a).sum([1]), 0.5) * power((b * b).sum([1]), 0.5))


def windows(size, kernel, stride, padding, dilation=(1, 1)):
    """Returns, for every output pixel and tap, the position in an image with a zero after its last pixel, and whether it is inside."""
    places, inside = [], []
    for d in range(2):
        out = (size[d] + 2 * padding[d] - dilation[d] * (kernel[d] - 1) - 1) // stride[d] + 1
        at = np.arange(out)[:, None] * stride[d] - padding[d] + np.arange(kernel[d])[None, :] * dilation[d]
        places.append(at)
        inside.append((at >= 0) & (at < size[d]))
    both = inside[0][:, None, :, None] & inside[1][None, :, None, :]
    at = np.where(both, places[0][:, None, :, None] * size[1] + places[1][None, :, None, :], size[0] * size[1])
    return at, both  # [rows, columns, kernel rows, kernel columns]


def gathered(x, at):
    """x [n, c, h, w] -> [n, c, *at.shape]"""
    n, c, h, w = x.shape
    padded = Node(np.concatenate([x.value.reshape(n, c, h * w), np.zeros([n, c, 1], Real)], 2),
                  [(x, lambda g: g[:, :, :-1].reshape(x.shape))])
    return padded[:, :, at]


def conv2d(case, x, c):
    a, (image, weight) = case.attributes, x[:2]
    groups, (filters, inner, *kernel) = a["groups"], weight.shape
    at, _ = windows(image.shape[2:], kernel, a["stride"], a["padding"], a["dilation"])
    n, out = image.shape[0], at.shape[:2]
    columns = gathered(image, at).reshape(n, groups, inner, out[0] * out[1], kernel[0] * kernel[1])
    columns = columns.transpose(1, 2, 4, 0, 3).reshape(groups, inner * kernel[0] * kernel[1], n * out[0] * out[1])
    y = weight.reshape(groups, filters // groups, -1) @ columns
    y = y.reshape(filters, n, *out).transpose(1, 0, 2, 3)
    return y + per_channel(x[2], 4) if len(x) > 2 else y


def conv_transpose2d(case, x, c):
    """The gradient of a convolution: column entries go where that would read them."""
    a, (image, weight) = case.attributes, x[:2]
    groups, (channels, outer, *kernel) = a["groups"], weight.shape
    n, _, *size = image.shape
    out = [(size[d] - 1) * a["stride"][d] - 2 * a["padding"][d] + a["dilation"][d] * (kernel[d] - 1) + a["output_padding"][d] + 1
           for d in range(2)]
    at, _ = windows(out, kernel, a["stride"], a["padding"], a["dilation"])
    at = at[:size[0], :size[1]]
    pixels = image.reshape(n, groups, channels // groups, size[0] * size[1]).transpose(1, 2, 0, 3).reshape(groups, channels // groups, -1)
    columns = weight.reshape(groups, channels // groups, -1).transpose(0, 2, 1) @ pixels
    columns = columns.reshape(groups, outer, kernel[0] * kernel[1], n, size[0] * size[1]).transpose(3, 0, 1, 4, 2)
    columns = columns.reshape(n, groups * outer, at.size)
    index = (slice(None), slice(None), at.reshape(-1, kernel[0] * kernel[1]).reshape(-1))
    whole = np.zeros([n, groups * outer, out[0] * out[1] + 1], Real)
    np.add.at(whole, index, columns.value)
    y = Node(whole, [(columns, lambda g: g[index])])[:, :, :-1].reshape(n, groups * outer, *out)
    return y + per_channel(x[2], 4) if len(x) > 2 else y


def max_pool2d(case, x, c):
    a = case.attributes
    at, inside = windows(x[0].shape[2:], a["kernel"], a["stride"], a["padding"])
    flat = gathered(x[0], at).reshape(*x[0].shape[:2], *at.shape[:2], -1)
    first = np.argmax(np.where(inside.reshape(*at.shape[:2], -1), flat.value, -np.inf), axis=-1)
    return flat[(*np.ogrid[tuple(slice(d) for d in first.shape)], first)]


def avg_pool2d(case, x, c):
    a = case.attributes
    at, inside = windows(x[0].shape[2:], a["kernel"], a["stride"], a["padding"])
    count = inside.sum(axis=(2, 3)) if a["without_padding"] else math.prod(a["kernel"])
    return gathered(x[0], at).sum([4, 5]) / np.asarray(count, Real)


def adaptive_avg_pool2d(case, x, c):
    return resized(x[0], [mean_matrix(n, out) for n, out in zip(x[0].shape[2:], case.attributes["size"])])


def mean_matrix(n, out):
    m = np.zeros([out, n], Real)
    for i in range(out):
        begin, end = i * n // out, -(-(i + 1) * n // out)
        m[i, begin:end] = Real(1) / (end - begin)
    return m


def resized(x, matrices):
    """[n, c, h, w] with matrices [out, h] and [out, w]"""
    rows = node(matrices[0]) @ x.reshape(-1, *x.shape[2:])
    y = rows @ node(matrices[1].T)
    return y.reshape(*x.shape[:2], *y.shape[1:])


def interpolate(case, x, c):
    def matrix(n, out):
        m = np.zeros([out, n], Real)
        for i in range(out):
            if not case.attributes["bilinear"]:
                m[i, min(i * n // out, n - 1)] = 1
                continue
            if case.attributes["align_corners"]:
                at = Real(i * (n - 1)) / (out - 1) if out > 1 else Real(0)
            else:
                at = max((i + Real(0.5)) * n / out - Real(0.5), Real(0))
            low = min(int(at), n - 1)
            m[i, low] += 1 - (at - low)
            m[i, min(low + 1, n - 1)] += at - low
        return m
    return resized(x[0], [matrix(n, out) for n, out in zip(x[0].shape[2:], case.attributes["size"])])


def attention(case, x, c):
    q, k, v = x[:3]
    scores = q @ k.transpose(0, 1, 3, 2) * power(node(k.shape[3]), -0.5)
    if len(x) > 3:
        scores = scores + x[3]
    elif c and c[0].dtype != bool:
        scores = scores + c[0]
    seen = c[0] if c and c[0].dtype == bool else np.ones(scores.shape[2:], bool)
    if case.attributes.get("causal"):
        seen = np.tril(seen)
    scores = where(np.broadcast_to(seen, scores.shape), scores, node(-np.inf))
    return exp(log_softmax(scores, 3)) @ v


def recurrent(case, x, c):
    gates = 4 if case.op == "lstm" else 3
    hidden = x[2].shape[1]
    h = cell = node(np.zeros([x[0].shape[1], hidden]))
    ys = []
    for t in range(x[0].shape[0]):
        a = x[0][t] @ x[1].transpose(1, 0) + x[3]
        b = h @ x[2].transpose(1, 0) + x[4]
        a, b = ([v[:, i * hidden:(i + 1) * hidden] for i in range(gates)] for v in (a, b))
        if case.op == "lstm":
            i, f, g, o = (p + q for p, q in zip(a, b))
            cell = sigmoid(f) * cell + sigmoid(i) * tanh(g)
            h = sigmoid(o) * tanh(cell)
        else:
            z = sigmoid(a[1] + b[1])
            n = tanh(a[2] + sigmoid(a[0] + b[0]) * b[2])
            h = n + z * (h - n)
        ys.append(h)
    return Node(np.stack([y.value for y in ys]), [(y, lambda g, t=t: g[t]) for t, y in enumerate(ys)])


def unary(function):
    return lambda case, x, c: function(x[0])


def binary(function):
    return lambda case, x, c: function(x[0], x[1])


def log_to(base):
    return unary(lambda x: log(x) / np.log(Real(base)))


EXACT = {
    "relu": unary(lambda x: where(x.value > 0, x, 0)), "leaky_relu": unary(lambda x: where(x.value > 0, x, x * Real(0.1))),
    "gelu": unary(gelu), "gelu_erf": unary(lambda x: x * (erf(x * np.sqrt(Real(0.5))) + 1) * 0.5), "silu": unary(lambda x: x * sigmoid(x)),
    "tanh": unary(tanh), "sigmoid": unary(sigmoid), "softplus": unary(softplus), "exp": unary(exp),
    "expm1": unary(lambda x: map_of(x, np.expm1(x.value), np.exp(x.value))), "log": unary(log), "log2": log_to(2), "log10": log_to(10),
    "log1p": unary(lambda x: map_of(x, np.log1p(x.value), 1 / (1 + x.value))), "sqrt": unary(lambda x: power(x, 0.5)),
    "rsqrt": unary(lambda x: power(x, -0.5)), "reciprocal": unary(lambda x: power(x, -1)), "square": unary(lambda x: x * x),
    "abs": unary(lambda x: x * np.sign(x.value)),
    "clamp": unary(lambda x: where((x.value >= -0.5) & (x.value <= 1), x, np.clip(x.value, -0.5, 1))),
    "pow_scalar": lambda case, x, c: power(x[0], case.attributes["exponent"]),
    "add": binary(lambda a, b: a + b), "sub": binary(lambda a, b: a - b), "mul": binary(lambda a, b: a * b), "div": binary(lambda a, b: a / b),
    "maximum": binary(larger), "minimum": binary(lambda a, b: larger(a, b, -1)), "pow": binary(lambda a, b: exp(log(a) * b)),
    "where": lambda case, x, c: where(c[0], x[0] + node(np.zeros(c[0].shape)), x[1] + node(np.zeros(c[0].shape))),
    "sum": reduced(lambda x, d: x.sum(d)), "mean": reduced(lambda x, d: x.mean(d)), "var": variance,
    "norm": reduced(lambda x, d: power((x * x).sum(d), 0.5)), "prod": reduced(prod),
    "max": reduced(lambda x, d: extreme(x, d, True)), "min": reduced(lambda x, d: extreme(x, d, False)),
    "cumsum": lambda case, x, c: cumulative(x[0], case.attributes["dim"]),
    "logsumexp": lambda case, x, c: log_sum_exp(x[0], case.attributes["dim"]),
    "softmax": lambda case, x, c: exp(log_softmax(x[0], case.attributes["dim"])),
    "log_softmax": lambda case, x, c: log_softmax(x[0], case.attributes["dim"]),
    "cross_entropy": cross_entropy, "nll_loss": lambda case, x, c: cross_entropy(case, x, c, lambda y, dim: y),
    "mse": binary(lambda a, b: power(a - b, 2).mean()), "l1": binary(lambda a, b: ((a - b) * np.sign((a - b).value)).mean()),
    "smooth_l1": binary(smooth_l1), "huber": binary(smooth_l1),
    "kl_div": binary(lambda a, b: (b * (log(b) - a)).mean()), "bce": binary(lambda a, b: -(b * log(a) + (1 - b) * log(1 - a)).mean()),
    "bce_with_logits": binary(lambda a, b: (softplus(a) - a * b).mean()), "cosine_similarity": binary(cosine),
    "layer_norm": lambda case, x, c: normalized(x[0], [-1], 1e-5) * x[1] + x[2],
    "rms_norm": lambda case, x, c: normalized(x[0], [-1], 1e-6, False) * x[1], "group_norm": group_norm, "batch_norm": batch_norm,
    "matmul": binary(lambda a, b: a @ b),
    "linear": lambda case, x, c: x[0] @ x[1].transpose(1, 0) + (x[2] if len(x) > 2 else node(0)), "conv2d": conv2d,
    "conv_transpose2d": conv_transpose2d, "max_pool2d": max_pool2d, "avg_pool2d": avg_pool2d, "adaptive_avg_pool2d": adaptive_avg_pool2d,
    "attention": attention, "embedding": lambda case, x, c: x[0][c[0]], "lstm": recurrent, "gru": recurrent, "interpolate": interpolate,
}


def exact_results(case, inputs, constants, dy):
    """The result and the gradients of all inputs, in long double, from f64 arrays."""
    leaves = [Node(np.asarray(x, Real)) for x in inputs]
    with np.errstate(all="ignore"):
        y = EXACT[case.op](case, leaves, [np.asarray(c, Real) if c.dtype.kind == "f" else c for c in constants])
        backward(y, np.asarray(dy, Real))
    return [y.value] + [x.gradient for x in leaves]
