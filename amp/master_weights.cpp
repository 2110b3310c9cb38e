// Companions, the keeper that gives them to a fused optimizer, and the plain version.
#include <halftone/amp/master_weights.h>

#include <algorithm>
#include <utility>

#include <halftone/autograd/slots.h>
#include <halftone/core/backend.h>
#include <halftone/core/captured_step.h>
#include <halftone/core/factory.h>
#include <halftone/core/named_tensors.h>

namespace halftone::amp {

struct MasterWeights::State {
  struct Weight {
    Tensor parameter, companion, wide_gradient;
    std::weak_ptr<Storage> source{};  // the source of wide_gradient, and its version then
    uint64_t source_version = 0;
    WeightForm form = WeightForm::plain;
    uint64_t first_counter = 0;  // of the random numbers for this parameter in one step
  };
  std::vector<Weight> weights;              // of all groups
  std::vector<std::vector<Tensor>> groups;  // the model's parameters
  uint64_t seed = 0, steps = 0, counters_per_step = 0;

  /// Adds the groups that the optimizer has got since the last call; the first call adds all of
  /// them.
  void adopt_groups(optim::Optimizer& inner, const MasterWeightsOptions& options,
                    std::vector<Tensor> initial = {});
};

class MasterWeights::Keeper final : public optim::WeightKeeper {
 public:
  explicit Keeper(std::shared_ptr<State> state) : state_(std::move(state)) {}
  Tensor gradient(std::size_t index, const Tensor& parameter) const override {
    if (index >= state_->weights.size()) return parameter.grad();  // its group is not adopted yet
    const Tensor& wide = state_->weights[index].wide_gradient;
    return wide.defined() ? wide : parameter.grad();
  }
  void complete(std::size_t index, UpdateSlot& slot) override {
    if (index >= state_->weights.size()) return;
    const State::Weight& weight = state_->weights[index];
    slot.form = weight.form, slot.companion = weight.companion;
    slot.key = {state_->seed, state_->steps * state_->counters_per_step + weight.first_counter};
    slot.key_stride = state_->counters_per_step;
  }

 private:
  std::shared_ptr<State> state_;
};

namespace {
/// Returns the companion of a parameter, filled. `initial` is its f32 weight or undefined. If
/// undefined, the short value is the weight.
Tensor make_companion(WeightForm form, Tensor& parameter, const Tensor& initial) {
  if (!facts(form).has_companion()) return {};
  const Tensor weight =
      initial.defined() ? initial : joined_weight(WeightForm::plain, parameter, {});
  if (form == WeightForm::master && initial.defined()) {
    initial.storage()->recharge(MemoryUse::master_weight);
    return initial;
  }
  const MemoryScope scope(companion_use(form));
  Tensor companion = empty_like(parameter, facts(form).companion_dtype(parameter.dtype()));
  store_weight(form, weight, parameter, companion);
  return companion;
}
}  // namespace

MasterWeights::MasterWeights(optim::Optimizer& inner, const MasterWeightsOptions& options,
                             std::vector<Tensor> initial)
    : inner_(inner), options_(options), state_(std::make_shared<State>()) {
  const std::vector<Tensor> parameters = inner.parameters();
  if (!initial.empty() && initial.size() != parameters.size())
    fail<UsageError>("MasterWeights", "got ", initial.size(), " initial weights for ",
                     parameters.size(), " parameters. Give one for each, or none.");
  bool any = false;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (is_short_float(parameters[i])) {
      require_form("MasterWeights", options.form, parameters[i].dtype());
      any = true;
    }
    if (!initial.empty() &&
        (initial[i].shape() != parameters[i].shape() || initial[i].dtype() != f32))
      fail<UsageError>("MasterWeights", "initial weight ", i, " is ", described(initial[i]),
                       ", the parameter is ", described(parameters[i]),
                       ". Give f32 tensors of the parameters' shapes.");
  }
  if (!any)
    fail<UsageError>("MasterWeights",
                     "no parameter is bf16 or f16, so there is nothing to keep. Cast the model "
                     "first: model.to(bf16).");
  if (!options.fused && options.form != WeightForm::master)
    fail<UsageError>("MasterWeights", "form ", halftone::name(options.form),
                     " exists only fused. Use form master, or leave fused on.");
  if (options.fused && !inner.set_weight_keeper(std::make_shared<Keeper>(state_)))
    fail<UsageError>("MasterWeights",
                     "this optimizer does not update through the backend. Use form master with "
                     ".fused = false.");
  state_->seed = options.seed;
  state_->adopt_groups(inner, options, std::move(initial));
}

