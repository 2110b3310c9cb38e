// JSON of runs from other sources: its size is limited before it is parsed.
#include <doctest/doctest.h>

#include <cmath>
#include <utility>
#include <vector>

#include <halftone/lab/table.h>

#include "support.h"

namespace halftone::test::json_input_test {
namespace {

using nlohmann::json;

TEST_CASE("levels and values are counted outside of texts") {
  using lab::is_within_limits;
  const std::string open(lab::most_json_levels, '['), close(lab::most_json_levels, ']');
  CHECK(is_within_limits(""));
  CHECK(is_within_limits(open + close));
  CHECK(is_within_limits(open + close + ',' + open + close));
  CHECK_FALSE(is_within_limits("[" + open + close + "]"));
  CHECK_FALSE(is_within_limits("{" + open));
  CHECK(is_within_limits("\"" + open + open + "\""));
  CHECK(is_within_limits(R"(["\"[[", ")" + open + open + R"(\\"])"));
  CHECK(is_within_limits("]]]]" + open));
  CHECK(is_within_limits(std::string(lab::most_json_values - 1, ',')));
  CHECK_FALSE(is_within_limits(std::string(lab::most_json_values, ',')));
}

TEST_CASE("hostile lines are skipped, hostile documents refused, without memory for them") {
  const TemporaryDirectory directory;
  const std::filesystem::path path = directory / "probe.jsonl";
  write_file(path, "{\"a\": 1}\n" + std::string(std::size_t(1) << 20, '[') + "\n{\"a\": 2}\n" +
                       "{\"a\": \"" + std::string(lab::most_line_bytes, 'x') + "\"}\n");
  int taken = 0;
  CHECK(lab::each_json_line("test", path, [&](const nlohmann::json&) { return ++taken > 0; }) == 2);
  CHECK(taken == 2);
  write_file(path, "{\"a\": " + std::string(100, '[') + std::string(100, ']') + "}");
  CHECK(contains(message_of<FormatError>([&] { lab::read_json("test", path); }),
                 ": more than 64 levels of braces and brackets"));
  write_file(path, "{\"a\": 3}");
  CHECK(lab::read_json("test", path)["a"] == 3);
  std::filesystem::resize_file(path, lab::most_json_bytes + 1);
  CHECK(contains(message_of<FormatError>([&] { lab::read_json("test", path); }),
                 "At most 33554432 make sense."));
}

TEST_CASE("the value that is one too many is found wherever it is") {
  using lab::is_within_limits;
  const std::string values(lab::most_json_values - 2, ',');  // with brackets: the maximum
  CHECK(is_within_limits("[" + values + "]"));
  CHECK_FALSE(is_within_limits("[[" + values + "]]"));
  CHECK(is_within_limits("[\"" + values + values + "\"]"));
  // A string that is not closed hides the rest, and a parser refuses it.
  CHECK(is_within_limits("\"" + std::string(1000, '[')));
  CHECK(is_within_limits("\"\\"));
}

TEST_CASE("numbers: finite ones of an object, and nothing else") {
  const json object = json::parse(R"({"whole": 3, "negative": -2, "large": 18446744073709551615,
      "small": 5e-324, "text": "3", "yes": true, "none": null, "list": [3], "object": {"a": 3}})");
  CHECK(lab::number_in(object, "whole") == 3.0);
  CHECK(lab::number_in(object, "negative") == -2.0);
  CHECK(lab::number_in(object, "large") == 0x1p64);
  CHECK(lab::number_in(object, "small") == 5e-324);
  for (const char* key : {"text", "yes", "none", "list", "object", "absent", ""}) {
    CAPTURE(key);
    CHECK_FALSE(lab::number_in(object, key));
    CHECK_FALSE(lab::count_in(object, key));
  }
  CHECK_FALSE(lab::number_in(json{{"x", HUGE_VAL}}, "x"));
  CHECK_FALSE(lab::number_in(json{{"x", NAN}}, "x"));
  for (const json& other : {json(), json(3), json("x"), json::array({1})})
    CHECK_FALSE(lab::number_in(other, "x"));
}

TEST_CASE("counts: from 0 to 2^53, without a fraction") {
  const auto count = [](const json& value) { return lab::count_in(json{{"x", value}}, "x"); };
  CHECK(count(0) == 0);
  CHECK(count(7.9) == 7);
  CHECK(count(9007199254740992) == int64_t(1) << 53);
  CHECK_FALSE(count(9007199254740994));
  CHECK_FALSE(count(-1));
  CHECK_FALSE(count(-0.5));
  CHECK_FALSE(count(1e300));
}

TEST_CASE("texts, lists and objects are empty where there are none") {
  const json object = json::parse(R"({"text": "a", "list": [1, 2], "object": {"b": 1}})");
  CHECK(lab::text_in(object, "text") == "a");
  CHECK(lab::array_in(object, "list").size() == 2);
  CHECK(lab::object_in(object, "object").at("b") == 1);
  for (const char* key : {"text", "list", "object", "absent"}) {
    CAPTURE(key);
    CHECK(lab::text_in(object, key).empty() == (std::string(key) != "text"));
    CHECK(lab::array_in(object, key).empty() == (std::string(key) != "list"));
    CHECK(lab::object_in(object, key).empty() == (std::string(key) != "object"));
  }
  for (const json& other : {json(), json(3), json::array({1})}) {
    CHECK(lab::text_in(other, "x").empty());
    CHECK(lab::array_in(other, "x").is_array());
    CHECK(lab::object_in(other, "x").is_object());
  }
}

TEST_CASE("documents that are no object are refused with their path") {
  const TemporaryDirectory directory;
  const std::filesystem::path path = directory / "x.json";
  const auto refusal = [&](std::string_view text) {
    write_file(path, text);
    const std::string message = message_of<FormatError>([&] { lab::read_json("op", path); });
    CHECK(message.starts_with("[op] " + path.string()));
    return message;
  };
  for (const char* text : {"[]", "3", "null", "\"x\"", "[{}]"}) {
    CAPTURE(text);
    CHECK(contains(refusal(text), ": not a JSON object."));
  }
  for (const std::string_view text :
       {"", "{", "{\"a\": 1,}", "{} {}", "{\"a\": NaN}", "{\"a\": 1e999}", "{\"a\": \"\xff\"}"}) {
    CAPTURE(text);
    CHECK(contains(refusal(text), ": not JSON."));
  }
  CHECK(message_of<FormatError>([&] {
          lab::read_json("op", directory / "none.json");
        }).starts_with("[op] "));
}

TEST_CASE("lines: blank ones do not count, cut and refused ones do") {
  const TemporaryDirectory directory;
  const std::filesystem::path path = directory / "x.jsonl";
  const auto read = [&](std::string_view text) {
    write_file(path, text);
    std::vector<int> seen;
    const int64_t skipped = lab::each_json_line("op", path, [&](const json& line) {
      if (!line.contains("n")) return false;
      seen.push_back(line["n"].get<int>());
      return true;
    });
    return std::pair(skipped, seen);
  };
  using Seen = std::vector<int>;
  CHECK(read("") == std::pair(int64_t(0), Seen{}));
  CHECK(read("\n \n\t\r\n") == std::pair(int64_t(0), Seen{}));
  CHECK(read("{\"n\": 1}\r\n\n{\"n\": 2}") == std::pair(int64_t(0), Seen{1, 2}));
  CHECK(read("{\"n\": 1}\n{\"n\": 2") == std::pair(int64_t(1), Seen{1}));
  CHECK(read("[1]\n{\"m\": 1}\nnull\n\xff\n{\"n\": 3}\n") == std::pair(int64_t(4), Seen{3}));
  CHECK(read("{\"n\": 1} {\"n\": 2}\n") == std::pair(int64_t(1), Seen{}));
  // The longest accepted line, and one byte more.
  const std::string frame = "{\"n\": 5, \"x\": \"\"}";
  const std::string filler(lab::most_line_bytes - frame.size(), 'x');
  CHECK(read("{\"n\": 5, \"x\": \"" + filler + "\"}").first == 0);
  CHECK(read("{\"n\": 5, \"x\": \"" + filler + "x\"}").first == 1);
}

}  // namespace
}  // namespace halftone::test::json_input_test
