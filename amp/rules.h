// The rules of a policy file: what they match, and which of them apply to an operation at its place
// in a model.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <halftone/amp/cast_policy.h>
#include <halftone/autograd/slots.h>
#include <halftone/core/formats/number_format.h>
#include <halftone/core/formats/quantizer.h>
#include <halftone/core/op_info.h>
#include <halftone/core/words.h>
#include <halftone/distributed/wire.h>
#include <halftone/nn/module.h>

namespace halftone::policy {

using halftone::name, halftone::named;

// Patterns for paths of modules: dotted, as "transformer.h.*.attn.**".
//   *        one segment, or a part of one (c_*)
//   **       any number of segments, none as well
//   {a,b}    alternatives within a segment
//   [-1]     a member of a list, counted from its end if negative
//   [0:-1]   members of a list from the first up to, not including, the second; both may be absent
// A pattern may begin with a part, so that it fits models of other names: "<block>.attn.**".
//   <block>, <first block>, <last block>, <head>, <embedding>, <router>: ModelParts says which

/// The number of members of each list of a model: "transformer.h" -> 12. A list is a module with
/// children that are called 0, 1, 2, ...
using ListSizes = std::map<std::string, int64_t, std::less<>>;
ListSizes list_sizes_of(const std::vector<std::string>& paths);

/// The lists and the parts of one model, which patterns name.
struct ModelParts {
  ListSizes lists{};
  // Paths, in the model's order.
  std::vector<std::string> blocks{};  // members, with modules of their own, of lists that are not
                                      // inside another list
  // Modules that say so (nn::Module::part()). If no module says that it is a head: the owner of the
  // last matrix that is neither in a block nor in an embedding.
  std::vector<std::string> heads{}, embeddings{}, routers{};
};
ModelParts parts_of(nn::Module& model);

/// A part that a pattern may begin with.
enum class Part : uint8_t { block, first_block, last_block, head, embedding, router };

class PathPattern {
 public:
  /// Throws UsageError in the name of `where` for a malformed pattern, such as one with a brace
  /// that does not close, and for unknown parts.
  PathPattern(std::string_view where, std::string_view pattern);
  bool matches(std::string_view path, const ModelParts& parts) const;
  /// Returns the part of the model that the pattern begins with, such as <head>; empty: with none.
  std::optional<Part> part() const { return part_; }
  const std::string& text() const { return text_; }

 private:
  struct Range {
    std::optional<int64_t> first{}, last{};  // last: not included
    bool single = false;                     // only first
  };
  struct Segment {
    bool any_number = false;                  // **
    std::optional<Range> range{};             // [..]
    std::vector<std::string> alternatives{};  // with * within
  };
  bool matches_from(std::size_t segment, const std::vector<std::string_view>& path, std::size_t at,
                    std::string_view whole, const ListSizes& lists) const;
  static Range range_in(std::string_view where, std::string_view pattern, std::string_view text);
  static bool in_range(const Range& range, std::string_view member, std::string_view list,
                       const ListSizes& lists);

  std::string text_;
  std::optional<Part> part_{};
  std::vector<Segment> segments_;
};

/// Returns the path that is most like the pattern, for messages; "" without paths.
std::string nearest_path(std::string_view pattern, const std::vector<std::string>& paths);

// The name of a tensor in a training: a site (an operation at one position of the model) and a role
// at that site. Policies set rules for them, reports list them.

/// The role of a tensor in an operation. `input_backward`, `weight_backward`: the operand as the
/// products of backward see it, if that differs. `grad_output_weight`: the incoming gradient, as
/// the product for the weight's gradient sees it. `input_0` to `input_1_backward` are only in
/// rules: operand 0 or 1 of an operation, if it has the role input, in forward and in backward.
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
  input_1_backward,
  // Tensors inside of attention. A rule that names one means a tensor of the operations that
  // attention is then made of (inner_roles()).
  query,
  key,
  value,
  scores,
  probabilities,
  grad_scores,
  grad_probabilities
};
inline constexpr int role_count = 10;       // roles of tensors: those before input_0
inline constexpr int rule_role_count = 21;  // roles that rules can name: all
constexpr bool is_inner(Role role) { return role >= Role::query; }
/// The operation in which rules can name inner tensors: the roles from `query` on.
inline constexpr std::string_view attention_op = "scaled_dot_product_attention";
/// A role that rules for attention can name (`said`), and the tensor that it means: the one with
/// role `role` in `op`, an operation inside of attention.
struct InnerRole {
  Role said;
  std::string_view op;
  Role role;
};
std::span<const InnerRole> inner_roles();
constexpr bool is_gradient(Role role) {
  return role >= Role::grad_output && role <= Role::grad_weight;
}
/// Returns whether the role is a use: an operand as products of backward see it, such as
/// "input.backward".
bool is_use(Role role);
/// Returns whether products of an operation multiply tensors of this role.
bool is_multiplied(Role role);
/// Returns the number of the operand that the role is about: 1 for input_1 and input_1_backward;
/// empty for all other roles.
std::optional<std::size_t> operand_of(Role role);
/// Returns the role for one operand, or empty if rules have none: input_1 for (input, 1),
/// input_0_backward for (input_backward, 0).
std::optional<Role> of_operand(Role role, std::size_t operand);
/// Returns the role of tensors with this name; empty for others, such as "input.1" (only in rules).
std::optional<Role> role_named(std::string_view name);