void MasterWeights::State::adopt_groups(optim::Optimizer& inner,
                                        const MasterWeightsOptions& options,
                                        std::vector<Tensor> initial) {
  for (int g = int(groups.size()); g < inner.group_count(); ++g) {
    const std::span<Tensor> group = inner.group_parameters(g);
    for (const Tensor& parameter : group)
      if (is_short_float(parameter)) require_form("MasterWeights", options.form, parameter.dtype());
    groups.emplace_back(group.begin(), group.end());
    for (Tensor& parameter : group) {
      Weight weight{.parameter = parameter, .companion = {}, .wide_gradient = {}};
      weight.first_counter = counters_per_step;
      counters_per_step += uint64_t(parameter.numel() + 7) / 8;
      if (is_short_float(parameter)) {
        weight.form = options.form;
        // The f32 weight is not needed afterwards, unless it is the companion.
        const Tensor whole =
            initial.empty() ? Tensor{} : std::exchange(initial[weights.size()], Tensor{});
        weight.companion = make_companion(options.form, weight.parameter, whole);
        if (!options.fused) parameter = weight.companion.set_requires_grad();
      }
      weights.push_back(std::move(weight));
    }
  }
}

void MasterWeights::adopt_parts(std::span<const int64_t> begins) {
  std::vector<int64_t> sizes;
  for (const State::Weight& w : state_->weights) sizes.push_back(w.parameter.numel());
  state_->weights.clear(), state_->groups.clear();
  state_->adopt_groups(inner_, options_);
  count_as_parts(sizes, begins);
}

void MasterWeights::count_as_parts(std::span<const int64_t> sizes,
                                   std::span<const int64_t> begins) {
  uint64_t next = 0;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    state_->weights.at(i).first_counter = next + uint64_t(begins[i]) / 8;
    next += uint64_t(sizes[i] + 7) / 8;
  }
  state_->counters_per_step = next;
}

MasterWeights::~MasterWeights() {
  if (options_.fused) inner_.set_weight_keeper(nullptr);
  for (int g = 0; !options_.fused && g < int(state_->groups.size()); ++g)
    std::ranges::copy(state_->groups[std::size_t(g)], inner_.group_parameters(g).begin());
}

std::span<Tensor> MasterWeights::group_parameters(int group) {
  inner_.group_parameters(group);  // throws for a group that does not exist
  state_->adopt_groups(inner_, options_);
  return state_->groups[std::size_t(group)];
}

Tensor MasterWeights::weight(std::size_t index) const {
  const State::Weight& w = state_->weights.at(index);
  return joined_weight(w.form, w.parameter, w.companion);
}
void MasterWeights::set_weight(std::size_t index, const Tensor& weight) {
  State::Weight& w = state_->weights.at(index);
  if (weight.shape() != w.parameter.shape() || weight.dtype() != f32)
    fail<ShapeError>("MasterWeights.set_weight", "the weight is ", described(weight),
                     ", the parameter is ", described(w.parameter),
                     ". Give an f32 tensor of its shape.");
  store_weight(w.form, weight, w.parameter, w.companion);
}
Tensor MasterWeights::companion(std::size_t index) const {
  return state_->weights.at(index).companion;
}

// --- gradients

void MasterWeights::collect() { add_to_sums(); }

void MasterWeights::add_to_sums() const {
  for (State::Weight& w : state_->weights) {
    const Tensor gradient = w.parameter.grad();
    if (!gradient.defined() || !is_short_float(w.parameter)) continue;
    if (w.wide_gradient.defined()) {
      const MemoryScope scope(MemoryUse::workspace);
      Tensor wide = empty_like(gradient, f32);
      backend_for(gradient).copy(gradient, wide);
      backend_for(gradient).accumulate(wide, w.wide_gradient);
    } else {
      const MemoryScope scope(MemoryUse::master_gradient);
      w.wide_gradient = empty_like(gradient, f32);
      backend_for(gradient).copy(gradient, w.wide_gradient);
    }
    w.parameter.set_grad({});
  }
}

