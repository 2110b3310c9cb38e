// Matches segment by segment; only ** needs to be tried with several lengths.
#include <halftone/amp/rules.h>

#include <algorithm>
#include <array>
#include <charconv>

#include <halftone/core/error.h>

namespace halftone::policy {

namespace {

std::vector<std::string_view> segments_of(std::string_view path) {
  std::vector<std::string_view> segments;
  while (!path.empty()) {
    // A dot within braces or brackets is not a separator.
    std::size_t end = 0;
    int depth = 0;
    for (; end < path.size() && (depth > 0 || path[end] != '.'); ++end)
      depth += (path[end] == '{' || path[end] == '[') - (path[end] == '}' || path[end] == ']');
    segments.push_back(path.substr(0, end));
    path.remove_prefix(std::min(end + 1, path.size()));
  }
  return segments;
}

std::optional<int64_t> number_in(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) return {};
  return value;
}

/// Returns whether a text matches a pattern in which * means any letters.
bool like(std::string_view pattern, std::string_view text) {
  std::size_t p = 0, t = 0, star = std::string_view::npos, behind = 0;
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') star = p++, behind = t;
    else if (p < pattern.size() && pattern[p] == text[t]) ++p, ++t;
    else if (star != std::string_view::npos) p = star + 1, t = ++behind;
    else return false;
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

/// Refuses patterns that could match nothing, or that probably are mistakes.
void require_well_formed(std::string_view where, std::string_view pattern) {
  constexpr std::size_t longest = 1000;
  if (pattern.size() > longest)
    fail<UsageError>(where, "a path has ", pattern.size(), " letters. At most ", longest,
                     " make sense.");
  if (pattern.starts_with('.') || pattern.ends_with('.') ||
      pattern.find("..") != std::string_view::npos)
    fail<UsageError>(where, "\"", pattern,
                     "\" has a segment of no letters. ** is any number of them.");
  char open = 0;  // the open brace or bracket
  bool braces = false;
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i];
    if (c == '.' && open == '{')
      fail<UsageError>(where, "\"", pattern,
                       "\" has a dot within braces. Alternatives are of one segment: write two "
                       "rules, or a list for \"except\".");
    if (c == '.' && open == 0) braces = false;
    const bool opens = c == '{' || c == '[', closes = c == '}' || c == ']';
    if ((opens && open != 0) || (c == '{' && braces))
      fail<UsageError>(where, "\"", pattern,
                       "\" has nested or adjacent braces or brackets. Use one pair per segment.");
    if (closes && open != (c == '}' ? '{' : '['))
      fail<UsageError>(where, "\"", pattern, "\" has a brace or bracket that does not open.");
    if (c == '[' && i > 0 && pattern[i - 1] != '.')
      fail<UsageError>(where, "\"", pattern, "\" has a bracket within a segment. Write h.[0].");
    if (opens) open = c, braces = braces || c == '{';
    else if (closes) open = 0;
  }
  if (open != 0)
    fail<UsageError>(where, "\"", pattern, "\" has a brace or bracket that does not close.");
}

}  // namespace

ListSizes list_sizes_of(const std::vector<std::string>& paths) {
  ListSizes sizes;
  for (const std::string& path : paths) {
    const std::size_t dot = path.rfind('.');
    const std::string_view list =
        dot == std::string::npos ? std::string_view{} : std::string_view(path).substr(0, dot);
    const std::string_view last =
        dot == std::string::npos ? std::string_view(path) : std::string_view(path).substr(dot + 1);
    if (const auto number = number_in(last); number && *number >= 0)
      sizes[std::string(list)] = std::max(sizes[std::string(list)], *number + 1);
  }
  return sizes;
}

