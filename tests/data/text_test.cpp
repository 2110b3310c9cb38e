// Text: files, splits, windows, the tokenizer of characters.
#include <chrono>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include <halftone/halftone.h>

#include "../support.h"

namespace halftone::test::text_test {

using namespace halftone::data;

namespace {
std::vector<int64_t> values_of(const Tensor& x) { return x.to_vector<int64_t>(); }
}  // namespace

TEST_CASE("read_text reads all bytes except a byte order mark") {
  const TemporaryDirectory directory;
  const auto path = directory / "x.txt";
  write_file(path,
             "\xef\xbb\xbf"
             "one\r\ntwo \xff");
  CHECK(read_text(path) == "one\r\ntwo \xff");
  write_file(path, "");
  CHECK(read_text(path).empty());
  CHECK(contains(MESSAGE_OF(FormatError, read_text(directory / "none")),
                 "[read_text] no such file: "));
  write_file(path, "12345");
  CHECK(read_text(path, 5) == "12345");
  CHECK(contains(MESSAGE_OF(FormatError, read_text(path, 4)), "[read_text] the file is too large"));
}

TEST_CASE("CharacterTokenizer numbers characters by code point") {
  const CharacterTokenizer tokenizer("banana é€𝄞\n");
  CHECK(tokenizer.vocabulary_size() == 8);
  CHECK(tokenizer.vocabulary() == "\n abné€𝄞");
  CHECK(tokenizer.encode("nab𝄞") == std::vector<int64_t>{4, 2, 3, 7});
  const std::string text = std::string("a é€ ban") + "𝄞";
  CHECK(tokenizer.decode(tokenizer.encode(text)) == text);
  CHECK(CharacterTokenizer(tokenizer.vocabulary()).vocabulary() == tokenizer.vocabulary());
  CHECK(tokenizer.encode("").empty());
  CHECK(CharacterTokenizer("").vocabulary_size() == 0);
}

TEST_CASE("CharacterTokenizer explains unknown characters") {
  const CharacterTokenizer tokenizer("ab");
  CHECK(
      MESSAGE_OF(UsageError, tokenizer.encode("abz")) ==
      "[CharacterTokenizer] unknown character: 'z' (U+007A) at byte 2 is none of the 2 characters "
      "of the vocabulary. Build the vocabulary from all of the text.");
  CHECK(contains(MESSAGE_OF(UsageError, tokenizer.encode("\n")), "U+000A at byte 0"));
  CHECK(contains(MESSAGE_OF(UsageError, tokenizer.encode("é")), "'é' (U+00E9)"));
  CHECK(MESSAGE_OF(UsageError, tokenizer.decode(std::vector<int64_t>{0, 2})) ==
        "[CharacterTokenizer] there is no token 2: the vocabulary has 2. Pass tokens from 0 "
        "to vocabulary_size() - 1.");
  CHECK(
      contains(MESSAGE_OF(UsageError, tokenizer.decode(std::vector<int64_t>{-1})), "no token -1"));
  // Overlong, a surrogate, above U+10FFFF, cut off, a continuation alone.
  for (const char* bytes : {"\xc0\xaf", "\xe0\x80\xaf", "\xed\xa0\x80", "\xf4\x90\x80\x80",
                            "\xe2\x82", "\x80", "\xff", "\xf0\x9d\x84"}) {
    CHECK(MESSAGE_OF(FormatError, CharacterTokenizer(std::string("ab") + bytes)) ==
          "[CharacterTokenizer] the text is not UTF-8: byte 2 begins no character. Convert the "
          "text, or use BytePairTokenizer.");
    CHECK(contains(MESSAGE_OF(FormatError, tokenizer.encode(bytes)), "byte 0"));
  }
}

TEST_CASE("TextDataset gives windows and the tokens one position later") {
  const Tensor tokens = arange(10);
  const TextDataset dataset(tokens, {.context = 3});
  CHECK(dataset.size() == 3);
  const std::vector<int64_t> indices{2, 0};
  const auto [x, y] = dataset.batch(indices);
  CHECK(x.shape() == Shape{2, 3});
  CHECK(x.dtype() == i64);
  CHECK(values_of(x) == std::vector<int64_t>{6, 7, 8, 0, 1, 2});
  CHECK(values_of(y) == std::vector<int64_t>{7, 8, 9, 1, 2, 3});

  CHECK(TextDataset(arange(9), {.context = 3}).size() == 2);  // the target of 8 would be missing
  const TextDataset every(tokens, {.context = 3, .stride = 1});
  CHECK(every.size() == 7);
  const int64_t last = 6;
  CHECK(values_of(every.batch({&last, 1}).targets) == std::vector<int64_t>{7, 8, 9});
  CHECK(TextDataset(arange(4), {.context = 3, .stride = 100}).size() == 1);
  int64_t windows = 0;
  for (auto [inputs, targets] :
       DataLoader(every, {.batch_size = 2, .shuffle = true, .workers = 2})) {
    windows += inputs.size(0);
    for (int64_t i = 0; i < inputs.numel(); ++i)
      CHECK(targets.data<int64_t>()[i] == inputs.data<int64_t>()[i] + 1);
  }
  CHECK(windows == 7);
}

TEST_CASE("split_text keeps the order and every token") {
  const TextSplit split = split_text(arange(11), 0.2);
  CHECK(values_of(split.train) == values_of(arange(9)));
  CHECK(values_of(split.validation) == std::vector<int64_t>{9, 10});
  CHECK(split_text(arange(5), 0).validation.numel() == 0);
  const TextDataset validation(split.validation, {.context = 1});  // a view, with an offset
  const int64_t first = 0;
  CHECK(validation.batch({&first, 1}).targets.item() == 10);
}

TEST_CASE("tokenize makes a tensor for TextDataset") {
  const CharacterTokenizer tokenizer("abc");
  const Tensor tokens = tokenize(tokenizer, "cab");
  CHECK(tokens.dtype() == i64);
  CHECK(values_of(tokens) == std::vector<int64_t>{2, 0, 1});
}

TEST_CASE("text functions explain invalid arguments") {
  CHECK(MESSAGE_OF(ShapeError, TextDataset(arange(4), {.context = 4})) ==
        "[TextDataset] too few tokens: 4 for a context of 4 and the target after it. Use more text "
        "or less context.");
  CHECK(MESSAGE_OF(UsageError, TextDataset(arange(4), {.context = 0})) ==
        "[TextDataset] context is 0 and stride is 0. Give positive numbers of tokens.");
  CHECK(contains(MESSAGE_OF(UsageError, TextDataset(arange(4), {.context = 2, .stride = -1})),
                 "stride is -1"));
  CHECK(MESSAGE_OF(DTypeError, TextDataset(arange(4, i32), {.context = 2})) ==
        "[TextDataset] the tokens must be i64: they are [4] i32. Pass the result of tokenize().");
  CHECK(contains(MESSAGE_OF(ShapeError, TextDataset(zeros({2, 2}, i64), {.context = 2})),
                 "they have 2 dimensions"));
  CHECK(contains(MESSAGE_OF(ShapeError, split_text(Tensor())), "they are undefined"));
  CHECK(MESSAGE_OF(UsageError, split_text(arange(4), 1)) ==
        "[split_text] the fraction is 1. Give a number from 0, below 1.");
  CHECK(contains(message_of<UsageError>([] {
                   const int64_t index = 2;
                   TextDataset(arange(5), {.context = 2}).batch({&index, 1});
                 }),
                 "[Dataset] there is no sample 2: the dataset has 2"));
}

}  // namespace halftone::test::text_test

// BytePairTokenizer against Hugging Face's tokenizers on a vocabulary trained for the test
// (tests/fixtures/pytorch/byte_pair_fixtures.py), round trips of any bytes, and damaged files.

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
  CHECK(MESSAGE_OF(UsageError, tokenizer.decode(std::vector<int64_t>{100000})) ==
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
  CHECK(contains(
      MESSAGE_OF(FormatError, BytePairTokenizer(fixture("merges.txt"), fixture("vocab.json"))),
      "Pass GPT-2's vocab.json and merges.txt, in this order."));
  CHECK(contains(MESSAGE_OF(FormatError, BytePairTokenizer("/none", "/none")),
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
