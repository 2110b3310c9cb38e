"""Policies: the reader, its errors, and models of PyTorch under them."""
import json
import subprocess

import numpy as np
import pytest

import halftone as ht


def policy(rules, **more):
    return ht.Policy.parse({"halftone_policy": 1, "name": "t", "rules": rules, **more})


def test_reader(root):
    mxfp8 = ht.Policy.load(root / "amp" / "policies" / "mxfp8.json")
    assert mxfp8.name == "mxfp8" and mxfp8.about and len(mxfp8.hash) == 16
    assert ht.Policy.parse(mxfp8.text).hash == mxfp8.hash
    assert ht.Policy.named("amp-bf16").hash != mxfp8.hash
    with pytest.raises(ht.FormatError):
        ht.Policy.load("nowhere.json")
    with pytest.raises(ValueError, match=r'/rules/0/imput: a rule has no entry "imput". Did you mean "input"'):
        policy([{"imput": "e4m3"}])
    with pytest.raises(ht.FormatError, match='/rules/0/match/op: there is no operation named "sofmax". Did you mean "softmax"'):
        policy([{"match": {"op": "sofmax"}}])


def model_of(torch):
    torch.manual_seed(0)
    nn = torch.nn

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.body, self.head = nn.Conv2d(2, 4, 3), nn.Sequential(nn.Linear(16, 32), nn.ReLU()), nn.Linear(32, 4)

        def forward(self, x):
            h = self.body(self.conv(x).flatten(1))
            return self.head(h) + torch.matmul(h, self.head.weight.t())

    return Net(), torch.randn(8, 2, 4, 4)


def test_unruled_is_untouched(torch):
    model, x = model_of(torch)
    emulated = policy([]).apply(model, x)
    assert torch.equal(emulated(x), model(x))
    assert [p is q for p, q in zip(emulated.parameters(), model.parameters())]


def test_roles_by_hand(torch):
    """A linear layer under a rule for every role equals the same roundings by hand."""
    torch.manual_seed(0)
    layer, x = torch.nn.Linear(64, 32), torch.randn(16, 64, requires_grad=True)
    w, b = layer.weight, layer.bias
    rule = {"match": {"op": "linear"}, "input": "mxfp8", "weight": "mxfp4", "bias": "bf16", "output": "e5m10",
            "grad_output": "mxfp8-e5m2", "grad_input": "f16", "grad_weight": "bf16",
            "input.backward": "mxfp6", "weight.backward": "nvfp4", "grad_output.weight": "mxint8"}
    emulated = policy([rule]).apply(layer, x.detach())
    y = emulated(x)
    dy = torch.randn_like(y)
    y.backward(dy)
    q = lambda t, name, axis=-1: ht.quantize(t.detach(), name, axis=axis)
    expected = ht.round_to(torch.nn.functional.linear(q(x, "mxfp8"), q(w, "mxfp4"), q(b, "bf16")), "e5m10")
    assert torch.equal(y, expected)
    dx = q(q(dy, "mxfp8-e5m2") @ q(w, "nvfp4", 0), "f16")
    dw = q(q(dy, "mxint8", 0).t() @ q(x, "mxfp6", 0), "bf16")
    for got, wanted in ((x.grad, dx), (w.grad, dw), (b.grad, q(dy.sum(0), "bf16"))):
        assert torch.allclose(got, wanted, rtol=2**-7, atol=1e-6)
        assert (got == wanted).float().mean() > 0.99  # sums of another order may cross a midpoint


def test_rules_for_one_call_and_one_operand(torch):
    class Products(torch.nn.Module):
        def forward(self, q, k, v):
            return (q @ k) @ v

    torch.manual_seed(5)
    q, k, v = (torch.randn(4, 4, requires_grad=True) for _ in range(3))
    rule = {"match": {"op": "matmul", "ordinal": 1}, "input.1": "e2m1", "input.0.backward": "e4m3"}
    y = policy([rule]).apply(Products(), (q.detach(), k.detach(), v.detach()))(q, k, v)
    dy = torch.randn_like(y)
    y.backward(dy)
    p, rounded = (q @ k).detach(), ht.round_to(v.detach(), "e2m1")
    assert torch.equal(y, p @ rounded)
    dp = dy @ rounded.t()
    assert torch.allclose(v.grad, ht.round_to(p, "e4m3").t() @ dy) and not torch.allclose(v.grad, p.t() @ dy)
    assert torch.allclose(q.grad, dp @ k.detach().t()) and torch.allclose(k.grad, q.detach().t() @ dp)
    with pytest.raises(ht.UsageError, match="its ordinal is 2, and the largest ordinal of its operations is 1"):
        policy([{"match": {"op": "matmul", "ordinal": 2}, "input": "e2m1"}]).apply(Products(), (q, k, v))


