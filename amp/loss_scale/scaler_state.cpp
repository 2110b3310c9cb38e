// The scaler's state dictionary, under PyTorch's names.
#include <halftone/amp/grad_scaler.h>

#include <halftone/core/error.h>
#include <halftone/core/factory.h>
#include <halftone/core/named_tensors.h>

namespace halftone::amp {

namespace {
constexpr std::string_view loading_scale = "GradScaler.load_state_dict";

std::string key(std::string_view name, std::size_t loss) {
  std::string text(name);
  if (loss > 0) text += '.', text += std::to_string(loss);
  return text;
}
}  // namespace

optim::NamedTensors GradScaler::state_dict() const {
  optim::NamedTensors state;
  if (!enabled()) return state;
  for (std::size_t i = 0; i < scales_.size(); ++i) {
    const LossScale s = scales_[i].read();
    state[key("scale", i)] = scalar(double(s.scale), f64);
    state[key("growth_factor", i)] = scalar(s.options.growth_factor, f64);
    state[key("backoff_factor", i)] = scalar(s.options.backoff_factor, f64);
    state[key("growth_interval", i)] = scalar(double(s.options.growth_interval), i64);
    state[key("_growth_tracker", i)] = scalar(double(s.growth_tracker), i64);
    if (s.options.hysteresis > 1)
      state[key("_hysteresis", i)] = scalar(double(s.overflows_left), i64);
  }
  return state;
}

void GradScaler::load_state_dict(const optim::NamedTensors& state) {
  if (!enabled()) return;
  if (state.empty())
    fail<UsageError>(loading_scale,
                     "the state is empty: it was saved by a disabled scaler. Disable this "
                     "one, or leave the state out.");
  Entries entries(loading_scale, "a GradScaler with the same number of losses", state);
  std::vector<LossScale> loaded;
  for (const DeviceLossScale& s : scales_) loaded.push_back(s.read());
  for (std::size_t i = 0; i < loaded.size(); ++i) {
    LossScale& s = loaded[i];
    s.options.init_scale = entries.number(key("scale", i));
    s.options.growth_factor = entries.number(key("growth_factor", i));
    s.options.backoff_factor = entries.number(key("backoff_factor", i));
    s.options.growth_interval = entries.count(key("growth_interval", i), "growth_interval");
    s.growth_tracker = entries.count(key("_growth_tracker", i), "_growth_tracker");
    s.options.check(loading_scale);
    s.scale = float(s.options.init_scale);
    if (const std::string left = key("_hysteresis", i); entries.has(left))
      s.overflows_left = int(std::min<int64_t>(entries.count(left, left), s.options.hysteresis));
  }
  entries.refuse_rest();
  // The progress of a step that has begun does not change, as in PyTorch.
  for (std::size_t i = 0; i < loaded.size(); ++i) scales_[i].write(loaded[i]);
}

}  // namespace halftone::amp
