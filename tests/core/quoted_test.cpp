// Text from outside in messages: control characters are escaped, and lists are bounded.
#include <doctest/doctest.h>

#include <vector>

#include <halftone/core/error.h>

namespace halftone::test::quoted_test {
namespace {

TEST_CASE("printable: letters of all languages are unchanged, control characters are escaped") {
  CHECK(printable("weights.0 \"a\\b\" \u00e4 \u4e2d \U0001f600") ==
        "weights.0 \"a\\b\" \u00e4 \u4e2d \U0001f600");
  CHECK(printable("a\nb\tc\r") == "a\\nb\\tc\\x0d");
  CHECK(printable("\x1b[2J\x7f") == "\\x1b[2J\\x7f");
  CHECK(printable(std::string_view("a\0b", 3)) == "a\\x00b");
  CHECK(printable("\u0080\u009b\u009f\u00a0") == "\\u0080\\u009b\\u009f\u00a0");
  CHECK(printable("\u061c\u200e\u200f\u202a\u202e\u2066\u2069") ==
        "\\u061c\\u200e\\u200f\\u202a\\u202e\\u2066\\u2069");
}

TEST_CASE("printable: bytes that are not UTF-8 are escaped one by one") {
  CHECK(printable("\xff\xfe") == "\\xff\\xfe");
  CHECK(printable("\x9b"
                  "2J") == "\\x9b2J");                    // C1 of Latin-1
  CHECK(printable("\xc0\xaf") == "\\xc0\\xaf");           // a long spelling of /
  CHECK(printable("\xe0\x80\x9b") == "\\xe0\\x80\\x9b");  // of U+009B
  CHECK(printable("\xed\xa0\x80") == "\\xed\\xa0\\x80");  // a surrogate
  CHECK(printable("\xf4\x90\x80\x80") == "\\xf4\\x90\\x80\\x80");
  CHECK(printable("\xe2\x80") == "\\xe2\\x80");  // cut off
  for (const char* text : {"\xff", "\x1b", "\u202e"})
    CHECK(printable(printable(text)) == printable(text));
}

TEST_CASE("shortened, in_quotes: characters are not cut in half") {
  CHECK(in_quotes("abc", 3) == "\"abc\"");
  CHECK(in_quotes("abcd", 3) == "\"abc...\"");
  CHECK(shortened("ab\u4e2d", 5) == "ab\u4e2d");
  CHECK(shortened("ab\u4e2d", 4) == "ab...");
  CHECK(shortened("ab\u4e2d", 3) == "ab...");
  CHECK(shortened("\x80\x80\x80\x80\x80\x80", 5) == "\\x80\\x80...");
}

TEST_CASE("listed: the first names, and the number of the others") {
  CHECK(listed(std::vector<std::string>{}).empty());
  CHECK(listed(std::vector<std::string>{"a", "\x1b"}) == "a, \\x1b");
  CHECK(listed(std::vector<std::string>(90'000, "x"), 2) == "x, x and 89,998 more");
  CHECK(listed(std::vector<std::string>(21, "x")).ends_with("x and 1 more"));
  CHECK(listed(std::vector<std::string>(1'000'020, "x")).ends_with("x and 1,000,000 more"));
  CHECK(listed(std::vector<std::string>{std::string(100'000, 'x')}).size() == 203);
}

}  // namespace
}  // namespace halftone::test::quoted_test
