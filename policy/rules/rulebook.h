// What a policy file says, independent of a model: rules in order, later ones over earlier ones
// field by field. A treatment is what one site gets of them.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <halftone/core/accumulator.h>
#include <halftone/core/op_info.h>
#include <halftone/core/quantizer.h>
#include <halftone/distributed/wire.h>
#include <halftone/policy/rules/path_match.h>
#include <halftone/policy/rules/site.h>

namespace halftone::policy {

/// The cast class that a rule gives its sites; low: the region's dtype; tf32: f32, of which
/// products may round their factors to TF32 (core/allow_tf32.h).
enum class Compute : uint8_t { low, f32, tf32, bf16, f16, widest, as_is, refuse };
std::string_view name(Compute compute);
std::vector<std::string_view> compute_names();

/// What a rule says of one role.
struct RoleRule {
  enum class Kind : uint8_t {
    none,     // not quantized
    as_used,  // of a use (input.backward, grad_output.weight): as the role itself
    grid,
  } kind = Kind::none;
  Quantizer quantizer{};
  std::string named{};  // in the file, for tables
  bool operator==(const RoleRule& other) const {
    return kind == other.kind && quantizer == other.quantizer;
  }
};

struct Match {
  std::vector<std::string> ops{};   // none: every operation
  std::optional<CastClass> asks{};  // what operations ask for (OpInfo)
  std::string path = "**";
  std::vector<std::string> except{};
  /// Calls of Training::step(), skipped ones included: from the first, up to the second.
  int64_t from_step = 0, to_step = std::numeric_limits<int64_t>::max();
  bool operator==(const Match&) const = default;
};

struct Rule {
  std::string name{}, about{};
  Match match{};
  std::optional<Compute> compute{};
  std::optional<DType> result{};  // in which results are handed on, by a recorded cast
  std::map<Role, RoleRule> roles{};
  std::optional<Accumulator> accumulate{};
  bool optional = false;  // may match nothing
  bool operator==(const Rule&) const = default;
};

struct Rulebook {
  std::vector<Rule> rules{};
  /// Of an optimizer's states by name ("exp_avg"), and of parameters: onto these grids after each
  /// step.
  std::map<std::string, Quantizer> states{};
  std::optional<Quantizer> parameters{};
  bool in_evaluation = true;  // false: rules rest under NoGrad
  bool operator==(const Rulebook&) const = default;
  bool empty() const { return rules.empty() && states.empty() && !parameters; }
};

/// What one site gets.
struct Treatment {
  std::optional<Compute> compute{};
  std::optional<DType> result{};
  std::array<std::optional<RoleRule>, role_count> roles{};
  std::optional<Accumulator> accumulate{};
  std::vector<int> from_rules{};  // that made it, by number

  /// The quantizer of a role, or null. A use that nobody named has that of its role.
  const Quantizer* quantizer(Role role) const;
  /// Whether backward wants other operands than forward.
  bool backward_differs() const;
  bool quantizes() const;
};

/// A rulebook prepared for one model.
class RuleMatcher {
 public:
  /// Throws UsageError in the name of `where` for patterns that are none and operations that no
  /// rule can name.
  RuleMatcher(std::string_view where, std::shared_ptr<const Rulebook> book,
              const std::vector<std::string>& module_paths);
  /// What a site gets in a step.
  Treatment treatment(const Site& site, const OpInfo& op, int64_t step) const;
  /// The rules that match a site in some step.
  bool matches(std::size_t rule, const Site& site, const OpInfo& op) const;
  /// The first step after `step` in which a rule begins or ends; the largest number if there is
  /// none.
  int64_t next_change(int64_t step) const;
  /// "rule 3 ("values")": of those that made a treatment, the last that speaks of one of the roles;
  /// for messages.
  std::string last_about(const Treatment& treatment, std::initializer_list<Role> roles) const;
  const Rulebook& book() const { return *book_; }

 private:
  struct Prepared {
    PathPattern path;
    std::vector<PathPattern> except;
  };
  std::shared_ptr<const Rulebook> book_;
  ListSizes lists_;
  std::vector<Prepared> patterns_;
};

}  // namespace halftone::policy
