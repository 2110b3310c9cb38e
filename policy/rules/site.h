// The name of a tensor in a training: a site (an operation at one position of the model) and a role
// at that site. Policies set rules for them, reports list them.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <halftone/autograd/slots.h>
#include <halftone/nn/module.h>

namespace halftone::policy {

/// A tensor at a site. `x_backward`: an operand as the products of backward see it, if that
/// differs. grad_output_weight: the incoming gradient, as the product for the weight's gradient
/// sees it. The last four are only in rules: the operand 0 or 1 of an operation, if it has the role
/// input, and this operand in the products of backward.
enum class Role : uint8_t {
  input,
  input_backward,
  weight,
  weight_backward,
  bias,
  output,
  grad_output,
  grad_output_weight,
  grad_input,
  grad_weight,
  input_0,
  input_1,
  input_0_backward,
  input_1_backward
};
inline constexpr int role_count = 10;       // of tensors
inline constexpr int rule_role_count = 14;  // in rules
constexpr bool is_gradient(Role role) {
  return role >= Role::grad_output && role <= Role::grad_weight;
}
/// Returns whether the role concerns only a product of backward: "input.backward".
bool is_use(Role role);
/// Returns the number of the operand that the role is about: 1 for input_1 and input_1_backward;
/// empty for roles of tensors.
std::optional<std::size_t> operand_of(Role role);
/// Returns the entry for one operand, or empty if rules have none: input_1 for (input, 1),
/// input_0_backward for (input_backward, 0).
std::optional<Role> of_operand(Role role, std::size_t operand);
/// Returns the spelling in files: "input", "input.1.backward", "grad_output.weight".
std::string_view name(Role role);
/// Returns the role of a tensor; empty for other names, such as "input.1".
std::optional<Role> role_named(std::string_view name);
/// Returns the spellings of all roles in rules, in the order of Role.
std::vector<std::string_view> rule_role_names();

struct Site {
  std::string path;       // of the module, "transformer.h.0.attn.c_attn"; "" outside of all
  std::string_view op;    // "linear"
  int ordinal = 0;        // among the calls of that operation in one call of the module, from 0
  std::string parameter;  // of its weight, if it has one: "transformer.h.0.attn.c_attn.weight"
};
/// Returns "transformer.h.0.attn.c_attn/linear.0".
std::string name(const Site& site);

/// The names in a model: paths of its modules, parameters by their storage.
class ModelNames {
 public:
  explicit ModelNames(nn::Module& model);
  /// Returns the path of a scope: that of its module and its label; "" outside of the model.
  std::string path_of(const CallScope* scope) const;
  /// Returns the innermost module of the model that is being called, or null.
  const void* module_of(const CallScope* scope) const;
  /// Returns the parameter that a tensor is, is a view of, or is an entered cast of; or null.
  const std::string* parameter_of(const Tensor& x) const;
  /// Makes `cast` count as the parameter that `source` is.
  void enter(const Tensor& source, const Tensor& cast);
  /// Drops casts, and follows parameters whose storage was replaced.
  void refresh();
  /// Returns the elements of a parameter; 0 for an unknown name.
  int64_t size_of(const std::string& parameter) const;

  /// Returns the paths of all modules.
  const std::vector<std::string>& paths() const { return paths_; }

 private:
  nn::Named<Tensor> parameters_;
  std::unordered_map<const void*, std::string> modules_;
  std::unordered_map<const Storage*, const std::string*> storages_;
  std::vector<std::shared_ptr<Storage>> casts_;  // alive, so that no others take their addresses
  std::vector<std::string> paths_;
};

}  // namespace halftone::policy
