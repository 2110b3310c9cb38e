"""A GPT of PyTorch and the GPT of C++ with the same weights, under the same policies.

HALFTONE_GPT_GRADIENTS is the program gpt_gradients (run.sh sets it).
"""
import json
import os
import struct
import subprocess

import numpy as np
import pytest
from read_vectors import read

import halftone as ht

PROGRAM = os.environ.get("HALFTONE_GPT_GRADIENTS")
HEADS, WIDTH, CONTEXT, LAYERS, WORDS = 2, 64, 16, 2, 40


def write(path, tensors):
    """Writes a .safetensors file of f32 and i64 arrays."""
    header, data, end = {}, b"", 0
    for name, x in tensors.items():
        raw = np.ascontiguousarray(x).tobytes()
        header[name] = {"dtype": {"float32": "F32", "int64": "I64"}[x.dtype.name], "shape": list(x.shape), "data_offsets": [end, end + len(raw)]}
        data, end = data + raw, end + len(raw)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def gpt(torch):
    nn, F = torch.nn, torch.nn.functional

    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.c_attn, self.c_proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

        def forward(self, x):
            q, k, v = (t.reshape(*x.shape[:2], HEADS, -1).transpose(1, 2) for t in self.c_attn(x).split(WIDTH, 2))
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            return self.c_proj(y.transpose(1, 2).reshape(x.shape))

    class Mlp(nn.Module):
        def __init__(self):
            super().__init__()
            self.c_fc, self.c_proj = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

        def forward(self, x):
            return self.c_proj(F.gelu(self.c_fc(x), approximate="tanh"))

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.ln_1, self.attn, self.ln_2, self.mlp = nn.LayerNorm(WIDTH), Attention(), nn.LayerNorm(WIDTH), Mlp()

        def forward(self, x):
            y = x + self.attn(self.ln_1(x))
            return y + self.mlp(self.ln_2(y))

    class Gpt(nn.Module):
        def __init__(self):
            super().__init__()
            self.transformer = nn.ModuleDict(dict(wte=nn.Embedding(WORDS, WIDTH), wpe=nn.Embedding(CONTEXT, WIDTH),
                                                  h=nn.ModuleList(Block() for _ in range(LAYERS)), ln_f=nn.LayerNorm(WIDTH)))
            self.lm_head = nn.Linear(WIDTH, WORDS, bias=False)
            self.lm_head.weight = self.transformer.wte.weight

        def forward(self, tokens):
            t = self.transformer
            x = t.wte(tokens) + t.wpe.weight[: tokens.shape[1]]
            for block in t.h:
                x = block(x)
            return self.lm_head(t.ln_f(x))

    torch.manual_seed(0)
    model = Gpt()
    with torch.no_grad():
        for x in model.parameters():
            x.copy_(torch.randn(x.shape) * 0.1 + (0.5 if x.dim() == 1 else 0))
    return model


def error(a, b):
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))


# Every role and use, in f32: nothing but the order of sums differs from C++.
ROLES = {"match": {"op": "linear"}, "input": "mxfp8", "weight": "mxfp6", "bias": "bf16", "output": "e5m10", "grad_output": "mxfp8-e5m2",
         "grad_input": "f16", "grad_weight": "bf16", "input.backward": "mxfp6-e3m2", "weight.backward": "fp8_block", "grad_output.weight": "mxint8"}
OWN = {
    "roles": [ROLES],
    "history": [{"match": {"op": "linear"}, "input": {"format": "e4m3", "scale": {"per": "tensor", "from": "history"}}}],
    "stochastic": [{"match": {"op": "linear"}, "grad_output": {"format": "e5m2", "rounding": "stochastic"},
                    "input": {"format": "e4m3", "rounding": "stochastic", "random_bits": 8}}],
    "rotated": [{"match": {"op": "linear"}, "grad_output.weight": {"format": "e2m1", "hadamard": 16, "scale": {"per": "tensor"}}}],
    "others": [{"match": {"op": ["layer_norm", "gelu", "add", "embedding"]}, "output": "bf16", "grad_output": "bf16"},
               {"match": {"op": "scaled_dot_product_attention"}, "input": "mxfp8", "output": "bf16", "grad_output": "bf16"}],
    "result": [{"match": {"op": "linear", "path": "lm_head"}, "result": "bf16", "grad_output": "e5m2"}],
}
SHIPPED = ["fp32", "tf32", "amp-bf16", "mxfp8", "mxfp6", "te_current", "te_delayed_hybrid", "deepseek_v3", "mxfp4_backward", "nvfp4"]


@pytest.mark.skipif(not PROGRAM, reason="HALFTONE_GPT_GRADIENTS is not set: the program of C++ is not there")
@pytest.mark.parametrize("name", [*OWN, *SHIPPED])
def test_against_cpp(torch, root, tmp_path, name):
    model = gpt(torch)
    tokens, targets = torch.randint(WORDS, (4, CONTEXT)), torch.randint(WORDS, (4, CONTEXT))
    state = {k: v.numpy() for k, v in model.state_dict().items()}
    write(tmp_path / "in.safetensors", state | {"tokens": tokens.numpy(), "targets": targets.numpy()})
    path = root / "amp" / "policies" / f"{name}.json"
    if name in OWN:
        path = tmp_path / "own.json"
        path.write_text(json.dumps({"halftone_policy": 1, "name": name, "seed": 5, "rules": OWN[name]}))
    ran = subprocess.run([PROGRAM, tmp_path / "in.safetensors", path, str(HEADS), tmp_path / "out.safetensors"],
                         capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    expected, _ = read(tmp_path / "out.safetensors")
    there = json.loads(ran.stdout)

    policy = ht.Policy.load(path)
    here = policy.resolved(model, tokens)

    def rows(table):
        keys = ("site", "parameter", "asks", "computes_in", "roles", "rules", "treatment")
        ops = ("linear", "scaled_dot_product_attention", "layer_norm", "gelu", "add")
        return [{k: s[k] for k in keys} for s in table["sites"] if s["op"] in ops]

    assert len(rows(here)) == 10 * LAYERS + 3
    assert rows(here) == rows(there)
    assert here["rules"] == there["rules"]

    def gradients(network):
        model.zero_grad()
        logits = network(tokens)
        torch.nn.functional.cross_entropy(logits.reshape(-1, WORDS), targets.reshape(-1)).backward()
        return {"logits": logits.detach().numpy()} | {"grad." + k: x.grad.numpy().copy() for k, x in model.named_parameters()}

    got, plain = gradients(policy.apply(model, tokens)), gradients(model)
    differences = {key: error(x, expected[key]) for key, x in got.items()}
    effects = {key: error(plain[key], expected[key]) for key in got}
    key = max(differences, key=differences.get)
    print(f"{name}: differs from C++ by at most {differences[key]:.2g} ({key}); from f32 by {effects[key]:.2g} there")
    if name in ("fp32", *OWN):
        assert max(differences.values()) <= (2e-6 if name == "fp32" else 3e-3)
    # Sums of another order move numbers across midpoints of bf16, and from layer to layer more of them: after ten
    # roundings both have the policy's noise, each its own.
    assert all(differences[key] <= 1.5 * effects[key] + 2e-6 for key in got)