namespace {
/// Collects the parts of a model in one walk.
class PartsWalk final : public nn::Fields {
 public:
  explicit PartsWalk(nn::Module& model) {
    walk(model);
    for (const std::string& path : paths_)
      if (is_block(path)) parts.blocks.push_back(path);
    parts.lists = list_sizes_of(paths_);
    for (auto owner = owners_.rbegin(); owner != owners_.rend() && parts.heads.empty(); ++owner)
      if (!within(*owner, parts.blocks) && !within(*owner, parts.embeddings))
        parts.heads.push_back(*owner);
  }
  ModelParts parts{};

 private:
  bool module(const std::string& path, nn::Module& module) override {
    paths_.push_back(path);
    if (module.part() == "head") parts.heads.push_back(path);
    if (module.part() == "embedding") parts.embeddings.push_back(path);
    if (module.part() == "router") parts.routers.push_back(path);
    return true;
  }
  void parameter(const std::string& path, nn::Parameter& parameter) override {
    const std::size_t dot = path.rfind('.');
    if (dot != std::string::npos && parameter.rank() >= 2) owners_.push_back(path.substr(0, dot));
  }

  bool is_block(const std::string& path) const {
    const std::vector<std::string_view> segments = segments_of(path);
    const auto is_number = [](std::string_view segment) { return number_in(segment).has_value(); };
    return !segments.empty() && std::ranges::count_if(segments, is_number) == 1 &&
           is_number(segments.back()) && std::ranges::any_of(paths_, [&](const std::string& other) {
             return other.starts_with(path + '.');
           });
  }
  static bool within(const std::string& path, const std::vector<std::string>& places) {
    return std::ranges::any_of(places, [&](const std::string& place) {
      return path == place || path.starts_with(place + '.');
    });
  }

  std::vector<std::string> paths_, owners_;
};

/// Returns the paths at which a pattern that begins with the part may begin.
std::span<const std::string> places_of(Part part, const ModelParts& parts) {
  const std::span<const std::string> blocks = parts.blocks;
  switch (part) {
    case Part::block: return blocks;
    case Part::first_block: return blocks.first(blocks.empty() ? 0 : 1);
    case Part::last_block: return blocks.last(blocks.empty() ? 0 : 1);
    case Part::head: return parts.heads;
    case Part::embedding: return parts.embeddings;
    case Part::router: break;
  }
  return parts.routers;
}
}  // namespace

ModelParts parts_of(nn::Module& model) { return PartsWalk(model).parts; }

PathPattern::PathPattern(std::string_view where, std::string_view pattern) : text_(pattern) {
  if (pattern.starts_with('<')) {
    const std::size_t end = std::min(pattern.find('>'), pattern.size() - 1) + 1;
    part_ = named<Part>(pattern.substr(0, end));
    if (!part_) fail_unknown_name(where, "part", pattern.substr(0, end), words_of<Part>);
    pattern.remove_prefix(end);
    if (pattern.size() == 1 || (!pattern.empty() && pattern.front() != '.'))
      fail<UsageError>(where, "\"", text_, "\" goes on after ", policy::name(*part_),
                       " without a dot and a path. Write ", policy::name(*part_), ".**.");
    if (!pattern.empty()) pattern.remove_prefix(1);
  }
  require_well_formed(where, pattern);
  for (const std::string_view segment : segments_of(pattern)) {
    // Several ** in a row count as one: each more would multiply the attempts.
    if (segment == "**" && !segments_.empty() && segments_.back().any_number) continue;
    Segment& next = segments_.emplace_back();
    if (segment == "**") next.any_number = true;
    else if (segment.starts_with('[')) next.range = range_in(where, pattern, segment);
    else {
      const std::size_t open = segment.find('{'), close = segment.find('}');
      if (open == std::string_view::npos) {
        next.alternatives.emplace_back(segment);
        continue;
      }
      std::string_view words = segment.substr(open + 1, close - open - 1);
      const std::string before(segment.substr(0, open)), after(segment.substr(close + 1));
      for (bool more = true; more;) {
        const std::size_t comma = words.find(',');
        more = comma != std::string_view::npos;
        next.alternatives.push_back(before + std::string(words.substr(0, comma)) + after);
        if (more) words.remove_prefix(comma + 1);
      }
    }
  }
}

