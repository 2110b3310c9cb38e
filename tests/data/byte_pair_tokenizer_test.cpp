// BytePairTokenizer against Hugging Face's tokenizers on a vocabulary trained for the test
// (tests/fixtures/pytorch/byte_pair_fixtures.py), round trips of any bytes, and damaged files.
#include <doctest/doctest.h>

#include <chrono>

#include <nlohmann/json.hpp>

#include <halftone/data/text.h>

#include "../fixtures_directory.h"
#include "../support.h"

namespace halftone::test::byte_pair_tokenizer_test {

using data::BytePairTokenizer, data::first_word;

namespace {
std::filesystem::path fixture(std::string_view name) {
  return std::filesystem::path(test::fixtures_directory()) / "byte_pairs" / name;
}

BytePairTokenizer trained() { return {fixture("vocab.json"), fixture("merges.txt")}; }

std::vector<std::string> words_of(std::string_view text) {
  std::vector<std::string> words;
  while (!text.empty()) {
    words.emplace_back(first_word(text));
    text.remove_prefix(words.back().size());
  }
  return words;
}

using Words = std::vector<std::string>;

/// Returns the message for these two files; empty if they are accepted.
std::string message_for(const std::string& vocabulary, const std::string& merges) {
  static const TemporaryDirectory directory;
  write_file(directory / "vocab.json", vocabulary);
  write_file(directory / "merges.txt", merges);
  return message_of<FormatError>([&] {
    const BytePairTokenizer tokenizer(directory / "vocab.json", directory / "merges.txt");
    const std::string text = "Half precision\n\x01\xff";  // an accepted tokenizer works
    CHECK(tokenizer.decode(tokenizer.encode(text)) == text);
  });
}
}  // namespace

TEST_CASE("BytePairTokenizer encodes as Hugging Face's tokenizers does") {
  const BytePairTokenizer tokenizer = trained();
  const auto cases = nlohmann::json::parse(read_file(fixture("expected.json")));
  CHECK(cases.size() > 40);
  for (const nlohmann::json& one : cases) {
    const auto text = one.at("text").get<std::string>();
    CAPTURE(text);
    const std::vector<int64_t> tokens = tokenizer.encode(text);
    CHECK(tokens == one.at("tokens").get<std::vector<int64_t>>());
    CHECK(tokenizer.decode(tokens) == text);
  }
}

TEST_CASE("words are split as GPT-2's expression splits them") {
  CHECK(words_of("don't we'll 'tis") == Words{"don", "'t", " we", "'ll", " '", "tis"});
  CHECK(words_of("  two  spaces ") == Words{" ", " two", " ", " spaces", " "});
  CHECK(words_of("a\n\nb") == Words{"a", "\n", "\n", "b"});
  CHECK(words_of("a\tb\t\tc") == Words{"a", "\t", "b", "\t", "\t", "c"});
  CHECK(words_of("x=3.14;") == Words{"x", "=", "3", ".", "14", ";"});
  CHECK(words_of(" é1²") == Words{" é", "1²"});
  CHECK(words_of("\u00a0\u00a0x") == Words{"\u00a0", "\u00a0", "x"});
  CHECK(words_of("\xff\xfe a\xc3") == Words{"\xff\xfe", " a", "\xc3"});
  CHECK(words_of("'S'") == Words{"'", "S", "'"});
  CHECK(words_of(" ") == Words{" "});
}

TEST_CASE("any bytes round-trip") {
  const BytePairTokenizer tokenizer = trained();
  std::mt19937 random(1);
  for (int i = 0; i < 300; ++i) {
    std::string bytes(random() % 200, '\0');
    for (char& c : bytes) c = random() % 3 ? char(random()) : "the scaled \n"[random() % 12];
    CHECK(tokenizer.decode(tokenizer.encode(bytes)) == bytes);
  }
  std::string all;
  for (int byte = 0; byte < 256; ++byte) all += char(byte);
  CHECK(tokenizer.decode(tokenizer.encode(all)) == all);
}

TEST_CASE("merging takes the leftmost of the lowest rank, as the naive loop does") {
  const BytePairTokenizer tokenizer = trained();
  std::vector<std::pair<std::string, std::string>> merges;
  std::string text = read_file(fixture("merges.txt"));
  for (std::size_t at = text.find('\n') + 1; at < text.size();) {
    const std::size_t space = text.find(' ', at), end = text.find('\n', at);
    merges.emplace_back(text.substr(at, space - at), text.substr(space + 1, end - space - 1));
    at = end + 1;
  }
  std::mt19937 random(2);
  for (int i = 0; i < 200; ++i) {
    std::string word;
    for (unsigned n = 1 + random() % 30; n > 0; --n) word += "theinrsalod"[random() % 11];
    std::vector<std::string> parts;
    for (const char c : word) parts.emplace_back(1, c);
    for (const auto& [left, right] : merges)  // in order of rank: later ones never enable earlier
      for (std::size_t k = 0; k + 1 < parts.size(); ++k)
        if (parts[k] == left && parts[k + 1] == right) {
          parts[k] += right;
          parts.erase(parts.begin() + std::ptrdiff_t(k) + 1);
        }
    std::vector<int64_t> expected;
    for (const std::string& part : parts) expected.push_back(*tokenizer.token(part));
    CHECK(tokenizer.encode(word) == expected);
  }
}

TEST_CASE("the cost of one very long word does not grow with the square of its length") {
  const BytePairTokenizer tokenizer = trained();
  std::string word;
  for (int i = 0; i < 200000; ++i) word += "the"[i % 3];
  const auto start = std::chrono::steady_clock::now();
  const std::vector<int64_t> tokens = tokenizer.encode(word);
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(20));
  CHECK(tokenizer.decode(tokens) == word);
}

