// Text: files, splits, windows, the tokenizer of characters.
#include <doctest/doctest.h>

#include <halftone/data/data_loader.h>
#include <halftone/data/text.h>

#include "../support.h"

#include <halftone/core/factory.h>

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
  CHECK(contains(message_of<FormatError>([&] { read_text(directory / "none"); }),
                 "[read_text] no such file: "));
  write_file(path, "12345");
  CHECK(read_text(path, 5) == "12345");
  CHECK(contains(message_of<FormatError>([&] { read_text(path, 4); }),
                 "[read_text] the file is too large"));
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
      message_of<UsageError>([&] { tokenizer.encode("abz"); }) ==
      "[CharacterTokenizer] unknown character: 'z' (U+007A) at byte 2 is none of the 2 characters "
      "of the vocabulary. Build the vocabulary from all of the text.");
  CHECK(contains(message_of<UsageError>([&] { tokenizer.encode("\n"); }), "U+000A at byte 0"));
  CHECK(contains(message_of<UsageError>([&] { tokenizer.encode("é"); }), "'é' (U+00E9)"));
  CHECK(message_of<UsageError>([&] {
          tokenizer.decode(std::vector<int64_t>{0, 2});
        }) ==
        "[CharacterTokenizer] there is no token 2: the vocabulary has 2. Pass tokens from 0 "
        "to vocabulary_size() - 1.");
  CHECK(contains(message_of<UsageError>([&] { tokenizer.decode(std::vector<int64_t>{-1}); }),
                 "no token -1"));
  // Overlong, a surrogate, above U+10FFFF, cut off, a continuation alone.
  for (const char* bytes : {"\xc0\xaf", "\xe0\x80\xaf", "\xed\xa0\x80", "\xf4\x90\x80\x80",
                            "\xe2\x82", "\x80", "\xff", "\xf0\x9d\x84"}) {
    CHECK(message_of<FormatError>([&] { CharacterTokenizer(std::string("ab") + bytes); }) ==
          "[CharacterTokenizer] the text is not UTF-8: byte 2 begins no character. Convert the "
          "text, or use BytePairTokenizer.");
    CHECK(contains(message_of<FormatError>([&] { tokenizer.encode(bytes); }), "byte 0"));
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
  CHECK(message_of<ShapeError>([] { TextDataset(arange(4), {.context = 4}); }) ==
        "[TextDataset] too few tokens: 4 for a context of 4 and the target after it. Use more text "
        "or less context.");
  CHECK(message_of<UsageError>([] { TextDataset(arange(4), {.context = 0}); }) ==
        "[TextDataset] context is 0 and stride is 0. Give positive numbers of tokens.");
  CHECK(
      contains(message_of<UsageError>([] { TextDataset(arange(4), {.context = 2, .stride = -1}); }),
               "stride is -1"));
  CHECK(message_of<DTypeError>([] { TextDataset(arange(4, i32), {.context = 2}); }) ==
        "[TextDataset] the tokens must be i64: they are [4] i32. Pass the result of tokenize().");
  CHECK(contains(message_of<ShapeError>([] {
                   TextDataset(zeros({2, 2}, i64), {.context = 2});
                 }),
                 "they have 2 dimensions"));
  CHECK(contains(message_of<ShapeError>([] { split_text(Tensor()); }), "they are undefined"));
  CHECK(message_of<UsageError>([] { split_text(arange(4), 1); }) ==
        "[split_text] the fraction is 1. Give a number from 0, below 1.");
  CHECK(contains(message_of<UsageError>([] {
                   const int64_t index = 2;
                   TextDataset(arange(5), {.context = 2}).batch({&index, 1});
                 }),
                 "[Dataset] there is no sample 2: the dataset has 2"));
}

}  // namespace halftone::test::text_test
