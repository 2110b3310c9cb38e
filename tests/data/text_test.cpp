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
             "one\r\ntwo \u20ac");
  CHECK(read_text(path) == "one\r\ntwo \u20ac");
  write_file(path, "");
  CHECK(read_text(path).empty());
  CHECK(contains(MESSAGE_OF(FormatError, read_text(directory / "none")),
                 "[read_text] no such file: "));
  write_file(path, "12345");
  CHECK(read_text(path, 5) == "12345");
  CHECK(contains(MESSAGE_OF(FormatError, read_text(path, 4)), "[read_text] the file is too large"));
}

TEST_CASE("read_text names UTF-16 and the place of bytes that are not UTF-8") {
  const TemporaryDirectory directory;
  const auto path = directory / "x.txt";
  const auto refusal = [&](const std::string& bytes) {
    write_file(path, bytes);
    return message_of<FormatError>([&] { read_text(path); });
  };
  const auto utf16 = [](std::string_view text, bool big) {
    std::string bytes;
    for (const char c : text) bytes += big ? std::string{'\0', c} : std::string{c, '\0'};
    return bytes;
  };
  for (const bool big : {false, true}) {
    const std::string mark = big ? "\xfe\xff" : "\xff\xfe";
    CHECK(contains(refusal(mark + utf16("Hello", big)), " is UTF-16, by its byte order mark. "));
    CHECK(
        contains(refusal(utf16("Hello, text.", big)), " is UTF-16, as every other byte is zero."));
  }
  CHECK(contains(refusal("one\ntwo \xe9t\xe9"),
                 ": byte 8, in line 2, begins no character. Convert the file, such as with iconv"));
  CHECK(contains(refusal("cut \xe2\x82"), "byte 4, in line 1"));
  CHECK(refusal(std::string("a zero byte \0 is a character", 28)).empty());
  CHECK(refusal(std::string(3, '\0')).empty());
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
      "Pass GPT-2's vocab.json and merges.txt, in this order, or one tokenizer.json"));
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

// tokenizer.json of Hugging Face against its package tokenizers
// (tests/fixtures/pytorch/tokenizer_fixtures.py), with damaged and unsupported files; training.

