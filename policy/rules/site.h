// The name of a tensor in a training: a site (which operation, at which place of the model) and a
// role there. A policy speaks of them, a report lists them.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <halftone/autograd/call_scope.h>
#include <halftone/nn/module.h>

namespace halftone::policy {

/// A tensor at a site. `x_backward`: an operand as the products of backward see it, where that
/// differs; grad_output_weight: the gradient that arrives, as the product for the weight's gradient
/// sees it.
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
  grad_weight
};
inline constexpr int role_count = 10;
/// As files spell them: "input", "input.backward", "grad_output.weight".
std::string_view name(Role role);
std::optional<Role> role_named(std::string_view name);
std::vector<std::string_view> role_names();

struct Site {
  std::string path;       // of the module, "transformer.h.0.attn.c_attn"; "" outside of all
  std::string_view op;    // "linear"
  int ordinal = 0;        // among the operations of that kind in one call of the module
  std::string parameter;  // of its weight, if it has one: "transformer.h.0.attn.c_attn.weight"
};
/// "transformer.h.0.attn.c_attn/linear.0"
std::string name(const Site& site);

/// The names in a model: paths of its modules, parameters by their storage.
class ModelNames {
 public:
  explicit ModelNames(nn::Module& model);
  /// Where a scope stands: the path of its module and its label; "" outside of the model.
  std::string path_of(const CallScope* scope) const;
  /// The innermost module of the model that is being called, or null.
  const void* module_of(const CallScope* scope) const;
  /// The parameter that a tensor is, is a view of, or is a cast of that was entered; or null.
  const std::string* parameter_of(const Tensor& x) const;
  /// Lets `cast` count as what `source` is.
  void enter(const Tensor& source, const Tensor& cast);
  /// Forgets casts, and follows parameters whose storage was replaced.
  void refresh();
  /// Elements of a parameter; 0 if there is none of that name.
  int64_t size_of(const std::string& parameter) const;

  /// All modules' paths.
  const std::vector<std::string>& paths() const { return paths_; }

 private:
  nn::Named<Tensor> parameters_;
  std::unordered_map<const void*, std::string> modules_;
  std::unordered_map<const Storage*, const std::string*> storages_;
  std::vector<std::shared_ptr<Storage>> casts_;  // alive, so that no other takes their addresses
  std::vector<std::string> paths_;
};

}  // namespace halftone::policy
