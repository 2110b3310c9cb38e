// Alternatives are tried in the order of the expression. Only the last but one needs to look back:
// the last of several spaces before a word belongs to the word.
#include <halftone/data/text/byte_pair_words.h>

#include <algorithm>
#include <cstddef>

#include <halftone/data/text/utf8.h>
#include <halftone/data/unicode_ranges.h>

namespace halftone::data {

namespace {
enum class Kind { letter, number, space, other };

struct Character {
  Kind kind;
  std::size_t length;
};

Character character_at(std::string_view text, std::size_t at) {
  const auto [value, length] = code_point_at(text, at);
  if (length == 0) return {Kind::other, 1};
  if (is_letter(value)) return {Kind::letter, length};
  if (is_number(value)) return {Kind::number, length};
  return {is_space(value) ? Kind::space : Kind::other, length};
}

/// Returns the end of the run of characters of one kind that starts at `at`.
std::size_t end_of_run(std::string_view text, std::size_t at, Kind kind) {
  while (at < text.size()) {
    const Character next = character_at(text, at);
    if (next.kind != kind) break;
    at += next.length;
  }
  return at;
}

/// Returns the length of 's, 't, 're, 've, 'm, 'll or 'd at the start, in lower case only; else 0.
std::size_t contraction(std::string_view text) {
  for (const std::string_view ending : {"'s", "'t", "'re", "'ve", "'m", "'ll", "'d"})
    if (text.starts_with(ending)) return ending.size();
  return 0;
}

/// Returns a run of spaces, without its last one if text follows and the run has several.
std::size_t spaces(std::string_view text) {
  std::size_t end = 0, last = 0;
  while (end < text.size()) {
    const Character next = character_at(text, end);
    if (next.kind != Kind::space) return last > 0 ? last : end;
    last = end, end += next.length;
  }
  return end;
}
}  // namespace

std::string_view first_word(std::string_view text) {
  if (const std::size_t length = contraction(text)) return text.substr(0, length);
  const std::size_t start = text.size() > 1 && text[0] == ' ' ? 1 : 0;
  const Kind kind = character_at(text, start).kind;
  if (kind == Kind::space) return text.substr(0, spaces(text));
  return text.substr(0, end_of_run(text, start, kind));
}

}  // namespace halftone::data
