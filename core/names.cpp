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
/// Words of other programs for strategies. By letters "fp16" is nearest to "fp64".
constexpr struct {
  std::string_view word, name;
} other_words[]{{"16", "amp-fp16"},      {"fp16", "amp-fp16"},     {"f16", "amp-fp16"},
                {"float16", "amp-fp16"}, {"half", "amp-fp16"},     {"16-mixed", "amp-fp16"},
                {"bf16", "amp-bf16"},    {"bfloat16", "amp-bf16"}, {"bf16-mixed", "amp-bf16"},
                {"32", "fp32"},          {"f32", "fp32"},          {"float32", "fp32"},
                {"float", "fp32"},       {"32-true", "fp32"},      {"64", "fp64"},
                {"f64", "fp64"},         {"float64", "fp64"},      {"double", "fp64"},
                {"64-true", "fp64"},     {"16-true", "o3-fp16"},   {"bf16-true", "full-bf16"}};
}  // namespace

std::string suggestion(std::string_view given, std::span<const std::string_view> known) {
  for (const auto& [word, name] : other_words)
    if (word == given && std::ranges::find(known, name) != known.end())
      return "Did you mean \"" + std::string(name) + "\"?";
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
