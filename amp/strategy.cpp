// The table of strategies.
#include <halftone/amp/strategy.h>

#include <algorithm>
#include <iomanip>
#include <ostream>
#include <sstream>
#include <vector>

#include <halftone/core/error.h>

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

}  // namespace halftone::amp
