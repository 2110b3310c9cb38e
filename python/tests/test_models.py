"""Models under a policy as programs use them: random operations, threads, replaced modules, copies, files."""
import concurrent.futures
import copy
import io
import pickle
import threading

import pytest

import halftone as ht


def policy(rules, **more):
    return ht.Policy.parse({"halftone_policy": 1, "name": "t", "rules": rules, **more})


ROUNDED = [{"match": {"op": "linear"}, "input": "e2m3", "weight": "e4m3", "grad_output": "e5m2"}]
STOCHASTIC = [{"match": {"op": "linear"}, "input": {"format": "e2m1", "rounding": "stochastic", "scale": {"per": "tensor", "from": "history"}},
               "weight": "e4m3"}]


def layers(torch, *sizes):
    torch.manual_seed(0)
    parts = [torch.nn.Linear(a, b) for a, b in zip(sizes, sizes[1:])]
    return torch.nn.Sequential(*[each for part in parts for each in (part, torch.nn.Tanh())][:-1])


# --- random operations

def test_uses_of_dropout_have_one_mask(torch):
    layer, x = torch.nn.Dropout(0.5), torch.randn(64, 64, requires_grad=True)
    emulated = policy([{"match": {"op": "dropout"}, "input.backward": "e2m1"}]).apply(layer, x.detach())
    torch.manual_seed(4)
    y, after = emulated(x), torch.rand(1)
    y.sum().backward()
    assert torch.equal(x.grad != 0, y != 0)
    torch.manual_seed(4)
    assert torch.equal(y, layer(x)) and torch.equal(after, torch.rand(1))  # nothing more is drawn


def test_uses_of_attention_have_one_mask(torch):
    class Net(torch.nn.Module):
        def forward(self, x, v):
            return torch.nn.functional.scaled_dot_product_attention(x, x, v, dropout_p=0.5)

    torch.manual_seed(1)
    x, v = torch.zeros(1, 32, 32), torch.eye(32)[None].requires_grad_()
    emulated = policy([{"match": {"op": "scaled_dot_product_attention"}, "input.backward": "e4m3"}]).apply(Net(), (x, v.detach()))
    y = emulated(x, v)
    y.backward(torch.eye(32)[None])  # the gradient of v is the transposed matrix of weights, whose diagonal y has
    weights = y.detach()[0]
    assert torch.equal(v.grad[0].diagonal() != 0, weights.diagonal() != 0) and (weights == 0).any()


def test_uses_of_dropout_in_a_segment(torch):
    from torch.utils.checkpoint import checkpoint

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.drop = torch.nn.Dropout(0.5)

        def forward(self, x):
            return checkpoint(lambda x: self.drop(x * 1) * 1, x, use_reentrant=False)

    x = torch.randn(64, 64, requires_grad=True)
    y = policy([{"match": {"op": "dropout"}, "input.backward": "e2m1"}]).apply(Net(), x.detach())(x)
    y.sum().backward()
    assert torch.equal(x.grad != 0, y != 0)


# --- threads

@pytest.mark.parametrize("train", [True, False])
def test_threads_call_one_module(torch, train):
    """Results and gradients are those of the same calls in one thread."""
    model, rules = layers(torch, 32, 64, 64, 8), policy(ROUNDED)
    xs = [torch.randn(16, 32) for _ in range(48)]
    emulated = rules.apply(model, xs[0])

    def one(x):
        with torch.set_grad_enabled(train):
            x = x.clone().requires_grad_(train)
            y = emulated(x)
            return (y, *torch.autograd.grad(y.square().sum(), [x, *model.parameters()])) if train else (y,)

    expected = [one(x) for x in xs]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for got, wanted in zip(pool.map(one, xs), expected):
            assert all(torch.equal(a, b) for a, b in zip(got, wanted, strict=True))


def test_threads_with_segments_and_the_plain_model(torch):
    """Threads that run two policies, the model itself, and segments again do not disturb each other."""
    from torch.utils.checkpoint import checkpoint

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inside = layers(torch, 16, 32, 4)

        def forward(self, x):
            return checkpoint(self.inside, x, use_reentrant=False)

    model, x = Net(), torch.randn(8, 16)
    networks = [policy(ROUNDED).apply(model), policy([{"match": {"op": "linear"}, "weight": "e3m2"}]).apply(model), model]
    one = lambda network: torch.autograd.grad(network(x).square().sum(), list(model.parameters()))
    expected = [one(network) for network in networks]
    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        for got, wanted in zip(pool.map(one, networks * 20), expected * 20):
            assert all(torch.equal(a, b) for a, b in zip(got, wanted, strict=True))


