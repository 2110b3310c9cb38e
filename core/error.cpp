// Nearest names, and text that is safe to print.
#include <halftone/core/error.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

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

// Decodes UTF-8 by hand, strictly: no overlong encodings, no surrogates, nothing over U+10FFFF.

namespace {
constexpr std::size_t longest_name = 200;  // bytes of a name in a list

struct Character {
  uint32_t code = 0;
  std::size_t bytes = 0;  // 0: the next byte starts no character
};

Character first_of(std::string_view text) {
  const auto byte = [&](std::size_t i) { return i < text.size() ? uint8_t(text[i]) : uint8_t(0); };
  const uint8_t first = byte(0);
  if (first < 0x80) return {first, 1};
  const std::size_t bytes = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  constexpr uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
  if (first < 0xc2 || first > 0xf4) return {};
  uint32_t code = first & (0x7fu >> bytes);
  for (std::size_t i = 1; i < bytes; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return {};
    code = code << 6 | (byte(i) & 0x3fu);
  }
  const bool surrogate = code >= 0xd800 && code <= 0xdfff;
  if (code < least[bytes] || code > 0x10ffff || surrogate) return {};
  return {code, bytes};
}

/// Returns whether a terminal would act on the character instead of showing it.
bool is_obeyed(uint32_t code) {
  const auto within = [code](uint32_t from, uint32_t to) { return code >= from && code <= to; };
  return code < 0x20 || within(0x7f, 0x9f) || code == 0x61c || within(0x200e, 0x200f) ||
         within(0x202a, 0x202e) || within(0x2066, 0x2069);
}

std::string spelled(std::string_view letter, uint32_t code, int digits) {
  std::string text(letter);
  for (int digit = digits - 1; digit >= 0; --digit)
    text += "0123456789abcdef"[code >> (4 * digit) & 15];
  return text;
}

/// Returns "89,980".
std::string grouped(std::size_t number) {
  std::string text = std::to_string(number);
  for (auto at = std::ptrdiff_t(text.size()) - 3; at > 0; at -= 3)
    text.insert(std::size_t(at), 1, ',');
  return text;
}
}  // namespace

std::string printable(std::string_view text) {
  std::string result;
  while (!text.empty()) {
    const auto [code, bytes] = first_of(text);
    if (bytes == 0) result += spelled("\\x", uint8_t(text[0]), 2);
    else if (code == '\n') result += "\\n";
    else if (code == '\t') result += "\\t";
    else if (code < 0x80 && is_obeyed(code)) result += spelled("\\x", code, 2);
    else if (is_obeyed(code)) result += spelled("\\u", code, 4);
    else result += text.substr(0, bytes);
    text.remove_prefix(std::max<std::size_t>(bytes, 1));
  }
  return result;
}

std::string shortened(std::string_view text, std::size_t most) {
  if (text.size() <= most) return printable(text);
  std::size_t end = most;
  while (end > 0 && most - end < 3 && (uint8_t(text[end]) & 0xc0) == 0x80) --end;
  return printable(text.substr(0, end)) + "...";
}

std::string in_quotes(std::string_view text, std::size_t most) {
  return '"' + shortened(text, most) + '"';
}

std::string listed(std::span<const std::string> names, std::size_t most) {
  std::string text;
  for (const std::string& name : names.first(std::min(names.size(), most)))
    text += (text.empty() ? "" : ", ") + shortened(name, longest_name);
  if (names.size() > most) text += " and " + grouped(names.size() - most) + " more";
  return text;
}

}  // namespace halftone
