// Reads vocab.json and merges.txt. Their content is checked once, here, so that encoding needs no
// checks: every byte has a token, and every merge leads to one.
#include <halftone/data/text.h>

#include <algorithm>
#include <array>
#include <utility>

#include <nlohmann/json.hpp>

#include <halftone/core/error.h>
#include <halftone/core/memory.h>
#include <halftone/data/file_bytes.h>
#include <halftone/data/text/utf8.h>

namespace halftone::data {

namespace {
namespace fs = std::filesystem;
constexpr std::string_view op = "BytePairTokenizer";
constexpr int64_t largest_file = int64_t(64) << 20;
constexpr std::size_t most_tokens = std::size_t(1) << 24;

/// GPT-2's bytes_to_unicode: printable Latin-1 characters represent themselves; the other bytes, in
/// order, are U+0100 and on. The inverse: -1 if a code point represents no byte.
std::array<int, 0x144> byte_of_code_point() {
  std::array<int, 0x144> byte_of{};
  byte_of.fill(-1);
  int next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    const bool itself = (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte != 0xad);
    byte_of[std::size_t(itself ? byte : next++)] = byte;
  }
  return byte_of;
}

/// Returns the bytes that a token of a file represents; nothing if a character represents none.
std::optional<std::string> bytes_of_token(std::string_view written) {
  static const std::array<int, 0x144> byte_of = byte_of_code_point();
  std::string bytes;
  for (std::size_t at = 0; at < written.size();) {
    const CodePoint character = code_point_at(written, at);
    if (character.length == 0 || character.value >= byte_of.size() || byte_of[character.value] < 0)
      return std::nullopt;
    bytes += char(byte_of[character.value]);
    at += character.length;
  }
  return bytes;
}

/// Reads one flat object of strings to numbers. Stops at anything else, so that neither nesting nor
/// size can do harm.
class VocabularyReader final : public nlohmann::json_sax<nlohmann::json> {
 public:
  std::vector<std::pair<std::string, uint64_t>> tokens;
  std::string problem;

  bool null() override { return refuse("null"); }
  bool boolean(bool) override { return refuse("a boolean"); }
  bool number_integer(number_integer_t) override { return refuse("a negative number"); }
  bool number_float(number_float_t, const string_t&) override { return refuse("a fraction"); }
  bool string(string_t&) override { return refuse("a string"); }
  bool binary(binary_t&) override { return refuse("binary data"); }
  bool start_array(std::size_t) override { return refuse("an array"); }
  bool end_array() override { return true; }
  bool end_object() override { return true; }
  bool start_object(std::size_t) override {
    if (inside_) return refuse("an object");
    return inside_ = true;
  }
  bool key(string_t& text) override {
    key_ = std::move(text);
    return true;
  }
  bool number_unsigned(number_unsigned_t value) override {
    if (!inside_) return refuse("a number");
    if (tokens.size() == most_tokens) return problem = "it has more than 2^24 tokens", false;
    tokens.emplace_back(std::move(key_), value);
    return true;
  }
  bool parse_error(std::size_t at, const std::string&, const nlohmann::json::exception&) override {
    problem = "it is not JSON from byte " + std::to_string(at) + " on";
    return false;
  }

 private:
  bool refuse(const std::string& what) {
    problem = inside_
                  ? "token " + in_quotes(key_, 40) + " has " + what + " where its number belongs"
                  : "it is " + what + " and not an object";
    return false;
  }
  bool inside_ = false;
  std::string key_;
};

[[noreturn]] void fail_file(const fs::path& path, const std::string& problem) {
  fail<FormatError>(op, "not a usable file: ", path.string(), ": ", problem,
                    ". Pass GPT-2's vocab.json and merges.txt, in this order.");
}
}  // namespace

BytePairTokenizer::BytePairTokenizer(const fs::path& vocabulary_json, const fs::path& merges_text) {
  read_vocabulary(vocabulary_json);
  read_merges(merges_text);
}

void BytePairTokenizer::read_vocabulary(const fs::path& path) {
  const std::string text = file_bytes(op, path, largest_file);
  or_no_memory(op, int64_t(text.size()), [&] {
    // The parser would take a zero byte for the end of the text and never read the rest.
    if (const std::size_t zero = text.find('\0'); zero != std::string::npos)
      fail_file(path, "it is not JSON from byte " + std::to_string(zero + 1) + " on, a zero byte");
    VocabularyReader reader;
    nlohmann::json::sax_parse(text, &reader);
    if (!reader.problem.empty()) fail_file(path, reader.problem);

    bytes_of_.resize(reader.tokens.size());
    std::vector<bool> taken(reader.tokens.size());
    for (const auto& [written, number] : reader.tokens) {
      if (number >= taken.size() || taken[number])
        fail_file(path, "token " + in_quotes(written, 40) + " has the number " +
                            std::to_string(number) + ", the " + std::to_string(taken.size()) +
                            " tokens need those from 0 to " + std::to_string(taken.size() - 1) +
                            " once each");
      taken[number] = true;
      std::optional<std::string> bytes = bytes_of_token(written);
      if (!bytes || bytes->empty())
        fail_file(path, "token " + std::to_string(number) + ", " + in_quotes(written, 40) +
                            ", does not stand for bytes in GPT-2's table");
      if (!token_of_.emplace(*bytes, int32_t(number)).second)
        fail_file(path, "token " + in_quotes(written, 40) + " occurs twice");
      bytes_of_[number] = *std::move(bytes);
    }
    for (int byte = 0; byte < 256; ++byte)
      if (!token_of_.contains(std::string(1, char(byte))))
        fail_file(path, "there is no token for the byte " + std::to_string(byte));
  });
}

void BytePairTokenizer::read_merges(const fs::path& path) {
  const std::string text = file_bytes(op, path, largest_file);
  or_no_memory(op, int64_t(text.size()), [&] {
    std::string_view left = text;
    int32_t rank = 0;
    for (int64_t line_number = 1; !left.empty(); ++line_number) {
      std::string_view line = left.substr(0, left.find('\n'));
      left.remove_prefix(std::min(line.size() + 1, left.size()));
      if (line.ends_with('\r')) line.remove_suffix(1);
      if (line.empty() || (line_number == 1 && line.starts_with("#version"))) continue;

      const std::string at =
          "line " + std::to_string(line_number) + ", " + in_quotes(line, 40) + ", ";
      const std::size_t space = line.find(' ');
      if (space == std::string_view::npos || line.find(' ', space + 1) != std::string_view::npos)
        fail_file(path, at + "is not two tokens with a space between them");
      const std::optional<std::string> first = bytes_of_token(line.substr(0, space)),
                                       second = bytes_of_token(line.substr(space + 1));
      if (!first || !second) fail_file(path, at + "does not stand for bytes in GPT-2's table");
      const auto a = token_of_.find(*first), b = token_of_.find(*second),
                 merged = token_of_.find(*first + *second);
      if (a == token_of_.end() || b == token_of_.end() || merged == token_of_.end())
        fail_file(path, at + "merges or makes a token that the vocabulary does not have");
      const uint64_t pair = uint64_t(uint32_t(a->second)) << 32 | uint32_t(b->second);
      if (!merges_.emplace(pair, Merge{rank++, merged->second}).second)
        fail_file(path, at + "occurs twice");
    }
  });
}

}  // namespace halftone::data
