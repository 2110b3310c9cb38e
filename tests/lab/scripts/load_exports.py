"""Loads modules that `halftone-lab export` wrote, and asks them for what each layer gets. TransformerEngine has stand-ins
here, whose classes check their arguments by the signatures of version 2.20. torchao and Model-Optimizer are used if Python
finds them: then each module converts a model with layers of its names, and its check() finds the numbers that it promises.

    python3 load_exports.py te|torchao|modelopt FOLDER...
"""
import importlib.util
import sys
import types
from pathlib import Path

TE = {  # module, class, arguments
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
TORCHAO = {
    "float8": {
        "CastConfig": {"scaling_type", "scaling_granularity", "target_dtype"},
        "Float8LinearConfig": {"cast_config_input", "cast_config_input_for_grad_weight", "cast_config_weight",
                               "cast_config_weight_for_grad_input", "cast_config_grad_output",
                               "cast_config_grad_output_for_grad_weight", "round_scales_to_power_of_2"}},
    "prototype.blockwise_fp8_training.linear": {"Float8BlockwiseLinearConfig": set()},
    "prototype.moe_training.config": {
        "MXFP8TrainingOpConfig": {"kernel_preference", "out_dtype", "wgrad_with_hp", "scale_calculation_mode"}},
    "prototype.moe_training.nvfp4_training.nvfp4_training": {"NVFP4TrainingConfig": {"rht_sign_vector"}},
    "prototype.mx_formats": {"ScaleCalculationMode": set()},
    "prototype.qat": {"MXFakeQuantizeConfig": {"dtype", "block_size", "scaling_mode"},
                      "NVFP4FakeQuantizeConfig": {"use_per_tensor_scale"}},
    "quantization.qat": {"QATConfig": {"activation_config", "weight_config"}},
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


def install(package, signatures):
    for name, classes in signatures.items():
        whole = package
        for part in [""] + name.split("."):
            whole += "." * bool(part) + part
            sys.modules.setdefault(whole, types.ModuleType(whole))
        for one, arguments in classes.items():
            setattr(sys.modules[whole], one, stand_in(one, arguments))


def here(package):
    return importlib.util.find_spec(package) is not None


def load(folder, file):
    spec = importlib.util.spec_from_file_location("exported", Path(folder) / file)
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    assert (Path(folder) / "proof.safetensors").stat().st_size > 1000
    return made


def model_of(layers):
    import torch

    root = torch.nn.Module()
    for path in list(layers) + ["unnamed"]:
        at, names = root, path.split(".")
        for name in names[:-1]:
            if not hasattr(at, name):
                at.add_module(name, torch.nn.Module())
            at = getattr(at, name)
        at.add_module(names[-1], torch.nn.Linear(256, 128, bias=False))
    return root


def agrees(made):
    """Whether check() finds the same bits; or, if the module says that scales are rounded otherwise, few other steps."""
    most = (32768, 1000) if "rounds scales otherwise" in made.__doc__ else (0, 0)
    found = made.check()
    return found and all(count <= limit for counts in found.values() for count, limit in zip(counts, most))


def te(folders):
    install("transformer_engine", TE)
    sys.modules["transformer_engine.common.recipe"].Format = types.SimpleNamespace(E4M3="e4m3", HYBRID="hybrid")
    install("transformer_engine", {"pytorch.constants": {}})
    sys.modules["transformer_engine.pytorch.constants"].DType = types.SimpleNamespace(
        kFloat8E4M3=1, kFloat8E5M2=2, kFloat4E2M1=3)
    sys.modules["torch"] = types.SimpleNamespace(device=lambda name: name)
    role = lambda **fields: types.SimpleNamespace(**fields)
    quantize = 0
    for folder in folders:
        made = load(folder, "te_recipe.py")
        factory = made.recipe().qfactory
        kinds = {type(factory(role(module_type="linear", tensor_type=slot, name=layer))).__name__
                 for layer in made.LAYERS for slot in made.SLOTS}
        quantize += kinds != {"IdentityQuantizer"}
        for other in (None, role(module_type="", tensor_type="", name=""), role(module_type="dpa", tensor_type="qkv", name="x")):
            assert type(factory(other)).__name__ == "IdentityQuantizer"
    return quantize, 0


def torchao(folders):
    real = here("torchao")
    converted = []
    if not real:
        def convert(model, config, filter_fn=None, module_filter_fn=None):
            converted.extend(name for name in model if (filter_fn or module_filter_fn)(None, name))

        install("torchao", TORCHAO)
        sys.modules["torchao.prototype.mx_formats"].ScaleCalculationMode = ("floor", "ceil", "rceil", "even").index
        sys.modules["torchao.float8"].ScalingType = types.SimpleNamespace(DISABLED=0)
        sys.modules["torchao.float8"].convert_to_float8_training = sys.modules["torchao.quantization"].quantize_ = convert
        sys.modules["torch"] = types.SimpleNamespace(float8_e4m3fn=1, float8_e5m2=2, float4_e2m1fn_x2=3)
    quantize = checked = 0
    for folder in folders:
        made = load(folder, "torchao_config.py")
        wanted = [layer for layer, makers in made.LAYERS.items() if made.MAKERS[makers[0]]() is not None]
        quantize += bool(wanted)
        if real:
            import torch

            plain = lambda module: type(module) is torch.nn.Linear and type(module.weight.data) is torch.Tensor
            model = made.apply(model_of(made.LAYERS))
            converted = [layer for layer in made.LAYERS if not plain(model.get_submodule(layer))]
            assert plain(model.unnamed)
            if wanted and "rotates in bf16" not in made.__doc__:  # that needs a B200
                assert agrees(made), (folder, made.check())
                checked += 1
        else:
            converted.clear()
            made.apply(list(made.LAYERS) + ["unnamed"])
        assert sorted(converted) == sorted(wanted), folder
    return quantize, checked


def modelopt(folders):
    real = here("modelopt")
    if not real:
        sys.modules["torch"] = types.SimpleNamespace()
    quantize = checked = 0
    for folder in folders:
        made = load(folder, "modelopt_config.py")
        disabled, *entries = made.config()["quant_cfg"]
        assert disabled == {"quantizer_name": "*", "enable": False}
        wanted = {entry["quantizer_name"]: entry["cfg"] for entry in entries}
        assert all(name.rsplit(".", 1)[0] in made.LAYERS for name in wanted)
        assert all(set(cfg) <= {"num_bits", "type", "block_sizes", "narrow_range"} for cfg in wanted.values())
        quantize += bool(wanted)
        if real:
            import torch
            import modelopt.torch.quantization as mtq

            model = mtq.quantize(model_of(made.LAYERS), made.config())
            enabled = {name for name, module in model.named_modules()
                       if isinstance(module, mtq.nn.TensorQuantizer) and module.is_enabled}
            assert enabled == set(wanted), folder
            needs_gpu = any("scale_bits" in cfg.get("block_sizes", {}) for cfg in wanted.values())
            if wanted and torch.cuda.is_available() >= needs_gpu and "rounds the scales" not in made.__doc__:
                assert agrees(made), (folder, made.check())
                checked += 1
    return quantize, checked


quantize, checked = {"te": te, "torchao": torchao, "modelopt": modelopt}[sys.argv[1]](sys.argv[2:])
print(f"{sys.argv[1]}: {len(sys.argv) - 2} modules were loaded, {quantize} of them quantize, {checked} were checked")
