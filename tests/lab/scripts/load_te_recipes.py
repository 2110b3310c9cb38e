"""Loads modules that `halftone-lab export --to te` wrote, with stand-ins for TransformerEngine's classes that check
their arguments by the signatures of version 2.20, and asks for the quantizers of every layer.

    python3 load_te_recipes.py FOLDER...
"""
import importlib.util
import sys
import types
from pathlib import Path

SIGNATURES = {  # module, class, arguments
    "common.recipe": {"CustomRecipe": {"qfactory"}},
    "pytorch.quantization": {
        "DelayedScalingRequest": {"fp8_format", "margin", "amax_history_len", "amax_compute_algo",
                                  "scaling_factor_compute_algo", "reduce_amax"}},
    "pytorch.tensor.float8_tensor": {
        "Float8CurrentScalingQuantizer": {"fp8_dtype", "device", "rowwise", "columnwise", "use_existing_amax",
                                          "with_amax_reduction", "amax_reduction_group", "force_pow_2_scales",
                                          "amax_epsilon", "scale", "amax"}},
    "pytorch.tensor.float8_blockwise_tensor": {
        "Float8BlockQuantizer": {"fp8_dtype", "rowwise", "columnwise", "amax_epsilon", "force_pow_2_scales",
                                 "block_scaling_dim"}},
    "pytorch.tensor.mxfp8_tensor": {"MXFP8Quantizer": {"fp8_dtype", "rowwise", "columnwise", "with_2d_quantization"}},
    "pytorch.tensor.nvfp4_tensor": {
        "NVFP4Quantizer": {"fp4_dtype", "rowwise", "columnwise", "with_amax_reduction", "amax_reduction_group", "with_rht",
                           "with_post_rht_amax", "with_2d_quantization", "stochastic_rounding", "row_scaled_nvfp4",
                           "nvfp4_use_4over6", "nvfp4_e4m3_max", "nvfp4_4over6_err_mode", "with_random_sign_mask"}},
    "pytorch.tensor.hybrid_tensor": {"HybridQuantizer": {"rowwise_quantizer", "columnwise_quantizer", "columnwise_source"}},
    "pytorch.tensor.identity_tensor": {"IdentityQuantizer": set()},
}


def stand_in(name, arguments):
    def __init__(self, **given):
        assert set(given) <= arguments, f"{name} has no {set(given) - arguments}"
        self.__dict__.update(given)
        if name == "HybridQuantizer":
            assert self.columnwise_source in ("original", "rowwise_dequantized")
            for part in (self.rowwise_quantizer, self.columnwise_quantizer):
                assert type(part).__name__ not in ("HybridQuantizer", "DelayedScalingRequest"), "no part of a hybrid"
        if name == "NVFP4Quantizer":
            assert given.get("nvfp4_e4m3_max", 448) in (448, 256)

    return type(name, (), {"__init__": __init__})


def install():
    def module(name):
        sys.modules[name] = types.ModuleType(name)
        return sys.modules[name]

    for name in ("transformer_engine", "transformer_engine.common", "transformer_engine.pytorch",
                 "transformer_engine.pytorch.tensor"):
        module(name)
    for name, classes in SIGNATURES.items():
        made = module("transformer_engine." + name)
        for one, arguments in classes.items():
            setattr(made, one, stand_in(one, arguments))
    sys.modules["transformer_engine.common.recipe"].Format = types.SimpleNamespace(E4M3="e4m3", HYBRID="hybrid")
    module("transformer_engine.pytorch.constants").DType = types.SimpleNamespace(
        kFloat8E4M3=1, kFloat8E5M2=2, kFloat4E2M1=3)
    module("torch").device = lambda name: name


install()
role = lambda **fields: types.SimpleNamespace(**fields)
quantized = 0
for folder in sys.argv[1:]:
    spec = importlib.util.spec_from_file_location("recipe_" + Path(folder).name, Path(folder) / "te_recipe.py")
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    factory = made.recipe().qfactory
    kinds = {type(factory(role(module_type="linear", tensor_type=slot, name=layer))).__name__
             for layer in made.LAYERS for slot in made.SLOTS}
    quantized += kinds != {"IdentityQuantizer"}
    for other in (None, role(module_type="", tensor_type="", name=""), role(module_type="dpa", tensor_type="qkv", name="x")):
        assert type(factory(other)).__name__ == "IdentityQuantizer"
    assert (Path(folder) / "proof.safetensors").stat().st_size > 1000
print(f"{len(sys.argv) - 1} recipes were loaded, {quantized} of them quantize")
