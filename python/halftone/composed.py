"""Functions of PyTorch that are computed by others, whose tensors a policy rounds."""
import types

import torch
from torch.nn import functional as F


def _row(value, other):
    """A size of one dimension as one of two: the first is `other`."""
    return value if isinstance(value, str) else (other, value if isinstance(value, int) else value[0])


def _batched(x, rank, compute):
    return compute(x.unsqueeze(0)).squeeze(0) if x.dim() == rank - 1 else compute(x)


def _conv1d(input, weight, bias=None, stride=1, padding=0, dilation=1, groups=1):
    stride, padding, dilation = _row(stride, 1), _row(padding, 0), _row(dilation, 1)
    return _batched(input, 3, lambda x: F.conv2d(
        x.unsqueeze(-2), weight.unsqueeze(-2), bias, stride, padding, dilation, groups).squeeze(-2))


def _conv_transpose1d(input, weight, bias=None, stride=1, padding=0, output_padding=0, groups=1, dilation=1):
    sizes = _row(stride, 1), _row(padding, 0), _row(output_padding, 0), groups, _row(dilation, 1)
    return _batched(input, 3, lambda x: F.conv_transpose2d(x.unsqueeze(-2), weight.unsqueeze(-2), bias, *sizes).squeeze(-2))


def _with_batch(function):
    """An image without a batch: channels must be dimension 1."""

    def compute(input, *args, **kwargs):
        return _batched(input, 4, lambda x: function(x, *args, **kwargs)) if input.dim() == 3 else NotImplemented

    return compute


def _matmul(input, other, *, out=None):
    if out is not None or not isinstance(other, torch.Tensor) or 1 not in (input.dim(), other.dim()):
        return NotImplemented
    y = torch.matmul(input.unsqueeze(0) if input.dim() == 1 else input, other.unsqueeze(-1) if other.dim() == 1 else other)
    y = y.squeeze(-1) if other.dim() == 1 else y
    return y.squeeze(-2 if other.dim() > 1 else -1) if input.dim() == 1 else y


def _plus(input, product, beta, alpha):
    product = product if alpha == 1 else product * alpha
    return product if beta == 0 else input + product if beta == 1 else input * beta + product


def _addmm(input, mat1, mat2, *, beta=1, alpha=1, out=None):
    if out is not None or (beta == 1 and alpha == 1):
        return NotImplemented
    return _plus(input, torch.mm(mat1, mat2), beta, alpha)


def _baddbmm(input, batch1, batch2, *, beta=1, alpha=1, out=None):
    return NotImplemented if out is not None else _plus(input, torch.bmm(batch1, batch2), beta, alpha)


def _addbmm(input, batch1, batch2, *, beta=1, alpha=1, out=None):
    if out is not None:
        return NotImplemented
    rows, columns = batch1.transpose(0, 1).flatten(1), batch2.flatten(0, 1)
    return _plus(input, torch.mm(rows, columns), beta, alpha)


def _mv(input, vec, *, out=None):
    return NotImplemented if out is not None else torch.matmul(input, vec.unsqueeze(-1)).squeeze(-1)


def _addmv(input, mat, vec, *, beta=1, alpha=1, out=None):
    return NotImplemented if out is not None else _plus(input, _mv(mat, vec), beta, alpha)


def _dot(input, tensor, *, out=None):
    return NotImplemented if out is not None else _matmul(input, tensor)


def _inner(input, other, *, out=None):
    if out is not None or 0 in (input.dim(), other.dim()):
        return NotImplemented
    return _tensordot(input, other, ([-1], [-1]))


def _tensordot(a, b, dims=2, out=None):
    if out is not None or isinstance(dims, torch.Tensor):
        return NotImplemented
    if isinstance(dims, int):
        dims = range(a.dim() - dims, a.dim()), range(dims)
    of_a, of_b = ([d % x.dim() for d in each] for x, each in zip((a, b), dims))
    free_a = [d for d in range(a.dim()) if d not in of_a]
    free_b = [d for d in range(b.dim()) if d not in of_b]
    if [a.size(d) for d in of_a] != [b.size(d) for d in of_b] or not of_a:
        return NotImplemented
    shape = [a.size(d) for d in free_a] + [b.size(d) for d in free_b]
    summed = 1
    for d in of_a:
        summed *= a.size(d)
    if summed == 0:
        return NotImplemented
    left = a.permute(*free_a, *of_a).reshape(-1, summed)
    right = b.permute(*of_b, *free_b).reshape(summed, -1)
    return torch.mm(left, right).reshape(shape)


