"""quantize() and round_to() give the bits of C++, in the caller's dtype and kind, and refuse the rest."""
import numpy as np
import pytest
from read_vectors import read

import halftone as ht

FORMATS = [f.name for f in ht.formats()]
QUANTIZERS = [q.name for q in ht.quantizers()]
SEED = 7  # of the vectors' random words


def bits(x):
    return np.ascontiguousarray(x, np.float32).view(np.uint32)


def test_lists():
    assert FORMATS == ["f32", "tf32", "bf16", "f16", "e5m2", "e4m3", "e3m2", "e2m3", "e2m1", "e8m0", "int8"]
    assert "nvfp4" in QUANTIZERS and len(QUANTIZERS) == 9 and len(ht.roundings()) == 8


def test_format():
    e4m3 = ht.Format("e4m3")
    assert (e4m3.max, e4m3.bits, e4m3.significand_bits, e4m3.smallest) == (448, 8, 4, 2**-9)
    assert not e4m3.infinity and e4m3.subnormals and e4m3.count == 127
    assert ht.Format("e2m1").numbers() == [0, 0.5, 1, 1.5, 2, 3, 4, 6]
    assert ht.Format("e4m3") == e4m3 != ht.Format("e4m2") and len({e4m3, ht.Format("e4m3")}) == 1
    with pytest.raises(ht.UsageError, match='there is no number format named "e4m33". Did you mean "e4m3"'):
        ht.Format("e4m33")
    with pytest.raises(ValueError):
        ht.Format("f32").numbers()


@pytest.mark.parametrize("name", FORMATS + ["binary8p4se", "binary8p3sf", "binary6p3ue", "binary8p1uf"])
@pytest.mark.parametrize("rounding", ht.roundings())
def test_bits_of_formats(root, name, rounding):
    tensors, _ = read(root / "core" / "formats" / "vectors" / f"{name}.safetensors")
    y = ht.round_to(tensors["x"], name, rounding=rounding, seed=SEED)
    assert (bits(y) == bits(tensors[rounding])).all()


@pytest.mark.parametrize("name", QUANTIZERS)
@pytest.mark.parametrize("rounding", ht.roundings())
@pytest.mark.parametrize("case", ["random", "ties", "special"])
def test_bits_of_quantizers(root, name, rounding, case):
    tensors, _ = read(root / "core" / "formats" / "vectors" / f"{name}.safetensors")
    x, expected = tensors[f"{case}.x"], tensors[f"{case}.{rounding}"]
    assert (bits(ht.quantize(x, name, rounding=rounding, seed=SEED)) == bits(expected)).all()
    turned = ht.quantize(x.T, name, axis=0, rounding=rounding, seed=SEED)
    assert turned.shape == x.T.shape and (bits(turned.T) == bits(expected)).all()


def test_dtypes():
    x = np.linspace(-3, 3, 64).reshape(2, 32)
    for dtype in (np.float64, np.float32):
        y = ht.quantize(x.astype(dtype), "mxfp4")
        assert y.dtype == dtype and (y == ht.quantize(x.astype(np.float32), "mxfp4")).all()
    assert ht.round_to(x.astype(np.float16), "e4m3").dtype == np.float16
    with pytest.raises(ht.UsageError, match="f16 does not hold every number of"):
        ht.quantize(x.astype(np.float16), "mxfp4")
    assert ht.round_to([1.1, 2.2], "e2m1").tolist() == [1, 2] and ht.round_to(1.3, "e2m1") == 1.5


def test_nothing_is_written_and_nothing_copied():
    x = np.linspace(0, 1, 1000, dtype=np.float32)
    x.flags.writeable = False
    before = x.copy()
    y = ht.round_to(x, "e4m3")
    assert (x == before).all() and y.flags.writeable and not np.shares_memory(x, y)


def test_stochastic():
    x = np.full(100000, 1.125, np.float32)
    one, same, other = (ht.round_to(x, "e2m1", "stochastic", seed) for seed in (1, 1, 2))
    assert (one == same).all() and (one != other).any()
    assert set(np.unique(one)) == {1, 1.5} and abs(one.mean() - 1.125) < 0.003
    ht.manual_seed(5)
    a, b = ht.round_to(x, "e2m1", "stochastic"), ht.round_to(x, "e2m1", "stochastic")
    ht.manual_seed(5)
    assert (a != b).any() and (a == ht.round_to(x, "e2m1", "stochastic")).all()


