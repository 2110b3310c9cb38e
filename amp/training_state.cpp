// Everything a training continues from, as named tensors. Loading checks everything first and
// changes the model afterwards. States of other strategies: convert_state.cpp.
#include <halftone/amp/training_core.h>

#include <algorithm>

#include <halftone/amp/session.h>
#include <halftone/core/factory.h>
#include <halftone/core/memory.h>
#include <halftone/core/named_tensors.h>
#include <halftone/nn/state_dict.h>

namespace halftone::amp {

namespace {
using optim::NamedTensors;

/// Returns whether the model's tensors were saved in their present dtypes.
bool same_dtypes(const NamedTensors& given, const nn::Module& model) {
  return std::ranges::all_of(nn::state_dict(model), [&](const auto& own) {
    const auto found = given.find("model." + own.first);
    return found == given.end() || !found->second.defined() ||
           found->second.dtype() == own.second.dtype();
  });
}
}  // namespace

NamedTensors TrainingCore::state() const {
  NamedTensors all;
  add_part(all, "model.", nn::state_dict(model));
  add_part(all, "optimizer.", masters ? masters->state_dict() : optimizer.state_dict());
  add_part(all, "scaler.", scaler.state_dict());
  if (region.session) add_part(all, "session.", region.session->state_dict());
  const RandomKey random = default_generator().state();
  all["generator"] =
      from_vector(std::vector<int64_t>{int64_t(random.seed), int64_t(random.offset)}, {2}, i64);
  all["strategy"] = text_tensor(strategy.name);
  all["form"] = text_tensor(halftone::name(strategy.form));
  if (const int64_t skipped = all_skipped_steps(); skipped > 0)
    all["skipped_steps"] = from_vector(std::vector<int64_t>{skipped}, {}, i64);
  return all;
}

namespace {
/// Returns the given state as a state of this strategy, of whole tensors.
NamedTensors fitting(const TrainingCore& core, const NamedTensors& given, Convert convert) {
  Entries entries(loading_training, "a Training", given);
  const bool same = entries.text("strategy") == core.strategy.name &&
                    entries.text("form") == halftone::name(core.strategy.form) &&
                    same_dtypes(given, core.model);
  NamedTensors state = same ? given : converted(core, given, convert);
  // A session's state of another policy, or of none, does not fit this one.
  if (!same)
    std::erase_if(state, [](const auto& entry) { return entry.first.starts_with("session."); });
  Entries unknown(loading_training, "a Training", state);
  for (const std::string_view part : {"model.", "optimizer.", "scaler.", "session."})
    unknown.part(part);
  for (const char* name : {"generator", "strategy", "form", "skipped_steps"}) unknown.find(name);
  unknown.refuse_rest();
  return state;
}
}  // namespace

void Training::write_state(const std::function<void(const TensorSource&)>& write) const {
  core_->route->write_state(write);
}

NamedTensors Training::state_dict() const {
  NamedTensors state;
  write_state([&](const TensorSource& source) {
    for (const TensorInfo& info : source.infos) state[info.name] = source.tensor(info.name);
  });
  return state;
}

void Training::load_state_dict(const NamedTensors& given, Convert convert) {
  core_->load(core_->route->part_of_state([&] { return fitting(*core_, given, convert); }));
}

void TrainingCore::load(const NamedTensors& state) {
  const NamedTensors weights = part_of(state, "model."), session = part_of(state, "session.");
  // Each load checks before it changes anything, the model first; if a later one fails, the values
  // loaded before it are restored.
  NamedTensors before;
  for (const auto& [name, x] : nn::state_dict(model)) before[name] = x.clone();
  NamedTensors session_before;
  if (!session.empty() && region.session) {
    for (const auto& [name, x] : region.session->state_dict()) session_before[name] = x.clone();
    region.session->load_state_dict(session);
  }
  try {
    nn::load_state_dict(model, weights);
    load_except_model(state);
  } catch (...) {
    nn::load_state_dict(model, before);
    if (!session_before.empty()) region.session->load_state_dict(session_before);
    throw;
  }
}

void TrainingCore::load_except_model(const NamedTensors& given) {
  Entries entries(loading_training, "a Training", given);
  const std::vector<int64_t> key = entries.take("generator", {2}, i64).to_vector<int64_t>();
  const int64_t skipped =
      entries.has("skipped_steps") ? entries.count("skipped_steps", "number of skipped steps") : 0;
  const NamedTensors of_scaler = entries.part("scaler.");
  GradScaler trial = scaler;
  trial.load_state_dict(of_scaler);
  stepping().load_state_dict(entries.part("optimizer."));
  scaler.load_state_dict(of_scaler);  // in place: captured steps go on from it
  skipped_steps = skipped, skipped_on_device = {};
  default_generator().set_state({uint64_t(key[0]), uint64_t(key[1])});
  zero_grad();
  statistics = {};
}

void Training::save(const std::filesystem::path& path) const {
  write_state([&](const TensorSource& source) {
    stream_safetensors(path, source, {{"format", "pt"}, {"strategy", core_->strategy.name}});
  });
}

void Training::load(const std::filesystem::path& path, Convert convert) {
  const MemoryScope scope(MemoryUse::workspace);  // the file's tensors live until copied
  NamedTensors state;
  const auto read = [&] {
    SafetensorsFile file = nn::load_safetensors(path);
    file.require_all();
    state = std::move(file.tensors);
  };
  core_->route->on_rank_0("a state to load", read);
  load_state_dict(state, convert);
}

}  // namespace halftone::amp
