// halftone-lab export: a policy as a recipe of another stack. A target says in its words what a
// policy does to a linear layer; the walk over the sites, the table, the module and its proof are
// common.
#include <algorithm>
#include <array>
#include <bit>
#include <iostream>
#include <map>
#include <sstream>

#include <halftone/amp/policy.h>
#include <halftone/amp/resolved.h>
#include <halftone/amp/training.h>
#include <halftone/autograd/ops.h>
#include <halftone/core/error.h>
#include <halftone/core/factory.h>
#include <halftone/core/files.h>
#include <halftone/core/named_tensors.h>
#include <halftone/lab/commands/commands.h>
#include <halftone/lab/table.h>

namespace halftone::lab {

namespace {

constexpr std::string_view op = "halftone-lab export";

using policy::Role;

/// An expression of a recipe, or why there is none; what it does otherwise than the policy; and the
/// quantizers that its numbers must agree with, by slot.
struct Said {
  std::string code{}, reason{};
  std::vector<std::string> differences{};
  std::vector<std::pair<std::string_view, const Quantizer*>> proof{};
};
Said cannot(const std::string& reason) { return {.code = {}, .reason = reason}; }

std::string truth(bool x) { return x ? "True" : "False"; }
std::string text_of(double x) { return (PlainText() << x).str(); }

/// A tensor in the two products that it is an operand of: the first (rowwise; forward's, or that of
/// the input's gradient), and the second (columnwise); null: high precision.
struct Operand {
  const Quantizer *row, *column;
  bool apart;  // the second has a rule of its own
};
constexpr std::string_view slots[]{"input", "weight", "grad_output"};
constexpr Role roles[]{Role::input, Role::weight, Role::grad_output},
    uses[]{Role::input_backward, Role::weight_backward, Role::grad_output_weight};
using Operands = std::array<Operand, 3>;

/// Returns what no other stack has.
std::string lacks(const Quantizer& q) {
  if (q.own || !q.table.empty() || !q.choice.grids.empty())
    return "it has no tables, choices of grids, and functions of a program";
  if (q.scaling.learned || q.scaling.inner[0].columns > 0)
    return "it has no learned scales and no scales of sub-blocks";
  if (q.clip.any() || q.average > 0 || q.saturation)
    return "it has no clips, averages and \"overflow\"";
  return "";
}

struct Import {
  std::string_view what, from;
};
/// Another stack.
struct Target {
  std::string_view name, stack, file, usage;
  std::vector<std::string_view> slots;  // a layer has an expression for each
  std::vector<Said> (*say)(const Operands&);
  bool grouped;  // also for grouped_linear
  std::vector<Import> imports;
  std::string_view functions;  // of the module; numbers(made, slot, x): what the proof compares
};

/// Notes that a stack's scales of MX are halftone's with the rule rceil.
void note_rule(Said& said, const Scaling& s) {
  if (s.rule != ScaleRule::rceil)
    said.differences.push_back(
        "it rounds the scales of MX up (\"rule\": \"rceil\"), halftone by \"" +
        std::string(name(s.rule)) + "\"");
}

// --- TransformerEngine's CustomRecipe: a function gives the quantizer of each operand

std::string f8_of(const NumberFormat& grid) {
  if (grid == formats::e4m3) return "DType.kFloat8E4M3";
  return grid == formats::e5m2 ? "DType.kFloat8E5M2" : "";
}

Said per_tensor(const Quantizer& q) {
  const Scaling& s = q.scaling;
  if (f8_of(q.grid).empty()) return cannot("it scales only e4m3 and e5m2 per tensor");
  if (s.from_history) {
    if (s.power_of_two || s.least > 0) return cannot("its delayed scales are plain f32");
    return {.code = "DelayedScalingRequest(fp8_format=FORMAT, margin=" + std::to_string(s.margin) +
                    ", amax_history_len=" + std::to_string(s.history) + ", amax_compute_algo=\"" +
                    (s.latest ? "most_recent" : "max") + "\")"};
  }
  if (s.margin != 0) return cannot("its current scales have no margin");
  return {.code = "Float8CurrentScalingQuantizer(fp8_dtype=" + f8_of(q.grid) +
                  ", device=torch.device(\"cuda\"), force_pow_2_scales=" + truth(s.power_of_two) +
                  ", amax_epsilon=" + text_of(double(s.least)) + ")"};
}

Said nvfp4(const Quantizer& q) {
  const Scaling& s = q.scaling;
  const bool four_over_six = s.targets[0] == 6 && s.targets[1] == 4 && s.targets[2] == 0;
  if (s.target_count() > 0 && !four_over_six)
    return cannot("its NVFP4 chooses only between the scales for 6 and for 4");
  if (four_over_six && s.error == ScaleError::max)
    return cannot("its Four Over Six chooses by MSE or MAE");
  if (s.corrected || s.scale_rounding != Rounding::nearest_even)
    return cannot("it rounds NVFP4's scales to nearest, and does not correct them");
  if (s.scale_max != 0 && s.scale_max != 256 && s.scale_max != 448)
    return cannot("its largest NVFP4 scale is 448 or 256");
  if (q.hadamard != 0 && q.hadamard != 16) return cannot("it rotates 16 numbers");
  std::string code =
      "NVFP4Quantizer(fp4_dtype=DType.kFloat4E2M1, with_rht=" + truth(q.hadamard > 0) +
      ", with_post_rht_amax=" + truth(q.hadamard > 0) +
      ", with_2d_quantization=" + truth(s.rows == 16) +
      ", stochastic_rounding=" + truth(q.rounding == Rounding::stochastic) +
      ", row_scaled_nvfp4=" + truth(s.row_level);
  if (four_over_six)
    code += ", nvfp4_use_4over6=True, nvfp4_e4m3_max=" +
            std::to_string(s.scale_max != 0 ? int(s.scale_max) : 448) +
            ", nvfp4_4over6_err_mode=\"" + (s.error == ScaleError::mse ? "MSE" : "MAE") + "\"";
  else if (s.scale_max != 0 && s.scale_max != 448)
    return cannot("its largest NVFP4 scale is 448 without Four Over Six");
  Said said{.code = code + ")"};
  if (q.hadamard > 0) said.differences.emplace_back("it draws the signs of a rotation");
  return said;
}

Said per_block(const Quantizer& q) {
  const Scaling& s = q.scaling;
  const std::string f8 = f8_of(q.grid);
  const bool draws = q.rounding == Rounding::stochastic;
  if (q.grid == formats::e2m1 && s.columns == 16 && (s.rows == 1 || s.rows == 16) &&
      s.scale_format == formats::e4m3 && (s.tensor_level || s.row_level))
    return nvfp4(q);
  if (q.hadamard > 0) return cannot("it rotates only NVFP4");
  if (draws) return cannot("it rounds only NVFP4 stochastically");
  if (!f8.empty() && s.is_plain() && s.scale_format == formats::e8m0 && s.rows == 1 &&
      s.columns == 32) {
    Said said{.code = "MXFP8Quantizer(fp8_dtype=" + f8 + ")"};
    note_rule(said, s);
    return said;
  }
  if (!f8.empty() && s.is_plain() && s.scale_format == formats::f32 && s.columns == 128 &&
      (s.rows == 1 || s.rows == 128))
    return {.code =
                "Float8BlockQuantizer(fp8_dtype=" + f8 +
                ", rowwise=True, columnwise=True, force_pow_2_scales=False, block_scaling_dim=" +
                (s.rows == 1 ? "1" : "2") + ")"};
  return cannot("it has no format " + described(q));
}

/// Returns the expression for one quantizer; null: high precision.
Said quantizer_there(const Quantizer* q) {
  if (!q) return {.code = "IdentityQuantizer()"};
  if (const std::string reason = lacks(*q); !reason.empty()) return cannot(reason);
  const bool draws = q->rounding == Rounding::stochastic;
  if (q->rounding != Rounding::nearest_even && !(draws && q->random == StochasticBits{}))
    return cannot("it rounds to nearest, or stochastically with all bits");
  switch (q->scaling.per) {
    case Scaling::Per::tensor:
      return draws ? cannot("it rounds only NVFP4 stochastically") : per_tensor(*q);
    case Scaling::Per::block: return per_block(*q);
    case Scaling::Per::none: break;
  }
  return cannot("it has no format " + described(*q) + " without a scale");
}

/// Whether a tensor and its transposed one have the same rounded numbers.
bool is_symmetric(const Quantizer& q) {
  return q.scaling.per != Scaling::Per::block || q.scaling.rows == q.scaling.columns;
}

/// Returns the expression for an operand, with the quantizers of both products.
Said operand_there(const Operand& operand) {
  const auto& [row, column, apart] = operand;
  if (row && row->hadamard > 0)
    return cannot("it rotates only the operands of the weight's gradient");
  Said first = quantizer_there(row);
  if (first.code.empty() || (!apart && (!row || is_symmetric(*row)))) return first;
  if (!apart) {
    first.code = "HybridQuantizer(rowwise_quantizer=" + first.code +
                 ", columnwise_quantizer=IdentityQuantizer(), "
                 "columnwise_source=\"rowwise_dequantized\")";
    return first;
  }
  Said second = quantizer_there(column);
  if (second.code.empty() || second.code == first.code) return second;
  Quantizer turned = row ? *row : Quantizer{};
  if (row && column)
    turned.hadamard = column->hadamard, turned.hadamard_signs = column->hadamard_signs,
    turned.draws_signs = column->draws_signs;
  if (row && column && turned == *column) return second;  // its rowwise numbers are not rotated
  for (const Quantizer* const q : {row, column})
    if (q && q->scaling.from_history)
      return cannot("its delayed scales are for both products of an operand");
  second.differences.insert(second.differences.end(), first.differences.begin(),
                            first.differences.end());
  second.code = "HybridQuantizer(rowwise_quantizer=" + first.code +
                ", columnwise_quantizer=" + second.code + ", columnwise_source=\"original\")";
  return second;
}

std::vector<Said> to_te(const Operands& operands) {
  std::vector<Said> said;
  for (std::size_t i = 0; i < 3; ++i) {
    said.push_back(operand_there(operands[i]));
    const Quantizer* const row = operands[i].row;
    if (row && row->scaling.per != Scaling::Per::none)
      said.back().proof.emplace_back(slots[i], row);
  }
  return said;
}

const Target te{
    .name = "te",
    .stack = "TransformerEngine",
    .file = "te_recipe.py",
    .usage =
        "TransformerEngine 2.20: te.autocast(recipe=recipe()), with layers that have names, "
        "te.Linear(..., name=\"PATH\")",
    .slots = {slots[0], slots[1], slots[2]},
    .say = to_te,
    .grouped = true,
    .imports = {{"CustomRecipe", "transformer_engine.common.recipe"},
                {"Format", "transformer_engine.common.recipe"},
                {"DType", "transformer_engine.pytorch.constants"},
                {"DelayedScalingRequest", "transformer_engine.pytorch.quantization"},
                {"Float8CurrentScalingQuantizer",
                 "transformer_engine.pytorch.tensor.float8_tensor"},
                {"Float8BlockQuantizer",
                 "transformer_engine.pytorch.tensor.float8_blockwise_tensor"},
                {"MXFP8Quantizer", "transformer_engine.pytorch.tensor.mxfp8_tensor"},
                {"NVFP4Quantizer", "transformer_engine.pytorch.tensor.nvfp4_tensor"},
                {"HybridQuantizer", "transformer_engine.pytorch.tensor.hybrid_tensor"},
                {"IdentityQuantizer", "transformer_engine.pytorch.tensor.identity_tensor"}},
    .functions = R"py(
def qfactory(role):
    """Returns the quantizer of a slot; high precision for those that the policy does not name."""
    linear = role is not None and role.module_type in ("linear", "grouped_linear")
    makers = LAYERS.get(role.name) if linear and role.tensor_type in SLOTS else None
    return MAKERS[makers[SLOTS.index(role.tensor_type)]]() if makers else IdentityQuantizer()


def recipe():
    return CustomRecipe(qfactory=qfactory)


def numbers(quantizer, slot, x):
    return quantizer(x).dequantize()
)py"};

// --- formats of torchao and Model-Optimizer

constexpr std::string_view no_backward =
    "backward is in high precision, with the operands as forward rounded them";
constexpr std::string_view other_scales =
    "it rounds scales otherwise: numbers differ in their last bits, a few by a step of the grid";
bool rounds_backward(const Operands& operands) {
  const auto& [input, weight, gradient] = operands;
  return gradient.row || gradient.column || input.apart || weight.apart;
}

/// Whether numbers go to the nearest one of a grid, by nothing that others lack.
bool is_simple(const Quantizer* q) {
  return q && lacks(*q).empty() && q->rounding == Rounding::nearest_even && q->hadamard == 0;
}
bool is_current(const Quantizer* q) {
  return is_simple(q) && q->scaling.per == Scaling::Per::tensor && !q->scaling.from_history &&
         q->scaling.margin == 0 && q->scaling.least == 0;
}
bool is_plain_block(const Quantizer* q, int rows, int columns, const NumberFormat& scale) {
  return q && q->scaling.per == Scaling::Per::block && q->scaling.is_plain() &&
         q->scaling.rows == rows && q->scaling.columns == columns &&
         q->scaling.scale_format == scale;
}
bool is_mx(const Quantizer* q) { return is_simple(q) && is_plain_block(q, 1, 32, formats::e8m0); }
bool is_nvfp4(const Quantizer* q, int rows) {
  return q && lacks(*q).empty() && q->grid == formats::e2m1 &&
         is_plain_block(q, rows, 16, formats::e4m3) && q->scaling.tensor_level &&
         (q->scaling.scale_max == 0 || q->scaling.scale_max == 448);
}

// --- torchao 0.18: a config for each layer

std::string dtype_of(const NumberFormat& grid) {
  if (grid == formats::e4m3) return "torch.float8_e4m3fn";
  if (grid == formats::e5m2) return "torch.float8_e5m2";
  return grid == formats::e2m1 ? "torch.float4_e2m1fn_x2" : "";
}
const Quantizer* second_of(const Operand& operand) {
  return operand.apart ? operand.column : operand.row;
}

/// Scales of whole tensors, in all products.
Said float8_training(const Operands& operands) {
  const auto& [input, weight, gradient] = operands;
  const bool both = !input.row == !weight.row && !gradient.row == !second_of(weight) &&
                    !second_of(input) == !second_of(gradient);
  if (!both) return {};
  Said said;
  bool power_of_two = false, first = true;
  for (std::size_t i = 0; i < 3; ++i) {
    const Quantizer *const row = operands[i].row, *const column = second_of(operands[i]);
    const Quantizer* const either = row ? row : column;
    if (either && row && column && *row != *column) return {};
    if (either) {
      if (!is_current(either) || f8_of(either->grid).empty()) return {};
      if (!first && power_of_two != either->scaling.power_of_two) return {};
      power_of_two = either->scaling.power_of_two, first = false;
    }
    const auto cast = [&](const std::string& end, const Quantizer* q) {
      said.code +=
          (said.code.empty() ? "cast_config_" : ", cast_config_") + std::string(slots[i]) + end +
          "=CastConfig(" +
          (q ? "" : "scaling_type=ScalingType.DISABLED" + std::string(either ? ", " : "")) +
          (either ? "target_dtype=" + dtype_of(either->grid) : "") + ")";
    };
    cast("", row);
    if (!row != !column) cast(i == 1 ? "_for_grad_input" : "_for_grad_weight", column);
    if (row) said.proof.emplace_back(slots[i], row);
  }
  said.code = "Float8LinearConfig(" + said.code +
              ", round_scales_to_power_of_2=" + truth(power_of_two) + ")";
  return said;
}

/// DeepSeek's tiles and squares.
Said blockwise_training(const Operands& operands) {
  const auto& [input, weight, gradient] = operands;
  const auto e4m3 = [](const Quantizer* q, int rows) {
    return is_simple(q) && q->grid == formats::e4m3 && is_plain_block(q, rows, 128, formats::f32);
  };
  for (const Operand& operand : {input, gradient})
    if (!operand.apart || !e4m3(operand.row, 1) || !e4m3(operand.column, 1)) return {};
  if (weight.apart || !e4m3(weight.row, 128)) return {};
  Said said{.code = "Float8BlockwiseLinearConfig()", .reason = {}};
  said.differences.emplace_back(other_scales);
  for (std::size_t i = 0; i < 3; ++i) said.proof.emplace_back(slots[i], operands[i].row);
  return said;
}

/// MXFP8 along the sum of each product.
Said mxfp8_training(const Operands& operands) {
  const auto& [input, weight, gradient] = operands;
  const bool whole = input.column || gradient.column;
  Said said;
  for (std::size_t i = 0; i < 3; ++i) {
    const Operand& operand = operands[i];
    const bool used = i == 1 || whole;
    const bool fits = is_mx(operand.row) && operand.row->grid == formats::e4m3 && operand.apart &&
                      *operand.row == *input.row &&
                      (used ? operand.column && *operand.column == *input.row : !operand.column);
    if (!fits) return {};
    said.proof.emplace_back(slots[i], operand.row);
  }
  const std::string rule(name(input.row->scaling.rule));
  if (rule != "rceil" && rule != "floor") return {};
  said.code = "MXFP8TrainingOpConfig(scale_calculation_mode=ScaleCalculationMode(\"" + rule +
              "\"), wgrad_with_hp=" + truth(!whole) + ")";
  return said;
}

constexpr std::string_view least_scale = "its scales of NVFP4 blocks are at least 2^-6";
/// NVIDIA's NVFP4 training, with the rotation's signs.
Said nvfp4_training(const Operands& operands) {
  const auto& [input, weight, gradient] = operands;
  if (!is_simple(input.row) || !is_nvfp4(input.row, 1) || !input.column || !is_simple(weight.row) ||
      !is_nvfp4(weight.row, 16) || weight.apart || !gradient.row || !gradient.column)
    return {};
  Quantizer turned = *input.row, stochastic = *input.row, turned_stochastic = *input.column;
  turned.hadamard = 16, turned.hadamard_signs = input.column->hadamard_signs;
  stochastic.rounding = turned_stochastic.rounding = Rounding::stochastic;
  if (*input.column != turned || *gradient.row != stochastic ||
      *gradient.column != turned_stochastic)
    return {};
  std::string signs;
  for (int i = 0; i < 16; ++i)
    signs += (i > 0 ? ", " : "") + std::string(turned.hadamard_signs >> i & 1u ? "-1" : "1");
  return {.code = "NVFP4TrainingConfig(rht_sign_vector=(" + signs + "))",
          .reason = {},
          .differences = {"it rotates in bf16, needs Blackwell, and is not in check()",
                          std::string(other_scales), std::string(least_scale)}};
}

/// Forward's operands alone. Float8 has no fake quantizers here: torchao's cast gradients to float8
/// without a scale.
Said forward_alone(const Operands& operands) {
  const Quantizer *const input = operands[0].row, *const weight = operands[1].row;
  if (!input && !weight) return cannot("it does not round backward's operands alone");
  const auto config = [](const Quantizer* q) -> std::string {
    if (is_current(q) && !f8_of(q->grid).empty()) return "Float8";
    if (is_simple(q) && is_nvfp4(q, 1)) return "NVFP4FakeQuantizeConfig()";
    if (!is_mx(q) || dtype_of(q->grid).empty()) return "";
    return "MXFakeQuantizeConfig(dtype=" + dtype_of(q->grid) +
           ", scaling_mode=ScaleCalculationMode(\"" + std::string(name(q->scaling.rule)) + "\"))";
  };
  for (const Quantizer* const q : {input, weight}) {
    if (!q) continue;
    if (const std::string reason = lacks(*q); !reason.empty()) return cannot(reason);
    if (config(q).empty())
      return cannot("it has no format " + described(*q) + " for forward alone");
  }
  if (!input || !weight || config(input)[0] != config(weight)[0])
    return cannot("it rounds both operands of forward in formats of one kind");
  Said said;
  if (is_current(input)) {
    said = float8_training({{{input, nullptr, true}, {weight, nullptr, true}, {}}});
    if (said.code.empty())
      return cannot("it rounds all scales of a layer to powers of two, or none");
    said.differences.emplace_back(
        "backward is in high precision, with operands that are not rounded");
    return said;
  }
  said.code =
      "QATConfig(activation_config=" + config(input) + ", weight_config=" + config(weight) + ")";
  said.proof = {{slots[0], input}, {slots[1], weight}};
  if (is_nvfp4(input, 1)) said.differences = {std::string(other_scales), std::string(least_scale)};
  if (rounds_backward(operands)) said.differences.emplace_back(no_backward);
  return said;
}

std::vector<Said> to_torchao(const Operands& operands) {
  const auto none = [](const Operand& operand) { return !operand.row && !second_of(operand); };
  if (std::ranges::all_of(operands, none)) return {{.code = "None"}};
  for (const auto& say : {float8_training, blockwise_training, mxfp8_training, nvfp4_training})
    if (Said said = say(operands); !said.code.empty()) return {std::move(said)};
  return {forward_alone(operands)};
}

const Target torchao{
    .name = "torchao",
    .stack = "torchao",
    .file = "torchao_config.py",
    .usage = "torchao 0.18: apply(model) converts the layers in place",
    .slots = {"config"},
    .say = to_torchao,
    .grouped = false,
    .imports = {{"CastConfig", "torchao.float8"},
                {"Float8LinearConfig", "torchao.float8"},
                {"ScalingType", "torchao.float8"},
                {"Float8BlockwiseLinearConfig", "torchao.prototype.blockwise_fp8_training.linear"},
                {"MXFP8TrainingOpConfig", "torchao.prototype.moe_training.config"},
                {"NVFP4TrainingConfig",
                 "torchao.prototype.moe_training.nvfp4_training.nvfp4_training"},
                {"ScaleCalculationMode", "torchao.prototype.mx_formats"},
                {"MXFakeQuantizeConfig", "torchao.prototype.qat"},
                {"NVFP4FakeQuantizeConfig", "torchao.prototype.qat"},
                {"QATConfig", "torchao.quantization.qat"}},
    .functions = R"py(
def apply(model):
    """Converts the layers of a model in place."""
    from torchao.float8 import convert_to_float8_training
    from torchao.quantization import quantize_

    for number, maker in enumerate(MAKERS):
        config = maker()
        chosen = lambda module, name: LAYERS.get(name) == (number,)
        if hasattr(config, "cast_config_input"):
            convert_to_float8_training(model, config=config, module_filter_fn=chosen)
        elif config is not None:
            quantize_(model, config, filter_fn=chosen)
    return model


def numbers(config, slot, x):
    from torchao.float8 import float8_scaling_utils
    from torchao.prototype.mx_formats import mx_tensor, nvfp4_tensor

    if hasattr(config, "cast_config_input"):  # float8
        made = float8_scaling_utils.hp_tensor_to_float8_dynamic(
            x, getattr(config, "cast_config_" + slot).target_dtype, None,
            round_scales_to_power_of_2=config.round_scales_to_power_of_2)
        return made._data.float() * made._scale.reciprocal()
    if hasattr(config, "scale_calculation_mode"):  # MXFP8
        return mx_tensor.MXTensor.to_mx(x, torch.float8_e4m3fn, 32, config.scale_calculation_mode).dequantize()
    if hasattr(config, "weight_config"):  # fake quantizers of MX, or of NVFP4
        fake = config.weight_config if slot == "weight" else config.activation_config
        if hasattr(fake, "scaling_mode"):
            return mx_tensor.MXTensor.to_mx(x, fake.dtype, fake.block_size, fake.scaling_mode).dequantize()
        scale = nvfp4_tensor.per_tensor_amax_to_scale(x.abs().max())
        return nvfp4_tensor.NVFP4Tensor.to_nvfp4(x, per_tensor_scale=scale).dequantize()
    from torchao.prototype.blockwise_fp8_training import kernels

    weight = slot == "weight"
    made, scale = (kernels.torch_blockwise_scale_weight_quant if weight else kernels.torch_blockwise_scale_act_quant_lhs)(x)
    return made.float() * scale.repeat_interleave(128 if weight else 1, 0).repeat_interleave(128, 1)
)py"};

// --- Model-Optimizer 0.47: a quantizer for each operand of forward

Said tensor_quantizer(const Quantizer* q) {
  if (!q) return {.code = "None"};
  if (const std::string reason = lacks(*q); !reason.empty()) return cannot(reason);
  if (!is_simple(q)) return cannot("it rounds to nearest, without rotations");
  const Scaling& s = q->scaling;
  std::string bits;
  for (int i = 2; i <= 8; ++i)
    if (q->grid == NumberFormat::integer(i)) bits = std::to_string(i);
  const bool whole = !bits.empty();
  for (const auto& [grid, text] :
       {std::pair{formats::e2m1, "(2, 1)"}, std::pair{formats::e4m3, "(4, 3)"},
        std::pair{formats::e5m2, "(5, 2)"}, std::pair{formats::e3m2, "(3, 2)"},
        std::pair{formats::e2m3, "(2, 3)"}})
    if (q->grid == grid) bits = text;
  const auto blocks = [&](const std::string& more) {
    return ", \"block_sizes\": {-1: " + std::to_string(s.columns) + more + "}";
  };
  const bool simple = whole || q->grid == formats::e4m3;
  Said said;
  std::string more;
  if (is_nvfp4(q, 1)) {
    more = blocks(", \"type\": \"dynamic\", \"scale_bits\": (4, 3)");
  } else if (!bits.empty() && (!whole || bits == "8") && std::has_single_bit(unsigned(s.columns)) &&
             s.columns >= 8 && s.columns <= 32 && is_plain_block(q, 1, s.columns, formats::e8m0)) {
    more = blocks(", \"type\": \"dynamic\", \"scale_bits\": (8, 0)");
    note_rule(said, s);
  } else if (simple && is_plain_block(q, s.rows, s.columns, formats::f32)) {
    more = blocks(s.rows > 1 ? ", -2: " + std::to_string(s.rows) : "");
  } else if (!simple || !is_current(q) || s.power_of_two) {
    return cannot("it has no format " + described(*q));
  }
  const bool exact = s.per == Scaling::Per::tensor ? !whole : s.scale_format == formats::e8m0;
  if (!exact) said.differences.emplace_back(other_scales);
  said.code = "{\"num_bits\": " + bits + ", \"type\": \"dynamic\"" + more +
              (whole ? ", \"narrow_range\": True}" : "}");
  return said;
}

std::vector<Said> to_modelopt(const Operands& operands) {
  std::vector<Said> said;
  for (std::size_t i = 0; i < 2; ++i) {
    said.push_back(tensor_quantizer(operands[i].row));
    if (operands[i].row) said.back().proof.emplace_back(slots[i], operands[i].row);
  }
  if (operands[0].row && operands[0].row->scaling.scale_format == formats::f32)
    said[0].differences.emplace_back("with f32 scales of blocks, an input must keep its shape");
  if (rounds_backward(operands)) {
    if (!operands[0].row && !operands[1].row) said[0] = cannot("it rounds only forward's operands");
    said[0].differences.emplace_back(no_backward);
  }
  return said;
}

const Target modelopt{.name = "modelopt",
                      .stack = "Model-Optimizer",
                      .file = "modelopt_config.py",
                      .usage = "Model-Optimizer 0.47: mtq.quantize(model, config())",
                      .slots = {slots[0], slots[1]},
                      .say = to_modelopt,
                      .grouped = false,
                      .imports = {},
                      .functions = R"py(
def config():
    """Returns the argument of mtq.quantize()."""
    entries = [{"quantizer_name": "*", "enable": False}]
    for layer, makers in LAYERS.items():
        for slot, maker in zip(SLOTS, makers):
            if MAKERS[maker]():
                entries.append({"quantizer_name": f"{layer}.{slot}_quantizer", "cfg": MAKERS[maker]()})
    return {"quant_cfg": entries, "algorithm": None}


def numbers(attributes, slot, x):
    from modelopt.torch.quantization.config import QuantizerAttributeConfig
    from modelopt.torch.quantization.nn import TensorQuantizer

    return TensorQuantizer(QuantizerAttributeConfig(**attributes))(x)
)py"};

const Target* const targets[]{&te, &torchao, &modelopt};

// --- a policy on a model

struct Layer {
  std::string path;
  std::vector<std::size_t> made;  // numbers of expressions, by slot
};

class Recipe {
 public:
  Recipe(const Target& target, const policy::Session& session, const amp::Policy& file)
      : target_(target) {
    if (file.weights == f64) refuse("the policy", "its weights are f64");
    if (file.weights != f32)
      differs("weights in " + std::string(name(file.weights)) +
              " are left to the model and the optimizer");
    if (file.autocast)
      differs("autocast in " + std::string(name(*file.autocast)) + " is left to torch.autocast");
    for (const policy::ResolvedSite& site : session.resolved()) add(site);
    for (const policy::Rule& rule : session.rules().rules)
      if (rule.match.when || rule.match.from_step > 0 ||
          rule.match.to_step != std::numeric_limits<int64_t>::max())
        differs("rules begin and end; this is the recipe of the first step");
    if (session.rules().parameters || !session.rules().states.empty())
      differs("parameters and states on grids are left to the optimizer");
    if (layers_.empty()) refuse("the model", "it has no linear layer");
  }

