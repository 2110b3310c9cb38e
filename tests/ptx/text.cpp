// Pieces of PTX text.
#include <cctype>
#include <charconv>
#include <string>

#include "program.h"

namespace halftone::ptx {

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view blanks = " \t\r\n";
  const std::size_t first = text.find_first_not_of(blanks);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(blanks) - first + 1);
}

std::vector<std::string_view> split(std::string_view text) {
  std::vector<std::string_view> parts;
  int depth = 0;
  std::size_t start = 0;
  for (std::size_t i = 0; i <= text.size(); ++i) {
    if (i < text.size() && std::string_view("([{<").find(text[i]) != std::string_view::npos)
      ++depth;
    if (i < text.size() && std::string_view(")]}>").find(text[i]) != std::string_view::npos)
      --depth;
    if (i < text.size() && (text[i] != ',' || depth > 0)) continue;
    const std::string_view part = trimmed(text.substr(start, i - start));
    if (!part.empty()) parts.push_back(part);
    start = i + 1;
  }
  return parts;
}

bool is_word(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '$' || c == '%';
}

uint8_t bytes_of(std::string_view type) {
  if (type == "pred") return 1;
  if (type == "bf16") return 2;
  if (type.size() < 2 || std::string_view("bsuf").find(type[0]) == std::string_view::npos) return 0;
  const std::string_view bits = type.substr(1);
  return bits == "8" ? 1 : bits == "16" ? 2 : bits == "32" ? 4 : bits == "64" ? 8 : 0;
}

std::size_t end_of_braces(std::string_view text, std::size_t open) {
  int depth = 0;
  for (std::size_t i = open; i < text.size(); ++i) {
    if (text[i] == '{') ++depth;
    if (text[i] == '}' && --depth == 0) return i;
  }
  throw Fault("[ptx] a { without its }: " + std::string(text.substr(open, 60)));
}

std::string_view name_after(std::string_view text, std::size_t at) {
  while (std::isspace(static_cast<unsigned char>(text[at]))) ++at;
  if (text[at] == '(') at = text.find(')', at) + 1;
  while (std::isspace(static_cast<unsigned char>(text[at]))) ++at;
  std::size_t end = at;
  while (end < text.size() && is_word(text[end])) ++end;
  return text.substr(at, end - at);
}

uint64_t number(std::string_view text) {
  const bool negative = text[0] == '-';
  std::string_view digits = negative ? text.substr(1) : text;
  int base = 10;
  if (digits.size() > 2 && digits[0] == '0' && std::isalpha(static_cast<unsigned char>(digits[1])))
    base = 16, digits = digits.substr(2);  // 0x, 0f and 0d
  uint64_t value = 0;
  const auto [end, error] =
      std::from_chars(digits.data(), digits.data() + digits.size(), value, base);
  const std::string_view rest = digits.substr(std::size_t(end - digits.data()));
  if (error != std::errc() || !(rest.empty() || rest == "U"))
    throw Fault("[ptx] not a number: " + std::string(text));
  return negative ? 0 - value : value;
}

Declaration declaration(std::string_view text) {
  Declaration result{{}, 0, 0, 0};
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t start = text.find_first_not_of(" \t\r\n", i);
    if (start == std::string_view::npos) break;
    i = std::min(text.find_first_of(" \t\r\n", start), text.size());
    const std::string_view word = text.substr(start, i - start);
    if (word == ".align") {
      const std::size_t digit = text.find_first_not_of(' ', i);
      i = std::min(text.find(' ', digit), text.size());
      result.alignment = uint32_t(number(text.substr(digit, i - digit)));
    } else if (word[0] == '.') {
      if (const uint8_t bytes = bytes_of(word.substr(1))) result.element = bytes;
    } else {
      result.name = word;
    }
  }
  uint64_t count = 1;
  if (const std::size_t bracket = result.name.find('['); bracket != std::string_view::npos) {
    count = number(result.name.substr(bracket + 1, result.name.find(']') - bracket - 1));
    result.name = result.name.substr(0, bracket);
  }
  if (result.name.empty() || result.element == 0)
    throw Fault("[ptx] not a declaration that is known: " + std::string(text));
  result.bytes = uint32_t(count * result.element);
  if (result.alignment == 0) result.alignment = result.element;
  return result;
}

}  // namespace halftone::ptx
