// Of several ranks each updates its parts of the parameters (distributed/shards.h). The optimizer
// has the parts in the place of its parameters, so whatever is kept for them, by itself or by
// masters, is of their size. States are those of whole parameters: rank 0 puts them together, and
// hands them out.
#include <halftone/amp/together.h>

#include <algorithm>
#include <charconv>
#include <exception>

#include <halftone/amp/state_entries.h>
#include <halftone/amp/weight_storage.h>
#include <halftone/core/factory.h>
#include <halftone/core/views.h>
#include <halftone/distributed/collectives.h>
#include <halftone/optim/gradient_lists.h>

namespace halftone::amp {

using optim::NamedTensors;

bool Training::has_parts() const { return together_ && !together_->reducer.parts().empty(); }

Communicator* Training::group() const { return together_ ? &together_->group : nullptr; }

std::vector<Tensor> Training::parameters() const {
  if (has_parts()) return together_->reducer.parameters();
  return masters_ ? masters_->parameters() : optimizer_.parameters();
}

Tensor Training::weight(std::size_t index) const {
  const Tensor parameter = parameters().at(index);
  if (!is_short_float(parameter)) return parameter.detach();
  if (!masters_) return Cast::converted(parameter, f32);
  const Tensor own = masters_->weight(index);
  if (!has_parts()) return own;
  Tensor whole = empty(parameter.shape(), own.dtype());
  const distributed::Reducer& reducer = together_->reducer;
  Tensor part = part_of(whole, reducer.shards().range(index, together_->group.rank()));
  backend_for(part).copy(own, part);
  exchange_ranges(together_->group, reducer.shards(), "a weight", TrafficUse::state, {&index, 1},
                  {&whole, 1});
  return whole;
}

// --- the optimizer

/// In their order. The optimizer's state is gone, for it is of other shapes.
void Training::replace_parameters(const std::vector<Tensor>& others) {
  auto next = others.begin();
  for (int group = 0; group < optimizer_.group_count(); ++group)
    for (Tensor& parameter : optimizer_.group_parameters(group)) parameter = *next++;
  NamedTensors options = optimizer_.state_dict();
  std::erase_if(options, [](const auto& entry) { return entry.first.starts_with("state."); });
  optimizer_.load_state_dict(options);
}

void Training::share_out() {
  Communicator& group = together_->group;
  const distributed::Reducer& reducer = together_->reducer;
  replace_parameters(reducer.parts());
  if (masters_) masters_->adopt_parts(begins_of_parts());
  scaler_.set_agreement([&group](Tensor& found_inf) {
    const bool here = found_inf.item() != 0;
    const bool anywhere = distributed::largest(group, "overflows", here ? 1 : 0) != 0;
    if (anywhere && !here) found_inf = ones({}, f32, found_inf.device());
  });
}

std::vector<int64_t> Training::begins_of_parts() const {
  const distributed::Shards& shards = together_->reducer.shards();
  std::vector<int64_t> begins;
  for (std::size_t i = 0; i < shards.parameters(); ++i)
    begins.push_back(shards.range(i, together_->group.rank()).begin);
  return begins;
}

/// Each rank's weights in the form of the strategy come from its masters; then from all of them.
void Training::make_masters_of_parts() {
  const distributed::Reducer& reducer = together_->reducer;
  masters_ =
      std::make_unique<MasterWeights>(optimizer_, *masters_to_come_, std::move(initial_parts_));
  masters_to_come_.reset();
  std::vector<int64_t> sizes;
  std::vector<std::size_t> all;
  for (const Tensor& x : reducer.parameters())
    all.push_back(sizes.size()), sizes.push_back(x.numel());
  masters_->count_as_parts(sizes, begins_of_parts());
  exchange_ranges(together_->group, reducer.shards(), "weights in parts", TrafficUse::state, all,
                  reducer.parameters());
}

/// With the same bits on any number of ranks. (One process alone adds up on its GPU.)
Tensor Training::norm_together(double norm_type) const {
  const std::vector<Tensor> gradients = gradients_by_parameter();
  const auto any = std::ranges::find_if(gradients, [](const Tensor& x) { return x.defined(); });
  const Device device = any == gradients.end() ? Device::cpu() : any->device();
  if (!together_->of_several() && device != Device::cpu()) {
    std::vector<Tensor> defined;
    std::ranges::copy_if(gradients, std::back_inserter(defined),
                         [](const Tensor& x) { return x.defined(); });
    return optim::norm_of(defined, norm_type);
  }
  return distributed::norm_of(together_->group, together_->reducer.shards(), gradients, has_parts(),
                              norm_type)
      .to(device);
}

// --- the state

/// The parameter that an entry of the state has the part of: "optimizer.state.3.exp_avg",
/// "optimizer.master.3".
std::optional<std::size_t> Training::parameter_of_entry(std::string_view name) const {
  constexpr std::string_view prefix = "optimizer.", states = "state.";
  if (!has_parts() || !name.starts_with(prefix) || name.ends_with(".step")) return {};
  name.remove_prefix(prefix.size());
  const std::string_view companion = facts(strategy_.form).companion;
  const bool is_state = name.starts_with(states);
  if (!is_state && (companion.empty() || !name.starts_with(companion))) return {};
  name.remove_prefix(is_state ? states.size() : std::min(name.size(), companion.size() + 1));
  std::size_t index = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), index);
  const bool known = error == std::errc() && index < together_->reducer.parameters().size();
  return known ? std::optional(index) : std::nullopt;
}