PathPattern::Range PathPattern::range_in(std::string_view where, std::string_view pattern,
                                         std::string_view text) {
  const std::string_view inner = text.substr(1, text.size() - 2);
  const std::size_t colon = inner.find(':');
  const std::string_view first = inner.substr(0, colon), last = colon == std::string_view::npos
                                                                    ? std::string_view{}
                                                                    : inner.substr(colon + 1);
  Range range{number_in(first), number_in(last), colon == std::string_view::npos};
  const bool bad_first = !range.first && (range.single || !first.empty()),
             bad_last = !range.last && !last.empty();
  if (!text.ends_with(']') || bad_first || bad_last)
    fail<UsageError>(where, "\"", text, "\" in \"", pattern,
                     "\" names no members of a list. Write [-1], [0:-1] or [2:].");
  return range;
}

bool PathPattern::in_range(const Range& range, std::string_view member, std::string_view list,
                           const ListSizes& lists) {
  const auto place = number_in(member);
  const auto size = lists.find(list);
  if (!place || size == lists.end()) return false;
  const auto counted = [&](int64_t i) { return i < 0 ? size->second + i : i; };
  const int64_t first = counted(range.first.value_or(0));
  if (range.single) return *place == first;
  return *place >= first && *place < (range.last ? counted(*range.last) : size->second);
}

bool PathPattern::matches_from(std::size_t segment, const std::vector<std::string_view>& path,
                               std::size_t at, std::string_view whole,
                               const ListSizes& lists) const {
  if (segment == segments_.size()) return at == path.size();
  const Segment& now = segments_[segment];
  if (now.any_number) {
    for (std::size_t next = at; next <= path.size(); ++next)
      if (matches_from(segment + 1, path, next, whole, lists)) return true;
    return false;
  }
  if (at == path.size()) return false;
  if (now.range) {
    const std::size_t offset = std::size_t(path[at].data() - whole.data());
    if (!in_range(*now.range, path[at], whole.substr(0, offset > 0 ? offset - 1 : 0), lists))
      return false;
  } else if (std::ranges::none_of(now.alternatives,
                                  [&](const std::string& a) { return like(a, path[at]); })) {
    return false;
  }
  return matches_from(segment + 1, path, at + 1, whole, lists);
}

bool PathPattern::matches(std::string_view path, const ModelParts& parts) const {
  if (!part_) return matches_from(0, segments_of(path), 0, path, parts.lists);
  return std::ranges::any_of(places_of(*part_, parts), [&](const std::string& place) {
    if (!path.starts_with(place) || (path.size() > place.size() && path[place.size()] != '.'))
      return false;
    return matches_from(0, segments_of(path), segments_of(place).size(), path, parts.lists);
  });
}

std::string nearest_path(std::string_view pattern, const std::vector<std::string>& paths) {
  // As many equal letters from the front as possible, then as short as possible.
  const std::string_view fixed = pattern.substr(0, pattern.find_first_of("*{["));
  std::string best;
  std::size_t most = 0;
  for (const std::string& path : paths) {
    const auto [a, b] = std::ranges::mismatch(fixed, path);
    const std::size_t equal = std::size_t(a - fixed.begin());
    if (best.empty() || equal > most || (equal == most && path.size() < best.size()))
      best = path, most = equal;
  }
  return best;
}

// Merging: rules in order, field by field.

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
    case Role::input_1_backward:
    case Role::query:
    case Role::key:
    case Role::value:
    case Role::scores:
    case Role::probabilities:
    case Role::grad_scores:
    case Role::grad_probabilities: break;
  }
  return nullptr;
}

bool Treatment::says(Role use, std::size_t operand) const {
  const std::optional<RoleRule>& rule = said(use, operand);
  return rule && rule->kind != RoleRule::Kind::as_used;
}

