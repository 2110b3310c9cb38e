"""quantize(), round_to() and matmul()."""
import json
import operator

from . import _native
from .arrays import is_torch, on_device_of, to_numpy, torch_over
from .errors import UsageError


def _seed(seed):
    if seed is None:
        return None
    seed = operator.index(seed)
    if not 0 <= seed < 1 << 64:
        raise UsageError(f"[quantize] a seed is {seed}. Choose a whole number from 0 to 2^64 - 1.")
    return seed


def _quantizer(value):
    if isinstance(value, _native.Quantizer):
        return value
    return _native.Quantizer(value if isinstance(value, (str, dict)) else str(getattr(value, "name", value)))


def quantizer_of(text, name):
    """Returns a Quantizer that was saved."""
    return _native.quantizer_of(text, name)


def _straight_through(x, function):
    if not is_torch(x) or not x.requires_grad:
        return function(x)
    from .torch_functions import StraightThrough

    return StraightThrough.apply(x, function)


def quantize(x, quantizer, axis=-1, rounding=None, seed=None):
    """Returns x on a quantizer's grid, in x's dtype and kind.

    x: a numpy array, a tensor of PyTorch, anything with DLPack, a list or a number; f64, f32, f16 or
    bf16; tensors of PyTorch may be on a GPU, whose current stream then does the work. quantizer: a name of formats() or quantizers(), eXmY, intN, an object as in a
    policy file, a Format or a Quantizer. Blocks run along `axis`. rounding: a name of roundings();
    default: the quantizer's own. seed: of stochastic rounding; None draws from a generator that
    manual_seed() restarts. A tensor of PyTorch that requires a gradient gets that of the identity.
    Raises UsageError for unknown names and for dtypes that do not hold the results, DTypeError for integers, ShapeError for an axis out of range.
    """
    seed, axis, grid = _seed(seed), operator.index(axis), _quantizer(quantizer)

    def rounded(x):
        with on_device_of(x):
            array, dtype, back = to_numpy(x)
            return back(_native.quantize(array, dtype, axis, grid, rounding, seed))

    return _straight_through(x, rounded)


def round_to(x, format, rounding="nearest_even", seed=None):
    """Returns x on the grid of a format, without a scale: see quantize(). format: a name or a Format."""
    seed = _seed(seed)
    grid = format if isinstance(format, _native.Format) else _native.Format(format)

    def rounded(x):
        with on_device_of(x):
            array, dtype, back = to_numpy(x, "round_to")
            return back(_native.round_to(array, dtype, grid, rounding, seed))

    return _straight_through(x, rounded)


def matmul(a, b, accumulate, scales=None):
    """Returns the product of two matrices, added up as a machine adds.

    accumulate: a name of accumulators(), or an object as "accumulate" in a policy file. a, b: numpy arrays, tensors of
    PyTorch or lists, of floats, which are taken as f32. Returns f32, of a's kind. Raises UsageError for an unknown name.
    scales: for accumulators of numbers with scales of blocks, those of a, [m, blocks], and of b, [blocks, n].
    """
    with on_device_of(a):
        left, left_dtype, _ = to_numpy(a, "matmul")
        right, right_dtype, _ = to_numpy(b, "matmul")
        own = scales and [to_numpy(x, "matmul")[:2] for x in scales]
        y = _native.matmul(left, left_dtype, right, right_dtype, json.dumps(accumulate), own)
    return torch_over(y) if is_torch(a) else y
