// Treatments by steps, and their effects.
#include <halftone/policy/resolved.h>

#include <algorithm>

#include <halftone/policy/file/fingerprint.h>
#include <halftone/policy/file/quantizer_writer.h>

namespace halftone::policy {

namespace {

/// Returns whether a treatment would be the same without this entry.
bool is_default(const Treatment& treatment, Role role, const RoleRule& said) {
  const RoleRule::Kind idle = is_use(role) ? RoleRule::Kind::as_used : RoleRule::Kind::none;
  const std::optional<std::size_t> operand = operand_of(role);
  if (!operand) return said.kind == idle;
  const Role all = is_use(role) ? Role::input_backward : Role::input;
  const std::optional<RoleRule>& of_all = treatment.roles[std::size_t(all)];
  return of_all ? said == *of_all : said.kind == idle;
}

/// Omits defaults: a use that is "as_used", a role that is not quantized, and an operand that has
/// the setting of all operands.
Json content_of_treatment(const Treatment& treatment) {
  Json json = Json::object();
  if (treatment.result) json["result"] = name(*treatment.result);
  for (int i = 0; i < rule_role_count; ++i) {
    const std::optional<RoleRule>& said = treatment.roles[std::size_t(i)];
    if (said && !is_default(treatment, Role(i), *said))
      json[std::string(name(Role(i)))] = content_of(*said);
  }
  if (treatment.accumulate) json["accumulate"] = content_of(*treatment.accumulate);
  return json;
}

/// Returns "f32, i64" if operands differ; "tf32" if f32 products may use TF32 factors.
std::string dtypes_in(const ResolvedSite& site, const Treatment& met) {
  if (met.compute == Compute::tf32) return std::string(name(Compute::tf32));
  std::vector<DType> dtypes;
  for (const std::optional<DType> dtype : site.operands)
    if (dtype && std::ranges::find(dtypes, *dtype) == dtypes.end()) dtypes.push_back(*dtype);
  std::string text;
  for (const DType dtype : dtypes) text += (text.empty() ? "" : ", ") + std::string(name(dtype));
  return text;
}

/// Returns a pointer that shares no ownership: the session keeps the rulebook alive.
std::shared_ptr<const Rulebook> not_owned(const Rulebook& book) {
  return {std::shared_ptr<const Rulebook>{}, &book};
}

}  // namespace

std::string text_of(const StepRange& steps) {
  if (steps.to == StepRange{}.to) return "steps from " + std::to_string(steps.from);
  if (steps.to == steps.from + 1) return "step " + std::to_string(steps.from);
  return "steps " + std::to_string(steps.from) + " to " + std::to_string(steps.to - 1);
}

std::string computes_in(const ResolvedSite& site, const Treatment& now, const Treatment& met) {
  if (now.compute == met.compute) return dtypes_in(site, met);
  return now.compute ? std::string(name(*now.compute)) : "as listed";
}

ResolvedRules::ResolvedRules(const PolicySession& session)
    : book_(session.rules()),
      settings_(session.settings()),
      matcher_("resolved", not_owned(book_), session.names().paths()),
      sites_(session.resolved()) {
  for (int64_t step = 0; step < StepRange{}.to; step = ranges_.back().to)
    ranges_.push_back({step, matcher_.next_change(step)});
}

bool ResolvedRules::reaches(std::size_t rule, const ResolvedSite& site) const {
  return matcher_.matches(rule, site.site, OpInfo(site.site.op, site.asks));
}

bool ResolvedRules::any_reaches(const ResolvedSite& site) const {
  for (std::size_t i = 0; i < book_.rules.size(); ++i)
    if (reaches(i, site)) return true;
  return false;
}

std::vector<StepTreatment> ResolvedRules::treatments(const ResolvedSite& site) const {
  std::vector<StepTreatment> result;
  for (const StepRange& range : ranges_) {
    Treatment treatment =
        matcher_.treatment(site.site, OpInfo(site.site.op, site.asks), range.from);
    if (!result.empty() && result.back().treatment.from_rules == treatment.from_rules)
      result.back().steps.to = range.to;
    else result.push_back({range, std::move(treatment)});
  }
  return result;
}

Json ResolvedRules::content_of(const ResolvedSite& site) const {
  Json treatment = Json::array();
  const StepRange open;
  const std::vector<StepTreatment> parts = treatments(site);
  const Treatment& met = parts.front().treatment;
  for (const StepTreatment& part : parts) {
    Json now = content_of_treatment(part.treatment);
    if (part.treatment.compute != met.compute)
      now["compute"] = computes_in(site, part.treatment, met);
    if (!treatment.empty() && treatment.back()["does"] == now) {
      treatment.back()["steps"][1] = part.steps.to == open.to ? Json() : Json(part.steps.to);
      continue;
    }
    const Json end = part.steps.to == open.to ? Json() : Json(part.steps.to);
    treatment.push_back({{"steps", Json::array({part.steps.from, end})}, {"does", std::move(now)}});
  }
  return {{"asks", name(site.asks)},
          {"computes_in", dtypes_in(site, met)},
          {"treatment", std::move(treatment)}};
}

Json ResolvedRules::content_without_sites() const {
  Json states = Json::object();
  for (const auto& [state, quantizer] : book_.states) states[state] = policy::content_of(quantizer);
  Json json{{"parameters", book_.parameters ? policy::content_of(*book_.parameters) : Json("none")},
            {"states", std::move(states)},
            {"evaluation", book_.in_evaluation ? "same" : "reference"},
            {"seed", settings_.seed}};
  if (settings_.wire != distributed::WireFormat{})  // keeps the hashes of other policies
    json["communication"] = {{"gradients", name(settings_.wire)}};
  return json;
}

std::string ResolvedRules::hash() const {
  Fingerprint all;
  for (const ResolvedSite& site : sites_)
    all.add(name(site.site)).add(content_of(site).dump()).add("\n");
  return all.add(content_without_sites().dump()).text();
}

}  // namespace halftone::policy