  const std::vector<std::string>& refused() const { return refused_; }
  const std::vector<std::string>& differences() const { return differences_; }
  const std::vector<Layer>& layers() const { return layers_; }
  const std::vector<std::string>& made() const { return made_; }
  /// The quantizers whose numbers an expression gives, by "EXPRESSION.SLOT".
  const std::map<std::string, Quantizer>& proof() const { return proof_; }

 private:
  void add(const policy::ResolvedSite& site) {
    const policy::Treatment& treatment = *site.treatment;
    const bool linear =
        site.site.op == "linear" || (site.site.op == "grouped_linear" && target_.grouped);
    const std::string where = name(site.site);
    if (treatment.accumulate) differs("how sums are added is left to the hardware");
    if (treatment.saved) differs("activations are saved as its quantizers do");
    for (const Role role : {Role::output, Role::grad_input, Role::grad_weight, Role::bias})
      if (treatment.quantizer(role))
        differs("\"" + std::string(policy::name(role)) + "\" is not rounded");
    if (!linear) {
      if (treatment.quantizes())
        differs(std::string(site.site.op) + " is not quantized: only linear layers are");
      return;
    }
    Operands operands;
    for (std::size_t i = 0; i < 3; ++i)
      operands[i] = {kept(treatment.quantizer(roles[i], 0)), kept(treatment.quantizer(uses[i], 0)),
                     treatment.says(uses[i], 0)};
    Layer layer{site.site.path, {}};
    for (const Said& said : target_.say(operands)) {
      const std::string_view slot = target_.slots[layer.made.size()];
      if (said.code.empty()) refuse(where + " " + std::string(slot), said.reason);
      for (const std::string& difference : said.differences) differs(difference);
      layer.made.push_back(number_of(said));
    }
    layers_.push_back(std::move(layer));
  }
  /// Returns null for the dtypes of models.
  const Quantizer* kept(const Quantizer* q) {
    for (const NumberFormat& dtype : {formats::bf16, formats::f16, formats::tf32})
      if (q && *q == Quantizer{.grid = dtype}) {
        differs("operands in " + described(dtype) + " are in the dtype of the model");
        return nullptr;
      }
    return q;
  }
  std::size_t number_of(const Said& said) {
    const auto known = std::ranges::find(made_, said.code);
    if (known != made_.end()) return std::size_t(known - made_.begin());
    for (const auto& [slot, q] : said.proof)
      if (!q->draws() && !q->scaling.from_history)
        proof_.emplace(std::to_string(made_.size()) + '.' + std::string(slot), *q);
    made_.push_back(said.code);
    return made_.size() - 1;
  }
  void refuse(const std::string& where, const std::string& reason) {
    const auto said = [&](const std::string& line) { return line.ends_with(": " + reason); };
    if (std::ranges::none_of(refused_, said)) refused_.push_back(where + ": " + reason);
  }
  void differs(const std::string& what) {
    if (std::ranges::find(differences_, what) == differences_.end()) differences_.push_back(what);
  }