namespace halftone::test::tokenizer_json_test {

using data::BytePairTokenizer, data::Splitting, data::first_word;
using nlohmann::json;

namespace {
std::filesystem::path file_of(const std::string& name) {
  return std::filesystem::path(test::fixtures_directory()) / "tokenizers" / name;
}

/// Returns how many strings of a file encode otherwise than the package did; shows the first.
int different_in(const BytePairTokenizer& tokenizer, const std::filesystem::path& lines) {
  std::istringstream text(read_file(lines));
  int different = 0, count = 0;
  for (std::string line; std::getline(text, line); ++count) {
    const json one = json::parse(line);
    const auto string = one.at("text").get<std::string>();
    const std::vector<int64_t> tokens = tokenizer.encode(string);
    if (tokens == one.at("tokens").get<std::vector<int64_t>>()) continue;
    if (different++ == 0) MESSAGE("differs: ", line, " got ", json(tokens).dump());
  }
  CHECK(count > 300);
  return different;
}

/// Returns the message for a file with this content; empty if it is accepted.
std::string message_for(const std::string& content) {
  static const TemporaryDirectory directory;
  write_file(directory / "tokenizer.json", content);
  return message_of<FormatError>([&] {
    const BytePairTokenizer tokenizer(directory / "tokenizer.json");
    const std::string text = "half precision\n\x01\xff 12";  // an accepted tokenizer works
    CHECK(tokenizer.decode(tokenizer.encode(text)) == text);
    tokenizer.encode(text, {.add_special_tokens = true});
    tokenizer.save(directory / "again.json");
    CHECK(BytePairTokenizer(directory / "again.json").encode(text) == tokenizer.encode(text));
  });
}

/// Returns the message for a fixture in which an entry is replaced.
std::string message_with(const std::string& pointer, const json& value,
                         const std::string& name = "llama3.json") {
  json file = json::parse(read_file(file_of(name)));
  file[json::json_pointer(pointer)] = value;
  return message_for(file.dump());
}

using Words = std::vector<std::string>;
Words words_of(std::string_view text, Splitting splitting) {
  Words words;
  while (!text.empty()) {
    words.emplace_back(first_word(text, splitting));
    text.remove_prefix(words.back().size());
  }
  return words;
}
}  // namespace

TEST_CASE("tokenizer.json encodes as Hugging Face's tokenizers does") {
  for (const char* name : {"gpt2", "llama3", "qwen2"}) {
    CAPTURE(name);
    const BytePairTokenizer tokenizer(file_of(name + std::string(".json")));
    CHECK(different_in(tokenizer, file_of(name + std::string(".jsonl"))) == 0);
    if (const char* more = std::getenv("HALFTONE_TOKENIZER_STRINGS"))
      CHECK(different_in(tokenizer, std::filesystem::path(more) / (std::string(name) + ".jsonl")) ==
            0);
  }
}

TEST_CASE("decoding undoes encoding, except that Qwen2's file asks for the form C") {
  for (const char* name : {"gpt2", "llama3", "qwen2"}) {
    CAPTURE(name);
    const BytePairTokenizer tokenizer(file_of(name + std::string(".json")));
    std::istringstream text(read_file(file_of(name + std::string(".jsonl"))));
    for (std::string line; std::getline(text, line);) {
      const auto string = json::parse(line).at("text").get<std::string>();
      if (contains(string, "<tool>")) continue;  // takes the spaces next to it
      const bool normalized = name == std::string("qwen2");
      CHECK(tokenizer.decode(tokenizer.encode(string)) ==
            (normalized ? data::nfc(string) : string));
    }
  }
}

TEST_CASE("Llama 3's and Qwen2's words") {
  const auto llama3 = [](std::string_view text) { return words_of(text, Splitting::llama3); };
  CHECK(llama3("don't WE'LL x'\u017f '\u017f") ==
        Words{"don", "'t", " WE", "'LL", " x", "'\u017f", " '", "\u017f"});
  CHECK(llama3("1234567") == Words{"123", "456", "7"});
  CHECK(words_of("123 4", Splitting::qwen2) == Words{"1", "2", "3", " ", "4"});
  CHECK(llama3("(abc) \tx") == Words{"(abc", ")", " ", "\tx"});
  CHECK(llama3("a.\n\n b") == Words{"a", ".\n\n", " b"});
  CHECK(llama3("a  \n \n  b") == Words{"a", "  \n \n", " ", " b"});
  CHECK(llama3("   ") == Words{"   "});
  CHECK(llama3("x  ") == Words{"x", "  "});
  CHECK(llama3(" \r\n!") == Words{" \r\n", "!"});
  CHECK(llama3("\xff"
               "a\xff") == Words{"\xff"
                                 "a",
                                 "\xff"});
  CHECK(llama3(" \u00a0 x") == Words{" \u00a0", " x"});
}

TEST_CASE("the form C") {
  CHECK(data::nfc("e\u0301 a\u0323\u030a") == "é \u1ea1\u030a");
  CHECK(data::nfc("a\u030a\u0323") == "\u1ea1\u030a");
  CHECK(data::nfc("\u1112\u1161\u11ab\u1100\u1161") == "한가");
  CHECK(data::nfc("\u212b\u2126\u0344\u0958") == "\u00c5\u03a9\u0308\u0301\u0915\u093c");
  CHECK(data::nfc("\u0301e\xff\u0301") == "\u0301e\xff\u0301");
  CHECK(data::nfc("") == "");
  // Twice is once, and marks in any order give one result, on random letters and marks.
  std::mt19937 random(3);
  const char32_t characters[] = {'a',    'e',    0x301,   0x323,  0x30a,  0x316,
                                 0x1100, 0x1161, 0x11a8,  0xac00, 0x1e9b, 0x9c7,
                                 0x9be,  0x9d7,  0x1d15e, 0x3b1,  0x345};
  for (int i = 0; i < 2000; ++i) {
    std::string text;
    for (unsigned n = random() % 8; n > 0; --n)
      data::append_utf8(text, characters[random() % std::size(characters)]);
    CHECK(data::nfc(data::nfc(text)) == data::nfc(text));
  }
}

TEST_CASE("the template's tokens are an option of encode") {
  const BytePairTokenizer llama3(file_of("llama3.json"));
  const int64_t start = *llama3.token("<|start|>");
  std::vector<int64_t> expected = llama3.encode("half the loss");
  expected.insert(expected.begin(), start);
  CHECK(llama3.encode("half the loss", {.add_special_tokens = true}) == expected);
  CHECK(llama3.encode("<|start|>half the loss") == expected);
  CHECK(llama3.encode("", {.add_special_tokens = true}) == std::vector<int64_t>{start});
  CHECK(llama3.added_tokens().size() == 2);
  CHECK(llama3.splitting() == Splitting::llama3);
  const BytePairTokenizer gpt2(file_of("gpt2.json"));
  CHECK(gpt2.encode("x", {.add_special_tokens = true}) == gpt2.encode("x"));
}

TEST_CASE("a saved tokenizer.json encodes as the file it came from") {
  const TemporaryDirectory directory;
  for (const char* name : {"gpt2", "llama3", "qwen2"}) {
    CAPTURE(name);
    const BytePairTokenizer tokenizer(file_of(name + std::string(".json")));
    tokenizer.save(directory / "a.json");
    const BytePairTokenizer again(directory / "a.json");
    CHECK(different_in(again, file_of(name + std::string(".jsonl"))) == 0);
    CHECK(again.encode("x", {.add_special_tokens = true}) ==
          tokenizer.encode("x", {.add_special_tokens = true}));
    again.save(directory / "b.json");
    CHECK(read_file(directory / "a.json") == read_file(directory / "b.json"));
  }
}

TEST_CASE("what halftone does not support in tokenizer.json is refused by name") {
  const auto refused = [](const std::string& pointer, const json& value, const char* part,
                          const char* name = "llama3.json") {
    CAPTURE(pointer);
    const std::string message = message_with(pointer, value, name);
    CAPTURE(message);
    CHECK(contains(message, "tokenizer.json"));
    CHECK(contains(message, part));
  };
  refused("/model/type", "WordPiece", "/model/type: halftone does not support the type");
  refused("/model/dropout", 0.1, "/model/dropout: ");
  refused("/model/end_of_word_suffix", "</w>", "/model/end_of_word_suffix: ");
  refused("/model/ignore_merges", 1, "/model/ignore_merges: expected true or false");
  refused("/normalizer", {{"type", "NFKC"}}, "does not support the type \"NFKC\", only NFC");
  refused("/pre_tokenizer", {{"type", "Whitespace"}}, "\"Whitespace\", only ByteLevel, Sequence");
  refused("/pre_tokenizer/pretokenizers/0/pattern/Regex", R"(\w+)", "the expression is none of");
  refused("/pre_tokenizer/pretokenizers/0/behavior", "Removed", "must be \"Isolated\"");
  refused("/pre_tokenizer/pretokenizers/1/use_regex", true, "split twice");
  refused("/pre_tokenizer/add_prefix_space", true,
          "/pre_tokenizer/add_prefix_space: ", "gpt2.json");
  refused("/post_processor", {{"type", "BertProcessing"}}, "\"BertProcessing\"");
  refused("/post_processor/processors/1/single/0/SpecialToken/id", "<s>",
          "there is no special token \"<s>\"");
  refused("/post_processor/processors/1/special_tokens/<|start|>/ids/0", 100000, "/ids/0: ");
  refused("/decoder", {{"type", "Metaspace"}}, "\"Metaspace\"");
  refused("/truncation", {{"max_length", 5}}, "/truncation: ");
  refused("/added_tokens/0/single_word", true, "/added_tokens/0/single_word: ");
  refused("/added_tokens/0/content", "", "\"content\" is empty");
  refused("/added_tokens/0/content", "<|end|>", "occurs twice");
  refused("/added_tokens/1/id", 5000, "expected its number in the vocabulary, or the next one");
  refused("/added_tokens/1/id", -1, "/added_tokens/1/id: ");
  refused("/model/vocab/the", 10000000, "has the number 10000000");
  refused("/model/vocab/new", "x", "token \"new\" has a string where its number belongs");
  refused("/model/merges/0", json::array({"a"}), "merge 0 has 1 tokens and not two");
  refused("/model/merges/0", json::array({"a", "q", "z"}), "has 3 tokens");
  refused("/model/merges/0", json::array({"q", "q"}), "the vocabulary does not have");
  refused("/model/merges/0", 7, "merge 0 has a number where its tokens belong");
  refused("/model/merges/0", "a b c", "not two tokens with a space");
}

TEST_CASE("entries of tokenizer.json without an effect are accepted") {
  CHECK(message_with("/model/unk_token", "").empty());
  CHECK(message_with("/model/continuing_subword_prefix", "").empty());
  CHECK(message_with("/model/dropout", 0).empty());
  CHECK(message_with("/post_processor", nullptr).empty());
  CHECK(message_with("/post_processor/processors/0/add_prefix_space", true).empty());
  json older = json::parse(read_file(file_of("gpt2.json")));
  older["model"].erase("type");
  older["pre_tokenizer"].erase("use_regex");
  older.erase("normalizer"), older.erase("truncation");
  CHECK(message_for(older.dump()).empty());
}

TEST_CASE("malformed tokenizer.json files are refused") {
  CHECK(contains(message_for(""), "not JSON from byte"));
  CHECK(contains(message_for("[]"), "it has no \"model\""));
  CHECK(contains(message_for("{}"), "it has no \"model\""));
  CHECK(contains(message_for("7"), "it has no \"model\""));
  CHECK(contains(message_for(R"({"model": []})"), "it has no \"model\""));
  CHECK(contains(message_for(R"({"model": {}})"), "no entry \"pre_tokenizer\""));
  CHECK(contains(message_for(R"({"model": {}, "model": {}})"), "occurs twice in one object"));
  CHECK(contains(message_for(std::string(100000, '[')), "more than 32 levels"));
  CHECK(contains(message_for("{\"a\":[" + std::string(3000000, '0') + "]}"), "tokenizer.json"));
  std::string list = "[0";
  for (int i = 0; i < 1100000; ++i) list += ",0";
  CHECK(contains(message_for(list + "]"), "more than 2^20 values"));
  const std::string good = read_file(file_of("qwen2.json"));
  CHECK(contains(message_for(good + '\0' + "x"), "a zero byte"));
  CHECK(contains(MESSAGE_OF(FormatError, BytePairTokenizer("/none")),
                 "[BytePairTokenizer] no such file: /none"));
  std::mt19937 random(5);
  int refused = 0;
  for (const char* name : {"gpt2.json", "llama3.json", "qwen2.json"}) {
    const std::string whole = read_file(file_of(name));
    for (int i = 0; i < 150; ++i) refused += !message_for(mutated(whole, random)).empty();
    for (std::size_t length = 0; length < whole.size() - 2; length += 97)
      refused += !message_for(whole.substr(0, length)).empty();
  }
  CHECK(refused > 200);
}

TEST_CASE("long runs cost no square of their length, with each splitting") {
  for (const char* name : {"gpt2", "llama3", "qwen2"}) {
    const BytePairTokenizer tokenizer(file_of(name + std::string(".json")));
    for (const char* unit : {"the", " ", "\n", "7", "!", "<|", "e\u0301", "\u0301"}) {
      CAPTURE(unit);
      std::string text;
      while (text.size() < 300000) text += unit;
      const auto start = std::chrono::steady_clock::now();
      tokenizer.encode(text);
      CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(20));
    }
  }
}