def test_conv_and_matmul_blocks_run_along_sums(torch, root):
    model, x = model_of(torch)
    table = json.loads(json.dumps(policy([{"match": {"asks": "low_precision"}, "input": "mxfp8", "weight": "mxfp8"}]).resolved(model, x)))
    assert [s["site"] for s in table["sites"] if s["roles"]] == ["conv/conv2d.0", "body.0/linear.0", "head/linear.0", "/matmul.0"]
    text = ht.Policy.load(root / "amp" / "policies" / "te_current.json").resolve(model, x)
    assert "policy " + ht.Policy.load(root / "amp" / "policies" / "te_current.json").hash in text and "body.0/linear.0" in text
    conv = model.conv
    y = policy([{"match": {"op": "conv2d"}, "input": "mxfp8", "weight": "mxfp4"}]).apply(conv, x)(x)
    expected = torch.nn.functional.conv2d(ht.quantize(x, "mxfp8", axis=1), ht.quantize(conv.weight.detach(), "mxfp4", axis=1), conv.bias)
    assert torch.equal(y, expected)


def test_autocast_and_result(torch):
    model, x = model_of(torch)
    emulated = ht.Policy.named("amp-bf16").apply(model, x)
    y = emulated(x)
    assert y.dtype == torch.float32 and not torch.equal(y, model(x)) and torch.allclose(y, model(x), atol=0.05)
    y.sum().backward()
    assert all(p.grad.dtype == torch.float32 for p in model.parameters())


def test_stochastic_passes_differ_and_repeat(torch):
    model, x = model_of(torch)
    rules = policy([{"match": {"op": "linear"}, "input": {"format": "e2m1", "rounding": "stochastic"}}], seed=3)
    first, second = rules.apply(model, x), rules.apply(model, x)
    a, b = first(x), first(x)
    assert not torch.equal(a, b) and torch.equal(a, second(x)) and torch.equal(b, second(x))


def test_parts_of_a_model(torch):
    """<embedding>, <block> and <head> are the modules that the paths name."""
    torch.manual_seed(0)
    nn = torch.nn

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.steps = nn.Embedding(8, 16), nn.ModuleList(nn.Sequential(nn.Linear(16, 16), nn.ReLU()) for _ in range(2))
            self.norm, self.out = nn.LayerNorm(16), nn.Linear(16, 4)

        def forward(self, x):
            h = self.words(x)
            for step in self.steps:
                h = h + step(h)
            return self.out(self.norm(h))

    model, x = Net(), torch.arange(8)
    under = lambda path, role: policy([{"match": {"path": path}, role: "e2m1"}]).apply(model, x)(x)
    for part, path, role in (("<embedding>", "words", "weight"), ("<block>.**", "steps.**", "weight"), ("<head>", "out", "output")):
        assert torch.equal(under(part, role), under(path, role))
        assert not torch.equal(under(part, role), model(x))


def test_inside_of_attention_is_refused(torch, root):
    class Net(torch.nn.Module):
        def forward(self, x):
            return torch.nn.functional.scaled_dot_product_attention(x, x, x)

    x = torch.randn(1, 1, 4, 4)
    rules = [{"match": {"op": "scaled_dot_product_attention"}, "key": "e4m3"}]
    with pytest.raises(ht.UnsupportedError, match="a rule is for the inside of attention, which is computed as a whole here"):
        policy(rules).apply(Net(), x)(x)


def test_steps_and_history(torch):
    model, x = model_of(torch)
    rules = policy([{"match": {"op": "linear", "steps": [1, None]}, "weight": "e2m1"}])
    emulated = rules.apply(model, x)
    assert torch.equal(emulated(x), model(x))
    emulated.end_step()
    assert not torch.equal(emulated(x), model(x))
    delayed = policy([{"match": {"op": "linear"}, "input": {"format": "e4m3", "scale": {"per": "tensor", "from": "history"}}}])
    emulated = delayed.apply(model, x)
    before = emulated(x)
    emulated.end_step()
    assert not torch.equal(before, emulated(x))


