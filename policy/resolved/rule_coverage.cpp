// Counts the matches of rules.
#include <halftone/policy/resolved/rule_coverage.h>

#include <algorithm>
#include <map>

#include <halftone/core/error.h>

namespace halftone::policy {

namespace {

/// Returns a share in percent, "12.3 %".
std::string share(double part, double whole) {
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

std::string reach_of(std::size_t number, const PolicySession& session,
                     const ResolvedRules& resolved) {
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
  text << title_of(number, rule) << (steps.always() ? "" : ", " + text_of(steps)) << ": " << reached
       << " sites, " << elements << " parameters, " << share(flops, all_flops)
       << " of the flops of products\n";
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
std::vector<std::string> left_out(const Rule& rule, std::size_t at, const PolicySession& session,
                                  const ResolvedRules& resolved) {
  std::vector<std::string> segments = segments_at_dots(rule.match.path);
  segments[at] = "*";
  auto wide = std::make_shared<Rulebook>();
  wide->rules.push_back(rule);
  wide->rules[0].match.path = joined(segments, segments.size());
  const RuleMatcher any_number("coverage", wide, session.names().paths());
  const PathPattern member("coverage", joined(segments, at + 1));
  const ListSizes lists = list_sizes_of(session.names().paths());
  std::vector<std::string> left;
  for (const ResolvedSite& site : resolved.sites()) {
    if (!any_number.matches(0, site.site, OpInfo(site.site.op, site.asks)) ||
        resolved.any_reaches(site))
      continue;
    const std::vector<std::string> path = segments_at_dots(site.site.path);
    for (std::size_t i = 0; i < path.size(); ++i) {
      const std::string place = joined(path, i + 1);
      if (is_number(path[i]) && member.matches(place, lists) &&
          std::ranges::find(left, place) == left.end())
        left.push_back(place);
    }
  }
  return left;
}

std::string warnings(const PolicySession& session, const ResolvedRules& resolved) {
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

std::string coverage(const PolicySession& session, const ResolvedRules& resolved) {
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
