// The table of strategies.
#include <halftone/amp/strategy.h>

#include <algorithm>
#include <iomanip>
#include <ostream>
#include <set>
#include <sstream>
#include <vector>

#include <halftone/core/error.h>
#include <halftone/distributed/collectives.h>
#include <halftone/nn/conv.h>

namespace halftone::amp {

namespace {
const std::vector<Strategy>& strategies() {
  static const std::vector<Strategy> all{
      {.name = "fp64", .weights = f64, .state_dtype = f64},
      {.name = "fp32"},
      {.name = "amp-bf16", .autocast = bf16},
      {.name = "amp-fp16", .autocast = f16, .scales_loss = true},
      {.name = "o1-fp16", .autocast = f16, .policy = "apex-o1", .scales_loss = true},
      {.name = "o2-bf16", .weights = bf16, .keep_batch_norm = true, .form = WeightForm::master},
      {.name = "o2-fp16",
       .weights = f16,
       .keep_batch_norm = true,
       .form = WeightForm::master,
       .scales_loss = true},
      {.name = "o3-fp16", .weights = f16, .loss_scale = {.init_scale = 1, .dynamic = false}},
      {.name = "full-bf16", .weights = bf16, .state_dtype = bf16},
      {.name = "full-bf16-sr",
       .weights = bf16,
       .form = WeightForm::stochastic,
       .state_dtype = bf16},
      {.name = "full-bf16-kahan", .weights = bf16, .form = WeightForm::kahan, .state_dtype = bf16},
      {.name = "split-bf16", .weights = bf16, .form = WeightForm::split_rounded},
  };
  return all;
}
}  // namespace

std::span<const std::string_view> Strategy::names() {
  static const auto names = [] {
    std::vector<std::string_view> list;
    for (const Strategy& strategy : strategies()) list.push_back(strategy.name);
    return list;
  }();
  return names;
}

Strategy Strategy::named(std::string_view name) {
  const auto found = std::ranges::find(strategies(), name, &Strategy::name);
  if (found == strategies().end()) fail_unknown_name("Strategy", "strategy", name, names());
  return *found;
}

std::ostream& operator<<(std::ostream& out, const Strategy& s) {
  PlainText line;
  line << std::left << std::setw(16) << s.name << " weights " << s.weights;
  if (s.form != WeightForm::plain) line << " (" << halftone::name(s.form) << ')';
  if (s.keep_batch_norm) line << ", batch norm f32";
  if (s.autocast) line << ", autocast " << *s.autocast << " by " << s.policy;
  if (s.scales_loss)
    line << ", loss scale " << (s.loss_scale.dynamic ? "dynamic from " : "static ")
         << s.loss_scale.init_scale;
  else if (!s.loss_scale.dynamic) line << ", loss scale static " << s.loss_scale.init_scale;
  if (s.state_dtype) line << ", optimizer state " << *s.state_dtype;
  if (s.wire != distributed::WireFormat{}) line << ", gradients travel in " << name(s.wire);
  return out << line.str();
}

// The sums of strategy.h: shapes times the sizes of each strategy's tensors.

namespace {
using Bodies = std::set<const TensorBody*>;

Bodies batch_norm_parameters(nn::Module& model) {
  Bodies bodies;
  for (const auto& [name, module] : model.named_modules())
    if (dynamic_cast<const nn::BatchNorm*>(module))
      for (const Tensor& x : module->parameters()) bodies.insert(x.body().get());
  return bodies;
}

/// Returns the bytes of a form's companion for an element of a short parameter.
int64_t companion(WeightForm form, DType parameter) {
  const WeightFormFacts& kept = facts(form);
  return kept.has_companion() ? size_of(kept.companion_dtype(parameter)) : 0;
}

/// Returns the model's tensor for a parameter of the optimizer, which may hold only a part of it.
Tensor whole_of(const Tensor& x, const std::vector<Tensor>& parameters) {
  if (std::ranges::find(parameters, x.body(), &Tensor::body) != parameters.end()) return x;
  const auto found = std::ranges::find(parameters, x.storage(), &Tensor::storage);
  return found == parameters.end() ? x : *found;
}

/// Returns, by rank, the elements of each of the optimizer's parameters that the rank keeps.
std::vector<std::vector<int64_t>> elements_of_ranks(const std::vector<Tensor>& parameters,
                                                    bool elementwise, int ranks) {
  const distributed::Shards shards(parameters, elementwise ? ranks : 1);
  std::vector<std::vector<int64_t>> elements;
  for (int rank = 0; rank < shards.ranks(); ++rank) {
    elements.emplace_back();
    for (std::size_t i = 0; i < parameters.size(); ++i)
      elements.back().push_back(shards.range(i, rank).count);
  }
  return elements;
}
}  // namespace

StrategyBytes predicted_bytes(const Strategy& strategy, nn::Module& model,
                              optim::Optimizer& optimizer, int ranks) {
  if (ranks < 1) fail<UsageError>("predicted_bytes", "of ", ranks, " ranks. Use 1 or more.");
  const Bodies kept = strategy.keep_batch_norm ? batch_norm_parameters(model) : Bodies{};
  const auto dtype_of = [&](const Tensor& x) {
    return kept.contains(x.body().get()) ? f32 : strategy.weights;
  };
  const std::vector<Tensor> of_model = model.parameters();
  StrategyBytes bytes;
  for (const Tensor& x : of_model) bytes.parameter += x.numel() * size_of(dtype_of(x));
  std::vector<Tensor> whole;
  for (const Tensor& x : optimizer.parameters()) whole.push_back(whole_of(x, of_model));

  const int64_t state_size = size_of(strategy.state_dtype.value_or(f32));
  const auto of_rank = [&](const std::vector<int64_t>& elements) {
    StrategyBytes own = bytes;
    std::size_t i = 0;
    for (int group = 0; group < optimizer.group_count(); ++group)
      for (std::size_t end = i + optimizer.group_parameters(group).size(); i < end; ++i) {
        const Tensor& x = whole[i];
        const DType dtype = dtype_of(x);
        if (dtype == bf16 || dtype == f16)
          own.companion += elements[i] * companion(strategy.form, dtype);
        if (!x.requires_grad()) continue;
        own.gradient += elements[i] * (ranks == 1 || dtype == f64 ? size_of(dtype) : size_of(f32));
        own.optimizer_state += elements[i] * state_size * optimizer.state_tensors(group, x);
      }
    return own;
  };
  StrategyBytes most;
  for (const auto& elements : elements_of_ranks(whole, optimizer.elementwise(), ranks))
    if (const StrategyBytes own = of_rank(elements); own.total() >= most.total()) most = own;
  return most;
}

}  // namespace halftone::amp
