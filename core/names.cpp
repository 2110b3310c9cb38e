// Finds the nearest name by edit distance (Levenshtein 1966).
#include <halftone/core/names.h>

#include <algorithm>
#include <numeric>
#include <utility>
#include <string>
#include <vector>

#include <halftone/core/error.h>
#include <halftone/core/quoted.h>

namespace halftone {

namespace {
/// Returns the number of insertions, deletions and replacements that turn a into b.
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t(0));
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i + 1);
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row.back();
}
}  // namespace

std::string suggestion(std::string_view given, std::span<const std::string_view> known) {
  constexpr std::size_t longest = 200;  // of a mistyped name; the time is its square
  const auto nearest = given.size() > longest
                           ? known.end()
                           : std::ranges::min_element(known, {}, [&](std::string_view name) {
                               return edit_distance(given, name);
                             });
  if (nearest != known.end() && edit_distance(given, *nearest) <= 1 + given.size() / 3)
    return "Did you mean \"" + std::string(*nearest) + "\"?";
  std::string list;
  for (const std::string_view name : known) list += (list.empty() ? "" : ", ") + std::string(name);
  return "Known: " + list + ".";
}

void fail_unknown_name(std::string_view where, std::string_view kind, std::string_view given,
                       std::span<const std::string_view> known) {
  fail<UsageError>(where, "there is no ", kind, " named ", in_quotes(given), ". ",
                   suggestion(given, known));
}

}  // namespace halftone
