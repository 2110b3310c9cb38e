// Everything a training goes on from, as named tensors; and weights on their way from one strategy
// to another. Loading checks everything first and changes the model afterwards.
#include <halftone/amp/training.h>

#include <cstring>

#include <halftone/amp/weight_storage.h>
#include <halftone/autograd/ops.h>
#include <halftone/nn/state_dict.h>

namespace halftone::amp {

namespace {
using optim::NamedTensors;
constexpr std::string_view where = "Training.load_state_dict";

void add(NamedTensors& state, std::string_view prefix, const NamedTensors& part) {
  for (const auto& [name, x] : part) state[std::string(prefix) + name] = x;
}
/// The entries under a prefix, which is taken off.
NamedTensors part_of(const NamedTensors& state, std::string_view prefix) {
  NamedTensors part;
  for (const auto& [name, x] : state)
    if (name.starts_with(prefix)) part[name.substr(prefix.size())] = x;
  return part;
}

Tensor text_tensor(std::string_view text) {
  return from_vector(std::vector<int64_t>(text.begin(), text.end()), {int64_t(text.size())}, u8);
}
std::string text_of(const NamedTensors& state, const std::string& name) {
  const auto found = state.find(name);
  if (found == state.end() || !found->second.defined() || found->second.dtype() != u8)
    fail<UsageError>(where, "there is no entry \"", name, "\". Load what a Training saved.");
  std::string text;
  for (const int64_t letter : found->second.to_vector<int64_t>()) text += char(letter);
  return text;
}

/// Where each parameter of an optimizer is in the model: its name, by position.
std::vector<std::string> names_in(const nn::Module& model, const optim::Optimizer& optimizer) {
  std::vector<std::string> names;
  const auto named = model.named_parameters();
  for (const Tensor& parameter : optimizer.parameters())
    for (const auto& [name, x] : named)
      if (x.body() == parameter.body()) names.push_back(name);
  return names;
}

bool same_bits(const Tensor& a, const Tensor& b) {
  const std::vector<float> left = a.to_vector<float>(), right = b.to_vector<float>();
  return std::memcmp(left.data(), right.data(), left.size() * sizeof(float)) == 0;
}

/// Takes one entry out of a state.
Tensor take(NamedTensors& state, const std::string& name) {
  const auto entry = state.extract(name);
  if (entry.empty() || !entry.mapped().defined())
    fail<UsageError>(where, "there is no entry \"", name, "\". Load what a Training saved.");
  return entry.mapped();
}

std::string companion_entry(WeightForm form, std::size_t index) {
  std::string text("optimizer.");
  text += companion_name(form), text += '.';
  return text += std::to_string(index);
}
}  // namespace

optim::NamedTensors Training::state_dict() const {
  NamedTensors state;
  add(state, "model.", nn::state_dict(model_));
  add(state, "optimizer.", masters_ ? masters_->state_dict() : optimizer_.state_dict());
  add(state, "scaler.", scaler_.state_dict());
  const RandomKey random = default_generator().state();
  state["generator"] =
      from_vector(std::vector<int64_t>{int64_t(random.seed), int64_t(random.offset)}, {2}, i64);
  state["strategy"] = text_tensor(strategy_.name);
  state["form"] = text_tensor(halftone::name(strategy_.form));
  return state;
}

/// Rewrites a state that another strategy saved as one of this strategy: joins weights from its
/// form and splits them into ours.
optim::NamedTensors Training::converted(const NamedTensors& given, Convert convert) const {
  const std::string from_name = text_of(given, "strategy");
  const Strategy from = Strategy::named(from_name);
  if (convert == Convert::refuse)
    fail<UsageError>(where, "the state was saved under ", from_name, ", this is ", strategy_.name,
                     ". Pass Convert::lossless or Convert::rounding to convert it.");
  NamedTensors state = given;
  const NamedTensors own = state_dict();
  const std::vector<std::string> names = names_in(model_, optimizer_);
  for (std::size_t i = 0; i < names.size(); ++i) {
    std::string name("model.");
    name += names[i];
    Tensor parameter = take(state, name);
    const Tensor& target = own.at(name);
    if (parameter.shape() != target.shape())
      fail<ShapeError>(where, '"', name, "\" is ", described(parameter), " instead of ",
                       target.shape(), ". Build the model with the sizes that were saved.");
    const bool was_short = is_short_float(parameter), is_short = is_short_float(target);
    const WeightForm form = was_short ? from.form : WeightForm::plain;
    const bool had_companion = !companion_name(form).empty();
    const Tensor companion = had_companion ? take(state, companion_entry(form, i)) : Tensor{};
    if (companion.defined() && (companion.shape() != parameter.shape() ||
                                companion.dtype() != companion_dtype(form, parameter.dtype())))
      fail<ShapeError>(where, '"', companion_entry(form, i), "\" is ", described(companion),
                       ", which does not fit ", described(parameter), ". The state is damaged.");
    if (was_short) require_form(where, form, parameter.dtype());
    const Tensor weight = joined_weight(form, parameter, companion);
    const WeightForm own_form = is_short ? strategy_.form : WeightForm::plain;
    Tensor stored = empty(target.shape(), target.dtype()), beside;
    if (!companion_name(own_form).empty())
      beside = empty(target.shape(), companion_dtype(own_form, target.dtype()));
    store_weight(own_form, weight, stored, beside);
    if (convert == Convert::lossless && !same_bits(joined_weight(own_form, stored, beside), weight))
      fail<UsageError>(where, strategy_.name, " cannot hold the weights that ", from_name,
                       " saved to the bit: \"", name,
                       "\" would be rounded. Pass Convert::rounding to accept that.");
    state[name] = stored;
    if (beside.defined()) state[companion_entry(own_form, i)] = beside;
  }
  state.erase("optimizer.rounding");
  if (own.contains("optimizer.rounding"))
    state["optimizer.rounding"] = own.at("optimizer.rounding");
  if (part_of(state, "scaler.").empty() || !scaler_.enabled()) {
    std::erase_if(state, [](const auto& entry) { return entry.first.starts_with("scaler."); });
    add(state, "scaler.", scaler_.state_dict());
  }
  state["strategy"] = own.at("strategy"), state["form"] = own.at("form");
  return state;
}

void Training::load_state_dict(const NamedTensors& given, Convert convert) {
  const bool same = text_of(given, "strategy") == strategy_.name &&
                    text_of(given, "form") == halftone::name(strategy_.form);
  NamedTensors state = same ? given : converted(given, convert);
  const NamedTensors model = part_of(state, "model."), optimizer = part_of(state, "optimizer."),
                     scaler = part_of(state, "scaler.");
  for (const auto& [name, x] : state)
    if (!name.starts_with("model.") && !name.starts_with("optimizer.") &&
        !name.starts_with("scaler.") && name != "generator" && name != "strategy" && name != "form")
      fail<UsageError>(where, "the entry \"", name, "\" is unknown. Load what a Training saved.");
  const Tensor generator = take(state, "generator");
  if (generator.shape() != Shape{2} || generator.dtype() != i64)
    fail<ShapeError>(where, "\"generator\" is ", described(generator), " instead of [2] i64.");
  // The parts check before they change anything, the model first; if a later part does not fit,
  // what was loaded is put back.
  NamedTensors before;
  for (const auto& [name, x] : nn::state_dict(model_)) before[name] = x.clone();
  GradScaler loaded_scaler = scaler_;
  loaded_scaler.load_state_dict(scaler);
  nn::load_state_dict(model_, model);
  try {
    this->optimizer().load_state_dict(optimizer);
  } catch (...) {
    nn::load_state_dict(model_, before);
    throw;
  }
  scaler_ = std::move(loaded_scaler);
  const std::vector<int64_t> key = generator.to_vector<int64_t>();
  default_generator().set_state({uint64_t(key[0]), uint64_t(key[1])});
  zero_grad();
}

void Training::save(const std::filesystem::path& path) const {
  nn::save_safetensors(path, state_dict(), {{"format", "pt"}, {"strategy", strategy_.name}});
}

void Training::load(const std::filesystem::path& path, Convert convert) {
  const MemoryScope scope(MemoryUse::workspace);  // what was read lives until it has been copied
  load_state_dict(nn::load_safetensors(path).tensors, convert);
}

}  // namespace halftone::amp
