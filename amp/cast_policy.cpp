// The table of a policy, filled from the catalog of operations.
#include <halftone/amp/cast_policy.h>

#include <algorithm>
#include <ostream>
#include <set>
#include <string>
#include <typeinfo>

#include <halftone/amp/autocast.h>
#include <halftone/autograd/ops.h>
#include <halftone/core/error.h>

namespace halftone::amp {

namespace {
using Catalogue = std::map<std::string_view, const OpInfo*>;
template <class... Ops> Catalogue by_name(TypeList<Ops...>) {
  return {{Ops::info.name, &Ops::info}...};
}
/// Returns every operation that policies decide on. Policies are made of `cast`, and `checkpoint`
/// runs its segment under the policy: no policy applies to these two.
const Catalogue& catalogue() {
  static const Catalogue all = [] {
    Catalogue operations = by_name(AllOps{});
    operations.erase(Cast::info.name), operations.erase(Checkpoint::info.name);
    for (const OpInfo* info : composed::all) operations.emplace(info->name, info);
    return operations;
  }();
  return all;
}
template <class... Ops> std::set<std::string_view> names_of_unary(TypeList<Ops...>) {
  std::set<std::string_view> names;
  const auto add = [&]<class Op> {
    if constexpr (requires(Op op, const Tensor& x) { op.forward(x); }) names.insert(Op::info.name);
  };
  (add.template operator()<Ops>(), ...);
  return names;
}
std::vector<std::string_view> names_with(bool OpFacts::*fact) {
  std::vector<std::string_view> names;
  for (const auto& [name, info] : catalogue())
    if (info->*fact) names.push_back(name);
  return names;
}
}  // namespace

CastPolicy::CastPolicy() : name_("pytorch-cuda") {
  for (const auto& [op, info] : catalogue()) decisions_.emplace(op, info->cast_class);
}

const OpInfo* CastPolicy::info(std::string_view op) {
  const auto found = catalogue().find(op);
  return found == catalogue().end() ? nullptr : found->second;
}

bool CastPolicy::takes_one_input(std::string_view op) {
  static const auto unary = names_of_unary(AllOps{});
  return unary.contains(op) && info(op);
}

std::span<const std::string_view> CastPolicy::operations() {
  static const auto names = [] {
    std::vector<std::string_view> all;
    for (const auto& [op, info] : catalogue()) all.push_back(op);
    return all;
  }();
  return names;
}

std::span<const std::string_view> CastPolicy::losses() {
  static const auto names = names_with(&OpFacts::is_loss);
  return names;
}

std::string CastPolicy::operations_with(bool OpFacts::*fact) {
  const std::vector<std::string_view> names = names_with(fact);
  std::string text;
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (i > 0) text += i + 1 < names.size() ? ", " : " and ";
    text += names[i];
  }
  return text;
}

std::span<const std::string_view> CastPolicy::preset_names() {
  static const auto names = [] {
    std::vector<std::string_view> all;
    for (const Preset& preset : presets()) all.push_back(preset.name);
    return all;
  }();
  return names;
}

CastPolicy CastPolicy::preset(std::string_view name) {
  const auto found = std::ranges::find(presets(), name, &Preset::name);
  if (found == presets().end())
    fail_unknown_name("CastPolicy.preset", "preset", name, preset_names());
  CastPolicy policy;
  policy.name_ = found->name;
  for (auto& [op, decision] : policy.decisions_) decision = found->otherwise(decision.cast_class);
  for (const Preset::List& list : found->lists)
    for (const std::string_view op : list.operations) policy[op] = list.cast_class;
  return policy;
}

CastDecision& CastPolicy::operator[](std::string_view op) {
  const auto found = decisions_.find(op);
  if (found == decisions_.end()) fail_unknown_name("CastPolicy", "operation", op, operations());
  return found->second;
}
const CastDecision& CastPolicy::operator[](std::string_view op) const {
  return const_cast<CastPolicy&>(*this)[op];
}
CastDecision& CastPolicy::operator[](const OpInfo& op) {
  return decisions_.try_emplace(op.name, op.cast_class).first->second;
}

CastDecision CastPolicy::decide(const OpInfo& op, std::span<const Tensor>) const {
  const auto found = decisions_.find(op.name);
  return found == decisions_.end() ? CastDecision(op.cast_class) : found->second;
}

Region CastPolicy::with(DType dtype) const {
  if (typeid(*this) != typeid(CastPolicy))
    fail<UsageError>("CastPolicy.with",
                     "called on a derived policy, whose decide() would be lost. Use "
                     "Region{.policy = std::make_shared<YourPolicy>(...), .dtype = ...}.");
  return Region{.policy = std::make_shared<CastPolicy>(*this), .dtype = dtype};
}

std::ostream& operator<<(std::ostream& out, const CastPolicy& policy) {
  out << "policy " << policy.name() << '\n';
  std::set<CastDecision> kinds;  // classes in their order, those without dtype first
  for (const auto& [op, decision] : policy.decisions_) kinds.insert(decision);
  for (const CastDecision& kind : kinds) {
    std::string line = "  " + described(kind);
    line.resize(std::max<std::size_t>(line.size(), 17), ' ');
    for (const auto& [op, decision] : policy.decisions_) {
      if (decision != kind) continue;
      if (line.size() + 1 + op.size() > 98) {
        out << line << '\n';
        line.assign(17, ' ');
      }
      line += ' ', line += op;
    }
    out << line << '\n';
  }
  return out;
}

