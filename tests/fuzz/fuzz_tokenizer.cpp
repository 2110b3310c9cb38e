// The two files of a byte-pair tokenizer, and a text: vocab.json, 0xff, merges.txt, 0xff,
// text. With an accepted pair of files, any text is encoded and decoded to itself. Without a
// vocabulary, one is made that has all tokens of the merges, so that most merges are
// accepted.
#include "fuzz.h"

#include <set>

#include <halftone/data/text.h>

namespace halftone::fuzz {

// A vocabulary of 8,192 bytes has a few hundred tokens.
const Limits limits{.longest_input = 8192, .allocation_mib = 1, .resident_mib = 256};

namespace {
/// GPT-2's characters for the 256 bytes.
std::set<std::string> byte_characters() {
  std::set<std::string> characters;
  char32_t next = 0x100;
  for (char32_t byte = 0; byte < 256; ++byte) {
    const bool itself = (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte != 0xad);
    std::string text;
    data::append_utf8(text, itself ? byte : next++);
    characters.insert(text);
  }
  return characters;
}

/// A vocabulary of all bytes and of all merged tokens of `merges`.
std::string vocabulary_for(std::string_view merges) {
  static const std::set<std::string> bytes = byte_characters();
  std::set<std::string> tokens = bytes;
  while (!merges.empty()) {
    std::string line(merges.substr(0, merges.find('\n')));
    merges.remove_prefix(std::min(line.size() + 1, merges.size()));
    if (line.ends_with('\r')) line.pop_back();
    if (const std::size_t space = line.find(' '); space != std::string::npos)
      tokens.insert(line.erase(space, 1));
  }
  tokens.erase("");
  std::string text;
  int64_t number = 0;
  for (const std::string& token : tokens) {
    text += text.empty() ? "{\"" : ",\"";
    for (const char c : token) {
      if (c == '"' || c == '\\') text += '\\';
      text += c;
    }
    text += "\":" + std::to_string(number++);
  }
  return text + '}';
}

/// One object, and otherwise only JSON white space.
bool is_one_object(std::string_view json) {
  const std::size_t last = json.find_last_not_of(" \t\r\n");
  return last != std::string_view::npos && json[last] == '}' &&
         json.find('\0') == std::string_view::npos;
}

void check_tokens(const data::BytePairTokenizer& tokenizer) {
  require(tokenizer.vocabulary_size() >= 256, "every byte has a token");
  for (int64_t token = 0; token < tokenizer.vocabulary_size(); ++token) {
    const std::string bytes = tokenizer.decode(std::vector{token});
    require(!bytes.empty() && tokenizer.token(bytes) == token, "tokens and their bytes are pairs");
  }
}
}  // namespace

void check(std::string_view bytes) {
  const std::filesystem::path vocabulary = scratch_directory() / "vocab.json",
                              merges = scratch_directory() / "merges.txt";
  std::vector<std::string> parts = parts_of(bytes, 3);
  if (parts[0].empty()) parts[0] = vocabulary_for(parts[1]);
  write_file(vocabulary, parts[0]);
  write_file(merges, parts[1]);
  const auto tokenizer = accepted<FormatError>(
      "BytePairTokenizer", [&] { return data::BytePairTokenizer(vocabulary, merges); });
  if (!tokenizer) return;

  require(is_one_object(parts[0]), "nothing follows the vocabulary");
  check_tokens(*tokenizer);
  const std::vector<int64_t> tokens = tokenizer->encode(parts[2]);
  require(tokens.size() <= parts[2].size(), "a token is one byte or more");
  require(tokenizer->decode(tokens) == parts[2], "decoding undoes encoding");
}

}  // namespace halftone::fuzz
