// Treatments by steps, and their effects.
#include <halftone/amp/resolved.h>

#include <algorithm>
#include <map>

#include <halftone/core/error.h>
#include <halftone/amp/policy.h>
#include <halftone/amp/policy_reader.h>
#include <halftone/core/json_value.h>

namespace halftone::policy {

// A session's rules at the sites it has met, in every step and not only in the present one.

/// Steps in which the same rules hold: from the first up to, not including, the second.
struct StepRange {
  int64_t from = 0, to = std::numeric_limits<int64_t>::max();
  bool always() const { return from == 0 && to == std::numeric_limits<int64_t>::max(); }
};
/// Returns "steps 0 to 99", "step 7" or "steps from 100".
std::string text_of(const StepRange& steps);

/// The treatment of a site in some steps.
struct StepTreatment {
  StepRange steps;
  Treatment treatment;
};

class ResolvedRules {
 public:
  /// The session must outlive this.
  explicit ResolvedRules(const Session& session);

  const std::vector<ResolvedSite>& sites() const { return sites_; }
  /// Returns whether a rule matches a site in some step.
  bool reaches(std::size_t rule, const ResolvedSite& site) const;
  bool any_reaches(const ResolvedSite& site) const;
  /// Returns treatments in the order of steps; neighbors differ.
  std::vector<StepTreatment> treatments(const ResolvedSite& site) const;

  /// Returns {"asks", "computes_in", "treatment": [{"steps", "does": {"result", roles,
  /// "accumulate"}}]}: everything at a site that has an effect on numbers, without names and
  /// numbers of rules. Entries after the first steps also have "compute" if it changes.
  Json content_of(const ResolvedSite& site) const;
  /// Returns "parameters" and "states", as their grids, "evaluation" and "seed"; "communication" if
  /// the wire format is not that of the gradients.
  Json content_without_sites() const;
  /// Returns FNV-1a 64 of both, for all sites in their order.
  std::string hash() const;

