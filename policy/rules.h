// The rules of a policy file, independent of a model. They apply in order, and later rules override
// earlier ones field by field. A treatment is their result for one site.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <halftone/core/formats/number_format.h>
#include <halftone/core/formats/quantizer.h>
#include <halftone/core/op_info.h>
#include <halftone/distributed/wire.h>
#include <halftone/policy/rules/path_match.h>
#include <halftone/policy/rules/site.h>

namespace halftone::policy {

/// The cast class that a rule gives its sites; low: the region's dtype; tf32: f32 whose products
/// may round their factors to TF32 (core/device.h).
enum class Compute : uint8_t { low, f32, tf32, bf16, f16, widest, as_is, refuse };
std::string_view name(Compute compute);
std::vector<std::string_view> compute_names();

/// The setting of a rule for one role.
struct RoleRule {
  enum class Kind : uint8_t {
    none,     // not quantized
    as_used,  // for a use (input.backward, grad_output.weight): as the role itself
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
  std::optional<CastClass> asks{};  // the class that operations ask for (OpInfo)
  std::string path = "**";
  std::vector<std::string> except{};
  std::optional<int64_t> ordinal{};  // of the site (Site::ordinal); none: every call
  /// Calls of Training::step(), skipped ones included: from the first up to, without, the second.
  int64_t from_step = 0, to_step = std::numeric_limits<int64_t>::max();
  bool operator==(const Match&) const = default;
};

struct Rule {
  std::string name{}, about{};
  Match match{};
  std::optional<Compute> compute{};
  std::optional<DType> result{};  // the dtype of results, by a recorded cast
  std::map<Role, RoleRule> roles{};
  std::optional<Accumulator> accumulate{};
  bool optional = false;  // may match nothing
  bool operator==(const Rule&) const = default;
};

struct Rulebook {
  std::vector<Rule> rules{};
  /// Grids of an optimizer's states by name ("exp_avg"), and of parameters: these are rounded to
  /// them after each step.
  std::map<std::string, Quantizer> states{};
  std::optional<Quantizer> parameters{};
  bool in_evaluation = true;  // false: rules have no effect under NoGrad
  bool operator==(const Rulebook&) const = default;
  bool empty() const { return rules.empty() && states.empty() && !parameters; }
};

/// The combined settings for one site.
struct Treatment {
  std::optional<Compute> compute{};
  std::optional<DType> result{};
  std::array<std::optional<RoleRule>, rule_role_count> roles{};
  std::optional<Accumulator> accumulate{};
  std::vector<int> from_rules{};  // that made it, by number

  /// Returns the quantizer of a role, or null. A use without a rule has that of its role.
  /// `operand`: the number of the tensor among the operation's operands, for the roles input and
  /// input_backward; without it, entries for one operand are ignored.
  const Quantizer* quantizer(Role role, std::optional<std::size_t> operand = {}) const;
  /// Returns whether a rule sets a use of an operand to something other than its role.
  bool says(Role use, std::size_t operand) const;
  /// Returns whether backward uses other operands than forward.
  bool backward_differs() const;
  bool quantizes() const;

 private:
  const std::optional<RoleRule>& said(Role role, std::optional<std::size_t> operand) const;
};

/// A rulebook prepared for one model.
class RuleMatcher {
 public:
  /// Throws UsageError in the name of `where` for invalid patterns and for operations that no rule
  /// can name.
  RuleMatcher(std::string_view where, std::shared_ptr<const Rulebook> book,
              const std::vector<std::string>& module_paths);
  /// Returns the treatment of a site in a step.
  Treatment treatment(const Site& site, const OpInfo& op, int64_t step) const;
  /// Returns whether a rule matches a site in some step.
  bool matches(std::size_t rule, const Site& site, const OpInfo& op) const;
  /// The same for a rule without its ordinal.
  bool matches_any_call(std::size_t rule, const Site& site, const OpInfo& op) const;
  /// Returns the first step after `step` in which a rule begins or ends; the largest number if
  /// there is none.
  int64_t next_change(int64_t step) const;
  /// Returns "rule 3 ("values")": the last rule of a treatment that sets one of the roles; for
  /// messages.
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
