"""Checkpointed segments: backward runs them again under the policy of the first run."""
import pytest

import halftone as ht

STOCHASTIC = [{"match": {"op": "linear"}, "input": {"format": "e2m1", "rounding": "stochastic", "scale": {"per": "tensor"}},
               "weight": "e2m3", "grad_output": {"format": "e5m2", "rounding": "stochastic"}}]
ROUNDED = [{"match": {"op": "linear"}, "input": "e2m3", "weight": "e4m3", "grad_output": "e5m2"}]
pytestmark = pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
FORMS = ["none", "reentrant", "not reentrant", "early stop off", "sequential", "nested"]


def policy(rules, **more):
    return ht.Policy.parse({"halftone_policy": 1, "name": "t", "rules": rules, **more})


def blocks_of(torch, form, linear):
    from torch.utils import checkpoint as c

    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.down, self.drop = linear(16, 32), linear(32, 16), torch.nn.Dropout(0.25)

        def forward(self, x):
            return x + self.drop(self.down(torch.tanh(self.up(x))))

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks, self.head = torch.nn.Sequential(Block(), Block(), Block()), linear(16, 4)

        def forward(self, x):
            if form == "sequential":
                return self.head(c.checkpoint_sequential(self.blocks, 2, x, use_reentrant=False))
            for block in self.blocks:
                if form == "none":
                    x = block(x)
                elif form == "nested":
                    inner = lambda x, block=block: c.checkpoint(block, x, use_reentrant=False) * 2
                    x = c.checkpoint(inner, x, use_reentrant=False) / 2
                elif form == "early stop off":
                    with c.set_checkpoint_early_stop(False):
                        x = c.checkpoint(block, x, use_reentrant=False)
                else:  # the block's own layer runs inside of the segment of a function
                    x = c.checkpoint(lambda x, block=block: block(x), x, use_reentrant=form == "reentrant")
            return self.head(x)

    torch.manual_seed(3)
    return Net()


def gradients(torch, network, model, x, passes=2):
    torch.manual_seed(8)
    found = []
    for _ in range(passes):
        model.zero_grad()
        input = x.clone().requires_grad_()
        y = network(input)
        y.square().sum().backward()
        found += [y.detach(), input.grad.clone(), *(p.grad.clone() for p in model.parameters())]
    return found


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("rules", [STOCHASTIC, ROUNDED])
def test_gradients_of_segments(torch, form, rules):
    x = torch.randn(8, 16, generator=torch.Generator().manual_seed(1))
    plain, cut = (blocks_of(torch, each, torch.nn.Linear) for each in ("none", form))
    rules = policy(rules, seed=3)
    expected = gradients(torch, rules.apply(plain, x), plain, x)
    for got, wanted in zip(gradients(torch, rules.apply(cut, x), cut, x), expected, strict=True):
        assert torch.equal(got, wanted)


@pytest.mark.parametrize("form", FORMS)
def test_gradients_by_hand(torch, form):
    """The same as a model without halftone's modules whose layers round their own tensors."""
    q = lambda t, name: ht.round_to(t.detach(), name)

    class Rounded(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, w, b):
            ctx.save_for_backward(q(x, "e2m3"), q(w, "e4m3"))
            return torch.nn.functional.linear(q(x, "e2m3"), q(w, "e4m3"), b)

        @staticmethod
        def backward(ctx, dy):
            x, w = ctx.saved_tensors
            return q(dy, "e5m2") @ w, q(dy, "e5m2").t() @ x, dy.sum(0)

    class Layer(torch.nn.Linear):
        def forward(self, x):
            return Rounded.apply(x, self.weight, self.bias)

    x = torch.randn(8, 16, generator=torch.Generator().manual_seed(1))
    by_hand, model = blocks_of(torch, form, Layer), blocks_of(torch, form, torch.nn.Linear)
    expected = gradients(torch, by_hand, by_hand, x)
    got = gradients(torch, policy(ROUNDED).apply(model, x), model, x)
    for a, b in zip(got, expected, strict=True):
        assert (a - b).norm() <= 2e-3 * b.norm()


def test_segments_without_a_policy(torch):
    """Checkpoints outside of model(...) stay as they are, also for a model that has been under a policy."""
    x = torch.randn(8, 16)
    plain, cut = (blocks_of(torch, each, torch.nn.Linear) for each in ("none", "reentrant"))
    policy(ROUNDED).apply(cut, x)(x)
    for a, b in zip(gradients(torch, cut, cut, x), gradients(torch, plain, plain, x), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("reentrant", [True, False])
def test_late_and_repeated_backward(torch, reentrant):
    """Backward of a pass after a later one, twice, and from another thread."""
    import threading

    from torch.utils.checkpoint import checkpoint

    class Net(torch.nn.Module):
        def __init__(self, cut):
            super().__init__()
            self.a, self.cut = torch.nn.Linear(16, 16), cut

        def forward(self, x):
            run = lambda x: torch.tanh(self.a(torch.tanh(self.a(x))))  # two sites
            return checkpoint(run, x, use_reentrant=reentrant) if self.cut else run(x)

    results = []
    for cut in (False, True):
        torch.manual_seed(2)
        model, x = Net(cut), torch.randn(4, 16)
        emulated = policy(STOCHASTIC, seed=1).apply(model, x)
        first, second = emulated(x.requires_grad_()), emulated(x)
        first.sum().backward(retain_graph=True)
        first.sum().backward()
        thread = threading.Thread(target=lambda: second.sum().backward())
        thread.start(), thread.join()
        results.append([x.grad, *(p.grad for p in model.parameters())])
    for a, b in zip(*results, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_module_under_a_policy_in_a_segment(torch, reentrant):
    """A segment that calls whole modules under policies runs their first passes again."""
    from torch.utils.checkpoint import checkpoint

    class Around(torch.nn.Module):
        def __init__(self, inside, cut):
            super().__init__()
            self.inside, self.cut = inside, cut

        def forward(self, x):
            run = lambda x: self.inside(torch.tanh(self.inside(x) @ torch.ones(4, 16))) * 2
            return checkpoint(run, x, use_reentrant=reentrant) if self.cut else run(x)

    results = []
    for cut in (False, True):
        model, x = blocks_of(torch, "none", torch.nn.Linear), torch.randn(8, 16, generator=torch.Generator().manual_seed(1))
        network = Around(policy(STOCHASTIC, seed=3).apply(model, x), cut)
        results.append(gradients(torch, network, model, x))
        with torch.no_grad():
            results[-1] += [network(x), network(x)]
    for a, b in zip(*results, strict=True):
        assert torch.equal(a, b)
    assert not torch.equal(results[0][0], results[0][-1])  # rules rest in evaluation


def test_a_policy_inside_of_another_is_refused(torch):
    model, x = torch.nn.Linear(8, 8), torch.randn(2, 8)
    inside = policy([{"weight": "e4m3"}]).apply(model)
    outside = policy([{"weight": "e4m3"}]).apply(torch.nn.Sequential(torch.nn.Linear(8, 8), inside))
    with pytest.raises(ht.UsageError, match="is called inside of another one. Put one policy on the whole model"):
        outside(x)
    assert torch.equal(inside(x), policy([{"weight": "e4m3"}]).apply(model)(x))
