// Merging: rules in order, field by field.
#include <halftone/policy/rules.h>

#include <algorithm>

#include <halftone/core/error.h>

namespace halftone::policy {

namespace {
constexpr std::array<std::string_view, 8> words{"low", "f32",    "tf32",  "bf16",
                                                "f16", "widest", "as_is", "refuse"};
}  // namespace

std::string_view name(Compute compute) { return words[std::size_t(compute)]; }
std::vector<std::string_view> compute_names() { return {words.begin(), words.end()}; }

/// Returns the entry for an operand; if there is none, the entry for all operands.
const std::optional<RoleRule>& Treatment::said(Role role,
                                               std::optional<std::size_t> operand) const {
  const std::optional<Role> own = operand ? of_operand(role, *operand) : std::nullopt;
  return roles[std::size_t(own && roles[std::size_t(*own)] ? *own : role)];
}

const Quantizer* Treatment::quantizer(Role role, std::optional<std::size_t> operand) const {
  const std::optional<RoleRule>& rule = said(role, operand);
  if (rule && rule->kind == RoleRule::Kind::grid) return &rule->quantizer;
  if (rule && rule->kind == RoleRule::Kind::none) return nullptr;
  switch (role) {
    case Role::input_backward: return quantizer(Role::input, operand);
    case Role::weight_backward: return quantizer(Role::weight);
    case Role::grad_output_weight: return quantizer(Role::grad_output);
    case Role::input:
    case Role::weight:
    case Role::bias:
    case Role::output:
    case Role::grad_output:
    case Role::grad_input:
    case Role::grad_weight:
    case Role::input_0:
    case Role::input_1:
    case Role::input_0_backward:
    case Role::input_1_backward: break;
  }
  return nullptr;
}

bool Treatment::says(Role use, std::size_t operand) const {
  const std::optional<RoleRule>& rule = said(use, operand);
  return rule && rule->kind != RoleRule::Kind::as_used;
}

bool Treatment::backward_differs() const {
  constexpr std::size_t others = 2;  // the operands that "input" alone is for
  for (std::size_t operand = 0; operand <= others; ++operand)
    if (says(Role::input_backward, operand) || says(Role::weight_backward, operand)) return true;
  return false;
}

bool Treatment::quantizes() const {
  return std::ranges::any_of(roles, [](const std::optional<RoleRule>& rule) {
    return rule && rule->kind == RoleRule::Kind::grid;
  });
}

RuleMatcher::RuleMatcher(std::string_view where, std::shared_ptr<const Rulebook> book,
                         const std::vector<std::string>& module_paths)
    : book_(std::move(book)), lists_(list_sizes_of(module_paths)) {
  for (const Rule& rule : book_->rules) {
    Prepared& next = patterns_.emplace_back(Prepared{{where, rule.match.path}, {}});
    for (const std::string& pattern : rule.match.except) next.except.emplace_back(where, pattern);
  }
}

bool RuleMatcher::matches(std::size_t number, const Site& site, const OpInfo& op) const {
  const std::optional<int64_t>& ordinal = book_->rules[number].match.ordinal;
  return (!ordinal || *ordinal == site.ordinal) && matches_any_call(number, site, op);
}

bool RuleMatcher::matches_any_call(std::size_t number, const Site& site, const OpInfo& op) const {
  const Match& match = book_->rules[number].match;
  if (!match.ops.empty() && std::ranges::find(match.ops, op.name) == match.ops.end()) return false;
  if (match.asks && *match.asks != op.cast_class) return false;
  const Prepared& patterns = patterns_[number];
  if (!patterns.path.matches(site.path, lists_)) return false;
  return std::ranges::none_of(patterns.except, [&](const PathPattern& pattern) {
    return pattern.matches(site.path, lists_);
  });
}

Treatment RuleMatcher::treatment(const Site& site, const OpInfo& op, int64_t step) const {
  Treatment result;
  for (std::size_t i = 0; i < book_->rules.size(); ++i) {
    const Rule& rule = book_->rules[i];
    if (step < rule.match.from_step || step >= rule.match.to_step || !matches(i, site, op))
      continue;
    if (rule.compute) result.compute = rule.compute;
    if (rule.result) result.result = rule.result;
    if (rule.accumulate) result.accumulate = rule.accumulate;
    // "input" replaces what earlier rules say about one operand. In a rule it comes before
    // "input.0".
    for (const auto& [role, said] : rule.roles) {
      for (const std::size_t operand : {0, 1})
        if (const auto own = of_operand(role, operand)) result.roles[std::size_t(*own)].reset();
      result.roles[std::size_t(role)] = said;
    }
    result.from_rules.push_back(int(i));
  }
  return result;
}

std::string RuleMatcher::last_about(const Treatment& treatment,
                                    std::initializer_list<Role> roles) const {
  PlainText text;
  for (auto number = treatment.from_rules.rbegin(); number != treatment.from_rules.rend();
       ++number) {
    const Rule& rule = book_->rules[std::size_t(*number)];
    if (std::ranges::none_of(roles, [&](Role role) { return rule.roles.contains(role); })) continue;
    text << "rule " << *number;
    if (!rule.name.empty()) text << " (\"" << rule.name << "\")";
    break;
  }
  return text.str();
}

int64_t RuleMatcher::next_change(int64_t step) const {
  int64_t next = std::numeric_limits<int64_t>::max();
  for (const Rule& rule : book_->rules)
    for (const int64_t edge : {rule.match.from_step, rule.match.to_step})
      if (edge > step) next = std::min(next, edge);
  return next;
}

}  // namespace halftone::policy