def test_errors(torch, root):
    model, x = model_of(torch)
    with pytest.raises(ht.UsageError, match=r'rule 0 \("r"\) matches nothing in this model.*The nearest is "head"'):
        policy([{"name": "r", "match": {"path": "heed"}, "input": "e4m3"}]).apply(model, x)
    with pytest.raises(NotImplementedError, match="weights are bf16"):
        ht.Policy.named("full-bf16").apply(model, x)
    with pytest.raises(ht.UnsupportedError, match="accumulate"):
        ht.Policy.load(root / "amp" / "policies" / "deepseek_v3_accumulator.json").apply(model, x)
    with pytest.raises(ht.UnsupportedError, match='a rule has "learned", which Python does not emulate'):
        ht.Policy.load(root / "amp" / "policies" / "lsq_4bit.json").apply(model, x)
    with pytest.raises(ht.DTypeError, match="parameter conv.weight is torch.float64"):
        policy([]).apply(model.double(), x)
    model.float()
    with pytest.raises(ht.UsageError, match="f32 scales, which bf16 does not hold exactly"):
        policy([{"match": {"op": "linear"}, "input": "fp8_block"}], extends="amp-bf16").apply(model, x)
    with pytest.raises(ht.DTypeError, match=r"\[linear\] dtypes differ: .* bf16 and .* f32. Cast one of them"):
        policy([{"match": {"op": "linear"}, "result": "bf16"}]).apply(model, x)
    emulated = policy([]).apply(model, x)
    with pytest.raises(RuntimeError):
        emulated(x[:, :1])
    assert torch.equal(emulated(x), model(x))  # an exception leaves nothing open


@pytest.mark.parametrize("name", ["mxfp8", "mxfp6", "te_current", "te_delayed_hybrid", "mxfp4", "mxfp4_backward", "qpytorch_low8"])
def test_shipped_policies_train(torch, root, name):
    """Every parameter gets a finite gradient, and steps of an optimizer are followed."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 4))
    x, target = torch.randn(64, 64), torch.randint(4, (64,))
    try:
        emulated = ht.Policy.load(root / "amp" / "policies" / f"{name}.json").apply(model, x)
    except ht.UnsupportedError as error:
        assert "optimizer" in str(error)
        return
    sgd = torch.optim.SGD(model.parameters(), 0.1)
    losses = []
    for _ in range(20):
        loss = torch.nn.functional.cross_entropy(emulated(x), target)
        sgd.zero_grad(), loss.backward(), sgd.step(), emulated.end_step()
        losses.append(loss.item())
    assert all(np.isfinite(losses)) and losses[-1] < 0.8 * losses[0]


def test_shared_and_replaced_parameters(torch):
    a = torch.nn.Linear(8, 8)
    model = torch.nn.Sequential(a, torch.nn.Linear(8, 8))
    model[1].weight = a.weight
    x = torch.randn(4, 8)
    emulated = policy([{"weight": "e2m1"}]).apply(model, x)
    emulated(x)
    with torch.no_grad():
        for p in model.parameters():
            p.data = p.data.clone() + 1
    assert "weight=" in emulated.table()
    w = ht.quantize(a.weight.detach(), "e2m1")
    F = torch.nn.functional
    assert torch.equal(emulated(x), F.linear(F.linear(x, w, a.bias), w, model[1].bias))


def test_read_runs(tmp_path):
    run = tmp_path / "w-p-0"
    run.mkdir()
    (run / "summary.json").write_text(
        '{"format": 1, "policy": "p", "policy_hash": "0123456789abcdef", "workload": "w", "seed": 0, "steps": 2, '
        '"lr": 0.1, "loss": null, "late_loss": null, "milliseconds_per_step": 1, "skipped_steps": 0, '
        '"weights_hash": "0123456789abcdef"}'
    )
    (run / "metrics.jsonl").write_text('{"step": 1, "loss": 2.5}\n{"step": 2, "loss": 2.25}\n')
    rows = ht.read_runs(str(tmp_path / "*"))
    rows = rows if isinstance(rows, list) else rows.to_dict("records")
    assert [r["value"] for r in rows if r["statistic"] == "loss"] == [2.5, 2.25]
    with pytest.raises(ht.FormatError):
        ht.read_runs(str(tmp_path / "nothing"))
