"""Functions that compute products: their tensors are rounded, or the policy refuses them by name."""
import pytest

import halftone as ht


def policy(rules, **more):
    return ht.Policy.parse({"halftone_policy": 1, "name": "t", "rules": rules, **more})


def q(x, name="e2m1"):
    return ht.round_to(x.detach(), name)


class Calls:
    """A module around a function of its weight and an input."""

    def __new__(cls, torch, function, *shape):
        class Net(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.weight = torch.nn.Parameter(torch.randn(shape, generator=torch.Generator().manual_seed(1)))

            def forward(self, x):
                return function(x, self.weight)

        return Net()


def functions(torch):
    """name: (function of x and w, shape of x, shape of w)"""
    F = torch.nn.functional
    b = torch.tensor([-1.0, 0.5, 0, 2]).expand(3, 4)  # e2m1 has these numbers
    return {
        "conv1d": (lambda x, w: F.conv1d(x, w, stride=2, padding=1), (2, 4, 9), (6, 4, 3)),
        "conv1d same": (lambda x, w: torch.conv1d(x, w, padding="same", dilation=2), (2, 4, 9), (6, 4, 3)),
        "conv1d without a batch": (lambda x, w: F.conv1d(x, w, groups=2), (4, 9), (6, 2, 3)),
        "conv2d without a batch": (lambda x, w: F.conv2d(x, w), (4, 5, 5), (6, 4, 3, 3)),
        "conv_transpose1d": (lambda x, w: F.conv_transpose1d(x, w, None, 2, 1, 1, 2, 1), (2, 4, 9), (4, 3, 3)),
        "einsum": (lambda x, w: torch.einsum("bij,jk->bik", x, w), (2, 3, 4), (4, 5)),
        "einsum with batch": (lambda x, w: torch.einsum("b...ij,bkj->b...ki", x, w), (2, 7, 3, 4), (2, 5, 4)),
        "einsum with sums": (lambda x, w: torch.einsum("ijk,jl", [x, w]), (2, 3, 4), (3, 5)),
        "einsum in capitals": (lambda x, w: torch.einsum("BnH,OH->BnO", x, w), (2, 3, 4), (5, 4)),
        "baddbmm": (lambda x, w: torch.baddbmm(b.expand(2, 3, 4), x, w, beta=0.5, alpha=2), (2, 3, 5), (2, 5, 4)),
        "Tensor.baddbmm": (lambda x, w: b.expand(2, 3, 4).baddbmm(x, w), (2, 3, 5), (2, 5, 4)),
        "addbmm": (lambda x, w: torch.addbmm(b, x, w), (2, 3, 5), (2, 5, 4)),
        "addmm": (lambda x, w: torch.addmm(b, x, w), (3, 5), (5, 4)),
        "addmm by names": (lambda x, w: torch.addmm(b, mat1=x, mat2=w), (3, 5), (5, 4)),
        "addmm with factors": (lambda x, w: torch.addmm(b, x, w, beta=0, alpha=3), (3, 5), (5, 4)),
        "Tensor.addmm": (lambda x, w: b[0].addmm(x, w), (3, 5), (5, 4)),
        "mv": (lambda x, w: torch.mv(x, w), (3, 5), (5,)),
        "Tensor.mv": (lambda x, w: x.mv(w), (3, 5), (5,)),
        "addmv": (lambda x, w: torch.addmv(b[:, 0], x, w), (3, 5), (5,)),
        "dot": (lambda x, w: torch.dot(x, w), (5,), (5,)),
        "inner": (lambda x, w: torch.inner(x, w), (2, 3, 5), (4, 5)),
        "matmul of a vector": (lambda x, w: x @ w, (5,), (2, 5, 4)),
        "matmul by a vector": (lambda x, w: x @ w, (2, 3, 5), (5,)),
        "linalg.matmul": (lambda x, w: torch.linalg.matmul(x, w), (2, 3, 5), (5, 4)),
        "tensordot": (lambda x, w: torch.tensordot(x, w, dims=([2, 0], [0, 1])), (2, 3, 4), (4, 2, 5)),
        "tensordot of last": (lambda x, w: torch.tensordot(x, w, 2), (2, 3, 4), (3, 4, 5)),
    }


NAMES = ["conv1d", "conv1d same", "conv1d without a batch", "conv2d without a batch", "conv_transpose1d", "einsum", "einsum with batch",
         "einsum with sums", "einsum in capitals", "baddbmm", "Tensor.baddbmm", "addbmm", "addmm", "addmm by names",
         "addmm with factors", "Tensor.addmm", "mv", "Tensor.mv", "addmv", "dot", "inner", "matmul of a vector",
         "matmul by a vector", "linalg.matmul", "tensordot", "tensordot of last"]


@pytest.mark.parametrize("name", NAMES)
def test_operands_are_rounded(torch, name):
    function, x_shape, w_shape = functions(torch)[name]
    torch.manual_seed(0)
    model, x = Calls(torch, function, *w_shape), torch.randn(x_shape, requires_grad=True)
    rules = policy([{"match": {"asks": "low_precision"}, "input": "e2m1", "weight": "e3m2"}])
    y = rules.apply(model, x.detach())(x)
    rounded_x, rounded_w = q(x).requires_grad_(), q(model.weight, "e3m2").requires_grad_()
    expected = function(rounded_x, rounded_w)
    torch.testing.assert_close(y, expected, rtol=1e-5, atol=1e-5)
    assert not torch.allclose(y, function(x, model.weight), rtol=1e-3)
    dy = torch.randn_like(y)
    y.backward(dy), expected.backward(dy)
    torch.testing.assert_close(x.grad, rounded_x.grad, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(model.weight.grad, rounded_w.grad, rtol=1e-5, atol=1e-5)
    table = rules.resolve(model, x.detach())
    assert "no rule reaches: none" in table
    assert "100.0 % of the flops" in table or name == "conv_transpose1d"  # its flops are not counted
    torch.testing.assert_close(policy([]).apply(model)(x), function(x, model.weight), rtol=1e-5, atol=1e-5)


def test_names_are_all_tested(torch):
    assert list(functions(torch)) == NAMES


def test_bilinear(torch):
    torch.manual_seed(0)
    layer, x, y = torch.nn.Bilinear(6, 5, 4), torch.randn(2, 3, 6), torch.randn(2, 3, 5)
    torch.testing.assert_close(policy([]).apply(layer)(x, y), layer(x, y), rtol=1e-5, atol=1e-5)
    got = policy([{"match": {"op": "linear"}, "input": "e2m1", "weight": "e3m2"}]).apply(layer, (x, y))(x, y)
    expected = torch.nn.functional.bilinear(x, q(y), q(layer.weight, "e3m2"), layer.bias)
    torch.testing.assert_close(got, expected.detach(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("mode", ["train", "eval", "inference", "mask", "cross"])
def test_attention_layers(torch, mode):
    torch.manual_seed(0)
    layer = torch.nn.MultiheadAttention(16, 2, batch_first=True, kdim=8 if mode == "cross" else None)
    layer.train(mode == "train")
    x, k = torch.randn(3, 5, 16), torch.randn(3, 5, 8 if mode == "cross" else 16)
    mask = torch.triu(torch.full((5, 5), float("-inf")), 1) if mode == "mask" else None
    k = x if mode != "cross" else k
    v = x
    with torch.inference_mode(mode == "inference"), torch.set_grad_enabled(mode == "train"):
        emulated = policy([]).apply(layer)
        torch.testing.assert_close(emulated(x, k, v, attn_mask=mask)[0], layer(x, k, v, attn_mask=mask)[0], rtol=1e-5, atol=1e-5)
    rules = policy([{"match": {"asks": "low_precision"}, "input": "e2m3", "weight": "e2m1"}], evaluation="same")
    table = rules.resolve(layer, (x, k, v))
    assert "100.0 % of the flops" in table and "no rule reaches: none" in table and "/linear.0" in table and "matmul" in table
    with torch.no_grad():
        y = rules.apply(layer)(x, k, v, attn_mask=mask, need_weights=False)[0]
        assert not torch.allclose(y, layer(x, k, v, attn_mask=mask)[0], rtol=1e-2, atol=1e-2)


def refused(torch):
    nn = torch.nn
    return {
        "torch.lstm": (nn.LSTM(8, 4, 2, bidirectional=True), (3, 5, 8)), "torch.gru": (nn.GRU(8, 4), (3, 5, 8)),
        "torch.rnn_tanh": (nn.RNN(8, 4), (3, 5, 8)), "torch.lstm_cell": (nn.LSTMCell(8, 4), (3, 8)),
        "torch.gru_cell": (nn.GRUCell(8, 4), (3, 8)), "torch.nn.functional.conv3d": (nn.Conv3d(2, 3, 3), (1, 2, 5, 5, 5)),
        "torch.nn.functional.conv_transpose3d": (nn.ConvTranspose3d(2, 3, 3), (1, 2, 5, 5, 5)),
        "torch.functional.cdist": (Calls(torch, lambda x, w: torch.cdist(x, w), 30, 8), (40, 8)),
        "torch.Tensor.addmm_": (Calls(torch, lambda x, w: torch.zeros(3, 4).addmm_(x, w), 8, 4), (3, 8)),
        "torch.functional.einsum": (Calls(torch, lambda x, w: torch.einsum("ii,ij->ij", x, w), 4, 4), (4, 4)),
        "torch.linalg.multi_dot": (Calls(torch, lambda x, w: torch.linalg.multi_dot([x, w, w]), 4, 4), (4, 4)),
    }


@pytest.mark.parametrize("name", ["torch.lstm", "torch.gru", "torch.rnn_tanh", "torch.lstm_cell", "torch.gru_cell",
                                  "torch.nn.functional.conv3d", "torch.nn.functional.conv_transpose3d", "torch.functional.cdist",
                                  "torch.Tensor.addmm_", "torch.linalg.multi_dot"])
@pytest.mark.parametrize("grad", [True, False])
def test_other_products_are_refused_or_listed(torch, name, grad):
    layer, shape = refused(torch)[name]

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inside, self.head = layer, torch.nn.Linear(8, 8)

        def forward(self, x):
            return self.inside(x), self.head(torch.ones(2, 8))

    torch.manual_seed(0)
    model, x = Net(), torch.randn(shape)
    everywhere = policy([{"match": {"asks": "low_precision"}, "input": "e2m1", "weight": "e2m1"}], evaluation="same")
    with torch.set_grad_enabled(grad):
        with pytest.raises(ht.UnsupportedError, match=rf'rounds or casts {name}, which module "inside" calls'):
            everywhere.apply(model)(x)
        with pytest.raises(ht.UnsupportedError, match=name):
            ht.Policy.named("amp-bf16").apply(model)(x)
        some = policy([{"match": {"path": "head"}, "input": "e2m1", "weight": "e2m1"}], evaluation="same")
        emulated = some.apply(model)
        emulated(x)
        assert "100.0 %" not in emulated.table()
    with pytest.raises(ht.UnsupportedError, match=name):
        everywhere.resolve(model, x)
    table = some.resolve(model, x)
    assert "100.0 %" not in table and f"no rule reaches: inside/{name}.0" in table
    site = next(s for s in some.resolved(model, x)["sites"] if s["op"] == name)
    assert site["path"] == "inside" and site["flops"] > 0


@pytest.mark.filterwarnings("ignore:.*torch.jit")
def test_compiled_modules_are_refused_or_listed(torch):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.jit.script(torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU())))
    x = torch.randn(4, 8)
    with pytest.raises(ht.UnsupportedError, match='rounds or casts torch.jit.Sequential, which module "1" calls'):
        policy([{"match": {"asks": "low_precision"}, "input": "e2m1"}]).apply(model)(x)
    some = policy([{"match": {"path": "0"}, "input": "e2m3"}])
    table = some.resolve(model, x)
    assert ": 1 sites, 64 parameters, 50.0 % of the flops" in table and "no rule reaches: 1/torch.jit.Sequential.0" in table
    emulated = some.apply(model, x)
    with pytest.raises(RuntimeError):
        emulated(x[:, :2])
    assert torch.equal(emulated(x), model(ht.round_to(x, "e2m3")))


def test_modules_under_torch_compile_are_refused(torch):
    in_place = torch.nn.Linear(8, 8)
    in_place.compile(backend="eager")
    for compiled in (torch.compile(torch.nn.Linear(8, 8), backend="eager"), in_place):
        with pytest.raises(ht.UnsupportedError, match='module "1" was compiled by torch.compile'):
            policy([]).apply(torch.nn.Sequential(torch.nn.Linear(8, 8), compiled))


def test_functions_without_products_stay_unlisted(torch):
    model = Calls(torch, lambda x, w: torch.nn.functional.hardtanh(x).cumsum(0).sort().values * w, 4)
    rules = policy([{"match": {"op": "mul"}, "input": "e2m1"}])
    assert [s["op"] for s in rules.resolved(model, torch.randn(4))["sites"]] == ["mul"]