TEST_CASE("a vocabulary trained here is the one that tokenizers learns") {
  // The fixture was trained on this text, and merges are in the order in which they were learned.
  const json cases = json::parse(
      read_file(std::filesystem::path(test::fixtures_directory()) / "byte_pairs/expected.json"));
  const auto corpus = cases.back().at("text").get<std::string>();
  const TemporaryDirectory directory;
  const auto parts_of = [&](const data::BytePairTraining& options) {
    BytePairTokenizer::train(corpus, options).save(directory / "trained.json");
    return json::parse(read_file(directory / "trained.json"));
  };
  json gpt2 = json::parse(read_file(file_of("gpt2.json")));
  json merges = json::array();
  for (const json& merge : gpt2["model"]["merges"]) {
    const auto text = merge.get<std::string>();
    merges.push_back({text.substr(0, text.find(' ')), text.substr(text.find(' ') + 1)});
  }
  const json mine = parts_of({.vocabulary_size = 380, .special_tokens = {"<|endoftext|>"}});
  CHECK(mine["model"]["vocab"] == gpt2["model"]["vocab"]);
  CHECK(mine["model"]["merges"] == merges);
  CHECK(mine["added_tokens"] == gpt2["added_tokens"]);
  CHECK(mine["pre_tokenizer"] == gpt2["pre_tokenizer"]);
  const json qwen2 = json::parse(read_file(file_of("qwen2.json")));
  const json other = parts_of({.vocabulary_size = 380, .splitting = Splitting::qwen2});
  CHECK(other["model"]["vocab"] == qwen2["model"]["vocab"]);
  CHECK(other["model"]["merges"] == qwen2["model"]["merges"]);
  CHECK(other["pre_tokenizer"] == qwen2["pre_tokenizer"]);
}

