// The table of a policy, filled from the catalogue of operations.
#include <halftone/amp/policy.h>

#include <algorithm>
#include <ostream>
#include <set>
#include <string>
#include <typeinfo>

#include <halftone/amp/autocast.h>
#include <halftone/core/names.h>
#include <halftone/amp/presets.h>
#include <halftone/autograd/ops.h>

namespace halftone::amp {

namespace {
template <class... Ops> std::map<std::string_view, CastDecision> asked(TypeList<Ops...>) {
  return {{Ops::info.name, CastDecision(Ops::info.cast_class)}...};
}
template <class... Ops> std::vector<std::string_view> loss_names(TypeList<Ops...>) {
  std::vector<std::string_view> names;
  ((Ops::info.is_loss ? names.push_back(Ops::info.name) : void()), ...);
  for (const OpInfo* info : composed::all)
    if (info->is_loss) names.push_back(info->name);
  std::ranges::sort(names);
  names.erase(std::ranges::unique(names).begin(), names.end());  // kl_div is two operations
  return names;
}
/// What every operation asks for. `cast` is what policies are made of, and `checkpoint` runs its
/// segment under the policy: neither is subject to one.
const std::map<std::string_view, CastDecision>& asked_decisions() {
  static const auto decisions = [] {
    auto all = asked(AllOps{});
    all.erase(Cast::info.name), all.erase(Checkpoint::info.name);
    for (const OpInfo* info : composed::all) all.emplace(info->name, info->cast_class);
    return all;
  }();
  return decisions;
}
}  // namespace

Policy::Policy() : name_("pytorch-cuda"), decisions_(asked_decisions()) {}

std::span<const std::string_view> Policy::operations() {
  static const auto names = [] {
    std::vector<std::string_view> all;
    for (const auto& [op, decision] : asked_decisions()) all.push_back(op);
    return all;
  }();
  return names;
}

std::span<const std::string_view> Policy::losses() {
  static const auto names = loss_names(AllOps{});
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
  for (auto& [op, decision] : policy.decisions_) decision = found->otherwise(decision.cast_class);
  for (const Preset::List& list : found->lists)
    for (const std::string_view op : list.operations) policy[op] = list.cast_class;
  return policy;
}

CastDecision& Policy::operator[](std::string_view op) {
  const auto found = decisions_.find(op);
  if (found == decisions_.end()) fail_unknown_name("Policy", "operation", op, operations());
  return found->second;
}
const CastDecision& Policy::operator[](std::string_view op) const {
  return const_cast<Policy&>(*this)[op];
}
CastDecision& Policy::operator[](const OpInfo& op) {
  return decisions_.try_emplace(op.name, op.cast_class).first->second;
}

CastDecision Policy::decide(const OpInfo& op, std::span<const Tensor>) const {
  const auto found = decisions_.find(op.name);
  return found == decisions_.end() ? CastDecision(op.cast_class) : found->second;
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
  std::set<CastDecision> kinds;  // classes in their order, those without dtype first
  for (const auto& [op, decision] : policy.decisions_) kinds.insert(decision);
  for (const CastDecision& kind : kinds) {
    std::string line = "  " + described(kind);
    line.resize(std::max<std::size_t>(line.size(), 17), ' ');
    for (const auto& [op, decision] : policy.decisions_) {
      if (decision != kind) continue;
      if (line.size() + 1 + op.size() > 98) {
        out << line << '\n';
        line.assign(17, ' ');
      }
      line += ' ', line += op;
    }
    out << line << '\n';
  }
  return out;
}

void CastDecision::check(std::string_view where) const {
  for (const std::optional<DType>& asked : {dtype, cuda_dtype}) {
    if (!asked) continue;
    if (cast_class != CastClass::low_precision)
      fail<DTypeError>(where, "is to run in ", *asked, " as ", halftone::name(cast_class),
                       ". Only low_precision has a dtype of its own.");
    if (*asked != bf16 && *asked != f16)
      fail<DTypeError>(where, "cannot run in ", *asked, " under autocast. Use bf16 or f16.");
  }
}

std::string described(const CastDecision& decision) {
  std::string text(name(decision.cast_class));
  if (decision.dtype) text += ' ' + std::string(name(*decision.dtype));
  if (decision.cuda_dtype) text += " (cuda " + std::string(name(*decision.cuda_dtype)) + ')';
  return text;
}

}  // namespace halftone::amp
