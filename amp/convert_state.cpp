// Conversion of weights between strategies: rewrites a state that another strategy saved as a state
// of this one. Every tensor of the model is joined from its saved form and split into its form in
// this strategy; the model itself does not change.
#include <halftone/amp/convert_state.h>

#include <algorithm>

#include <halftone/amp/training_core.h>
#include <halftone/amp/weight_storage.h>
#include <halftone/core/backend.h>
#include <halftone/core/error.h>
#include <halftone/core/factory.h>
#include <halftone/core/named_tensors.h>
#include <halftone/nn/state_dict.h>

namespace halftone::amp {

namespace {
constexpr std::string_view loading = loading_training;
using optim::NamedTensors;

/// A parameter or buffer of the model; tied ones have several names.
struct ModelTensor {
  Tensor target;
  std::vector<std::string> names{};       // entries of the state
  std::optional<std::size_t> position{};  // among the optimizer's parameters; absent: frozen
};

std::vector<ModelTensor> tensors_of(const nn::Module& model,
                                    const std::vector<Tensor>& parameters) {
  const auto body = [](const auto& x) { return x.body().get(); };
  std::vector<ModelTensor> list;
  for (const auto& [name, x] : nn::state_dict(model)) {
    auto known = std::ranges::find(list, x.body().get(),
                                   [&](const ModelTensor& t) { return body(t.target); });
    if (known == list.end()) {
      known = list.insert(list.end(), {.target = x});
      const auto own = std::ranges::find(parameters, x.body().get(), body);
      if (own != parameters.end()) known->position = std::size_t(own - parameters.begin());
    }
    known->names.push_back("model." + name);
  }
  return list;
}

/// Takes a tensor's saved value, which must be equal under each of its names.
Tensor take_value(Entries& entries, const ModelTensor& tensor) {
  Tensor value = entries.take(tensor.names[0]);
  if (value.shape() != tensor.target.shape())
    fail<ShapeError>(loading, '"', tensor.names[0], "\" is ", described(value), " instead of ",
                     tensor.target.shape(), ". Build the model with the sizes that were saved.");
  if (tensor.position && value.dtype() != f64 && value.dtype() != f32 && !is_short_float(value))
    fail<DTypeError>(loading, '"', tensor.names[0], "\" is ", described(value),
                     ", but weights are saved in f64, f32, bf16 or f16. The state is damaged.");
  for (std::size_t i = 1; i < tensor.names.size(); ++i)
    if (const Tensor other = entries.take(tensor.names[i]);
        other.dtype() != value.dtype() || !same_values(other, value))
      fail<UsageError>(loading, '"', tensor.names[i], "\" is not \"", tensor.names[0],
                       "\", but the model has the two tied. Load a state of a model that has them "
                       "tied as well.");
  return value;
}

std::string companion_entry(WeightForm form, std::size_t position) {
  std::string text("optimizer.");
  text += facts(form).companion, text += '.';
  return text += std::to_string(position);
}

/// Returns the weight of a saved parameter and its companion, which it takes.
Tensor take_weight(Entries& entries, WeightForm form, const Tensor& parameter,
                   std::size_t position) {
  require_form(loading, form, parameter.dtype());
  if (!facts(form).has_companion()) return joined_weight(form, parameter, {});
  const std::string entry = companion_entry(form, position);
  const Tensor companion = entries.take(entry);
  if (companion.shape() != parameter.shape() ||
      companion.dtype() != facts(form).companion_dtype(parameter.dtype()))
    fail<ShapeError>(loading, '"', entry, "\" is ", described(companion), ", which does not fit ",
                     described(parameter), ". The state is damaged.");
  return joined_weight(form, parameter, companion);
}

Tensor converted_to(DType dtype, const Tensor& x) {
  Tensor y = empty(x.shape(), dtype, x.device());
  backend_for(x).copy(x, y);
  return y;
}

/// Returns the form of a parameter: parameters that the strategy left in f32 have none.
WeightForm form_of(const Tensor& parameter, WeightForm form) {
  return is_short_float(parameter) ? form : WeightForm::plain;
}
}  // namespace

NamedTensors converted(const TrainingCore& training, const NamedTensors& given, Convert convert) {
  const Strategy& strategy = training.strategy;
  Entries entries(loading, "a Training", given);
  const std::string saved_under = entries.text("strategy"), form_name = entries.text("form"),
                    from = shortened(saved_under, 80);
  const std::optional<WeightForm> saved_form = weight_form_named(form_name);
  if (!saved_form)
    fail<FormatError>(loading, "\"form\" is ", in_quotes(form_name),
                      ", which is not a form of weights. The state is damaged, or newer than this "
                      "library.");
  if (convert == Convert::refuse)
    fail<UsageError>(loading, "the state was saved under ", from,
                     saved_under == strategy.name ? " with other options" : "", ", this is ",
                     strategy.name, ". Pass Convert::lossless or Convert::rounding to convert it.");
  const auto require_same = [&](const Tensor& held, const Tensor& value, const std::string& name) {
    if (convert == Convert::lossless && !same_values(held, value))
      fail<UsageError>(loading, strategy.name, " cannot hold what ", from, " saved to the bit: \"",
                       name, "\" would be rounded. Pass Convert::rounding to accept that.");
  };
  const auto require_range = [&](DType dtype, const Tensor& value, const std::string& name) {
    if (const std::optional<double> lost = lost_value(value, dtype))
      fail<DTypeError>(loading, '"', name, "\" has ", *lost, ", which ", dtype,
                       " cannot hold. Convert to a strategy with a wider dtype.");
  };
  const MemoryScope scope(MemoryUse::workspace);
  NamedTensors state;
  for (const ModelTensor& tensor : tensors_of(training.model, training.route->parameters())) {
    const Tensor value = take_value(entries, tensor);
    Tensor stored = empty(tensor.target.shape(), tensor.target.dtype()), companion;
    if (!tensor.position) {
      require_range(stored.dtype(), value, tensor.names[0]);
      stored = converted_to(tensor.target.dtype(), value);
      require_same(stored, value, tensor.names[0]);
    } else {
      const Tensor weight =
          take_weight(entries, form_of(value, *saved_form), value, *tensor.position);
      require_range(stored.dtype(), weight, tensor.names[0]);
      const WeightForm form = form_of(stored, strategy.form);
      if (!!facts(form).has_companion())
        companion = empty(stored.shape(), facts(form).companion_dtype(stored.dtype()));
      store_weight(form, weight, stored, companion);
      require_same(joined_weight(form, stored, companion), weight, tensor.names[0]);
      if (companion.defined()) state[companion_entry(form, *tensor.position)] = companion;
    }
    for (const std::string& name : tensor.names) state[name] = stored;
  }
  const NamedTensors own = training.state();
  entries.find("optimizer.rounding");
  if (own.contains("optimizer.rounding"))
    state["optimizer.rounding"] = own.at("optimizer.rounding");
  NamedTensors scaler = entries.part("scaler.");
  if (scaler.empty() || !training.scaler.enabled()) scaler = training.scaler.state_dict();
  add_part(state, "scaler.", scaler);
  state.insert(entries.rest().begin(), entries.rest().end());
  state["strategy"] = own.at("strategy"), state["form"] = own.at("form");
  return state;
}

}  // namespace halftone::amp
