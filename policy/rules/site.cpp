// Names of roles and sites, and the walk over a model that finds them.
#include <halftone/policy/rules/site.h>

#include <algorithm>
#include <array>

namespace halftone::policy {

namespace {
constexpr std::array<std::string_view, rule_role_count> names{"input",
                                                              "input.backward",
                                                              "weight",
                                                              "weight.backward",
                                                              "bias",
                                                              "output",
                                                              "grad_output",
                                                              "grad_output.weight",
                                                              "grad_input",
                                                              "grad_weight",
                                                              "input.0",
                                                              "input.1",
                                                              "input.0.backward",
                                                              "input.1.backward"};
}  // namespace

bool is_use(Role role) {
  return role == Role::input_backward || role == Role::weight_backward ||
         role == Role::grad_output_weight || role == Role::input_0_backward ||
         role == Role::input_1_backward;
}

std::optional<std::size_t> operand_of(Role role) {
  if (role == Role::input_0 || role == Role::input_0_backward) return 0;
  if (role == Role::input_1 || role == Role::input_1_backward) return 1;
  return {};
}

std::optional<Role> of_operand(Role role, std::size_t operand) {
  if (operand > 1) return {};
  if (role == Role::input) return operand == 0 ? Role::input_0 : Role::input_1;
  if (role == Role::input_backward)
    return operand == 0 ? Role::input_0_backward : Role::input_1_backward;
  return {};
}

std::string_view name(Role role) { return names[std::size_t(role)]; }

std::optional<Role> role_named(std::string_view name) {
  const auto found = std::ranges::find(names, name) - names.begin();
  return found < role_count ? std::optional(Role(found)) : std::nullopt;
}

std::vector<std::string_view> rule_role_names() { return {names.begin(), names.end()}; }

std::string name(const Site& site) {
  std::string text = site.path;
  text += '/', text += site.op, text += '.';
  return text += std::to_string(site.ordinal);
}

ModelNames::ModelNames(nn::Module& model) : parameters_(model.named_parameters()) {
  for (const auto& [path, module] : model.named_modules()) {
    modules_.emplace(static_cast<const nn::Module*>(module), path);
    paths_.push_back(path);
  }
  refresh();
}

std::string ModelNames::path_of(const CallScope* scope) const {
  std::string label;
  for (; scope; scope = scope->outer()) {
    if (!scope->label().empty())
      label = std::string(scope->label()) + (label.empty() ? "" : '.' + label);
    const auto found = modules_.find(scope->owner());
    if (found == modules_.end()) continue;
    if (found->second.empty() || label.empty()) return found->second + label;
    return found->second + '.' + label;
  }
  return label;
}

const void* ModelNames::module_of(const CallScope* scope) const {
  while (scope && !modules_.contains(scope->owner())) scope = scope->outer();
  return scope ? scope->owner() : nullptr;
}

const std::string* ModelNames::parameter_of(const Tensor& x) const {
  if (!x.defined()) return nullptr;
  const auto found = storages_.find(x.storage().get());
  return found == storages_.end() ? nullptr : found->second;
}

void ModelNames::enter(const Tensor& source, const Tensor& cast) {
  const std::string* parameter = parameter_of(source);
  if (!parameter || cast.storage() == source.storage()) return;
  if (storages_.emplace(cast.storage().get(), parameter).second) casts_.push_back(cast.storage());
}

void ModelNames::refresh() {
  storages_.clear(), casts_.clear();
  for (const auto& [name, x] : parameters_) storages_.emplace(x.storage().get(), &name);
}

int64_t ModelNames::size_of(const std::string& parameter) const {
  for (const auto& [name, x] : parameters_)
    if (name == parameter) return x.numel();
  return 0;
}

}  // namespace halftone::policy