@pytest.mark.parametrize("x", [
    np.zeros(0, np.float32), np.zeros((3, 0), np.float32), np.zeros((0, 32), np.float32), np.float32(3.3),
    np.ones((4, 64), np.float32)[::-2, ::-1], np.ones((4, 64), np.float32).T, np.ones((64,), np.float32)[::3],
    np.broadcast_to(np.float32(2.5), (5, 7)), np.asfortranarray(np.ones((5, 7), np.float32)),
    np.frombuffer(b"\0" * 41, np.uint8)[1:].view(np.float32), np.zeros((2, 3), "f4,f4")["f1"],
])
@pytest.mark.parametrize("name", ["e4m3", "mxfp8", "nvfp4", "fp8_tensor"])
def test_awkward_memory(x, name):
    plain = np.ascontiguousarray(x).reshape(np.shape(x))
    for axis in range(-np.ndim(x), np.ndim(x)):
        y = ht.quantize(x, name, axis=axis)
        assert np.shape(y) == np.shape(x) and y.dtype == np.float32
        assert (bits(y) == bits(ht.quantize(plain.copy(), name, axis=axis))).all()


@pytest.mark.parametrize("x, kind, text", [
    (np.array([1, 2]), ht.DTypeError, r"\[quantize\] .*i64"),
    (np.array([True]), ht.DTypeError, r"\[quantize\] .*bool"),
    (np.array([1j]), ht.DTypeError, "complex128"),
    (np.array([object()]), ht.DTypeError, "object"),
    (np.array(["a"]), ht.DTypeError, "array is <U1"),
    (np.array([1.0], ">f4"), ht.DTypeError, "another order"),
    (np.zeros((1,) * 9, np.float32), ht.ShapeError, "8"),
    (None, ht.DTypeError, "object"),
    ({}, ht.DTypeError, "object"),
])
def test_hostile_arrays(x, kind, text):
    with pytest.raises(kind, match=text):
        ht.quantize(x, "e4m3")


@pytest.mark.parametrize("arguments, kind, text", [
    (dict(quantizer="mxfp5"), ht.UsageError, "Did you mean"),
    (dict(quantizer="e4m3", axis=2), ht.ShapeError, r"\[quantize\]"),
    (dict(quantizer="e4m3", axis=-3), ht.ShapeError, r"\[quantize\]"),
    (dict(quantizer="e4m3", axis=10**30), TypeError, None),
    (dict(quantizer="e4m3", axis=1.5), TypeError, None),
    (dict(quantizer="e4m3", rounding="nearest"), ht.UsageError, "no rounding named"),
    (dict(quantizer="e4m3", seed=-1), ht.UsageError, "seed is -1"),
    (dict(quantizer="e4m3", seed=2**64), ht.UsageError, "seed is"),
    (dict(quantizer=7), ht.UsageError, "no number format or quantizer"),
    (dict(quantizer="\0\n"), ht.UsageError, "no number format or quantizer"),
])
def test_hostile_arguments(arguments, kind, text):
    with pytest.raises(kind, match=text):
        ht.quantize(np.ones((2, 2), np.float32), **arguments)


def test_threads():
    import concurrent.futures

    x = np.random.default_rng(0).standard_normal((64, 1024)).astype(np.float32)
    expected = ht.quantize(x, "nvfp4", rounding="stochastic", seed=3)
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        for y in pool.map(lambda _: ht.quantize(x, "nvfp4", rounding="stochastic", seed=3), range(16)):
            assert (y == expected).all()


def test_torch_kinds(torch):
    x = torch.linspace(-3, 3, 64).reshape(2, 32)
    y = ht.quantize(x, "mxfp4")
    assert isinstance(y, torch.Tensor) and y.dtype == torch.float32
    assert (bits(y.numpy()) == bits(ht.quantize(x.numpy(), "mxfp4"))).all()
    short = ht.quantize(x.bfloat16(), "mxfp4")
    assert short.dtype == torch.bfloat16 and (short.float() == ht.quantize(x.bfloat16().float(), "mxfp4")).all()
    assert (ht.quantize(x.t(), "mxfp4", axis=0) == y.t()).all()
    x.requires_grad_()
    ht.quantize(x, "mxfp4").square().sum().backward()
    assert (x.grad == 2 * y).all()
    for wrong in (x.to(torch.complex64), x.to_sparse(), x.to(torch.float8_e4m3fn), x.long()):
        with pytest.raises(ht.DTypeError):
            ht.quantize(wrong, "e4m3")
    with pytest.raises(ht.DeviceError, match="meta"):
        ht.quantize(torch.ones(3, device="meta"), "e4m3")