def test_a_thread_that_fails(torch):
    model, x = layers(torch, 8, 8), torch.randn(4, 8)
    emulated = policy(ROUNDED).apply(model)
    expected, errors = emulated(x), []

    def fail():
        try:
            emulated(x[:, :3])
        except RuntimeError as error:
            errors.append(error)

    threads = [threading.Thread(target=fail) for _ in range(8)]
    [t.start() for t in threads], [t.join() for t in threads]
    assert len(errors) == 8 and torch.equal(emulated(x), expected)


# --- replaced modules

@pytest.mark.parametrize("kind", ["same", "wider", "deeper", "tied", "parameter"])
def test_replaced_modules_have_rules(torch, kind):
    model, x = layers(torch, 8, 16, 8, 4), torch.randn(4, 8)
    rules = policy([{"match": {"path": "2.**"}, "weight": "e2m3", "input": "e2m3"}, {"match": {"path": "4"}, "weight": "e3m2"}])
    emulated = rules.apply(model, x)
    emulated(x)
    if kind == "same":
        model[2] = torch.nn.Linear(16, 8)
    elif kind == "wider":
        model[2], model[4] = torch.nn.Linear(16, 24), torch.nn.Linear(24, 4)
    elif kind == "deeper":
        model[2] = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Linear(16, 8, bias=False))
    elif kind == "tied":
        model[2] = torch.nn.Linear(16, 8)
        model[2].weight = torch.nn.Parameter(model[0].weight.detach().t().clone())
    else:
        model[4].bias = None
    y = emulated(x)
    y.sum().backward()
    assert torch.equal(y, rules.apply(model, x)(x)) and not torch.equal(y, model(x))
    assert all(p.grad is not None for p in model.parameters())


def test_a_replacement_keeps_steps_and_scales(torch):
    model, x = layers(torch, 8, 16, 8), torch.randn(4, 8)
    rules = policy([{"match": {"op": "linear", "steps": [1, None]}, "weight": "e2m1"}])
    emulated = rules.apply(model, x)
    emulated(x), emulated.end_step()
    model[0] = torch.nn.Linear(8, 16)
    assert not torch.equal(emulated(x), model(x))


# --- copies and files

def saved(torch, module):
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("way", ["deepcopy", "pickle", "torch.save", "inside"])
def test_copies(torch, way):
    """A copy has parameters of its own, the policy, and the session's steps, passes and scales."""
    ways = {"deepcopy": copy.deepcopy, "pickle": lambda m: pickle.loads(pickle.dumps(m)), "torch.save": lambda m: saved(torch, m),
            "inside": lambda m: copy.deepcopy(torch.nn.Sequential(m))[0]}
    model, x = layers(torch, 8, 16, 8), torch.randn(4, 8)
    rules = policy(STOCHASTIC + [{"match": {"op": "linear", "steps": [1, None]}, "weight": "e3m2"}], seed=3)
    emulated = rules.apply(model, x)
    for _ in range(3):
        emulated(x * 2), emulated.end_step()
    other = ways[way](emulated.eval().train())
    assert not set(map(id, other.parameters())) & set(map(id, emulated.parameters()))
    for _ in range(2):
        assert torch.equal(other(x), emulated(x))
        other.end_step(), emulated.end_step()
    with torch.no_grad():
        next(other.parameters()).zero_()
    assert not torch.equal(other(x), emulated(x)) and "e3m2" in other.table()


def test_copies_of_policies_and_formats():
    rules = policy(ROUNDED, seed=5)
    for again in (copy.deepcopy(rules), copy.copy(rules), pickle.loads(pickle.dumps(rules))):
        assert again.hash == rules.hash and again.name == "t"
    for each in (ht.Format("e4m3"), ht.Format("e3m4"), ht.Format("int5")):
        assert copy.deepcopy(each) == each == pickle.loads(pickle.dumps(each))
    assert pickle.loads(pickle.dumps(ht.Quantizer("nvfp4"))).what == copy.deepcopy(ht.Quantizer("nvfp4")).what == ht.Quantizer("nvfp4").what