TEST_CASE("special tokens are text in encode and have a number in token()") {
  const BytePairTokenizer tokenizer = trained();
  CHECK(tokenizer.token("<|endoftext|>") == 0);
  CHECK(tokenizer.token("no such token") == std::nullopt);
  CHECK(tokenizer.encode("<|endoftext|>").size() > 1);
  CHECK(tokenizer.decode(std::vector<int64_t>{0}) == "<|endoftext|>");
  CHECK(message_of<UsageError>([&] { tokenizer.decode(std::vector<int64_t>{100000}); }) ==
        "[BytePairTokenizer] there is no token 100000: the vocabulary has " +
            std::to_string(tokenizer.vocabulary_size()) +
            ". Pass tokens from 0 to vocabulary_size() - 1.");
}

TEST_CASE("BytePairTokenizer names what is wrong with its files") {
  const std::string vocabulary = read_file(fixture("vocab.json")),
                    merges = read_file(fixture("merges.txt"));
  CHECK(message_for(vocabulary, merges).empty());
  CHECK(message_for(vocabulary, "").empty());
  std::string windows;
  for (const char c : merges) windows += c == '\n' ? std::string("\r\n") : std::string(1, c);
  CHECK(message_for(vocabulary, windows).empty());

  CHECK(contains(message_for("", merges), "vocab.json: it is not JSON from byte"));
  CHECK(contains(message_for("[1]", merges), "it is an array and not an object"));
  CHECK(contains(message_for("3", merges), "it is a number"));
  CHECK(contains(message_for("{}", merges), "there is no token for the byte 0"));
  CHECK(contains(message_for(R"({"a": "b"})", merges), R"(token "a" has a string where)"));
  CHECK(contains(message_for(R"({"a": {}})", merges), R"(token "a" has an object where)"));
  CHECK(contains(message_for(R"({"a": -1})", merges), "has a negative number"));
  CHECK(contains(message_for(R"({"a": 0.5})", merges), "has a fraction"));
  CHECK(
      contains(message_for(R"({"a": 1})", merges), R"(token "a" has the number 1, the 1 tokens)"));
  CHECK(contains(message_for(R"({"a": 0, "b": 0})", merges), R"(token "b" has the number 0)"));
  CHECK(contains(message_for(R"({"a": 0, "a": 1})", merges), R"(token "a" occurs twice)"));
  CHECK(contains(message_for(R"({"a b": 0})", merges), "does not stand for bytes"));
  CHECK(contains(message_for(R"({"": 0})", merges), "does not stand for bytes"));
  CHECK(contains(message_for(R"({"\u6f22": 0})", merges), "does not stand for bytes"));
  CHECK(contains(message_for(std::string(100000, '['), merges), "it is an array"));
  CHECK(contains(message_for(std::string(R"({"a": )") + std::string(100000, '['), merges),
                 "has an array"));

  const std::string cut = vocabulary + '\0' + "never looked at";
  CHECK(contains(message_for(cut, merges), "vocab.json: it is not JSON from byte " +
                                               std::to_string(vocabulary.size() + 1) +
                                               " on, a zero byte. Pass GPT-2's vocab.json"));

  CHECK(contains(message_for(vocabulary, "h\n"), "line 1, \"h\", is not two tokens"));
  CHECK(
      contains(message_for(vocabulary, "#version: 0.2\nh e r\n"), "line 2, \"h e r\", is not two"));
  CHECK(contains(message_for(vocabulary, "x q\n"), "that the vocabulary does not have"));
  CHECK(contains(message_for(vocabulary, "h e\nh e\n"), "line 2, \"h e\", occurs twice"));
  CHECK(contains(message_for(vocabulary, "h \x01\n"), "does not stand for bytes"));
  CHECK(contains(message_of<FormatError>(
                     [] { BytePairTokenizer(fixture("merges.txt"), fixture("vocab.json")); }),
                 "Pass GPT-2's vocab.json and merges.txt, in this order."));
  CHECK(contains(message_of<FormatError>([] { BytePairTokenizer("/none", "/none"); }),
                 "[BytePairTokenizer] no such file: /none"));
}

TEST_CASE("BytePairTokenizer survives random damage") {
  const std::string vocabulary = read_file(fixture("vocab.json")),
                    merges = read_file(fixture("merges.txt"));
  std::mt19937 random(4);
  int refused = 0;
  for (int i = 0; i < 150; ++i) {
    refused += !message_for(mutated(vocabulary, random), merges).empty();
    refused += !message_for(vocabulary, mutated(merges, random)).empty();
  }
  for (std::size_t length = 0; length < vocabulary.size() - 2; length += 41)
    refused += !message_for(vocabulary.substr(0, length), merges).empty();
  CHECK(refused > 150);
}

}  // namespace halftone::test::byte_pair_tokenizer_test