std::optional<amp::CastDecision> Treatment::decision() const {
  if (!compute) return std::nullopt;
  switch (*compute) {
    case Compute::low:
    case Compute::hardware: return CastClass::low_precision;
    case Compute::bf16: return amp::CastDecision(CastClass::low_precision, bf16);
    case Compute::f16: return amp::CastDecision(CastClass::low_precision, f16);
    case Compute::f32:
    case Compute::tf32: return CastClass::full_precision;
    case Compute::widest: return CastClass::widest_input;
    case Compute::as_is: return CastClass::as_is;
    case Compute::refuse: return CastClass::banned;
  }
  return std::nullopt;
}

bool Treatment::keeps_scales(Role role) const {
  const bool accumulated = accumulate && accumulate->scaled > 0;
  return (compute == Compute::hardware || accumulated) && is_multiplied(role);
}

bool is_multiplied(Role role) {
  switch (role) {
    case Role::input:
    case Role::weight:
    case Role::input_backward:
    case Role::weight_backward:
    case Role::grad_output:
    case Role::grad_output_weight: return true;
    default: return false;
  }
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

namespace {
constexpr OpInfo attention{attention_op, CastClass::low_precision};
constexpr std::string_view scores_op = "attention_scores",
                           probabilities_op = "attention_probabilities",
                           values_op = "attention_values";
bool is_inner_op(std::string_view op) {
  return op == scores_op || op == probabilities_op || op == values_op;
}
bool says_inner(const Rule& rule) {
  return std::ranges::any_of(rule.roles, [](const auto& said) { return is_inner(said.first); });
}
bool names_inner(const Rule& rule) { return std::ranges::any_of(rule.match.ops, is_inner_op); }
}  // namespace

RuleMatcher::RuleMatcher(std::string_view where, std::shared_ptr<const Rulebook> book,
                         ModelParts parts)
    : book_(std::move(book)), parts_(std::move(parts)) {
  for (const Rule& rule : book_->rules) {
    opens_ = opens_ || says_inner(rule) || names_inner(rule);
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
  if (!patterns.path.matches(site.path, parts_)) return false;
  return std::ranges::none_of(patterns.except, [&](const PathPattern& pattern) {
    return pattern.matches(site.path, parts_);
  });
}

std::string RuleMatcher::lacking(std::size_t rule) const {
  const std::optional<Part> part = patterns_[rule].path.part();
  if (!part || !places_of(*part, parts_).empty()) return "";
  return " The model has no " + std::string(policy::name(*part)) + '.';
}

std::span<const InnerRole> inner_roles() {
  static constexpr InnerRole all[]{{Role::input, scores_op, Role::input},
                                   {Role::input, values_op, Role::input_1},
                                   {Role::output, values_op, Role::output},
                                   {Role::grad_output, values_op, Role::grad_output},
                                   {Role::query, scores_op, Role::input_0},
                                   {Role::key, scores_op, Role::input_1},
                                   {Role::scores, probabilities_op, Role::input},
                                   {Role::probabilities, values_op, Role::input_0},
                                   {Role::value, values_op, Role::input_1},
                                   {Role::grad_scores, scores_op, Role::grad_output},
                                   {Role::grad_probabilities, probabilities_op, Role::grad_output}};
  return all;
}

bool RuleMatcher::opens_attention(const std::string& path) const {
  const Site site{.path = path, .op = attention.name, .ordinal = 0, .parameter = {}};
  for (std::size_t i = 0; i < book_->rules.size(); ++i) {
    const Rule& rule = book_->rules[i];
    if (says_inner(rule) && matches_any_call(i, site, attention)) return true;
    for (const std::string& op : rule.match.ops)
      if (is_inner_op(op) && matches_any_call(i, site, OpInfo(op, CastClass::as_is))) return true;
  }
  return false;
}

Treatment RuleMatcher::treatment(const Site& site, const OpInfo& op, int64_t step,
                                 const std::function<bool(std::size_t)>& on) const {
  Treatment result;
  const bool inside = opens_ && is_inner_op(op.name);
  for (std::size_t i = 0; i < book_->rules.size(); ++i) {
    const Rule& rule = book_->rules[i];
    if (step < rule.match.from_step || step >= rule.match.to_step) continue;
    if (rule.match.when && !(on && on(i))) continue;
    if (inside && matches_any_call(i, site, attention))
      for (const InnerRole& inner : inner_roles())
        if (const auto said = rule.roles.find(inner.said);
            said != rule.roles.end() && inner.op == op.name) {
          result.roles[std::size_t(inner.role)] = said->second;
          if (result.from_rules.empty() || result.from_rules.back() != int(i))
            result.from_rules.push_back(int(i));
        }
    if (!matches(i, site, op)) continue;
    if (rule.compute) result.compute = rule.compute;
    if (rule.result) result.result = rule.result;
    if (rule.saved) result.saved = rule.saved;
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

// Names of roles and sites, and the walk over a model that finds them.

bool is_use(Role role) {
  return role == Role::input_backward || role == Role::weight_backward ||
         role == Role::grad_output_weight || role == Role::input_0_backward ||
         role == Role::input_1_backward;
}

std::optional<std::size_t> operand_of(Role role) {
  if (role == Role::input_0 || role == Role::input_0_backward) return 0;
  if (role == Role::input_1 || role == Role::input_1_backward) return 1;
  return {};
}

std::optional<Role> of_operand(Role role, std::size_t operand) {
  if (operand > 1) return {};
  if (role == Role::input) return operand == 0 ? Role::input_0 : Role::input_1;
  if (role == Role::input_backward)
    return operand == 0 ? Role::input_0_backward : Role::input_1_backward;
  return {};
}

std::optional<Role> role_named(std::string_view name) {
  const auto role = named<Role>(name);
  return role && int(*role) < role_count ? role : std::nullopt;
}

std::string name(const Site& site) {
  std::string text = site.path;
  text += '/', text += site.op, text += '.';
  return text += std::to_string(site.ordinal);
}

ModelNames::ModelNames(nn::Module& model)
    : parameters_(model.named_parameters()), parts_(parts_of(model)) {
  for (const auto& [path, module] : model.named_modules())
    modules_.emplace(static_cast<const nn::Module*>(module), path);
  refresh();
}

std::string ModelNames::path_of(const CallScope* scope) const {
  std::string label;
  for (; scope; scope = scope->outer()) {
    if (!scope->label().empty())
      label = std::string(scope->label()) + (label.empty() ? "" : '.' + label);
    const auto found = modules_.find(scope->owner());
    if (found == modules_.end()) continue;
    if (found->second.empty() || label.empty()) return found->second + label;
    return found->second + '.' + label;
  }
  return label;
}

const void* ModelNames::module_of(const CallScope* scope) const {
  while (scope && !modules_.contains(scope->owner())) scope = scope->outer();
  return scope ? scope->owner() : nullptr;
}

const std::string* ModelNames::parameter_of(const Tensor& x) const {
  if (!x.defined()) return nullptr;
  const auto found = storages_.find(x.storage().get());
  return found == storages_.end() ? nullptr : found->second;
}

void ModelNames::enter(const Tensor& source, const Tensor& cast) {
  const std::string* parameter = parameter_of(source);
  if (!parameter || cast.storage() == source.storage()) return;
  if (storages_.emplace(cast.storage().get(), parameter).second) casts_.push_back(cast.storage());
}

void ModelNames::refresh() {
  storages_.clear(), casts_.clear();
  for (const auto& [name, x] : parameters_) storages_.emplace(x.storage().get(), &name);
}

int64_t ModelNames::size_of(const std::string& parameter) const {
  for (const auto& [name, x] : parameters_)
    if (name == parameter) return x.numel();
  return 0;
}

}  // namespace halftone::policy
