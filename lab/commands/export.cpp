// halftone-lab export: a policy as a recipe of another stack. TransformerEngine's CustomRecipe asks
// a function for the quantizer of each operand of each linear layer: one for forward's product
// (rowwise) and one for backward's (columnwise).
#include <algorithm>
#include <iostream>
#include <map>
#include <optional>
#include <sstream>
#include <tuple>

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

/// An expression of a recipe, or why there is none; and what it does otherwise than the policy.
struct Said {
  std::string code{}, reason{};
  std::vector<std::string> differences{};
};
Said cannot(const std::string& reason) { return {.code = {}, .reason = reason, .differences = {}}; }

std::string truth(bool x) { return x ? "True" : "False"; }
std::string text_of(double x) { return (PlainText() << x).str(); }

// --- a quantizer of TransformerEngine 2.20

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
    if (s.rule != ScaleRule::rceil)
      said.differences.push_back(
          "it rounds MXFP8's scales up (\"rule\": \"rceil\"), halftone by \"" +
          std::string(name(s.rule)) + "\"");
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
  if (q->own || !q->table.empty() || !q->choice.grids.empty())
    return cannot("it has no tables, choices of grids, and functions of a program");
  if (q->scaling.learned || q->scaling.inner[0].columns > 0)
    return cannot("it has no learned scales and no scales of sub-blocks");
  if (q->clip.any() || q->average > 0 || q->saturation)
    return cannot("it has no clips, averages and \"overflow\"");
  const bool draws = q->rounding == Rounding::stochastic;
  if (q->rounding != Rounding::nearest_even && !(draws && q->random == StochasticBits{}))
    return cannot("it rounds to nearest, or stochastically with all bits");
  switch (q->scaling.per) {
    case Scaling::Per::tensor:
      return draws ? cannot("it rounds only NVFP4 stochastically") : per_tensor(*q);
    case Scaling::Per::block: return per_block(*q);
    case Scaling::Per::none: break;
  }
  for (const NumberFormat& dtype : {formats::bf16, formats::f16, formats::tf32})
    if (q->grid == dtype && !draws)
      return {
          .code = "IdentityQuantizer()",
          .reason = {},
          .differences = {"operands in " + described(dtype) + " are in the dtype of the model"}};
  return cannot("it has no format " + described(*q) + " without a scale");
}

/// Whether a tensor and its transposed one have the same rounded numbers.
bool is_symmetric(const Quantizer& q) {
  return q.scaling.per != Scaling::Per::block || q.scaling.rows == q.scaling.columns;
}

