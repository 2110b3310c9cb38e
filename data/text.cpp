// Text, tokens and windows.
#include <halftone/data/text.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <iomanip>
#include <queue>
#include <set>
#include <sstream>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include <halftone/core/error.h>
#include <halftone/core/factory.h>
#include <halftone/core/memory.h>
#include <halftone/core/tensor.h>
#include <halftone/data/sets.h>

namespace halftone::data {

// Windows are copied out of one long row of tokens, the only data stored.

namespace {
void check_tokens(std::string_view op, const Tensor& tokens) {
  if (!tokens.defined() || tokens.rank() != 1 || tokens.device() != Device::cpu())
    fail<ShapeError>(op, "the tokens must be i64 [n] on the CPU",
                     tokens.defined() ? ": they have " + std::to_string(tokens.rank()) +
                                            " dimensions or are elsewhere"
                                      : std::string(": they are undefined"),
                     ". Pass the result of tokenize().");
  if (tokens.dtype() != i64)
    fail<DTypeError>(op, "the tokens must be i64: they are ", described(tokens),
                     ". Pass the result of tokenize().");
}
}  // namespace

std::string read_text(const std::filesystem::path& path, int64_t max_bytes) {
  std::string text = file_bytes("read_text", path, max_bytes);
  if (text.starts_with("\xef\xbb\xbf")) text.erase(0, 3);
  return text;
}

Tensor tokenize(const Tokenizer& tokenizer, std::string_view text) {
  const std::vector<int64_t> tokens = tokenizer.encode(text);
  Tensor result = empty({int64_t(tokens.size())}, i64);
  std::ranges::copy(tokens, result.data<int64_t>());
  return result;
}

TextSplit split_text(const Tensor& tokens, double validation_fraction) {
  check_tokens("split_text", tokens);
  if (!(validation_fraction >= 0 && validation_fraction < 1))
    fail<UsageError>("split_text", "the fraction is ", validation_fraction,
                     ". Give a number from 0, below 1.");
  const auto held_out = int64_t(double(tokens.size(0)) * validation_fraction),
             kept = tokens.size(0) - held_out;
  return {views::slice(tokens, 0, 0, kept), views::slice(tokens, 0, kept, held_out)};
}

TextDataset::TextDataset(const Tensor& tokens, TextDatasetOptions options) : options_(options) {
  check_tokens("TextDataset", tokens);
  if (options_.stride == 0) options_.stride = options_.context;
  if (options_.context < 1 || options_.stride < 1)
    fail<UsageError>("TextDataset", "context is ", options_.context, " and stride is ",
                     options_.stride, ". Give positive numbers of tokens.");
  if (tokens.size(0) <= options_.context)
    fail<ShapeError>("TextDataset", "too few tokens: ", tokens.size(0), " for a context of ",
                     options_.context, " and the target after it. Use more text or less context.");
  tokens_ = views::contiguous(tokens.detach());
}

int64_t TextDataset::size() const {
  return 1 + (tokens_.size(0) - 1 - options_.context) / options_.stride;
}

Batch TextDataset::batch(std::span<const int64_t> indices) const {
  const Shape shape{int64_t(indices.size()), options_.context};
  const Tensor inputs = empty(shape, i64), targets = empty(shape, i64);
  int64_t *x = inputs.data<int64_t>(), *y = targets.data<int64_t>();
  for (const int64_t index : indices) {
    if (index < 0 || index >= size())
      fail<UsageError>("Dataset", "there is no sample ", index, ": the dataset has ", size(),
                       ". Number samples from 0 to size() - 1.");
    const int64_t* window = tokens_.data<int64_t>() + index * options_.stride;
    x = std::copy_n(window, options_.context, x);
    y = std::copy_n(window + 1, options_.context, y);
  }
  return {inputs, targets};
}

// A sorted set of code points, and its inverse.

namespace {
constexpr std::string_view characters_op = "CharacterTokenizer";

/// Returns "'x' (U+0078)".
std::string named(char32_t character) {
  std::string quoted;
  append_utf8(quoted, character);
  PlainText text;
  if (character >= 0x20 && character != 0x7f) text << '\'' << quoted << "' (";
  text << "U+" << std::hex << std::uppercase << std::setfill('0') << std::setw(4)
       << uint32_t(character);
  if (character >= 0x20 && character != 0x7f) text << ')';
  return text.str();
}
}  // namespace

CharacterTokenizer::CharacterTokenizer(std::string_view text) {
  or_no_memory(characters_op, int64_t(text.size()), [&] {
    std::set<char32_t> characters;
    for (std::size_t at = 0; at < text.size();) {
      const CodePoint character = code_point_at(text, at);
      if (character.length == 0)
        fail<FormatError>(characters_op, "the text is not UTF-8: byte ", at,
                          " begins no character. Convert the text, or use BytePairTokenizer.");
      characters.insert(character.value);
      at += character.length;
    }
    characters_.assign(characters.begin(), characters.end());
    for (std::size_t i = 0; i < characters_.size(); ++i) token_of_[characters_[i]] = int64_t(i);
  });
}

std::vector<int64_t> CharacterTokenizer::encode(std::string_view text) const {
  return or_no_memory(characters_op, int64_t(text.size() * sizeof(int64_t)), [&] {
    std::vector<int64_t> tokens;
    tokens.reserve(text.size());
    for (std::size_t at = 0; at < text.size();) {
      const CodePoint character = code_point_at(text, at);
      if (character.length == 0)
        fail<FormatError>(characters_op, "the text is not UTF-8: byte ", at,
                          " begins no character. Convert the text, or use BytePairTokenizer.");
      const auto found = token_of_.find(character.value);
      if (found == token_of_.end())
        fail<UsageError>(
            characters_op, "unknown character: ", named(character.value), " at byte ", at,
            " is none of the ", characters_.size(),
            " characters of the vocabulary. Build the vocabulary from all of the text.");
      tokens.push_back(found->second);
      at += character.length;
    }
    return tokens;
  });
}

std::string CharacterTokenizer::decode(std::span<const int64_t> tokens) const {
  return or_no_memory(characters_op, int64_t(tokens.size_bytes()), [&] {
    std::string text;
    for (const int64_t token : tokens) {
      if (token < 0 || token >= vocabulary_size())
        fail<UsageError>(characters_op, "there is no token ", token, ": the vocabulary has ",
                         vocabulary_size(), ". Pass tokens from 0 to vocabulary_size() - 1.");
      append_utf8(text, characters_[std::size_t(token)]);
    }
    return text;
  });
}

std::string CharacterTokenizer::vocabulary() const {
  std::string text;
  for (const char32_t character : characters_) append_utf8(text, character);
  return text;
}

// Merges one word with a linked list of its symbols and a heap of possible merges, so that a word
// of n bytes costs n log n. Otherwise a file of one endless word would cost n squared. Equivalent
// to: while any neighbors can be merged, merge the leftmost pair of the lowest rank.

namespace {
struct Symbol {
  int32_t token;
  int32_t before, after;  // positions of the neighbors; -1: none
};

/// A possible merge of the symbol at `left` and its successor, as they were when it was found.
struct Candidate {
  int32_t rank, left, left_token, right_token, merged;
  bool operator<(const Candidate& other) const {  // the heap's top is the largest
    return std::pair(rank, left) > std::pair(other.rank, other.left);
  }
};

constexpr std::size_t longest_remembered = 64;  // bytes of a word
constexpr std::size_t longest_text = std::size_t(1) << 30;
}  // namespace

const BytePairTokenizer::Merge* BytePairTokenizer::merge_of(int32_t left, int32_t right) const {
  const auto found = merges_.find(uint64_t(uint32_t(left)) << 32 | uint32_t(right));
  return found == merges_.end() ? nullptr : &found->second;
}

void BytePairTokenizer::merge_word(std::string_view word, std::vector<int64_t>& tokens) const {
  std::vector<Symbol> symbols;
  symbols.reserve(word.size());
  for (std::size_t i = 0; i < word.size(); ++i)
    symbols.push_back({token_of_.at(std::string(1, word[i])), int32_t(i) - 1,
                       i + 1 < word.size() ? int32_t(i) + 1 : -1});
  std::priority_queue<Candidate> candidates;
  const auto consider = [&](int32_t left) {
    if (left < 0) return;
    const Symbol& first = symbols[std::size_t(left)];
    if (first.after < 0) return;
    const Symbol& second = symbols[std::size_t(first.after)];
    if (const Merge* merge = merge_of(first.token, second.token))
      candidates.push({merge->rank, left, first.token, second.token, merge->merged});
  };
  for (std::size_t i = 0; i < symbols.size(); ++i) consider(int32_t(i));

  while (!candidates.empty()) {
    const Candidate best = candidates.top();
    candidates.pop();
    Symbol& left = symbols[std::size_t(best.left)];
    if (left.token != best.left_token || left.after < 0 ||
        symbols[std::size_t(left.after)].token != best.right_token)
      continue;  // another merge took one of them
    Symbol& right = symbols[std::size_t(left.after)];
    left.token = best.merged;
    left.after = right.after;
    right.token = -1;
    if (left.after >= 0) symbols[std::size_t(left.after)].before = best.left;
    consider(best.left);
    consider(left.before);
  }
  for (int32_t i = 0; i >= 0; i = symbols[std::size_t(i)].after)
    tokens.push_back(symbols[std::size_t(i)].token);
}

std::vector<int64_t> BytePairTokenizer::encode(std::string_view text) const {
  return or_no_memory("BytePairTokenizer", int64_t(text.size() * sizeof(int64_t)), [&] {
    if (text.size() > longest_text)
      fail<UsageError>("BytePairTokenizer", "the text is too long: ", text.size(),
                       " bytes, the limit is ", longest_text, ". Encode it in parts.");
    std::vector<int64_t> tokens;
    std::unordered_map<std::string_view, std::pair<std::size_t, std::size_t>>
        seen;  // part of tokens
    while (!text.empty()) {
      const std::string_view word = first_word(text);
      text.remove_prefix(word.size());
      if (const auto found = seen.find(word); found != seen.end()) {
        const auto [first, last] = found->second;
        for (std::size_t i = first; i < last; ++i) tokens.push_back(tokens[i]);
        continue;
      }
      const std::size_t before = tokens.size();
      merge_word(word, tokens);
      if (word.size() <= longest_remembered) seen.emplace(word, std::pair(before, tokens.size()));
    }
    return tokens;
  });
}

std::string BytePairTokenizer::decode(std::span<const int64_t> tokens) const {
  return or_no_memory("BytePairTokenizer", int64_t(tokens.size_bytes()), [&] {
    std::string text;
    for (const int64_t token : tokens) {
      if (token < 0 || token >= vocabulary_size())
        fail<UsageError>("BytePairTokenizer", "there is no token ", token, ": the vocabulary has ",
                         vocabulary_size(), ". Pass tokens from 0 to vocabulary_size() - 1.");
      text += bytes_of_[std::size_t(token)];
    }
    return text;
  });
}

std::optional<int64_t> BytePairTokenizer::token(std::string_view bytes) const {
  const auto found = token_of_.find(std::string(bytes));
  return found == token_of_.end() ? std::nullopt : std::optional<int64_t>(found->second);
}

// Reads vocab.json and merges.txt. Their content is checked once, here, so that encoding needs no
// checks: every byte has a token, and every merge leads to one.

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

// Alternatives are tried in the order of the expression. Only the last but one needs to look back:
// the last of several spaces before a word belongs to the word.

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
