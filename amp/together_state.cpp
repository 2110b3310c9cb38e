// States of a training of several ranks: whole tensors on rank 0, parts of them elsewhere.
#include <halftone/amp/together.h>

#include <algorithm>
#include <charconv>
#include <exception>

#include <halftone/core/factory.h>
#include <halftone/core/memory.h>
#include <halftone/distributed/collectives.h>

namespace halftone::amp {

using optim::NamedTensors;

/// Returns the parameter whose part an entry of the state holds: "optimizer.state.3.exp_avg",
/// "optimizer.master.3".
std::optional<std::size_t> TogetherRoute::parameter_of_entry(std::string_view name) const {
  constexpr std::string_view prefix = "optimizer.", states = "state.";
  if (!has_parts() || !name.starts_with(prefix) || name.ends_with(".step")) return {};
  name.remove_prefix(prefix.size());
  const std::string_view companion = facts(core_.strategy.form).companion;
  const bool is_state = name.starts_with(states);
  if (!is_state && (companion.empty() || !name.starts_with(companion))) return {};
  name.remove_prefix(is_state ? states.size() : std::min(name.size(), companion.size() + 1));
  std::size_t index = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), index);
  const bool known = error == std::errc() && index < reducer_.parameters().size();
  return known ? std::optional(index) : std::nullopt;
}

/// Runs on rank 0, for whole tensors: only tensors of the right shape can be cut into parts.
void TogetherRoute::require_shapes(const NamedTensors& state) const {
  for (const auto& [name, x] : state) {
    if (!x.defined())
      fail<UsageError>(loading_training, "the entry \"", name,
                       "\" is undefined. Load what a Training saved.");
    const auto index = parameter_of_entry(name);
    if (index && x.shape() != parameters()[*index].shape())
      fail<ShapeError>(loading_training, '"', name, "\" is ", described(x), " instead of ",
                       parameters()[*index].shape(),
                       ". Load what was saved for the same parameters.");
  }
}

NamedTensors TogetherRoute::taken_from_rank_0(const NamedTensors& state) const {
  constexpr std::string_view what = "the state of rank 0";
  NamedTensors own;
  for (const TensorInfo& info : distributed::broadcast_infos(group_, what, state)) {
    const Tensor x = group_.rank() == 0 ? state.at(info.name) : Tensor{};
    if (const auto index = parameter_of_entry(info.name))
      own[info.name] = scatter_from_rank_0(group_, reducer_.shards(), what, *index, x, info.dtype);
    else own[info.name] = distributed::broadcast_tensor(group_, what, x, info);
  }
  return own;
}

NamedTensors TogetherRoute::part_of_state(const std::function<NamedTensors()>& make) const {
  if (!of_several()) return make();
  NamedTensors state;
  on_rank_0("a state to load", [&] {
    state = make();
    require_shapes(state);
  });
  const MemoryScope scope(MemoryUse::communication);
  return taken_from_rank_0(state);
}

void TogetherRoute::on_rank_0(std::string_view what, const std::function<void()>& f) const {
  distributed::on_rank_0(group_, what, f);
}

/// Rank 0 asks for tensors by their number, and sends -1 in the end.
void TogetherRoute::write_state(const std::function<void(const TensorSource&)>& write) const {
  if (!of_several()) return GradientRoute::write_state(write);
  const NamedTensors own = core_.state();
  constexpr std::string_view what = "the state of all ranks";
  const std::vector<Tensor> parameters = this->parameters();
  std::vector<std::string> in_parts;
  TensorSource source = source_of(own);
  for (TensorInfo& info : source.infos)
    if (const auto index = parameter_of_entry(info.name)) {
      info.shape = parameters[*index].shape();
      in_parts.push_back(info.name);
    }
  const auto gathered = [&](const std::string& name) {
    const std::size_t index = *parameter_of_entry(name);
    return gather_on_rank_0(group_, reducer_.shards(), what, index, own.at(name),
                            parameters[index].shape());
  };
  source.tensor = [&](const std::string& name) {
    const auto found = std::ranges::find(in_parts, name);
    if (found == in_parts.end()) return own.at(name);
    distributed::broadcast_number(group_, what, found - in_parts.begin());
    return gathered(name);
  };
  if (group_.rank() != 0)
    for (int64_t next = 0; (next = distributed::broadcast_number(group_, what, -1)) >= 0;)
      static_cast<void>(gathered(in_parts.at(std::size_t(next))));
  distributed::on_rank_0(group_, what, [&] {
    std::exception_ptr failure;
    try {
      write(source);
    } catch (...) { failure = std::current_exception(); }
    distributed::broadcast_number(group_, what, -1);
    if (failure) std::rethrow_exception(failure);
  });
}

}  // namespace halftone::amp
