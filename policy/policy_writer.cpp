// Everything of a policy written out, in one order, so that equal policies are equal texts; and the
// way from a file to a strategy and back.
#include <typeinfo>

#include <cmath>

#include <halftone/policy/fingerprint.h>
#include <halftone/policy/json_value.h>
#include <halftone/policy/policy_file.h>
#include <halftone/policy/policy_words.h>
#include <halftone/policy/session.h>

namespace halftone::policy {

namespace {

Json json_of(const NumberFormat& format) {
  for (const NamedFormat& known : named_formats())
    if (known.format == format) return std::string(known.name);
  // Fields alone would count a bit of exponent in it.
  if (format.bits >= 3 && format.bits <= 16 && format == NumberFormat::integer(format.bits))
    return "int" + std::to_string(format.bits);
  int exponent_bits = 2;  // the bias that min_exponent is of
  while (exponent_bits < 8 && 2 - (1 << (exponent_bits - 1)) != format.min_exponent)
    ++exponent_bits;
  return {{"exponent", exponent_bits},
          {"fraction", format.significand_bits - 1},
          {"max", format.max},
          {"infinity", format.infinity},
          {"subnormals", format.subnormals}};
}

Json json_of(const Scaling& scaling) {
  switch (scaling.per) {
    case Scaling::Per::none: break;
    case Scaling::Per::tensor: {
      Json json{{"per", "tensor"}, {"from", scaling.from_history ? "history" : "current"}};
      if (scaling.from_history)
        json["history"] = scaling.history, json["take"] = scaling.latest ? "latest" : "max";
      json["margin"] = scaling.margin, json["power_of_two"] = scaling.power_of_two;
      json["least"] = scaling.least;
      return json;
    }
    case Scaling::Per::block:
      return {{"per", "block"},
              {"block", Json::array({scaling.rows, scaling.columns})},
              {"format", json_of(scaling.scale_format)},
              {"rule", name(scaling.rule)},
              {"tensor_level", scaling.tensor_level}};
  }
  return "none";
}

Json json_of(const Quantizer& quantizer) {
  Json json{{"format", json_of(quantizer.grid)}, {"rounding", name(quantizer.rounding)}};
  if (quantizer.rounding == Rounding::stochastic) json["random_bits"] = quantizer.random_bits;
  if (quantizer.hadamard > 0) json["hadamard"] = quantizer.hadamard;
  json["scale"] = json_of(quantizer.scaling);
  return json;
}

Json json_of(const RoleRule& said) {
  switch (said.kind) {
    case RoleRule::Kind::none: return "none";
    case RoleRule::Kind::as_used: return "as_used";
    case RoleRule::Kind::grid: break;
  }
  return json_of(said.quantizer);
}

Json json_of(const Match& match) {
  Json json = Json::object();
  if (!match.ops.empty()) json["op"] = match.ops;
  if (match.asks) json["asks"] = name(*match.asks);
  json["path"] = match.path;
  if (!match.except.empty()) json["except"] = match.except;
  const bool always = match.from_step == 0 && match.to_step == Match{}.to_step;
  if (!always)
    json["steps"] = Json::array(
        {match.from_step, match.to_step == Match{}.to_step ? Json() : Json(match.to_step)});
  return json;
}

Json json_of(const Rule& rule) {
  Json json = Json::object();
  if (!rule.name.empty()) json["name"] = rule.name;
  if (!rule.about.empty()) json["about"] = rule.about;
  json["match"] = json_of(rule.match);
  if (rule.compute) json["compute"] = name(*rule.compute);
  if (rule.result) json["result"] = name(*rule.result);
  for (const auto& [role, said] : rule.roles) json[std::string(name(role))] = json_of(said);
  if (rule.accumulate)
    json["accumulate"] = {{"format", json_of(rule.accumulate->grid)},
                          {"rounding", name(rule.accumulate->rounding)},
                          {"chunk", rule.accumulate->chunk}};
  if (rule.optional) json["optional"] = true;
  return json;
}

Json lists_of(const amp::Strategy& base) {
  Json lists{{"preset", base.policy}};
  if (!base.own_policy) return lists;
  const amp::Policy& own = *base.own_policy;
  if (typeid(own) != typeid(amp::Policy))
    fail<UsageError>("policy.write", base.name,
                     " has a policy that is a class of its own, which no file can say.");
  const amp::Policy preset = amp::Policy::preset(base.policy);
  for (const std::string_view op : amp::Policy::operations()) {
    const amp::CastDecision& now = own[op];
    if (now == preset[op]) continue;
    if (now.dtype || now.cuda_dtype)
      fail<UsageError>("policy.write", "the policy of ", base.name, " gives ", op, ' ',
                       described(now), ". In a file that is a rule: {\"match\": {\"op\": \"", op,
                       "\"}, \"compute\": ...}.");
    lists[std::string(name(now.cast_class))].push_back(op);
  }
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

/// Makes sessions; std::function::target finds the file again.
struct SessionMaker {
  std::shared_ptr<const PolicyFile> file;
  std::shared_ptr<amp::Session> operator()(nn::Module& model) const {
    const std::shared_ptr<const Rulebook> rules(file, &file->rules);
    return std::make_shared<PolicySession>("policy " + file->base.name, model, rules);
  }
};

}  // namespace

std::string write(const PolicyFile& file) {
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
  for (const Rule& rule : file.rules.rules) json["rules"].push_back(json_of(rule));
  Json optimizer = Json::object();
  if (base.state_dtype) optimizer["state_dtype"] = name(*base.state_dtype);
  if (file.rules.parameters) optimizer["parameters"] = json_of(*file.rules.parameters);
  for (const auto& [state, quantizer] : file.rules.states)
    optimizer["states"][state] = json_of(quantizer);
  json["optimizer"] = optimizer;
  json["loss_scale"] = loss_scale_of(base);
  json["evaluation"] = file.rules.in_evaluation ? "same" : "reference";
  json["seed"] = file.rules.seed;
  return json.dump(2) + '\n';
}

std::string hash(const PolicyFile& file) { return Fingerprint().add(write(file)).text(); }

amp::Strategy strategy_of(PolicyFile file) {
  amp::Strategy strategy = file.base;
  strategy.seed = file.rules.seed;
  if (!file.rules.empty())
    strategy.session = SessionMaker{std::make_shared<const PolicyFile>(std::move(file))};
  return strategy;
}

amp::Strategy watched(const amp::Strategy& strategy) {
  amp::Strategy result = strategy;
  if (!result.session)
    result.session = SessionMaker{std::make_shared<const PolicyFile>(file_of(strategy))};
  return result;
}

amp::Strategy named_or_loaded(std::string_view name) {
  return name.ends_with(".json") ? load(name) : amp::Strategy::named(name);
}

PolicyFile file_of(const amp::Strategy& strategy) {
  if (const auto* maker = strategy.session.target<SessionMaker>()) return *maker->file;
  if (strategy.session)
    fail<UsageError>("policy.file_of", strategy.name,
                     " has a session that no file made. Write down what made it.");
  PolicyFile file{.base = strategy};
  file.rules.seed = strategy.seed;
  return file;
}

}  // namespace halftone::policy
