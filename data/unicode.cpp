// The normal form C: characters are taken apart, marks are ordered by their classes, and what
// composes is put together again (UAX 15). Syllables of Hangul compose by a formula.
#include <halftone/data/unicode.h>

#include <algorithm>
#include <vector>

namespace halftone::data {

namespace {
constexpr char32_t hangul = 0xac00, leads = 0x1100, vowels = 0x1161, tails = 0x11a7;
constexpr char32_t lead_count = 19, vowel_count = 21, tail_count = 28;
constexpr char32_t hangul_count = lead_count * vowel_count * tail_count;

struct Mark {
  char32_t value;
  int order;  // combining_class()
};

void take_apart(char32_t value, std::vector<Mark>& to) {
  if (value >= hangul && value < hangul + hangul_count) {
    const char32_t syllable = (value - hangul) / tail_count, tail = (value - hangul) % tail_count;
    to.push_back({leads + syllable / vowel_count, 0});
    to.push_back({vowels + syllable % vowel_count, 0});
    if (tail > 0) to.push_back({tails + tail, 0});
    return;
  }
  const auto [first, second] = canonical_parts(value);
  if (first == 0) return to.push_back({value, combining_class(value)});
  take_apart(first, to);
  if (second != 0) to.push_back({second, combining_class(second)});
}

char32_t composed(char32_t first, char32_t second) {
  if (first >= leads && first < leads + lead_count && second >= vowels &&
      second < vowels + vowel_count)
    return hangul + ((first - leads) * vowel_count + (second - vowels)) * tail_count;
  if (first >= hangul && first < hangul + hangul_count && (first - hangul) % tail_count == 0 &&
      second > tails && second < tails + tail_count)
    return first + (second - tails);
  return canonical_composition(first, second);
}

/// Appends the form C of characters that were taken apart, and removes them.
void put_together(std::vector<Mark>& marks, std::string& text) {
  for (auto begin = marks.begin(); begin != marks.end();) {
    if (begin->order == 0) {
      ++begin;
      continue;
    }
    const auto end = std::find_if(begin, marks.end(), [](Mark mark) { return mark.order == 0; });
    std::stable_sort(begin, end, [](Mark a, Mark b) { return a.order < b.order; });
    begin = end;
  }
  std::size_t kept = 0, letter = marks.size();
  int last = -1;  // the order of the last mark kept after the letter; -1: none
  for (const Mark mark : marks) {
    if (letter < kept && last < mark.order)
      if (const char32_t both = composed(marks[letter].value, mark.value); both != 0) {
        marks[letter].value = both;
        continue;
      }
    last = mark.order == 0 ? -1 : mark.order;
    if (mark.order == 0) letter = kept;
    marks[kept++] = mark;
  }
  for (std::size_t i = 0; i < kept; ++i) append_utf8(text, marks[i].value);
  marks.clear();
}
}  // namespace

std::string nfc(std::string_view text) {
  // No character below U+0300 changes or composes with what is before it.
  if (std::ranges::none_of(text, [](char c) { return static_cast<unsigned char>(c) >= 0xcc; }))
    return std::string(text);
  std::string result;
  std::vector<Mark> marks;
  for (std::size_t at = 0; at < text.size();) {
    const auto [value, length] = code_point_at(text, at);
    if (value < 0x300) put_together(marks, result);
    if (length == 0) result += text[at];
    else take_apart(value, marks);
    at += length == 0 ? 1 : length;
  }
  put_together(marks, result);
  return result;
}

}  // namespace halftone::data
