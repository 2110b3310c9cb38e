"""Tensors of 80-bit floats on a tape: what exact.py computes with."""

import numpy as np

Real = np.longdouble
if np.finfo(Real).nmant < 63:
    raise ImportError("this machine's long double is no wider than f64")


class Node:
    """A tensor, and how its gradient becomes those of what it was made of."""

    def __init__(self, value, parents=()):
        self.value, self.parents, self.gradient = np.asarray(value), parents, None

    shape = property(lambda self: self.value.shape)

    def __add__(self, other):
        other = node(other)
        return Node(self.value + other.value, [(self, lambda g: g), (other, lambda g: g)])

    def __mul__(self, other):
        other = node(other)
        return Node(self.value * other.value, [(self, lambda g: g * other.value), (other, lambda g: g * self.value)])

    def __truediv__(self, other):
        return self * power(node(other), -1)

    def __neg__(self):
        return self * -1

    def __sub__(self, other):
        return self + -node(other)

    def __rsub__(self, other):
        return -self + other

    def __matmul__(self, other):
        return Node(product(self.value, other.value), [(self, lambda g: product(g, other.value.swapaxes(-1, -2))),
                                                       (other, lambda g: product(self.value.swapaxes(-1, -2), g))])

    def __getitem__(self, index):
        def spread(g):
            whole = np.zeros(self.shape, Real)
            np.add.at(whole, index, g)
            return whole
        return Node(self.value[index], [(self, spread)])

    __radd__, __rmul__ = __add__, __mul__

    def reshape(self, *shape):
        return Node(self.value.reshape(shape), [(self, lambda g: g.reshape(self.shape))])

    def transpose(self, *order):
        return Node(self.value.transpose(order), [(self, lambda g: g.transpose(np.argsort(order)))])

    def sum(self, dims=None, keep=False):
        dims = tuple(d % self.value.ndim for d in (range(self.value.ndim) if dims is None else dims))
        return Node(self.value.sum(axis=dims, keepdims=keep),
                    [(self, lambda g: np.broadcast_to(g if keep else np.expand_dims(g, dims), self.shape))])

    def mean(self, dims=None, keep=False):
        total = self.sum(dims, keep)
        return total * (Real(total.value.size) / Real(self.value.size))


def node(x):
    return x if isinstance(x, Node) else Node(np.asarray(x, Real))


def product(a, b):
    """a @ b by f64 products of pieces of 20 bits, which are exact: of long doubles numpy's own is slow."""
    def pieces(x, axis):
        unit = np.exp2(np.ceil(np.log2(np.maximum(np.abs(x).max(axis=axis, keepdims=True), Real(1e-300)))))
        for i in range(1, 5):
            piece = np.rint(x / unit * Real(2) ** (20 * i)) * Real(2) ** (-20 * i) * unit
            yield piece.astype(np.float64)
            x = x - piece
    if a.shape[-1] > 4096 or a.size * b.shape[-1] < 10000:
        return a @ b
    right = list(pieces(b, -2))
    return sum((x @ right[j]).astype(Real) for i, x in enumerate(pieces(a, -1)) for j in range(4 - i))


def map_of(x, value, slope):
    return Node(value, [(x, lambda g: g * slope)])


def exp(x):
    y = np.exp(x.value)
    return map_of(x, y, y)


def log(x):
    return map_of(x, np.log(x.value), 1 / x.value)


def tanh(x):
    y = np.tanh(x.value)
    return map_of(x, y, 1 - y * y)


def sigmoid(x):
    y = 1 / (1 + np.exp(-x.value))
    return map_of(x, y, y * (1 - y))


def softplus(x):
    return map_of(x, np.logaddexp(x.value, Real(0)), 1 / (1 + np.exp(-x.value)))


def power(x, p):
    return map_of(x, x.value ** Real(p), Real(p) * x.value ** (Real(p) - 1))


def erf(x):
    """By its series of positive terms: of |x| up to 6, beyond which it is 1."""
    v = np.clip(x.value, -7, 7)
    term = total = v
    for n in range(1, 400):
        term = term * (2 * v * v) / (2 * n + 1)
        total = total + term
    factor = 2 / np.sqrt(4 * np.arctan(Real(1)))
    return map_of(x, factor * np.exp(-v * v) * total, factor * np.exp(-x.value ** 2))


def where(condition, a, b):
    a, b = node(a), node(b)
    return Node(np.where(condition, a.value, b.value), [(a, lambda g: np.where(condition, g, 0)), (b, lambda g: np.where(condition, 0, g))])


def extreme(x, dims, largest):
    """Ties share the gradient."""
    y = (np.max if largest else np.min)(x.value, axis=tuple(dims), keepdims=True)
    chosen = x.value == y
    return Node(np.squeeze(y, tuple(dims)), [(x, lambda g: np.expand_dims(g, tuple(dims)) * chosen / chosen.sum(axis=tuple(dims), keepdims=True))])


def larger(a, b, sign=1):
    share = (np.sign((a.value - b.value) * sign) + 1) / 2
    return Node(np.where(share > 0.5, a.value, b.value), [(a, lambda g: g * share), (b, lambda g: g * (1 - share))])


def cumulative(x, dim):
    return Node(np.cumsum(x.value, dim), [(x, lambda g: np.flip(np.cumsum(np.flip(g, dim), dim), dim))])


def log_sum_exp(x, dim, keep=False):
    top = x.value.max(axis=dim, keepdims=True)
    total = log(exp(x - top).sum([dim], True)) + top
    return total if keep else total.reshape(*np.delete(x.shape, dim))


def log_softmax(x, dim):
    return x - log_sum_exp(x, dim, True)


def backward(y, dy):
    order, seen = [], set()

    def visit(n):
        if id(n) not in seen:
            seen.add(id(n))
            for parent, _ in n.parents:
                visit(parent)
            order.append(n)
    visit(y)
    y.gradient = dy
    for n in reversed(order):
        for parent, part in n.parents if n.gradient is not None else ():
            g = part(n.gradient)
            lead = g.ndim - len(parent.shape)  # what was broadcast adds up
            dims = tuple(range(lead)) + tuple(lead + i for i, d in enumerate(parent.shape) if d == 1 and g.shape[lead + i] != 1)
            g = g.sum(axis=dims).reshape(parent.shape) if dims else g
            parent.gradient = g if parent.gradient is None else parent.gradient + g
