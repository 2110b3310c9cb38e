// JSON of runs that is not ours: bounded before it is parsed.
#include <doctest/doctest.h>

#include <halftone/lab/json_input.h>

#include "temporary_directory.h"

namespace halftone::test::json_input_test {
namespace {

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

}  // namespace
}  // namespace halftone::test::json_input_test