/// Rank 0, of whole tensors: what does not fit cannot be cut into parts.
void Training::require_shapes(const NamedTensors& state) const {
  for (const auto& [name, x] : state) {
    if (!x.defined())
      fail<UsageError>(entries::loading, "the entry \"", name,
                       "\" is undefined. Load what a Training saved.");
    const auto index = parameter_of_entry(name);
    if (index && x.shape() != parameters()[*index].shape())
      fail<ShapeError>(entries::loading, '"', name, "\" is ", described(x), " instead of ",
                       parameters()[*index].shape(),
                       ". Load what was saved for the same parameters.");
  }
}

NamedTensors Training::taken_from_rank_0(const NamedTensors& state) const {
  constexpr std::string_view what = "the state of rank 0";
  Communicator& group = together_->group;
  NamedTensors own;
  for (const TensorInfo& info : distributed::broadcast_infos(group, what, state)) {
    const Tensor x = group.rank() == 0 ? state.at(info.name) : Tensor{};
    if (const auto index = parameter_of_entry(info.name))
      own[info.name] =
          scatter_from_rank_0(group, together_->reducer.shards(), what, *index, x, info.dtype);
    else own[info.name] = distributed::broadcast_tensor(group, what, x, info);
  }
  return own;
}

/// Rank 0 says which tensor it wants next, by its number, and -1 in the end.
void Training::write_state(const std::function<void(const TensorSource&)>& write) const {
  const NamedTensors own = local_state();
  if (!together_ || !together_->of_several()) return write(source_of(own));
  constexpr std::string_view what = "the state of all ranks";
  Communicator& group = together_->group;
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
    return gather_on_rank_0(group, together_->reducer.shards(), what, index, own.at(name),
                            parameters[index].shape());
  };
  source.tensor = [&](const std::string& name) {
    const auto found = std::ranges::find(in_parts, name);
    if (found == in_parts.end()) return own.at(name);
    distributed::broadcast_number(group, what, found - in_parts.begin());
    return gathered(name);
  };
  if (group.rank() != 0)
    for (int64_t next = 0; (next = distributed::broadcast_number(group, what, -1)) >= 0;)
      static_cast<void>(gathered(in_parts.at(std::size_t(next))));
  distributed::on_rank_0(group, what, [&] {
    std::exception_ptr failure;
    try {
      write(source);
    } catch (...) { failure = std::current_exception(); }
    distributed::broadcast_number(group, what, -1);
    if (failure) std::rethrow_exception(failure);
  });
}

}  // namespace halftone::amp