def test_torch_is_not_imported(root):
    import subprocess
    import sys

    code = "import sys, halftone as ht, numpy; ht.quantize(numpy.ones(32, 'f'), 'nvfp4'); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_dlpack():
    class Memory:
        def __init__(self, x):
            self.x = x

        def __dlpack__(self, **arguments):
            return self.x.__dlpack__()

        def __dlpack_device__(self):
            return self.x.__dlpack_device__()

    x = np.linspace(-3, 3, 64, dtype=np.float32).reshape(2, 32)
    assert (ht.quantize(Memory(x), "mxfp4") == ht.quantize(x, "mxfp4")).all()
    with pytest.raises(ht.DTypeError):
        ht.quantize(Memory(np.ones(3, np.complex64)), "e4m3")

    class Elsewhere(Memory):
        def __dlpack_device__(self):
            return (2, 0)  # a GPU

    with pytest.raises(ht.DeviceError, match="type 2. Copy it to the CPU"):
        ht.quantize(Elsewhere(x), "e4m3")


def test_ml_dtypes():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    x = np.linspace(-3, 3, 64, dtype=np.float32).astype(ml_dtypes.bfloat16)
    y = ht.quantize(x, "mxfp4")
    assert y.dtype == x.dtype and (y.astype("f") == ht.quantize(x.astype("f"), "mxfp4")).all()


def test_own_quantizers():
    """An object as in a policy file is a quantizer, with its own rounding, formats and tables."""
    x = np.random.default_rng(0).standard_normal((8, 64)).astype(np.float32)
    block = {"format": "e2m1", "scale": {"per": "block", "block": [1, 32], "format": "e8m0"}}
    for own in ({"like": "mxfp4"}, ht.Quantizer({"like": "mxfp4"}), ht.Quantizer("mxfp4")):
        assert (ht.quantize(x, own) == ht.quantize(x, "mxfp4")).all()
        assert (ht.quantize(x.T, own, axis=0) == ht.quantize(x, "mxfp4").T).all()
    assert (ht.quantize(x, {"format": "e4m3"}) == ht.round_to(x, "e4m3")).all()
    assert (ht.quantize(x, ht.Format("e4m3")) == ht.round_to(x, "e4m3")).all()
    table = {"table": [0, 1, 3], "scale": {"per": "tensor"}}
    stochastic = {**block, "rounding": "stochastic"}
    assert (ht.quantize(x, stochastic, seed=2) == ht.quantize(x, stochastic, seed=2)).all()
    assert (ht.quantize(x, stochastic, seed=2) != ht.quantize(x, stochastic, seed=3)).any()
    assert (ht.quantize(x, stochastic, seed=2) == ht.quantize(x, block, rounding="stochastic", seed=2)).all()
    assert len(np.unique(np.abs(ht.quantize(x, table)))) <= 3
    with pytest.raises(ht.FormatError, match='has no entry "fromat". Did you mean "format"'):
        ht.quantize(x, {"fromat": "e4m3"})
    with pytest.raises(ht.Error):
        ht.quantize(x, {})
    with pytest.raises(ht.Error):
        ht.Quantizer('{"format": "e4m3"}, "weight": {')


def test_quantizers_of_a_policy(root):
    """A policy lends the quantizers that its rules name."""
    import copy
    import pickle

    x = np.random.default_rng(0).standard_normal((8, 128)).astype(np.float32)
    policy = ht.Policy.parse({"halftone_policy": 1, "name": "p", "rules": [{"match": {"op": "linear"}, "input": "mine", "weight": "mxfp4"}],
                              "quantizers": {"mine": {"format": "e2m1", "scale": {"per": "tensor"}}}})
    mine = policy.quantizer("mine")
    y = ht.quantize(x, mine)
    assert mine.name == "mine" and mine.grid == ht.Format("e2m1") and mine.bits_per_element
    assert (y == ht.quantize(x, {"format": "e2m1", "scale": {"per": "tensor"}})).all() and (y != ht.round_to(x, "e2m1")).any()
    assert (ht.quantize(x, policy.quantizer("nvfp4")) == ht.quantize(x, "nvfp4")).all()
    for again in (copy.deepcopy(mine), pickle.loads(pickle.dumps(mine)), copy.deepcopy(policy).quantizer("mine"),
                  pickle.loads(pickle.dumps(policy)).quantizer("mine")):
        assert (ht.quantize(x, again) == y).all()
    with pytest.raises(ht.UsageError, match=r'\[policy p\] there is no quantizer named "mime". Did you mean "mine"'):
        policy.quantizer("mime")
    eden = ht.Policy.load(root / "amp" / "policies" / "quartet2.json").quantizer("ms_eden")
    z = ht.quantize(x, eden, seed=1)
    assert np.isfinite(z).all() and np.linalg.norm(z - x) < 0.5 * np.linalg.norm(x)