def _bilinear(input1, input2, weight, bias=None):
    halves = F.linear(input2, weight.reshape(-1, weight.size(2))).unflatten(-1, weight.shape[:2])
    y = torch.matmul(halves, input1.unsqueeze(-1)).squeeze(-1)
    return y if bias is None else y + bias


def _parsed(equation, operands):
    """The letters of each operand and of the result; None for what is left to PyTorch."""
    left, arrow, result = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    if len(terms) != len(operands):
        return None
    unused = [c for c in "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz" if c not in equation]
    widths = [x.dim() - len(term.replace("...", "")) for term, x in zip(terms, operands)]
    dots = "".join(unused[:max([0, *(w for w, t in zip(widths, terms) if "..." in t)])])
    terms = [t.replace("...", dots[len(dots) - w:] if w else "") for t, w in zip(terms, widths)]
    if not arrow:
        letters = "".join(terms)
        result = dots + "".join(sorted(c for c in set(letters) if letters.count(c) == 1 and c not in dots))
    result = result.replace("...", dots)
    if any(len(set(t)) != len(t) or len(t) != x.dim() for t, x in zip(terms, operands)):
        return None
    sizes = {}
    for term, x in zip(terms, operands):
        for c, size in zip(term, x.shape):
            if sizes.setdefault(c, size) != size:
                return None  # sizes that broadcast, or errors
    return terms, result


def _pair(a, x, b, y, kept):
    """The product of two operands, summed over the letters that `kept` lacks."""
    for one, other in ((0, b), (1, a)):
        letters, tensor = ((a, x), (b, y))[one]
        alone = [i for i, c in enumerate(letters) if c not in other and c not in kept]
        if alone:
            tensor, letters = tensor.sum(alone), "".join(c for c in letters if c in other or c in kept)
        if one == 0:
            a, x = letters, tensor
        else:
            b, y = letters, tensor
    batch = [c for c in a if c in b and c in kept]
    summed = [c for c in a if c in b and c not in kept]
    of_a, of_b = [c for c in a if c not in b], [c for c in b if c not in a]
    size = {**dict(zip(a, x.shape)), **dict(zip(b, y.shape))}

    def count(letters):
        n = 1
        for c in letters:
            n *= size[c]
        return n

    left = x.permute([a.index(c) for c in batch + of_a + summed]).reshape(count(batch), count(of_a), count(summed))
    right = y.permute([b.index(c) for c in batch + summed + of_b]).reshape(count(batch), count(summed), count(of_b))
    if not batch:
        left, right = left[0], right[0]
    product = torch.matmul(left, right) if summed else left * right
    return "".join(batch + of_a + of_b), product.reshape([size[c] for c in batch + of_a + of_b])


def _einsum(equation, *operands):
    if len(operands) == 1 and isinstance(operands[0], (list, tuple)):
        operands = tuple(operands[0])
    parsed = _parsed(equation, operands) if isinstance(equation, str) and len(operands) > 1 else None
    if parsed is None:
        return NotImplemented
    terms, result = parsed
    letters, x = terms[0], operands[0]
    for i in range(1, len(terms)):
        letters, x = _pair(letters, x, terms[i], operands[i], result + "".join(terms[i + 1:]))
    return x.permute([letters.index(c) for c in result])


def _opened(function):
    """A function of Python without the checks by which it would hand itself to the mode again."""
    names = dict(function.__globals__)
    for check in ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic"):
        names[check] = lambda *_: False
    copy = types.FunctionType(function.__code__, names, function.__name__, function.__defaults__, function.__closure__)
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


def _table():
    table = {
        F.conv1d: _conv1d, torch.conv1d: _conv1d, F.conv_transpose1d: _conv_transpose1d, F.bilinear: _bilinear,
        F.conv2d: _with_batch(F.conv2d), F.conv_transpose2d: _with_batch(F.conv_transpose2d),
        torch.einsum: _einsum, torch.tensordot: _tensordot, torch.matmul: _matmul,
        torch.Tensor.__matmul__: _matmul, torch.Tensor.__rmatmul__: lambda x, other: torch.matmul(other, x),
        torch.linalg.matmul: lambda input, other, *, out=None: NotImplemented if out is not None else torch.matmul(input, other),
        F.multi_head_attention_forward: _opened(F.multi_head_attention_forward),
    }
    for name, compute in (("addmm", _addmm), ("baddbmm", _baddbmm), ("addbmm", _addbmm), ("mv", _mv), ("addmv", _addmv),
                          ("dot", _dot), ("inner", _inner), ("matmul", _matmul)):
        for owner in (torch, torch.Tensor):
            table[getattr(owner, name)] = compute
    table[torch.vdot] = table[torch.Tensor.vdot] = _dot
    return table


COMPOSED = _table()