/// Returns the expression for an operand with its uses in forward's (rowwise) and backward's
/// (columnwise) products; `apart`: the second has a rule of its own.
Said operand_there(const Quantizer* row, const Quantizer* column, bool apart) {
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

// --- a policy on a model

struct Slot {
  std::string_view name;  // as TransformerEngine calls the tensor
  Role role, use;
};
constexpr Slot slots[]{{"input", Role::input, Role::input_backward},
                       {"weight", Role::weight, Role::weight_backward},
                       {"grad_output", Role::grad_output, Role::grad_output_weight}};

struct Layer {
  std::string path;
  std::array<std::size_t, 3> made;  // numbers of expressions
};

class Recipe {
 public:
  Recipe(const policy::Session& session, const amp::Policy& file) {
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
  /// The quantizer whose rowwise numbers an expression gives; null: none that could be compared.
  const std::vector<std::optional<Quantizer>>& rowwise() const { return rowwise_; }

 private:
  void add(const policy::ResolvedSite& site) {
    const policy::Treatment& treatment = *site.treatment;
    const bool linear = site.site.op == "linear" || site.site.op == "grouped_linear";
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
    Layer layer{site.site.path, {}};
    for (std::size_t i = 0; i < 3; ++i) {
      const Slot& slot = slots[i];
      const Quantizer* const row = treatment.quantizer(slot.role, 0);
      const Quantizer* const column = treatment.quantizer(slot.use, 0);
      const Said said = operand_there(row, column, treatment.says(slot.use, 0));
      if (said.code.empty()) refuse(where + " " + std::string(slot.name), said.reason);
      for (const std::string& difference : said.differences) differs(difference);
      layer.made[i] = number_of(said.code, row);
    }
    layers_.push_back(std::move(layer));
  }
  std::size_t number_of(const std::string& code, const Quantizer* row) {
    const auto known = std::ranges::find(made_, code);
    if (known != made_.end()) return std::size_t(known - made_.begin());
    made_.push_back(code);
    const bool compares = row && !row->draws() && row->scaling.per != Scaling::Per::none &&
                          !row->scaling.from_history;
    rowwise_.push_back(compares ? std::optional(*row) : std::nullopt);
    return made_.size() - 1;
  }
  void refuse(const std::string& where, const std::string& reason) {
    const auto said = [&](const std::string& line) { return line.ends_with(": " + reason); };
    if (std::ranges::none_of(refused_, said)) refused_.push_back(where + ": " + reason);
  }
  void differs(const std::string& what) {
    if (std::ranges::find(differences_, what) == differences_.end()) differences_.push_back(what);
  }

  std::vector<Layer> layers_{};
  std::vector<std::string> made_{}, refused_{}, differences_{};
  std::vector<std::optional<Quantizer>> rowwise_{};
};

// --- the module and its proof

constexpr std::tuple<std::string_view, std::string_view> imports[]{
    {"CustomRecipe", "common.recipe"},
    {"Format", "common.recipe"},
    {"DType", "pytorch.constants"},
    {"DelayedScalingRequest", "pytorch.quantization"},
    {"Float8CurrentScalingQuantizer", "pytorch.tensor.float8_tensor"},
    {"Float8BlockQuantizer", "pytorch.tensor.float8_blockwise_tensor"},
    {"MXFP8Quantizer", "pytorch.tensor.mxfp8_tensor"},
    {"NVFP4Quantizer", "pytorch.tensor.nvfp4_tensor"},
    {"HybridQuantizer", "pytorch.tensor.hybrid_tensor"},
    {"IdentityQuantizer", "pytorch.tensor.identity_tensor"}};

/// Returns text as a literal of Python.
std::string literal(const std::string& text) {
  return Json(text).dump(-1, ' ', true, Json::error_handler_t::replace);
}

std::string module_of(const amp::Policy& file, const std::string& workload, const Recipe& recipe) {
  // Forward in e4m3 and backward in e5m2 is the hybrid format of delayed scales.
  bool e5m2 = false;
  for (const policy::Rule& rule : file.rules.rules)
    for (const auto& [role, said] : rule.roles)
      e5m2 = e5m2 || (said.quantizer.scaling.from_history && said.quantizer.grid == formats::e5m2);
  std::string body = "\nSLOTS = (\"input\", \"weight\", \"grad_output\")\nMAKERS = (\n";
  for (const std::string& code : recipe.made()) body += "    lambda: " + code + ",\n";
  body += ")\n# For each layer the makers of its slots.\nLAYERS = {\n";
  for (const Layer& layer : recipe.layers()) {
    body += "    " + literal(layer.path) + ": (";
    for (std::size_t i = 0; i < 3; ++i) body += (i > 0 ? ", " : "") + std::to_string(layer.made[i]);
    body += "),\n";
  }
  body += R"py(}


def qfactory(role):
    """Returns the quantizer of a slot; high precision for those that the policy does not name."""
    linear = role is not None and role.module_type in ("linear", "grouped_linear")
    makers = LAYERS.get(role.name) if linear and role.tensor_type in SLOTS else None
    return MAKERS[makers[SLOTS.index(role.tensor_type)]]() if makers else IdentityQuantizer()


def recipe():
    return CustomRecipe(qfactory=qfactory)


def check():
    """Compares the quantizers with the numbers of halftone, on a GPU. Returns how many differ, by maker."""
    from pathlib import Path
    from safetensors.torch import load_file

    different = {}
    tensors = load_file(Path(__file__).with_name("proof.safetensors"))
    for name, wanted in tensors.items():
        if name != "x":
            got = MAKERS[int(name)]()(tensors["x"].cuda()).dequantize().float().cpu()
            different[int(name)] = int((got != wanted).sum())
    return different
)py";
  if (body.find("FORMAT") != body.npos)
    body = std::string("\nFORMAT = Format.") + (e5m2 ? "HYBRID" : "E4M3") + "\n" + body;
  std::string head =
      "\"\"\"The policy " + file.name + " (" + policy::hash(file) +
      ") for TransformerEngine 2.20, on the layers of " + workload +
      ".\n\n    with te.autocast(recipe=recipe()): ...\n\nEach te.Linear has the name "
      "of its layer: te.Linear(..., name=\"" +
      (recipe.layers().empty() ? "" : recipe.layers()[0].path) + "\").\n";
  for (const std::string& difference : recipe.differences())
    head += "Differs: " + difference + ".\n";
  head += "Written by halftone-lab export.\n\"\"\"\n";
  if (body.find("torch.device") != body.npos) head += "import torch\n";
  for (const auto& [what, from] : imports)
    if (body.find(what) != body.npos)
      head +=
          "from transformer_engine." + std::string(from) + " import " + std::string(what) + '\n';
  return head + body;
}

/// Inputs, and what the rowwise numbers of each maker must be.
NamedTensors proof_of(const Recipe& recipe) {
  NamedTensors proof;
  manual_seed(55);
  const Tensor x = quantize(randn({128, 256}) * exp(randn({128, 1}) * 2.0), "bf16");
  proof["x"] = x;
  for (std::size_t i = 0; i < recipe.made().size(); ++i)
    if (const auto& quantizer = recipe.rowwise()[i])
      proof[std::to_string(i)] = quantize(x, *quantizer);
  return proof;
}

struct ExportOptions {
  std::string policy, workload, to = "te", output;
};

int run_export(const ExportOptions& options, const std::vector<NamedWorkload>& own) {
  if (options.to != "te")
    fail<UsageError>(op, "--to is ", quoted(options.to),
                     ". Choose te, the one stack that this command knows.");
  const amp::Policy file = policy::named_or_read(options.policy);
  Workload work = make_workload(options.workload, 0, own);
  const std::unique_ptr<optim::Optimizer> optimizer = optimizer_of(work);
  amp::Training training(policy::watched(file), *work.model, *optimizer);
  training.backward(loss_of(work, training, example_of(work)));
  const Recipe recipe(policy::session_of(training), file);
  Table table({"layers", "input", "weight", "grad_output"});
  std::map<std::array<std::size_t, 3>, std::vector<std::string>> alike;
  for (const Layer& layer : recipe.layers()) alike[layer.made].push_back(layer.path);
  for (const auto& [made, paths] : alike)
    table.row({std::to_string(paths.size()) + ", such as " + paths[0], std::to_string(made[0]),
               std::to_string(made[1]), std::to_string(made[2])});
  std::cout << table;
  for (std::size_t i = 0; i < recipe.made().size(); ++i)
    if (!recipe.made()[i].empty()) std::cout << "  " << i << ": " << recipe.made()[i] << '\n';
  for (const std::string& difference : recipe.differences())
    std::cout << "  differs: " << difference << '\n';
  for (const std::string& reason : recipe.refused())
    std::cout << "  not in TransformerEngine: " << reason << '\n';
  if (!recipe.refused().empty()) return exit_no;
  const std::filesystem::path folder(options.output);
  files::make_directories(op, folder);
  files::replace(op, folder / "te_recipe.py", module_of(file, options.workload, recipe));
  save_safetensors(folder / "proof.safetensors", proof_of(recipe));
  std::cout << "wrote " << printable((folder / "te_recipe.py").string()) << '\n';
  return exit_yes;
}

}  // namespace

Work add_export(CLI::App& app, const Context& context) {
  auto options = std::make_shared<ExportOptions>();
  options->workload = context.workload;
  add_policy(app, options->policy);
  add_workload(app, options->workload, context);
  app.add_option("--to", options->to, "te: a CustomRecipe of TransformerEngine")
      ->capture_default_str();
  app.add_option("-o,--output", options->output, "the folder")->required();
  return [options, &context] { return run_export(*options, context.own); };
}

}  // namespace halftone::lab
