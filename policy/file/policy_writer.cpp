// Writes every entry of a policy, in one order, so that equal policies are equal texts.
#include <cmath>
#include <sstream>
#include <typeinfo>

#include <halftone/policy/file/fingerprint.h>
#include <halftone/policy/file/own_quantizers.h>
#include <halftone/policy/file/policy_words.h>
#include <halftone/policy/file/quantizer_writer.h>
#include <halftone/policy/json_value.h>
#include <halftone/policy/policy_file.h>

namespace halftone::policy {

namespace {

Json entries_of(const Match& match) {
  Json json = Json::object();
  if (!match.ops.empty()) json["op"] = match.ops;
  if (match.asks) json["asks"] = name(*match.asks);
  json["path"] = match.path;
  if (!match.except.empty()) json["except"] = match.except;
  if (match.ordinal) json["ordinal"] = *match.ordinal;
  const bool always = match.from_step == 0 && match.to_step == Match{}.to_step;
  if (!always)
    json["steps"] = Json::array(
        {match.from_step, match.to_step == Match{}.to_step ? Json() : Json(match.to_step)});
  return json;
}

Json entries_of(const Rule& rule) {
  Json json = Json::object();
  if (!rule.name.empty()) json["name"] = rule.name;
  if (!rule.about.empty()) json["about"] = rule.about;
  json["match"] = entries_of(rule.match);
  if (rule.compute) json["compute"] = name(*rule.compute);
  if (rule.result) json["result"] = name(*rule.result);
  for (const auto& [role, said] : rule.roles) json[std::string(name(role))] = json_of(said);
  if (rule.accumulate) json["accumulate"] = json_of(*rule.accumulate);
  if (rule.optional) json["optional"] = true;
  return json;
}

/// A policy may have entries for users' operations. No list of names has them, but they are
/// printed.
void require_known_operations(const std::string& strategy, const amp::CastPolicy& own) {
  amp::CastPolicy known = amp::CastPolicy::preset(own.name());
  for (const std::string_view op : amp::CastPolicy::operations()) known[op] = own[op];
  std::ostringstream all, without;
  all << own, without << known;
  if (all.str() != without.str())
    fail<UsageError>("policy.write", "the policy of ", strategy,
                     " has entries of operations that are not the library's, which no file can "
                     "say. In a file that is a rule that matches a path: {\"match\": {\"path\": "
                     "\"...\"}, \"compute\": ...}.");
}

Json lists_of(const amp::Strategy& base) {
  Json lists{{"preset", base.policy}};
  if (!base.own_policy) return lists;
  const amp::CastPolicy& own = *base.own_policy;
  if (typeid(own) != typeid(amp::CastPolicy))
    fail<UsageError>("policy.write", base.name,
                     " has a policy that is a class of its own, which no file can say.");
  const amp::CastPolicy preset = amp::CastPolicy::preset(base.policy);
  for (const std::string_view op : amp::CastPolicy::operations()) {
    const amp::CastDecision& now = own[op];
    if (now == preset[op]) continue;
    if (now.dtype || now.cuda_dtype)
      fail<UsageError>("policy.write", "the policy of ", base.name, " gives ", op, ' ',
                       described(now), ". In a file that is a rule: {\"match\": {\"op\": \"", op,
                       "\"}, \"compute\": ...}.");
    lists[std::string(name(now.cast_class))].push_back(op);
  }
  require_known_operations(base.name, own);
  return lists;
}

Json loss_scale_of(const amp::Strategy& base) {
  if (!base.scales_loss) return "none";
  const amp::LossScaleOptions& options = base.loss_scale;
  if (!options.dynamic) return options.init_scale;
  Json json{{"init", options.init_scale},
            {"growth", options.growth_factor},
            {"backoff", options.backoff_factor},
            {"interval", options.growth_interval},
            {"min", options.min_scale}};
  if (std::isfinite(options.max_scale)) json["max"] = options.max_scale;
  json["hysteresis"] = options.hysteresis;
  return json;
}

Json entries_of(const PolicyFile& file) {
  const amp::Strategy& base = file.base;
  Json json{{"halftone_policy", 1}, {"name", base.name}};
  if (!file.about.empty()) json["about"] = file.about;
  if (!file.meant_for.empty()) json["for"] = file.meant_for;
  json["weights"] = {{"dtype", name(base.weights)},
                     {"form", name(base.form)},
                     {"batch_norm_f32", base.keep_batch_norm},
                     {"accumulate_in_f32", base.accumulate_in_f32},
                     {"fused", base.fused_master},
                     {"hold_statistics", base.hold_statistics}};
  json["autocast"] = base.autocast ? Json(name(*base.autocast)) : Json();
  json["lists"] = lists_of(base);
  json["rules"] = Json::array();
  for (const Rule& rule : file.rules.rules) json["rules"].push_back(entries_of(rule));
  Json optimizer = Json::object();
  if (base.state_dtype) optimizer["state_dtype"] = name(*base.state_dtype);
  if (file.rules.parameters) optimizer["parameters"] = json_of(*file.rules.parameters);
  for (const auto& [state, quantizer] : file.rules.states)
    optimizer["states"][state] = json_of(quantizer);
  json["optimizer"] = optimizer;
  json["loss_scale"] = loss_scale_of(base);
  if (file.base.wire != distributed::WireFormat{})  // keeps hashes of policies without this entry
    json["communication"] = {{"gradients", name(file.base.wire)}, {"parameters", "own"}};
  json["evaluation"] = file.rules.in_evaluation ? "same" : "reference";
  json["seed"] = file.base.seed;
  return json;
}

/// Code can make a strategy that reading refuses; the written text must be readable.
void require_readable(const std::string& text, const PolicyFile& file) {
  const std::string& name = file.base.name;
  std::optional<PolicyFile> again;
  try {
    again = read_text(text, "again");
  } catch (const FormatError& error) {
    const std::string_view message = error.what();
    const std::size_t begin = message.find("] ");
    fail<UsageError>("policy.write", printable(name), " is none that a file can say: ",
                     message.substr(begin == std::string_view::npos ? 0 : begin + 2));
  }
  if (again->rules != file.rules || entries_of(*again).dump(2) + '\n' != text)
    fail<UsageError>(
        "policy.write", name,
        " has values where they have no effect, such as random bits of a rounding that "
        "is not stochastic, which a file does not keep. Leave them at their defaults.");
}

}  // namespace

std::string write(const PolicyFile& file) {
  std::string text;
  try {
    text = entries_of(file).dump(2) + '\n';
  } catch (const nlohmann::json::exception&) {
    fail<UsageError>("policy.write", printable(file.base.name),
                     " has a text that is not UTF-8. Write names and remarks in UTF-8.");
  }
  require_readable(text, file);
  return text;
}

std::string hash(const PolicyFile& file) {
  const std::string text = write(file);
  Fingerprint print;
  print.add(text);
  for (const std::string& name : own_quantizer_names())  // a file has only their names
    if (text.find(Json(name).dump()) != std::string::npos)
      print.add(own_quantizer_named(name)->hash);
  return print.text();
}

}  // namespace halftone::policy
