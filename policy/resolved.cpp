// The table of sites, printed in three ways.
#include <halftone/policy/resolved.h>

#include <algorithm>
#include <map>

#include <halftone/policy/file/quantizer_writer.h>
#include <halftone/policy/resolved/resolved_table.h>
#include <halftone/policy/resolved/rule_coverage.h>

namespace halftone::policy {

namespace {

// --- one site: a line for each of its treatments

/// `full`: also writes the definition of a name.
std::string said_of(const RoleRule& rule, bool full) {
  if (rule.kind == RoleRule::Kind::none) return "none";
  if (rule.kind == RoleRule::Kind::as_used) return "as_used";
  const std::string grid = told_apart(rule.quantizer);
  if (rule.named.empty() || rule.named == grid) return grid;
  return full ? rule.named + " (" + grid + ")" : rule.named;
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

/// Returns "parameters" and "states" by name, with their grids in one line.
std::map<std::string, std::string> grids_of(const Rulebook& book) {
  std::map<std::string, std::string> grids;
  if (book.parameters) grids["parameters"] = told_apart(*book.parameters);
  for (const auto& [state, quantizer] : book.states)
    grids["state " + state] = told_apart(quantizer);
  return grids;
}

}  // namespace

std::string resolved_table(const PolicySession& session) {
  const ResolvedRules resolved(session);
  const std::vector<Group> groups = groups_of(resolved);
  std::size_t width = 4;
  for (const Group& group : groups) width = std::max(width, group.name.size());
  std::string text = padded("site", width) + "  times  asks | computes in | treated | by rules\n";
  for (const Group& group : groups)
    for (const std::string& line : group.lines)
      text += padded(group.name, width) + "  " + padded(std::to_string(group.count), 5) + "  " +
              line + '\n';
  text += '\n';
  for (const auto& [what, grid] : grids_of(session.rules()))
    text += what + ", after each step: " + grid + '\n';
  if (session.settings().wire != distributed::WireFormat{})
    text += "gradients, on their way to the sum: " + name(session.settings().wire) + '\n';
  return text + coverage(session, resolved) + "resolved " + resolved.hash() + '\n';
}

std::string resolved_json(const PolicySession& session) {
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

std::string resolved_hash(const PolicySession& session) { return ResolvedRules(session).hash(); }

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

std::string resolved_difference(const PolicySession& before, const PolicySession& after) {
  const ResolvedRules first(before), second(after);
  std::string text;
  for (const SitePair& pair : pairs_of(first, second))
    if (content_in(first, pair.before) != content_in(second, pair.after))
      text += pair.name + '\n' + lines_under('-', first, pair.before) +
              lines_under('+', second, pair.after);
  auto was = grids_of(before.rules()), now = grids_of(after.rules());
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

std::string resolved_difference_json(const PolicySession& before, const PolicySession& after) {
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

}  // namespace halftone::policy
