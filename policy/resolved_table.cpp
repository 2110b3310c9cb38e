// The table of sites, printed three ways.
#include <halftone/policy/resolved_table.h>

#include <algorithm>
#include <map>

#include <halftone/core/plain_numbers.h>
#include <halftone/policy/fingerprint.h>
#include <halftone/policy/json_value.h>

namespace halftone::policy {

namespace {

/// "bf16", or "f32, i64" where operands differ.
std::string dtypes_in(const std::vector<std::optional<DType>>& operands) {
  std::vector<DType> dtypes;
  for (const std::optional<DType> dtype : operands)
    if (dtype && std::ranges::find(dtypes, *dtype) == dtypes.end()) dtypes.push_back(*dtype);
  std::string text;
  for (const DType dtype : dtypes) text += (text.empty() ? "" : ", ") + std::string(name(dtype));
  return text;
}

std::string said_of(const RoleRule& rule) {
  if (rule.kind == RoleRule::Kind::none) return "none";
  if (rule.kind == RoleRule::Kind::as_used) return "as_used";
  return rule.named.empty() ? described(rule.quantizer) : rule.named;
}

/// What is done at a site, but for its name.
std::string line_of(const ResolvedSite& site) {
  PlainText text;
  text << name(site.asks) << " | " << dtypes_in(site.operands);
  if (site.treatment->result) text << " -> " << *site.treatment->result;
  text << " |";
  for (int role = 0; role < role_count; ++role)
    if (const auto& said = site.treatment->roles[std::size_t(role)])
      text << ' ' << name(Role(role)) << '=' << said_of(*said);
  if (const auto& accumulate = site.treatment->accumulate)
    text << " accumulate=" << described(accumulate->grid) << ' ' << name(accumulate->rounding)
         << " by " << accumulate->chunk;
  text << " |";
  for (const int rule : site.treatment->from_rules) text << ' ' << rule;
  return text.str();
}

std::string padded(std::string text, std::size_t width) {
  if (text.size() < width) text.append(width - text.size(), ' ');
  return text;
}

/// A site's name with the numbers in its path replaced, so that equal layers of a list meet.
std::string pattern_of(const Site& site) {
  std::string text;
  for (const char c : site.path) text += c >= '0' && c <= '9' ? '#' : c;
  return text + '/' + std::string(site.op) + '.' + std::to_string(site.ordinal);
}

struct Line {
  std::string name, text;
  int count = 1;
};

std::vector<Line> lines_of(const std::vector<ResolvedSite>& sites) {
  std::vector<Line> lines;
  std::map<std::pair<std::string, std::string>, std::size_t> known;
  for (const ResolvedSite& site : sites) {
    const std::string text = line_of(site);
    const auto [at, fresh] = known.try_emplace({pattern_of(site.site), text}, lines.size());
    if (fresh) lines.push_back({name(site.site), text});
    else ++lines[at->second].count;
  }
  return lines;
}

bool is_contraction(const ResolvedSite& site) { return site.flops > 0; }

/// A share in percent, "12.3 %".
std::string share(double part, double whole) {
  char text[32];
  const PlainPrintf plain;
  std::snprintf(text, sizeof text, "%.1f %%", whole > 0 ? 100 * part / whole : 0);
  return text;
}

std::string coverage(const PolicySession& session, const std::vector<ResolvedSite>& sites) {
  const std::vector<Rule>& rules = session.rules().rules;
  double all_flops = 0;
  for (const ResolvedSite& site : sites) all_flops += site.flops;
  PlainText text;
  for (std::size_t i = 0; i < rules.size(); ++i) {
    int64_t reached = 0;
    double flops = 0;
    std::map<std::string, int64_t> parameters;
    for (const ResolvedSite& site : sites) {
      const std::vector<int>& own = site.treatment->from_rules;
      if (std::ranges::find(own, int(i)) == own.end()) continue;
      ++reached, flops += site.flops;
      if (!site.site.parameter.empty())
        parameters[site.site.parameter] = session.names().size_of(site.site.parameter);
    }
    int64_t elements = 0;
    for (const auto& [name, size] : parameters) elements += size;
    text << "rule " << i << (rules[i].name.empty() ? "" : " (" + rules[i].name + ")") << ": "
         << reached << " sites, " << elements << " parameters, " << share(flops, all_flops)
         << " of the flops of products\n";
  }
  std::string missed;
  for (const ResolvedSite& site : sites)
    if (is_contraction(site) && site.treatment->from_rules.empty())
      missed += (missed.empty() ? "" : ", ") + name(site.site);
  if (!rules.empty())
    text << "products that no rule reaches: " << (missed.empty() ? "none" : missed) << '\n';
  return text.str();
}

}  // namespace

std::string resolved_table(const PolicySession& session) {
  const std::vector<ResolvedSite> sites = session.resolved();
  const std::vector<Line> lines = lines_of(sites);
  std::size_t width = 4;
  for (const Line& line : lines) width = std::max(width, line.name.size());
  std::string text = padded("site", width) + "  times  asks | computes in | treated | by rules\n";
  for (const Line& line : lines)
    text += padded(line.name, width) + "  " + padded(std::to_string(line.count), 5) + "  " +
            line.text + '\n';
  return text + '\n' + coverage(session, sites) + "resolved " + resolved_hash(session) + '\n';
}

std::string resolved_json(const PolicySession& session) {
  Json list = Json::array();
  for (const ResolvedSite& site : session.resolved()) {
    Json json{{"site", name(site.site)},
              {"path", site.site.path},
              {"op", site.site.op},
              {"ordinal", site.site.ordinal},
              {"parameter", site.site.parameter},
              {"asks", name(site.asks)},
              {"computes_in", dtypes_in(site.operands)}};
    if (site.treatment->result) json["result"] = name(*site.treatment->result);
    Json roles = Json::object();
    for (int role = 0; role < role_count; ++role)
      if (const Quantizer* quantizer = site.treatment->quantizer(Role(role)))
        roles[std::string(name(Role(role)))] = described(*quantizer);
    json["roles"] = roles, json["rules"] = site.treatment->from_rules, json["flops"] = site.flops;
    list.push_back(json);
  }
  Json rules = Json::array();
  for (const Rule& rule : session.rules().rules) rules.push_back(rule.name);
  return Json{{"sites", list}, {"rules", rules}, {"hash", resolved_hash(session)}}.dump(2) + '\n';
}

std::string resolved_difference(const PolicySession& before, const PolicySession& after) {
  std::map<std::string, std::string> known;
  for (const ResolvedSite& site : before.resolved()) known[name(site.site)] = line_of(site);
  std::string text;
  for (const ResolvedSite& site : after.resolved()) {
    const std::string now = line_of(site), where = name(site.site);
    const auto own = known.find(where);
    if (own != known.end() && own->second == now) continue;
    text +=
        where + "\n  - " + (own == known.end() ? "not there" : own->second) + "\n  + " + now + '\n';
  }
  return text;
}

std::string resolved_hash(const PolicySession& session) {
  Fingerprint all;
  const auto add = [&](std::string_view text) { all.add(text); };
  for (const ResolvedSite& site : session.resolved()) {
    add(name(site.site)), add(name(site.asks)), add(dtypes_in(site.operands));
    for (int role = 0; role < role_count; ++role)
      if (const Quantizer* quantizer = site.treatment->quantizer(Role(role)))
        add(name(Role(role))), add(described(*quantizer));
    if (site.treatment->result) add(name(*site.treatment->result));
    if (const auto& accumulate = site.treatment->accumulate)
      add(described(accumulate->grid)), add(name(accumulate->rounding)),
          add(std::to_string(accumulate->chunk));
    add("\n");
  }
  return all.text();
}

}  // namespace halftone::policy