struct Site {
  std::string path;       // of the module, "transformer.h.0.attn.c_attn"; "" outside of all
  std::string_view op;    // "linear"
  int ordinal = 0;        // among the calls of that operation in one call of the module, from 0
  std::string parameter;  // of its weight, if it has one: "transformer.h.0.attn.c_attn.weight"
};
/// Returns "transformer.h.0.attn.c_attn/linear.0".
std::string name(const Site& site);

/// Finds names in a model: the paths of modules, and of parameters by their storage.
class ModelNames {
 public:
  explicit ModelNames(nn::Module& model);
  /// Returns the path of a scope, from its module's path and its label; "" outside of the model.
  std::string path_of(const CallScope* scope) const;
  /// Returns the innermost module of the model that is being called, or null.
  const void* module_of(const CallScope* scope) const;
  /// Returns the name of the parameter that x is, is a view of, or is a cast of (enter()); null for
  /// none.
  const std::string* parameter_of(const Tensor& x) const;
  /// Makes parameter_of(cast) return the parameter of `source`, if it has one.
  void enter(const Tensor& source, const Tensor& cast);
  /// Forgets entered casts, and takes the present storage of parameters.
  void refresh();
  /// Returns the number of elements of a parameter; 0 for an unknown name.
  int64_t size_of(const std::string& parameter) const;

  const ModelParts& parts() const { return parts_; }

 private:
  nn::Named<Tensor> parameters_;
  std::unordered_map<const void*, std::string> modules_;
  std::unordered_map<const Storage*, const std::string*> storages_;
  std::vector<std::shared_ptr<Storage>> casts_;  // alive, so that no others take their addresses
  ModelParts parts_;
};

// The rules of a policy file, independent of a model. They apply in order, and later rules override
// earlier ones field by field. A treatment is their result for one site.

/// The cast class that a rule gives its sites; low: the region's dtype; tf32: f32 whose products
/// may round their factors to TF32 (core/device.h); hardware: the region's dtype, by products of f8
/// numbers on a GPU (F8Operand in core/pending.h).
enum class Compute : uint8_t { low, f32, tf32, bf16, f16, widest, as_is, refuse, hardware };

/// The setting of a rule for one role.
struct RoleRule {
  enum class Kind : uint8_t {
    none,     // not quantized
    as_used,  // for a use (is_use()): quantized as the role itself
    grid,
  } kind = Kind::none;
  Quantizer quantizer{};
  std::string named{};  // the quantizer's name in the file, for tables
  bool operator==(const RoleRule& other) const {
    return kind == other.kind && quantizer == other.quantizer;
  }
};

/// A statistic of a tensor and its rounding, as in telemetry (core/formats/survey.h).
enum class Statistic : uint8_t { norm_to_noise, saturated, underflow, bias_t, sqnr_db };

/// A condition under which a rule applies at a site (amp/switches.h).
struct When {
  Role role = Role::grad_output;  // the tensor that is measured
  Statistic statistic = Statistic::norm_to_noise;
  bool below = true;  // the statistic must be below the bound; false: above
  double bound = 0;
  int32_t over = 20;   // the number of steps from one measurement to the next
  bool stays = false;  // the rule stays on once it was on
  bool operator==(const When&) const = default;
};

struct Match {
  std::vector<std::string> ops{};   // none: every operation
  std::optional<CastClass> asks{};  // the class that operations ask for (OpInfo)
  std::string path = "**";
  std::vector<std::string> except{};
  std::optional<int64_t> ordinal{};  // of the site (Site::ordinal); none: every call
  /// For from_step <= step < to_step; steps are calls of Training::step(), skipped ones included.
  int64_t from_step = 0, to_step = std::numeric_limits<int64_t>::max();
  std::optional<When> when{};  // none: always
  bool operator==(const Match&) const = default;
};

struct Rule {
  std::string name{}, about{};
  Match match{};
  std::optional<Compute> compute{};
  std::optional<DType> result{};     // the dtype of results, by a recorded cast
  std::optional<CodedForm> saved{};  // how activations are stored for backward
  std::map<Role, RoleRule> roles{};
  std::optional<Accumulator> accumulate{};
  bool optional = false;  // may match nothing
  bool operator==(const Rule&) const = default;
};