/// As apex: makes an f32 gradient for each short one, until the step.
void MasterWeights::materialize_gradients() const {
  const MemoryScope scope(MemoryUse::master_gradient);
  for (State::Weight& w : state_->weights) {
    const Tensor gradient = w.parameter.grad();
    if (!gradient.defined()) w.wide_gradient = {};  // dropped since
    if (w.form == WeightForm::plain || !gradient.defined()) continue;
    const std::shared_ptr<Storage>& storage = gradient.storage();
    const bool known = w.source.lock() == storage && w.source_version == storage->version();
    if (w.wide_gradient.defined() && known) continue;
    w.wide_gradient = empty_like(gradient, f32);
    w.source = storage, w.source_version = storage->version();
    backend_for(gradient).copy(gradient, w.wide_gradient);
  }
}

void MasterWeights::prepare_gradients() const {
  state_->adopt_groups(inner_, options_);
  if (options_.accumulate_in_f32) add_to_sums();
  else if (!options_.fused) materialize_gradients();
}

std::vector<Tensor> MasterWeights::gradients() const {
  prepare_gradients();
  std::vector<Tensor> result;
  for (std::size_t i = 0; i < state_->weights.size(); ++i)
    if (Tensor own = gradient(i); own.defined()) result.push_back(std::move(own));
  return result;
}

Tensor MasterWeights::gradient(std::size_t index) const {
  const State::Weight& w = state_->weights.at(index);
  return w.wide_gradient.defined() ? w.wide_gradient : w.parameter.grad();
}

void MasterWeights::zero_grad(bool set_to_none) {
  Optimizer::zero_grad(set_to_none);
  for (State::Weight& w : state_->weights) w.wide_gradient = {};
}

// --- the step

void MasterWeights::step(const optim::StepControl& control) {
  // Weights with an f32 gradient were checked, and possibly unscaled, when it was made.
  if (!control.knows_scale && !control.factor.defined() && !control.skip.defined())
    for (std::size_t i = 0; i < state_->weights.size(); ++i)
      if (const State::Weight& w = state_->weights[i];
          !w.wide_gradient.defined() && has_scaled_gradient(w.parameter))
        optim::refuse_scaled_gradient("MasterWeights", i, w.parameter);
  prepare_gradients();
  if (!options_.fused) return step_plain(control);
  inner_.step(control);
  ++state_->steps;
  if (recording_step()) repeat_on_replay([state = state_] { ++state->steps; });
  for (State::Weight& w : state_->weights) w.wide_gradient = {};
}

/// Masters that did not change copy equal values into their parameters.
void MasterWeights::step_plain(const optim::StepControl& control) {
  for (State::Weight& w : state_->weights)
    if (w.companion.defined()) w.companion.set_grad(w.wide_gradient);
  inner_.step(control);
  for (State::Weight& w : state_->weights) {
    if (!w.wide_gradient.defined()) continue;  // a weight with a wide gradient has a master
    w.companion.set_grad({});
    copy_into(w.parameter, w.companion);
    w.wide_gradient = {};
  }
}

// --- state

namespace {
std::string entry_name(WeightForm form, std::size_t index) {
  std::string text(facts(form).companion);
  text += '.';
  return text += std::to_string(index);
}
}  // namespace

optim::NamedTensors MasterWeights::state_dict() const {
  state_->adopt_groups(inner_, options_);
  optim::NamedTensors state = inner_.state_dict();
  for (std::size_t i = 0; i < state_->weights.size(); ++i) {
    const State::Weight& w = state_->weights[i];
    if (w.companion.defined()) state[entry_name(w.form, i)] = w.companion.detach();
  }
  if (options_.form == WeightForm::stochastic)
    state["rounding"] =
        from_vector(std::vector<int64_t>{int64_t(state_->seed), int64_t(state_->steps)}, {2}, i64);
  return state;
}