def test_p3109():
    assert ht.Format("binary8p4se").max == 224 and ht.Format("binary8p4sf").max == 240
    assert ht.quantize(np.float32([300, -1, 1.06]), "binary8p4se").tolist() == [np.inf, -1, 1]
    saturated = ht.quantize(np.float32([300, np.inf]), {"format": "binary8p4se", "overflow": "propagate"})
    assert saturated.tolist() == [224, np.inf]
    drawn = {"format": "binary8p4se", "stochastic": {"bits": 1, "variant": "C"}}
    assert set(ht.quantize(np.full(99, 1.06, np.float32), drawn, seed=1).tolist()) == {1, 1.125}


def test_matmul():
    a, b = np.float32([[2**-12, -1, 1]]), np.float32([[2**-12], [1], [1]])
    assert ht.matmul(a, b, "h100-mma").tolist() == [[2**-24]]
    assert ht.matmul(a, b, "v100-mma").tolist() == [[0]]  # 23 bits below the products of 1
    assert ht.matmul(a, b, {"like": "h100-mma", "fraction": 20}).tolist() == [[0]]
    assert "amx-bf16" in ht.accumulators()
    with pytest.raises(ht.FormatError, match='Did you mean "h100-mma"'):
        ht.matmul(a, b, "h100-mm")
    with pytest.raises(ht.ShapeError, match=r"a.shape\[1\] must equal b.shape\[0\]"):
        ht.matmul(a, a, "h100-mma")


def test_products_of_numbers_with_scales_add_up_as_a_b200_does():
    a, b = np.full((2, 40), 6, np.float32), np.full((40, 3), -1.5, np.float32)
    of_a, of_b = np.full((2, 3), 0.5, np.float32), np.full((3, 3), 2, np.float32)
    of_a[:, 2] = 0.375
    wanted = -9 * (32 + 8 * 0.75)
    assert ht.matmul(a, b, "b200-tcgen05-nvf4", scales=(of_a, of_b)).tolist() == [[wanted] * 3] * 2
    # In the second step 1 - 1 leaves of the sum before what is at least 2^-35 of the scales there.
    left, right = np.zeros((1, 128), np.float32), np.ones((128, 1), np.float32)
    left[0, [0, 64, 96]] = [1, 1, -1]
    for exponent, kept in ((-17, 2**-34), (-18, 0)):
        scales = np.float32([[2.0**exponent, 1, 1, 1]])
        assert ht.matmul(left, right, "b200-tcgen05-mxf4", scales=(scales, scales.T.copy())).tolist() == [[kept]]
    with pytest.raises(ht.UsageError, match=r"reads numbers and their scales. Give scales=\(of a, of b\)"):
        ht.matmul(a, b, "b200-tcgen05-nvf4")
    with pytest.raises(ht.UsageError, match="reads no scales"):
        ht.matmul(a, b, "h100-mma", scales=(of_a, of_b))
    with pytest.raises(ht.ShapeError, match=r"scales of b are \[2, 3\]. Give \[3, 3\]"):
        ht.matmul(a, b, "b200-tcgen05-nvf4", scales=(of_a, np.ones((2, 3), np.float32)))
    with pytest.raises(ht.UsageError, match=r"1 arrays of scales. Give scales=\(of a, of b\)"):
        ht.matmul(a, b, "b200-tcgen05-nvf4", scales=(of_a,))
    assert ht.matmul(a, b, "b200-tcgen05-nvf4", scales=(of_a.tolist(), of_b.astype(np.float64))).tolist()[0][0] == wanted
    with pytest.raises(ht.UsageError, match="numbers of a are not all on the grid of e2m1"):
        ht.matmul(a + 1, b, "b200-tcgen05-nvf4", scales=(of_a, of_b))
    with pytest.raises(ht.UsageError, match="scales of b are not all on the grid of e4m3 or e8m0"):
        ht.matmul(a, b, "b200-tcgen05-nvf4", scales=(of_a, -of_b))
