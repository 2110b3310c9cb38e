// One pass of the workload shows which operations run at which site and in which dtype. Rules are
// written in the language of policy files, and parsed as such.
#include <halftone/lab/search_space.h>

#include <algorithm>
#include <map>
#include <set>

#include <nlohmann/json.hpp>

#include <halftone/core/error.h>
#include <halftone/core/formats/quantizer.h>
#include <halftone/policy/session.h>

namespace halftone::lab {

namespace {

using Json = nlohmann::ordered_json;
using policy::ResolvedSite;
using policy::Role;

bool is_product(const ResolvedSite& site) { return site.flops > 0; }

/// Whether the blocks of a tensor depend on the dimension that a product sums over.
bool has_direction(const Quantizer& quantizer) {
  const Scaling& scaling = quantizer.scaling;
  return scaling.per == Scaling::Per::block && scaling.rows != scaling.columns;
}

/// The use of an operand in the other product of backward.
Role use_in_backward(Role role) {
  return role == Role::input    ? Role::input_backward
         : role == Role::weight ? Role::weight_backward
                                : Role::grad_output_weight;
}

/// The treatment that a rule requests.
class Wish {
 public:
  Wish(std::string to, const policy::PolicyFile& base)
      : to_(std::move(to)), region_(base.base.autocast) {
    const std::vector<std::string_view> words = policy::compute_names();
    // "tf32" means the grid, which every device supports.
    computes_ = to_ != "tf32" && std::ranges::find(words, to_) != words.end();
    if (!computes_ && !quantizer_named(to_)) {
      std::vector<std::string_view> known = words;
      for (const NamedFormat& format : named_formats()) known.push_back(format.name);
      for (const std::string_view ready : ready_made_quantizers()) known.push_back(ready);
      fail_unknown_name("search", "compute or quantizer", to_, known);
    }
    if (to_ == "low") dtype_ = base.base.autocast;
    else if (to_ == "bf16" || to_ == "f16" || to_ == "f32") dtype_ = dtype_named(to_);
    if (to_ == "low" && !dtype_)
      fail<UsageError>("search", base.base.name,
                       " has no autocast, so there is no \"low\". Use --to bf16 or f16.");
  }
  bool quantizes() const { return !computes_; }
  const std::string& name() const { return to_; }

  /// Returns whether the rule would change an operation.
  bool changes(const ResolvedSite& site) const {
    if (quantizes()) return is_product(site);
    return std::ranges::any_of(site.operands, [&](std::optional<DType> dtype) {
      return dtype && is_floating(*dtype) && (!dtype_ || *dtype != *dtype_);
    });
  }
  void ask(Json& rule, const std::set<Role>& roles) const {
    if (!quantizes()) {
      rule["compute"] = to_;
      // Without a region, the next operation does not cast this result.
      if (!region_) rule["result"] = "f32";
      return;
    }
    const Quantizer quantizer = *quantizer_named(to_);
    // The region's dtype cannot hold numbers under such scales.
    if (region_ && !quantizer.exact_in(*region_))
      rule["compute"] = "f32", rule["result"] = halftone::name(*region_);
    for (const Role role : roles) {
      rule[std::string(policy::name(role))] = to_;
      // Backward products sum over other dimensions, and need blocks along those.
      if (has_direction(quantizer)) rule[std::string(policy::name(use_in_backward(role)))] = to_;
    }
  }

 private:
  std::string to_;
  std::optional<DType> region_{};  // the region casts to this
  bool computes_ = false;
  std::optional<DType> dtype_{};
};

/// Returns the operands of products, and the incoming gradient.
std::set<Role> roles_of(const ResolvedSite& site) {
  std::set<Role> roles{Role::grad_output};
  for (const Role role : site.roles)
    if (role == Role::input || role == Role::weight) roles.insert(role);
  return roles;
}

std::vector<policy::Rule> rules_of(const Json& rules, const amp::Strategy& base) {
  const Json file{{"halftone_policy", 1},
                  {"name", "space"},
                  {"extends", "fp32"},
                  {"autocast", base.autocast ? Json(name(*base.autocast)) : Json()},
                  {"rules", rules}};
  return policy::read_text(file.dump(), "search").rules.rules;
}

}  // namespace

std::vector<ResolvedSite> sites_of(const policy::PolicyFile& base, const Workload& workload) {
  const std::unique_ptr<optim::Optimizer> optimizer = optimizer_of(workload);
  amp::Training training =
      amp::apply(policy::watched_strategy_of(base), *workload.model, *optimizer);
  training.backward(loss_of(workload, training, example_of(workload)));
  return policy::session_of(training).resolved();
}

std::vector<policy::Rule> search_space(const std::string& space, const std::string& to,
                                       const policy::PolicyFile& base, const Workload& workload) {
  if (space.ends_with(".json")) return policy::read(space).rules.rules;
  return search_space(space, to, base, sites_of(base, workload));
}

std::vector<policy::Rule> search_space(const std::string& space, const std::string& to,
                                       const policy::PolicyFile& base,
                                       const std::vector<ResolvedSite>& sites) {
  const Wish wish(to, base);
  const bool by_role = space == "roles", by_module = space == "modules";
  if (space != "ops" && !by_role && !by_module)
    fail_unknown_name("search", "space", space,
                      std::vector<std::string_view>{"ops", "modules", "roles"});
  if (by_role && !wish.quantizes())
    fail<UsageError>("search", "\"", to,
                     "\" says nothing of a role. Use --to with a quantizer, such as e4m3.");
  std::vector<std::string> order;                // in the order of the first occurrence
  std::map<std::string, std::set<Role>> groups;  // operations or modules, with their roles
  for (const ResolvedSite& site : sites) {
    if (!wish.changes(site) || (by_module && site.site.path.empty())) continue;
    const std::string group = by_module ? site.site.path : std::string(site.site.op);
    if (!groups.contains(group)) order.push_back(group);
    groups[group].merge(roles_of(site));
  }
  Json rules = Json::array();
  const auto add = [&](const std::string& group, const std::set<Role>& roles,
                       const std::string& name) {
    Json rule{{"name", name + " -> " + wish.name()}};
    if (by_module) rule["match"] = {{"path", group}};
    else rule["match"] = {{"op", group}};
    if (by_module && wish.quantizes()) rule["match"]["asks"] = "low_precision";
    wish.ask(rule, roles);
    rules.push_back(std::move(rule));
  };
  for (const std::string& group : order) {
    if (!by_role) add(group, groups[group], group);
    else
      for (const Role role : groups[group])
        add(group, {role}, group + ' ' + std::string(policy::name(role)));
  }
  return rules.empty() ? std::vector<policy::Rule>{} : rules_of(rules, base.base);
}

}  // namespace halftone::lab