 private:
  const Rulebook& book_;
  const Session::Settings& settings_;
  RuleMatcher matcher_;
  std::vector<ResolvedSite> sites_;
  std::vector<StepRange> ranges_{};
};

/// Returns the dtype a site computes in: "bf16", or "f32, i64" if operands differ. If its treatment
/// casts otherwise than when the site was observed, returns the word of its rule.
std::string computes_in(const ResolvedSite& site, const Treatment& now, const Treatment& met);

// The sites that each rule reaches in the steps in which it holds, and those without a rule.

/// Returns a line per rule, the products that no rule reaches in any step, and warnings. A rule
/// gets a warning if it names layers of a list by number and no rule reaches some of the others.
std::string coverage(const Session& session, const ResolvedRules& resolved);

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

bool is_coded(const Treatment& treatment) {
  return treatment.saved.value_or(CodedForm::plain) != CodedForm::plain;
}

/// Omits defaults: a use that is "as_used", a role that is not quantized, and an operand that has
/// the setting of all operands.
Json content_of_treatment(const Treatment& treatment) {
  Json json = Json::object();
  if (treatment.result) json["result"] = name(*treatment.result);
  if (is_coded(treatment)) json["saved"] = name(*treatment.saved);
  for (int i = 0; i < rule_role_count; ++i) {
    const std::optional<RoleRule>& said = treatment.roles[std::size_t(i)];
    if (said && !is_default(treatment, Role(i), *said))
      json[std::string(name(Role(i)))] = content_of(*said);
  }
  if (treatment.accumulate) json["accumulate"] = content_of(*treatment.accumulate);
  return json;
}

/// Returns "f32, i64" if operands differ; "tf32" if f32 products may use TF32 factors; "hardware"
/// if products have f8 factors.
std::string dtypes_in(const ResolvedSite& site, const Treatment& met) {
  if (met.compute == Compute::tf32 || met.compute == Compute::hardware)
    return std::string(name(*met.compute));
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

ResolvedRules::ResolvedRules(const Session& session)
    : book_(session.rules()),
      settings_(session.settings()),
      matcher_("resolved", not_owned(book_), session.names().parts()),
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
  for (const auto& [state, format] : settings_.stored) states[state] = {{"stored", format}};
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

// The table of sites, printed in three ways.

namespace {

// --- one site: a line for each of its treatments

/// Writes the grid of a name that the library does not know. `full`: writes it for all names.
std::string said_of(const RoleRule& rule, bool full) {
  if (rule.kind == RoleRule::Kind::none) return "none";
  if (rule.kind == RoleRule::Kind::as_used) return "as_used";
  const std::string grid = told_apart(rule.quantizer);
  if (rule.named.empty() || rule.named == grid) return grid;
  if (full) return rule.named + " (" + grid + ")";
  return quantizer_named(rule.named) == rule.quantizer ? rule.named : grid;
}

std::string line_of(const ResolvedSite& site, const Treatment& now, const Treatment& met,
                    bool full) {
  PlainText text;
  text << name(site.asks) << " | " << computes_in(site, now, met);
  if (now.result) text << " -> " << *now.result;
  text << " |";
  for (int role = 0; role < rule_role_count; ++role)
    if (const auto& said = now.roles[std::size_t(role)])
      text << ' ' << name(Role(role)) << '=' << said_of(*said, full);
  if (is_coded(now)) text << " saved=" << name(*now.saved);
  if (const auto& accumulate = now.accumulate)
    text << " accumulate=" << told_apart({.grid = accumulate->grid}) << ' '
         << name(accumulate->rounding) << " by " << accumulate->chunk;
  return text.str();
}

/// Returns the treatments of a site, without its name.
std::vector<std::string> lines_of(const ResolvedSite& site, const ResolvedRules& resolved,
                                  bool full) {
  std::vector<std::string> lines;
  const std::vector<StepTreatment> parts = resolved.treatments(site);
  for (const auto& [steps, treatment] : parts) {
    std::string line = line_of(site, treatment, parts.front().treatment, full);
    if (!full) line += " |";
    for (const int rule : treatment.from_rules)
      if (!full) line += ' ' + std::to_string(rule);
    lines.push_back(line + (steps.always() ? "" : ", " + text_of(steps)));
  }
  return lines;
}

// --- the table

std::string padded(std::string text, std::size_t width) {
  if (text.size() < width) text.append(width - text.size(), ' ');
  return text;
}

/// Returns a site's name with the numbers in its path replaced, so that equal layers match.
std::string pattern_of(const Site& site) {
  std::string text;
  for (const char c : site.path) text += c >= '0' && c <= '9' ? '#' : c;
  return text + '/' + std::string(site.op) + '.' + std::to_string(site.ordinal);
}

/// Sites with equal treatments.
struct Group {
  std::string name;
  std::vector<std::string> lines;
  int count = 1;
};

std::vector<Group> groups_of(const ResolvedRules& resolved) {
  std::vector<Group> groups;
  std::map<std::pair<std::string, std::vector<std::string>>, std::size_t> known;
  for (const ResolvedSite& site : resolved.sites()) {
    const std::vector<std::string> lines = lines_of(site, resolved, false);
    const auto [at, fresh] = known.try_emplace({pattern_of(site.site), lines}, groups.size());
    if (fresh) groups.push_back({name(site.site), lines});
    else ++groups[at->second].count;
  }
  return groups;
}

/// Returns "parameters" and "states" by name, with their grids or formats in one line.
std::map<std::string, std::string> grids_of(const Session& session) {
  const Rulebook& book = session.rules();
  std::map<std::string, std::string> grids;
  if (book.parameters) grids["parameters"] = told_apart(*book.parameters);
  for (const auto& [state, quantizer] : book.states)
    grids["state " + state] = told_apart(quantizer);
  for (const auto& [state, format] : session.settings().stored)
    grids["state " + state] = "stored as " + format;
  return grids;
}

}  // namespace

std::string resolved_table(const Session& session) {
  const ResolvedRules resolved(session);
  const std::vector<Group> groups = groups_of(resolved);
  const auto name_of = [](const Group& group) {
    return group.name + (group.count > 1 ? " (" + std::to_string(group.count) + " like this)" : "");
  };
  std::size_t width = 4;
  for (const Group& group : groups) width = std::max(width, name_of(group).size());
  std::string text = padded("site", width) + "  asks | computes in | treated | by rules\n";
  for (const Group& group : groups)
    for (const std::string& line : group.lines)
      text += padded(name_of(group), width) + "  " + line + '\n';
  text += '\n';
  for (const auto& [what, grid] : grids_of(session))
    text += what + (grid.starts_with("stored as ") ? ", " : ", after each step: ") + grid + '\n';
  if (session.settings().wire != distributed::WireFormat{})
    text += "gradients, on their way to the sum: " + name(session.settings().wire) + '\n';
  return text + coverage(session, resolved) + "resolved " + resolved.hash() + '\n';
}

std::string resolved_json(const Session& session) {
  const ResolvedRules resolved(session);
  Json list = Json::array();
  for (const ResolvedSite& site : resolved.sites()) {
    Json json{{"site", name(site.site)},
              {"path", site.site.path},
              {"op", site.site.op},
              {"ordinal", site.site.ordinal},
              {"parameter", site.site.parameter}};
    json.update(resolved.content_of(site));
    if (site.treatment->result) json["result"] = name(*site.treatment->result);
    if (is_coded(*site.treatment)) json["saved"] = name(*site.treatment->saved);
    Json roles = Json::object();
    for (int role = 0; role < role_count; ++role)
      if (const Quantizer* quantizer = site.treatment->quantizer(Role(role)))
        roles[std::string(name(Role(role)))] = described(*quantizer);
    for (const Role role : {Role::input, Role::input_backward})
      for (const std::size_t operand : {0, 1}) {
        const Quantizer *own = site.treatment->quantizer(role, operand),
                        *all = site.treatment->quantizer(role);
        if (own && all ? *own == *all : own == all) continue;
        roles[std::string(name(*of_operand(role, operand)))] = own ? described(*own) : "none";
      }
    json["roles"] = roles, json["rules"] = site.treatment->from_rules, json["flops"] = site.flops;
    list.push_back(json);
  }
  Json rules = Json::array();
  for (const Rule& rule : session.rules().rules) rules.push_back(rule.name);
  Json all{{"sites", list}, {"rules", rules}};
  all.update(resolved.content_without_sites());
  all["hash"] = resolved.hash();
  return all.dump(2) + '\n';
}

std::string resolved_hash(const Session& session) { return ResolvedRules(session).hash(); }

// --- two policies

namespace {

/// A site of two sessions by name, in the order of the first, then of the second.
struct SitePair {
  std::string name;
  const ResolvedSite *before = nullptr, *after = nullptr;
};

std::vector<SitePair> pairs_of(const ResolvedRules& before, const ResolvedRules& after) {
  std::vector<SitePair> pairs;
  std::map<std::string, std::size_t> known;
  const auto pair_of = [&](const ResolvedSite& site) -> SitePair& {
    const auto [at, fresh] = known.try_emplace(name(site.site), pairs.size());
    if (fresh) pairs.push_back({at->first});
    return pairs[at->second];
  };
  for (const ResolvedSite& site : before.sites()) pair_of(site).before = &site;
  for (const ResolvedSite& site : after.sites()) pair_of(site).after = &site;
  return pairs;
}

Json content_in(const ResolvedRules& resolved, const ResolvedSite* site) {
  return site ? resolved.content_of(*site) : Json();
}

/// Returns {key: {"before": ..., "after": ...}} for the entries in which two objects differ.
Json differing(const Json& before, const Json& after) {
  Json result = Json::object();
  const auto take = [&](const Json& keys) {
    for (const auto& [key, unused] : keys.items())
      if (const Json was = before.value(key, Json()), now = after.value(key, Json()); was != now)
        result[key] = {{"before", was}, {"after", now}};
  };
  take(before), take(after);
  return result;
}

std::string lines_under(char sign, const ResolvedRules& resolved, const ResolvedSite* site) {
  const std::string begin = std::string("  ") + sign + ' ';
  if (!site) return begin + "not there\n";
  std::string text;
  for (const std::string& line : lines_of(*site, resolved, true)) text += begin + line + '\n';
  return text;
}

std::string two_lines(const std::string& what, const std::string& before,
                      const std::string& after) {
  return what + "\n  - " + before + "\n  + " + after + '\n';
}

}  // namespace

std::string resolved_difference(const Session& before, const Session& after) {
  const ResolvedRules first(before), second(after);
  std::string text;
  for (const SitePair& pair : pairs_of(first, second))
    if (content_in(first, pair.before) != content_in(second, pair.after))
      text += pair.name + '\n' + lines_under('-', first, pair.before) +
              lines_under('+', second, pair.after);
  auto was = grids_of(before), now = grids_of(after);
  for (const auto& [what, grid] : now) was.try_emplace(what, "none");
  for (const auto& [what, grid] : was)
    if (const std::string other = now.try_emplace(what, "none").first->second; other != grid)
      text += two_lines(what, grid, other);
  const Json around = differing(first.content_without_sites(), second.content_without_sites());
  for (const char* what : {"evaluation", "seed"})
    if (around.contains(what))
      text += two_lines(what, around[what]["before"].dump(), around[what]["after"].dump());
  if (const std::string was_wire = name(before.settings().wire), wire = name(after.settings().wire);
      was_wire != wire)
    text += two_lines("gradients on their way", was_wire, wire);
  return text;
}

std::string resolved_difference_json(const Session& before, const Session& after) {
  const ResolvedRules first(before), second(after);
  Json sites = Json::object();
  for (const SitePair& pair : pairs_of(first, second)) {
    Json was = content_in(first, pair.before), now = content_in(second, pair.after);
    if (was != now) sites[pair.name] = {{"before", std::move(was)}, {"after", std::move(now)}};
  }
  Json all{{"sites", std::move(sites)}};
  all.update(differing(first.content_without_sites(), second.content_without_sites()));
  return all.dump(2) + '\n';
}

// Counts the matches of rules.

namespace {

/// Returns a share in percent, "12.3 %".
std::string percent_of(double part, double whole) {
  char text[32];
  const PlainPrintf plain;
  std::snprintf(text, sizeof text, "%.1f %%", whole > 0 ? 100 * part / whole : 0);
  return text;
}

std::string listed(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

/// Returns "rule 2 (head)".
std::string title_of(std::size_t number, const Rule& rule) {
  return "rule " + std::to_string(number) + (rule.name.empty() ? "" : " (" + rule.name + ")");
}

/// Returns ", while norm_to_noise of grad_output is below 1.73 (every 20 steps)".
std::string text_of(const std::optional<When>& when) {
  if (!when) return "";
  PlainText text;
  text << (when->stays ? ", once " : ", while ") << name(when->statistic) << " of "
       << name(when->role) << (when->below ? " is below " : " is above ") << when->bound
       << " (every " << when->over << " steps)";
  return text.str();
}

std::string reach_of(std::size_t number, const Session& session, const ResolvedRules& resolved) {
  const Rule& rule = session.rules().rules[number];
  int64_t reached = 0;
  double flops = 0, all_flops = 0;
  std::map<std::string, int64_t> parameters;
  for (const ResolvedSite& site : resolved.sites()) {
    all_flops += site.flops;
    if (!resolved.reaches(number, site)) continue;
    ++reached, flops += site.flops;
    if (!site.site.parameter.empty())
      parameters[site.site.parameter] = session.names().size_of(site.site.parameter);
  }
  int64_t elements = 0;
  for (const auto& [name, size] : parameters) elements += size;
  const StepRange steps{rule.match.from_step, rule.match.to_step};
  PlainText text;
  text << title_of(number, rule) << (steps.always() ? "" : ", " + text_of(steps))
       << text_of(rule.match.when) << ": " << reached << " sites, " << elements << " parameters, "
       << percent_of(flops, all_flops) << " of the flops of products\n";
  return text.str();
}

// --- layers by number

std::vector<std::string> segments_at_dots(std::string_view text) {
  std::vector<std::string> segments;
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t end = std::min(text.find('.', at), text.size());
    segments.emplace_back(text.substr(at, end - at));
    at = end + 1;
  }
  return segments;
}

bool is_number(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
}

/// Returns true for "3" and "{0,1,2}"; brackets, which count from list ends, do not match.
bool names_numbers(std::string_view segment) {
  if (!segment.starts_with('{') || !segment.ends_with('}')) return is_number(segment);
  const std::string_view words = segment.substr(1, segment.size() - 2);
  return words.find_first_not_of("0123456789,") == std::string_view::npos && !words.empty();
}

std::string joined(const std::vector<std::string>& segments, std::size_t count) {
  std::string text;
  for (std::size_t i = 0; i < count; ++i) text += (i == 0 ? "" : ".") + segments[i];
  return text;
}

/// Returns members of the list that segment `at` of a rule's path numbers, if no rule reaches them
/// although this rule would under another number.
std::vector<std::string> left_out(const Rule& rule, std::size_t at, const Session& session,
                                  const ResolvedRules& resolved) {
  std::vector<std::string> segments = segments_at_dots(rule.match.path);
  segments[at] = "*";
  auto wide = std::make_shared<Rulebook>();
  wide->rules.push_back(rule);
  wide->rules[0].match.path = joined(segments, segments.size());
  const RuleMatcher any_number("coverage", wide, session.names().parts());
  const PathPattern member("coverage", joined(segments, at + 1));
  std::vector<std::string> left;
  for (const ResolvedSite& site : resolved.sites()) {
    if (!any_number.matches(0, site.site, OpInfo(site.site.op, site.asks)) ||
        resolved.any_reaches(site))
      continue;
    const std::vector<std::string> path = segments_at_dots(site.site.path);
    for (std::size_t i = 0; i < path.size(); ++i) {
      const std::string place = joined(path, i + 1);
      if (is_number(path[i]) && member.matches(place, session.names().parts()) &&
          std::ranges::find(left, place) == left.end())
        left.push_back(place);
    }
  }
  return left;
}

std::string warnings(const Session& session, const ResolvedRules& resolved) {
  std::string text;
  const std::vector<Rule>& rules = session.rules().rules;
  for (std::size_t i = 0; i < rules.size(); ++i) {
    const std::vector<std::string> segments = segments_at_dots(rules[i].match.path);
    for (std::size_t at = 0; at < segments.size(); ++at) {
      if (!names_numbers(segments[at])) continue;
      const std::vector<std::string> left = left_out(rules[i], at, session, resolved);
      if (!left.empty())
        text += "warning: " + title_of(i, rules[i]) + " names layers by number and leaves " +
                listed(left) + ", which no other rule reaches\n";
    }
  }
  return text;
}

}  // namespace

std::string coverage(const Session& session, const ResolvedRules& resolved) {
  const std::size_t rules = session.rules().rules.size();
  std::string text;
  for (std::size_t i = 0; i < rules; ++i) text += reach_of(i, session, resolved);
  if (rules == 0) return text;
  std::vector<std::string> missed;
  for (const ResolvedSite& site : resolved.sites())
    if (site.asks == CastClass::low_precision && !resolved.any_reaches(site))
      missed.push_back(name(site.site));
  text += "products that no rule reaches: " + (missed.empty() ? "none" : listed(missed)) + '\n';
  return text + warnings(session, resolved);
}

}  // namespace halftone::policy
