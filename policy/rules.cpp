// Matches segment by segment; only ** needs to be tried with several lengths.
#include <algorithm>
#include <charconv>

#include <halftone/core/error.h>
#include <halftone/policy/rules/path_match.h>

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

PathPattern::PathPattern(std::string_view where, std::string_view pattern) : text_(pattern) {
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

bool PathPattern::matches(std::string_view path, const ListSizes& lists) const {
  return matches_from(0, segments_of(path), 0, path, lists);
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

}  // namespace halftone::policy