void CastDecision::check(std::string_view where) const {
  for (const std::optional<DType>& asked : {dtype, cuda_dtype}) {
    if (!asked) continue;
    if (cast_class != CastClass::low_precision)
      fail<DTypeError>(where, "is to run in ", *asked, " as ", halftone::name(cast_class),
                       ". Only low_precision has a dtype of its own.");
    if (*asked != bf16 && *asked != f16)
      fail<DTypeError>(where, "cannot run in ", *asked, " under autocast. Use bf16 or f16.");
  }
}

std::string described(const CastDecision& decision) {
  std::string text(name(decision.cast_class));
  if (decision.dtype) text += ' ' + std::string(name(*decision.dtype));
  if (decision.cuda_dtype) text += " (cuda " + std::string(name(*decision.cuda_dtype)) + ')';
  return text;
}

// The presets. Operations on no published list are as_is here, or widest_input if their inputs must
// agree, which the systems promote natively.

namespace {
CastClass as_asked(CastClass asked) { return asked; }
/// Returns the class that a system gives an operation on none of its lists.
CastClass unlisted(CastClass asked) {
  return asked == CastClass::widest_input ? asked : CastClass::as_is;
}
CastClass nothing(CastClass) { return CastClass::as_is; }
/// Returns low precision for everything that another policy would cast.
CastClass low(CastClass asked) {
  return asked == CastClass::as_is ? asked : CastClass::low_precision;
}

using enum CastClass;
}  // namespace

std::span<const Preset> presets() {
  static const std::vector<Preset> all{
      // ATen/autocast_mode.h, the lists of CUDA (2.15;
      // tests/fixtures/pytorch/amp_policy_fixtures.py reads
      // them).
      // The operations ask for exactly that.
      {"pytorch-cuda", as_asked, {}},
      // aten/src/ATen/autocast_mode.cpp, the lists of the CPU: losses and prod in f32. Its
      // mkldnn_rnn_layer is our lstm; a GRU is on no list, and its states stay f32. Here and in the
      // next lists grouped_linear, which no system has, is what linear is.
      {"pytorch-cpu",
       unlisted,
       {{low_precision,
         {"matmul", "linear", "grouped_linear", "conv2d", "conv_transpose2d", "prelu", "lstm",
          "scaled_dot_product_attention"}},
        {full_precision,
         {"cross_entropy", "nll_loss", "bce_with_logits", "binary_cross_entropy", "mse", "l1",
          "smooth_l1", "huber", "kl_div", "triplet_margin_loss", "cosine_embedding_loss",
          "margin_ranking_loss"}},
        {full_precision, {"hinge_embedding_loss", "poisson_nll_loss", "ctc_loss", "prod"}},
        {full_precision, {"grid_sample", "inv", "solve", "cholesky", "qr", "svd", "eigh"}},
        {widest_input, {"cat", "pow", "cosine_similarity", "gru", "einsum", "index_copy"}},
        {as_is, {"dot", "scatter_add", "index_put"}}}},
      // apex/amp/lists/{functional,torch,tensor}_overrides.py, before its removal in 2025.
      {"apex-o1",
       unlisted,
       {{low_precision,
         {"matmul", "linear", "grouped_linear", "conv2d", "conv_transpose2d", "prelu", "lstm",
          "gru"}},
        {full_precision,
         {"interpolate", "cosine_similarity", "cumprod", "triplet_margin_loss",
          "cosine_embedding_loss", "margin_ranking_loss", "hinge_embedding_loss",
          "poisson_nll_loss"}},
        {full_precision, {"tan", "asin", "acos", "sinh", "cosh", "erfinv"}},
        {full_precision,
         {"gelu",       "gelu_erf",   "softplus",      "softmax",  "log_softmax",
          "layer_norm", "group_norm", "cross_entropy", "nll_loss", "bce_with_logits",
          "mse",        "l1",         "smooth_l1",     "exp",      "expm1",
          "log",        "log2",       "log10",         "pow",      "rsqrt",
          "reciprocal", "sum",        "cumsum",        "var",      "norm",
          "kl_div",     "prod"}},
        {as_is, {"scaled_dot_product_attention", "einsum"}},
        {banned, {"binary_cross_entropy"}}}},
      // python/paddle/amp/amp_lists.py (2024): white list low, black list f32, the rest promotes.
      {"paddle-o1",
       unlisted,
       {{low_precision,
         {"matmul", "linear", "grouped_linear", "einsum", "conv2d", "max_pool2d",
          "scaled_dot_product_attention"}},
        {full_precision, {"interpolate", "cosine_similarity"}},
        {full_precision, {"tan", "asin", "acos", "sinh", "cosh", "erfinv"}},
        {widest_input, {"lstm", "gru"}},
        {as_is, {"conv_transpose2d", "prelu"}},
        {full_precision,
         {"softplus",      "softmax",        "log_softmax", "layer_norm", "group_norm",
          "cross_entropy", "nll_loss",       "huber",       "exp",        "expm1",
          "log",           "log2",           "log10",       "pow",        "rsqrt",
          "reciprocal",    "square",         "sum",         "mean",       "cumsum",
          "norm",          "prod",           "embedding",   "mse",        "l1",
          "smooth_l1",     "bce_with_logits"}}}},
      // flashlight/fl/autograd/Functions.cpp, OptimLevel::O1: f16 except for these.
      {"flashlight-o1",
       low,
       {{full_precision,
         {"batch_norm", "batch_norm_relu", "layer_norm", "group_norm", "rms_norm", "reciprocal",
          "exp", "log", "log1p", "pow", "sum", "mean", "var", "norm", "softmax", "log_softmax",
          "cross_entropy", "gelu", "gelu_erf"}}}},
      {"none", nothing, {}},
      {"all-low", low, {}},
  };
  return all;
}

}  // namespace halftone::amp
