// The table of a policy, filled from the catalogue of operations.
#include <halftone/amp/policy.h>

#include <algorithm>
#include <ostream>
#include <typeinfo>

#include <halftone/amp/autocast.h>
#include <halftone/amp/names.h>
#include <halftone/amp/presets.h>
#include <halftone/autograd/ops.h>

namespace halftone::amp {

namespace {
template <class... Ops> std::map<std::string_view, CastClass> asked(TypeList<Ops...>) {
  return {{Ops::info.name, Ops::info.cast_class}...};
}
/// What every operation asks for. `cast` is what policies are made of, and `checkpoint` runs its
/// segment under the policy: neither is subject to one.
const std::map<std::string_view, CastClass>& asked_classes() {
  static const auto classes = [] {
    auto all = asked(AllOps{});
    all.erase(Cast::info.name), all.erase(Checkpoint::info.name);
    return all;
  }();
  return classes;
}
}  // namespace

Policy::Policy() : name_("pytorch-cuda"), classes_(asked_classes()) {}

std::span<const std::string_view> Policy::operations() {
  static const auto names = [] {
    std::vector<std::string_view> all;
    for (const auto& [op, cast_class] : asked_classes()) all.push_back(op);
    return all;
  }();
  return names;
}

std::span<const std::string_view> Policy::preset_names() {
  static const auto names = [] {
    std::vector<std::string_view> all;
    for (const Preset& preset : presets()) all.push_back(preset.name);
    return all;
  }();
  return names;
}

Policy Policy::preset(std::string_view name) {
  const auto found = std::ranges::find(presets(), name, &Preset::name);
  if (found == presets().end()) fail_unknown_name("Policy.preset", "preset", name, preset_names());
  Policy policy;
  policy.name_ = found->name;
  for (auto& [op, cast_class] : policy.classes_) cast_class = found->otherwise(cast_class);
  for (const Preset::List& list : found->lists)
    for (const std::string_view op : list.operations) policy[op] = list.cast_class;
  return policy;
}

CastClass& Policy::operator[](std::string_view op) {
  const auto found = classes_.find(op);
  if (found == classes_.end()) fail_unknown_name("Policy", "operation", op, operations());
  return found->second;
}
CastClass Policy::operator[](std::string_view op) const { return const_cast<Policy&>(*this)[op]; }
CastClass& Policy::operator[](const OpInfo& op) {
  return classes_.try_emplace(op.name, op.cast_class).first->second;
}

CastClass Policy::decide(const OpInfo& op, std::span<const Tensor>) const {
  const auto found = classes_.find(op.name);
  return found == classes_.end() ? op.cast_class : found->second;
}

Region Policy::with(DType dtype) const {
  if (typeid(*this) != typeid(Policy))
    fail<UsageError>("Policy.with",
                     "called on a derived policy, whose decide() would be lost. Use "
                     "Region{.policy = std::make_shared<YourPolicy>(...), .dtype = ...}.");
  return Region{.policy = std::make_shared<Policy>(*this), .dtype = dtype};
}

std::ostream& operator<<(std::ostream& out, const Policy& policy) {
  out << "policy " << policy.name() << '\n';
  for (const CastClass cast_class :
       {CastClass::low_precision, CastClass::full_precision, CastClass::widest_input,
        CastClass::as_is, CastClass::banned}) {
    std::string line(2, ' ');
    line += name(cast_class);
    line.resize(17, ' ');
    bool any = false;
    for (const auto& [op, decided] : policy.classes_) {
      if (decided != cast_class) continue;
      if (line.size() + 1 + op.size() > 98) {
        out << line << '\n';
        line.assign(17, ' ');
      }
      line += ' ', line += op, any = true;
    }
    if (any) out << line << '\n';
  }
  return out;
}

}  // namespace halftone::amp