TEST_CASE("training ends when no pair is frequent enough, and counts by words") {
  const auto ab = BytePairTokenizer::train("ab ab ab cd", {.min_frequency = 2});
  CHECK(ab.vocabulary_size() == 256 + 2);  // "ab", then " ab" (twice)
  CHECK(ab.token("ab"));
  CHECK(ab.token(" ab"));
  CHECK_FALSE(ab.token("cd"));
  CHECK(ab.encode("ab ab").size() == 2);
  CHECK(BytePairTokenizer::train("", {}).vocabulary_size() == 256);
  const auto longest = BytePairTokenizer::train("aaaaaaaa", {.min_frequency = 1});
  CHECK(longest.encode("aaaaaaaa").size() == 1);
  const auto special =
      BytePairTokenizer::train("abc", {.min_frequency = 5, .special_tokens = {"<|x|>", "é-"}});
  CHECK(special.encode("a<|x|>é-") == std::vector<int64_t>{*special.token("a"), 0, 1});
  CHECK(special.decode(std::vector<int64_t>{1, 0}) == "é-<|x|>");
}

TEST_CASE("options of a training that contradict each other are refused") {
  const auto refusal = [](const data::BytePairTraining& options) {
    return message_of<UsageError>([&] { BytePairTokenizer::train("a", options); });
  };
  CHECK(refusal({.vocabulary_size = 255}) ==
        "[BytePairTokenizer] the size of the vocabulary is 255. Give a number from 256, for the "
        "bytes and the special tokens, to 2^24.");
  CHECK(contains(refusal({.vocabulary_size = 256, .special_tokens = {"<a>"}}), "from 257"));
  CHECK(contains(refusal({.min_frequency = 0}), "min_frequency is 0"));
  CHECK(contains(refusal({.special_tokens = {""}}), "fewer than two characters"));
  CHECK(contains(refusal({.special_tokens = {"é"}}), "fewer than two characters"));
  CHECK(contains(refusal({.special_tokens = {"\xff\xff"}}), "is not UTF-8"));
  CHECK(contains(refusal({.special_tokens = {"<a>", "<a>"}}), "is given twice"));
}

}  // namespace halftone::test::tokenizer_json_test
