// Text, tokens and windows.
#include <halftone/data/text.h>

#include <algorithm>
#include <iomanip>
#include <set>
#include <vector>

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

namespace {

/// Returns whether bytes look like UTF-16 without a mark: half of its bytes are zero in text of
/// Latin letters, all at odd or all at even places.
bool looks_like_utf16(std::string_view bytes) {
  const std::string_view start = bytes.substr(0, 4096);
  std::size_t zeros[2] = {0, 0};
  for (std::size_t i = 0; i < start.size(); ++i) zeros[i % 2] += start[i] == '\0';
  const auto [fewer, more] = std::minmax(zeros[0], zeros[1]);
  return start.size() >= 4 && 4 * more > start.size() && 8 * fewer < more;
}

void require_utf8(const std::filesystem::path& path, std::string_view text) {
  const bool marked = text.starts_with("\xff\xfe") || text.starts_with("\xfe\xff");
  if (marked || looks_like_utf16(text))
    fail<FormatError>("read_text", "the text is not UTF-8: ", path.string(), " is UTF-16",
                      marked ? ", by its byte order mark" : ", as every other byte is zero",
                      ". Convert it: iconv -f UTF-16 -t UTF-8.");
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t length = code_point_at(text, at).length;
    if (length == 0)
      fail<FormatError>("read_text", "the text is not UTF-8: ", path.string(), ": byte ", at,
                        ", in line ", 1 + std::ranges::count(text.substr(0, at), '\n'),
                        ", begins no character. Convert the file, such as with iconv -f LATIN1 "
                        "-t UTF-8.");
    at += length;
  }
}

}  // namespace

std::string read_text(const std::filesystem::path& path, int64_t max_bytes) {
  std::string text = file_bytes("read_text", path, max_bytes);
  require_utf8(path, text);
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

}  // namespace halftone::data