struct Rulebook {
  std::vector<Rule> rules{};
  /// Grids of an optimizer's states by name ("exp_avg"), and of parameters. After each step, states
  /// and parameters are rounded to their grids.
  std::map<std::string, Quantizer> states{};
  std::optional<Quantizer> parameters{};
  bool in_evaluation = true;  // false: rules have no effect under NoGrad
  bool operator==(const Rulebook&) const = default;
  bool empty() const { return rules.empty() && states.empty() && !parameters; }
};

/// The combined settings of all rules for one site (an operation at its position in a model).
struct Treatment {
  std::optional<Compute> compute{};
  std::optional<DType> result{};
  std::optional<CodedForm> saved{};
  std::array<std::optional<RoleRule>, rule_role_count> roles{};
  std::optional<Accumulator> accumulate{};
  std::vector<int> from_rules{};  // the numbers of these rules

  /// Returns the quantizer of a role, or null. A use (is_use()) without a rule has its role's.
  /// `operand`: the number of the tensor among the operation's operands, for the roles input and
  /// input_backward; without it, entries for one operand are ignored.
  const Quantizer* quantizer(Role role, std::optional<std::size_t> operand = {}) const;
  /// Returns whether a rule sets this use of an operand, other than by "as_used".
  bool says(Role use, std::size_t operand) const;
  /// Returns the cast that `compute` asks for; empty without it.
  std::optional<amp::CastDecision> decision() const;
  /// Returns whether a role is an operand of products that read its numbers and its scales: in
  /// hardware ("compute": "hardware"), or in an accumulator with scales.
  bool keeps_scales(Role role) const;
  /// Returns whether a rule gives the products of backward other operands than those of forward.
  bool backward_differs() const;
  bool quantizes() const;

 private:
  const std::optional<RoleRule>& said(Role role, std::optional<std::size_t> operand) const;
};

/// A rulebook prepared for one model.
class RuleMatcher {
 public:
  /// Throws UsageError in the name of `where` for invalid patterns.
  RuleMatcher(std::string_view where, std::shared_ptr<const Rulebook> book, ModelParts parts);
  /// Returns the treatment of a site in a step. on(rule) returns whether a rule with `when`
  /// applies; without `on`, such rules do not apply.
  Treatment treatment(const Site& site, const OpInfo& op, int64_t step,
                      const std::function<bool(std::size_t)>& on = {}) const;
  /// Returns whether a rule matches a site, whatever the step.
  bool matches(std::size_t rule, const Site& site, const OpInfo& op) const;
  /// The same, ignoring Match::ordinal.
  bool matches_any_call(std::size_t rule, const Site& site, const OpInfo& op) const;
  /// Returns the first step after `step` in which a rule begins or ends; the largest number if
  /// there is none.
  int64_t next_change(int64_t step) const;
  /// Returns the last rule of a treatment that sets one of the roles, as "rule 3 ("values")" for
  /// messages; "" if none does.
  std::string last_about(const Treatment& treatment, std::initializer_list<Role> roles) const;
  const Rulebook& book() const { return *book_; }
  /// Return whether a rule treats tensors inside of attention anywhere, and whether at this path.
  bool opens_attention() const { return opens_; }
  bool opens_attention(const std::string& path) const;
  /// Returns " The model has no <block>." if a rule's pattern begins with a part that the model
  /// lacks, otherwise "".
  std::string lacking(std::size_t rule) const;

 private:
  struct Prepared {
    PathPattern path;
    std::vector<PathPattern> except;
  };
  std::shared_ptr<const Rulebook> book_;
  ModelParts parts_;
  std::vector<Prepared> patterns_;
  bool opens_ = false;
};

}  // namespace halftone::policy

namespace halftone {
template <>
inline constexpr std::array<std::string_view, 6> words_of<policy::Part>{
    "<block>", "<first block>", "<last block>", "<head>", "<embedding>", "<router>"};
template <>
inline constexpr std::array<std::string_view, 5> words_of<policy::Statistic>{
    "norm_to_noise", "saturated", "underflow", "bias_t", "sqnr_db"};
template <>
inline constexpr std::array<std::string_view, policy::rule_role_count> words_of<policy::Role>{
    "input",
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
    "input.1.backward",
    "query",
    "key",
    "value",
    "scores",
    "probabilities",
    "grad_scores",
    "grad_probabilities"};
template <>
inline constexpr std::array<std::string_view, 9> words_of<policy::Compute>{
    "low", "f32", "tf32", "bf16", "f16", "widest", "as_is", "refuse", "hardware"};
}  // namespace halftone
