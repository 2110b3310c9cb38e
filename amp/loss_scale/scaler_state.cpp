// The scaler's state dictionary, under PyTorch's names.
#include <halftone/amp/loss_scale/grad_scaler.h>

#include <cmath>
#include <set>

#include <halftone/core/factory.h>
#include <halftone/core/error.h>
#include <halftone/core/quoted.h>

namespace halftone::amp {

namespace {
constexpr std::string_view loading_scale = "GradScaler.load_state_dict";

std::string key(std::string_view name, std::size_t loss) {
  std::string text(name);
  if (loss > 0) text += '.', text += std::to_string(loss);
  return text;
}

/// Takes entries by name; what nobody asked for is an error in the end.
class Entries {
 public:
  explicit Entries(const optim::NamedTensors& state) : state_(state) {}
  double take(const std::string& name) {
    const auto found = state_.find(name);
    if (found == state_.end() || !found->second.defined())
      fail<UsageError>(loading_scale, "there is no entry \"", name,
                       "\". Load what a GradScaler of as many losses saved.");
    if (found->second.numel() != 1)
      fail<UsageError>(loading_scale, "the entry \"", name, "\" is ", described(found->second),
                       ". It must have one element.");
    taken_.insert(name);
    return found->second.item();
  }
  bool has(const std::string& name) const { return state_.contains(name); }
  void finish() const {
    for (const auto& [name, x] : state_)
      if (!taken_.contains(name))
        fail<UsageError>(loading_scale, "the entry ", in_quotes(name),
                         " is unknown. Load what a GradScaler of as many losses saved.");
  }

 private:
  const optim::NamedTensors& state_;
  std::set<std::string> taken_;
};

int64_t whole(double value, std::string_view name) {
  if (!(value >= 0 && value <= 9e15 && value == std::floor(value)))
    fail<UsageError>(loading_scale, name, " is ", value, ". It must be a whole number, 0 or more.");
  return int64_t(value);
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
  Entries entries(state);
  std::vector<LossScale> loaded;
  for (const DeviceLossScale& s : scales_) loaded.push_back(s.read());
  for (std::size_t i = 0; i < loaded.size(); ++i) {
    LossScale& s = loaded[i];
    s.options.init_scale = entries.take(key("scale", i));
    s.options.growth_factor = entries.take(key("growth_factor", i));
    s.options.backoff_factor = entries.take(key("backoff_factor", i));
    s.options.growth_interval = whole(entries.take(key("growth_interval", i)), "growth_interval");
    s.growth_tracker = whole(entries.take(key("_growth_tracker", i)), "_growth_tracker");
    s.options.check(loading_scale);
    s.scale = float(s.options.init_scale);
    if (const std::string left = key("_hysteresis", i); entries.has(left))
      s.overflows_left =
          int(std::min<int64_t>(whole(entries.take(left), left), s.options.hysteresis));
  }
  entries.finish();
  // What optimizers are in the middle of stays, as PyTorch's.
  for (std::size_t i = 0; i < loaded.size(); ++i) scales_[i].write(loaded[i]);
}

}  // namespace halftone::amp