void MasterWeights::load_state_dict(const optim::NamedTensors& state) {
  state_->adopt_groups(inner_, options_);
  Entries entries("MasterWeights.load_state_dict", "MasterWeights of the same form", state);
  std::vector<Tensor> companions(state_->weights.size());
  for (std::size_t i = 0; i < companions.size(); ++i) {
    const State::Weight& w = state_->weights[i];
    if (w.companion.defined())
      companions[i] = entries.take(entry_name(w.form, i), w.companion.shape(), w.companion.dtype());
    // A parameter that a training saved as infinite has been loaded by now, and may stay so.
    if (w.form != WeightForm::master || !companions[i].defined()) continue;
    const std::optional<double> lost = lost_value(companions[i], w.parameter.dtype());
    if (lost && std::ranges::all_of(w.parameter.to_vector<float>(),
                                    [](float value) { return std::isfinite(value); }))
      fail<DTypeError>("MasterWeights.load_state_dict", "the entry \"", entry_name(w.form, i),
                       "\" has ", *lost, ", which the parameter, ", described(w.parameter),
                       ", cannot hold. Load it into parameters of a wider dtype.");
  }
  std::vector<int64_t> rounding;
  if (options_.form == WeightForm::stochastic)
    rounding = entries.take("rounding", {2}, i64).to_vector<int64_t>();
  inner_.load_state_dict(entries.rest());  // refuses unknown entries; nothing has changed so far
  for (std::size_t i = 0; i < companions.size(); ++i) {
    State::Weight& w = state_->weights[i];
    if (!companions[i].defined()) continue;
    copy_into(w.companion, companions[i]);
    if (w.form == WeightForm::master) copy_into(w.parameter, w.companion);
  }
  if (!rounding.empty())
    state_->seed = uint64_t(rounding[0]), state_->steps = uint64_t(rounding[1]);
}

// On the host, element by element.

MemoryUse companion_use(WeightForm form) {
  return form == WeightForm::kahan ? MemoryUse::compensation : MemoryUse::master_weight;
}

void require_form(std::string_view where, WeightForm form, DType dtype) {
  if (facts(form).only_bf16 && dtype != bf16)
    fail<DTypeError>(where, name(form), " keeps bf16 parameters only, one is ", dtype,
                     ". Use master for f16.");
}

namespace {
/// Returns x as contiguous data on the host.
Tensor on_host(const Tensor& x, DType dtype) {
  Tensor plain = empty(x.shape(), dtype, x.device());
  backend_for(x).copy(x, plain);
  return plain.to(Device::cpu());
}
Tensor on_host(const Tensor& x) { return on_host(x, x.dtype()); }
}  // namespace

Tensor joined_weight(WeightForm form, const Tensor& parameter, const Tensor& companion) {
  const MemoryScope scope(MemoryUse::workspace);
  if (parameter.dtype() == f64) return on_host(parameter);
  Tensor weight = on_host(parameter, f32);
  if (!facts(form).has_companion()) return weight;
  const Tensor rest = on_host(companion, f32);
  const std::span<float> w(weight.data<float>(), std::size_t(weight.numel()));
  visit_index(WeightForms{}, int(form), [&]<class Form>() {
    for (std::size_t i = 0; i < w.size(); ++i) w[i] = Form::decode(w[i], rest.data<float>()[i]);
  });
  return weight;
}

void store_weight(WeightForm form, const Tensor& weight, Tensor& parameter, Tensor& companion) {
  const MemoryScope scope(MemoryUse::workspace);
  if (parameter.dtype() == f64) return copy_into(parameter, on_host(weight));
  // In pieces: a large weight then needs no copies of its size.
  constexpr int64_t piece = int64_t(1) << 18;
  const auto in_row = [](const Tensor& x) { return !x.defined() || x.is_contiguous(); };
  if (weight.numel() > piece && in_row(weight) && in_row(parameter) && in_row(companion)) {
    const auto part = [](const Tensor& x, int64_t begin, int64_t count) {
      return x.defined() ? x.detach().view_as({count}, {1}, x.offset() + begin) : x;
    };
    for (int64_t begin = 0; begin < weight.numel(); begin += piece) {
      const int64_t count = std::min(piece, weight.numel() - begin);
      Tensor p = part(parameter, begin, count), c = part(companion, begin, count);
      store_weight(form, part(weight, begin, count), p, c);
    }
    return;
  }
  const Tensor w = on_host(weight, f32);
  copy_into(parameter, w);
  if (!facts(form).has_companion()) return;
  Tensor upper = on_host(parameter, f32), rest = empty_like(w);
  visit_index(WeightForms{}, int(form), [&]<class Form>() {
    for (int64_t i = 0; i < w.numel(); ++i) {
      float& p = upper.data<float>()[i];
      const KeptWeight<float> kept = Form::encode(w.data<float>()[i], p, uint16_t(0));
      p = kept.parameter, rest.data<float>()[i] = kept.companion;
    }
  });
  copy_into(parameter, upper), copy_into(companion, rest);
}

}  // namespace halftone::amp