  const Target& target_;
  std::vector<Layer> layers_{};
  std::vector<std::string> made_{}, refused_{}, differences_{};
  std::map<std::string, Quantizer> proof_{};
};

// --- the module and its proof

/// Returns text as a literal of Python.
std::string literal(std::string_view text) {
  return Json(std::string(text)).dump(-1, ' ', true, Json::error_handler_t::replace);
}
/// Returns a tuple of Python.
template <class List, class Text> std::string tuple(const List& list, const Text& text) {
  std::string all;
  for (const auto& one : list) all += text(one) + ", ";
  if (list.size() > 1) return '(' + all.substr(0, all.size() - 2) + ')';
  return '(' + all.substr(0, all.size() - 1) + ')';
}

constexpr std::string_view check_function = R"py(

def check():
    """Compares with the numbers of halftone, on a GPU if there is one. By maker and slot, returns
    how many differ, and how many by more than their last bits."""
    from pathlib import Path
    from safetensors.torch import load_file

    device = "cuda" if torch.cuda.is_available() else "cpu"
    tensors = load_file(Path(__file__).with_name("proof.safetensors"), device=device)
    x, different = tensors.pop("x"), {}
    for name, wanted in tensors.items():
        maker, slot = name.split(".")
        error = (numbers(MAKERS[int(maker)](), slot, x).float() - wanted).abs()
        different[name] = (int((~(error == 0)).sum()), int((~(error <= 2**-20 * wanted.abs())).sum()))
    return different
)py";

std::string module_of(const Target& target, const amp::Policy& file, const std::string& workload,
                      const Recipe& recipe) {
  // Forward in e4m3 and backward in e5m2 is the hybrid format of delayed scales.
  bool e5m2 = false;
  for (const policy::Rule& rule : file.rules.rules)
    for (const auto& [role, said] : rule.roles)
      e5m2 = e5m2 || (said.quantizer.scaling.from_history && said.quantizer.grid == formats::e5m2);
  std::string body = "\nSLOTS = " + tuple(target.slots, literal) + "\nMAKERS = (\n";
  for (const std::string& code : recipe.made()) body += "    lambda: " + code + ",\n";
  body += ")\n# For each layer the makers of its slots.\nLAYERS = {\n";
  const auto number = [](std::size_t i) { return std::to_string(i); };
  for (const Layer& layer : recipe.layers())
    body += "    " + literal(layer.path) + ": " + tuple(layer.made, number) + ",\n";
  body += "}\n\n" + std::string(target.functions) + std::string(check_function);
  const auto delayed = [](const std::string& code) { return code.find("FORMAT") != code.npos; };
  if (std::ranges::any_of(recipe.made(), delayed))
    body = std::string("\nFORMAT = Format.") + (e5m2 ? "HYBRID" : "E4M3") + "\n" + body;
  std::string named = literal(file.name);  // escaped: the name must not end the docstring
  named = named.substr(1, named.size() - 2);
  std::string head = "\"\"\"The policy " + named + " (" + policy::hash(file) +
                     ") on the layers of " + workload + ", for " + std::string(target.usage) +
                     ".\n";
  for (const std::string& difference : recipe.differences())
    head += "Differs: " + difference + ".\n";
  head += "Written by halftone-lab export.\n\"\"\"\nimport torch\n";
  for (const auto& [what, from] : target.imports)
    if (body.find(what) != body.npos)
      head += "from " + std::string(from) + " import " + std::string(what) + '\n';
  return head + body;
}

/// Inputs, and what halftone makes of them.
NamedTensors proof_of(const Recipe& recipe) {
  NamedTensors proof;
  manual_seed(55);
  const Tensor x = quantize(randn({128, 256}) * exp(randn({128, 1}) * 2.0), "bf16");
  proof["x"] = x;
  for (const auto& [name, quantizer] : recipe.proof()) proof[name] = quantize(x, quantizer);
  return proof;
}

struct ExportOptions {
  std::string policy, workload, to = "te", output;
};

int run_export(const ExportOptions& options, const std::vector<NamedWorkload>& own) {
  const auto found = std::ranges::find(targets, options.to, &Target::name);
  if (found == std::end(targets))
    fail<UsageError>(op, "--to is ", quoted(options.to), ". Choose te, torchao or modelopt.");
  const Target& target = **found;
  const amp::Policy file = policy::named_or_read(options.policy);
  Workload work = make_workload(options.workload, 0, own);
  const std::unique_ptr<optim::Optimizer> optimizer = optimizer_of(work);
  amp::Training training(policy::watched(file), *work.model, *optimizer);
  training.backward(loss_of(work, training, example_of(work)));
  const Recipe recipe(target, policy::session_of(training), file);
  std::vector<std::string> heads{"layers"};
  heads.insert(heads.end(), target.slots.begin(), target.slots.end());
  Table table(heads);
  std::map<std::vector<std::size_t>, std::vector<std::string>> alike;
  for (const Layer& layer : recipe.layers()) alike[layer.made].push_back(layer.path);
  for (const auto& [made, paths] : alike) {
    std::vector<std::string> row{std::to_string(paths.size()) + ", such as " + paths[0]};
    for (const std::size_t i : made) row.push_back(std::to_string(i));
    table.row(row);
  }
  std::cout << table;
  for (std::size_t i = 0; i < recipe.made().size(); ++i)
    if (!recipe.made()[i].empty()) std::cout << "  " << i << ": " << recipe.made()[i] << '\n';
  for (const std::string& difference : recipe.differences())
    std::cout << "  differs: " << difference << '\n';
  for (const std::string& reason : recipe.refused())
    std::cout << "  not in " << target.stack << ": " << reason << '\n';
  if (!recipe.refused().empty()) return exit_no;
  const std::filesystem::path folder(options.output), module = folder / target.file;
  files::make_directories(op, folder);
  files::replace(op, module, module_of(target, file, options.workload, recipe));
  save_safetensors(folder / "proof.safetensors", proof_of(recipe));
  std::cout << "wrote " << printable(module.string()) << '\n';
  return exit_yes;
}

}  // namespace

Work add_export(CLI::App& app, const Context& context) {
  auto options = std::make_shared<ExportOptions>();
  options->workload = context.workload;
  add_policy(app, options->policy);
  add_workload(app, options->workload, context);
  app.add_option("--to", options->to,
                 "te (TransformerEngine), torchao, or modelopt (Model-Optimizer)")
      ->capture_default_str();
  app.add_option("-o,--output", options->output, "the folder")->required();
  return [options, &context] { return run_export(*options, context.own); };
}

}  // namespace halftone::lab
