// Reading rules: an entry that no operation of the rule can follow is an error.
#include <halftone/policy/policy_reader.h>

#include <algorithm>
#include <array>
#include <vector>

#include <halftone/amp/cast_policy.h>
#include <halftone/policy/file/policy_words.h>

namespace halftone::policy {

std::string label_in(const JsonValue& value) {
  const std::string label = value.text();
  if (label.empty() || label.size() > 100 || printable(label) != label)
    value.refuse("a name has 1 to 100 letters, all of them printable.");
  return label;
}

DType dtype_in(const JsonValue& value, std::span<const std::string_view> allowed) {
  return *dtype_named(allowed[value.word(allowed)]);
}

void require_operation(const JsonValue& op) {
  const auto known = amp::CastPolicy::operations();
  if (const std::string name = op.text(); std::ranges::find(known, name) == known.end())
    op.refuse_unknown("operation", name, known);
}

namespace {

using Words = std::vector<std::string_view>;

std::string pattern_in(const JsonValue& value) {
  const std::string pattern = value.text();
  checked_at(value, [&] { PathPattern("match", pattern); });
  if (printable(pattern) != pattern)
    value.refuse("a path has letters that are not printable. Leave them out.");
  return pattern;
}

Match match_in(const JsonValue& value) {
  constexpr std::array<std::string_view, 6> known{"op",     "asks",    "path",
                                                  "except", "ordinal", "steps"};
  value.only("a match", known);
  Match match;
  if (const auto op = value.find("op")) {
    if (!op->is_text() && op->elements().empty())
      op->refuse("the list names no operation. Leave \"op\" out where all are meant.");
    for (const JsonValue& one : op->is_text() ? std::vector{*op} : op->elements()) {
      require_operation(one);
      match.ops.push_back(one.text());
    }
  }
  if (const auto asks = value.find("asks")) match.asks = CastClass(asks->word(cast_class_names()));
  if (const auto path = value.find("path")) match.path = pattern_in(*path);
  if (const auto except = value.find("except"))
    for (const JsonValue& one : except->is_text() ? std::vector{*except} : except->elements())
      match.except.push_back(pattern_in(one));
  if (const auto ordinal = value.find("ordinal")) match.ordinal = ordinal->integer(0, 1 << 30);
  if (const auto steps = value.find("steps")) {
    const std::vector<JsonValue> edges = steps->elements();
    constexpr int64_t most = int64_t(1) << 53;
    if (edges.size() != 2)
      steps->refuse("steps are [first, last], the last not included; null: without end.");
    match.from_step = edges[0].integer(0, most);
    if (!edges[1].is_null()) match.to_step = edges[1].integer(0, most);
    if (match.to_step <= match.from_step)
      steps->refuse("there is no step from ", match.from_step, " up to ", match.to_step, '.');
  }
  return match;
}

RoleRule role_in(Role role, const JsonValue& value, const QuantizerReader& grids) {
  if (value.is_text() && value.text() == "none") return {.kind = RoleRule::Kind::none};
  if (value.is_text() && value.text() == "as_used") {
    if (!is_use(role))
      value.refuse(
          "as_used is of input.backward, weight.backward and grad_output.weight. "
          "\"none\" leaves a role as it is.");
    return {.kind = RoleRule::Kind::as_used};
  }
  return {.kind = RoleRule::Kind::grid,
          .quantizer = grids.quantizer_in(value),
          .named = value.is_text() ? value.text() : ""};
}

Accumulator accumulator_in(const JsonValue& value, const QuantizerReader& grids) {
  constexpr std::array<std::string_view, 3> known{"format", "rounding", "chunk"};
  value.only("an accumulator", known);
  Accumulator accumulator;
  const auto format = value.find("format");
  if (!format) value.refuse("\"format\" is missing.");
  accumulator.grid = grids.format_in(*format);
  if (is_unsigned(accumulator.grid))
    format->refuse(described(accumulator.grid),
                   " has no sign bit, and sums can be negative. Choose a format with a sign.");
  if (const auto rounding = value.find("rounding")) {
    const Words roundings = rounding_names();
    accumulator.rounding = *rounding_named(roundings[rounding->word(roundings)]);
  }
  if (const auto chunk = value.find("chunk"))
    accumulator.chunk = int32_t(chunk->integer(0, 1 << 30));
  checked_at(value, [&] { check_accumulator("accumulator", accumulator); });
  return accumulator;
}

/// Checks that the dtype in which a rule computes holds the rule's grids.
void require_exact(const Rule& rule, Role role, const JsonValue& value,
                   std::optional<DType> autocast) {
  const RoleRule& said = rule.roles.at(role);
  if (said.kind != RoleRule::Kind::grid || !rule.compute) return;
  std::optional<DType> dtype;
  if (*rule.compute == Compute::bf16) dtype = bf16;
  if (*rule.compute == Compute::f16) dtype = f16;
  if (*rule.compute == Compute::low) dtype = autocast;
  if (!dtype || said.quantizer.exact_in(*dtype)) return;
  value.refuse("the grid of \"", name(role), "\" is ", described(said.quantizer), ", which ",
               *dtype,
               " does not hold exactly. Add \"compute\": \"f32\", or a power-of-two scale.");
}

/// Checks that only weights have averages over steps: other tensors are new in each step.
void require_average(const Rule& rule, Role role, const JsonValue& value) {
  if (rule.roles.at(role).quantizer.average > 0 && role != Role::weight &&
      role != Role::weight_backward)
    value.refuse("an average over steps is for weights, and \"", name(role),
                 "\" is another tensor in each step. Use it for \"weight\" or "
                 "\"weight.backward\".");
}

/// Checks that an operation of the rule can have the operand that an entry is about.
void require_operand(const Rule& rule, Role role, const JsonValue& value) {
  const std::vector<std::string>& ops = rule.match.ops;
  const bool all_unary = !ops.empty() && std::ranges::all_of(ops, amp::CastPolicy::takes_one_input);
  if (operand_of(role) != std::size_t(1) || !all_unary) return;
  std::string names;
  for (const std::string& op : ops) names += (names.empty() ? "" : ", ") + op;
  value.refuse("an operation with one input has no operand 1: ", names,
               ". Use \"input\", or leave the entry out.");
}

/// Refuses "input.2" and the like with the numbers that operands have in rules.
void require_operand_numbers(const JsonValue& rule) {
  if (!rule.is_object()) return;
  for (const JsonValue& entry : rule.members()) {
    const std::string_view key = entry.key();
    constexpr std::string_view input = "input.";
    if (key.starts_with(input) && key.size() > input.size() && key[input.size()] >= '2' &&
        key[input.size()] <= '9')
      entry.refuse("rules name only the operands 0 and 1. \"input\" alone is for all operands.");
  }
}

}  // namespace

Rule rule_in(const JsonValue& value, const QuantizerReader& grids, std::optional<DType> autocast) {
  Words known{"name", "about", "match", "compute", "result", "accumulate", "optional"};
  const Words roles = rule_role_names();
  known.insert(known.end(), roles.begin(), roles.end());
  require_operand_numbers(value);
  value.only("a rule", known);
  Rule rule;
  if (const auto name = value.find("name")) rule.name = label_in(*name);
  if (const auto about = value.find("about")) rule.about = about->text();
  if (const auto match = value.find("match")) rule.match = match_in(*match);
  if (const auto compute = value.find("compute"))
    rule.compute = Compute(compute->word(compute_names()));
  constexpr std::array<std::string_view, 3> dtypes{"f32", "bf16", "f16"};
  if (const auto result = value.find("result")) rule.result = dtype_in(*result, dtypes);
  if (const auto accumulate = value.find("accumulate"))
    rule.accumulate = accumulator_in(*accumulate, grids);
  if (const auto optional = value.find("optional")) rule.optional = optional->boolean();
  for (std::size_t role = 0; role < roles.size(); ++role)
    if (const auto said = value.find(roles[role])) {
      rule.roles[Role(role)] = role_in(Role(role), *said, grids);
      require_exact(rule, Role(role), *said, autocast);
      require_average(rule, Role(role), *said), require_operand(rule, Role(role), *said);
    }
  if (rule.roles.empty() && !rule.compute && !rule.result && !rule.accumulate)
    value.refuse(
        "the rule sets nothing. Give it an entry, such as \"input\" or \"compute\", or leave "
        "it out.");
  for (const std::string& op : rule.match.ops)
    if (const OpInfo* info = amp::CastPolicy::info(op);
        rule.accumulate && !(info && info->accumulator))
      value.find("accumulate")
          ->refuse(op, " has no emulated accumulator. ",
                   amp::CastPolicy::operations_with(&OpFacts::accumulator), " do.");
  return rule;
}

}  // namespace halftone::policy
