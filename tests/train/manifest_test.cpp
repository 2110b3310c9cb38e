// The two JSON files of a checkpoint alone: an entry that is not a whole number is named, never
// converted. The rest is in checkpoint_test.cpp.
#include <doctest/doctest.h>

#include <halftone/train/checkpoint.h>

#include "../support.h"

namespace halftone::test::manifest_test {

using train::CheckpointState, train::Manifest;

namespace {
const char* const no_whole_numbers[] = {
    "1.0", "1e3", "1e300", "-0.5", "true", "null", "\"1\"", "[]", "18446744073709551616"};

/// Returns the message of parsing `text` with another value after `field`.
template <class Parse>
std::string message_for(const Parse& parse, std::string text, const std::string& field,
                        const std::string& value) {
  const std::size_t at = text.find(field);
  REQUIRE(at != std::string::npos);
  const std::size_t begin = at + field.size();
  text.replace(begin, text.find_first_of(",\n", begin) - begin, value);
  return message_of<FormatError>([&] { parse(text, "the/file"); });
}
constexpr std::string_view refusal =
    "[checkpoint] something else where a whole number belongs, in the/file. The file is damaged or "
    "no checkpoint's: use another checkpoint.";
}  // namespace

TEST_CASE("a manifest has whole numbers only") {
  const std::string text = train::manifest_text(Manifest{});
  CHECK(train::manifest_text(train::parse_manifest(text, "x")) == text);
  for (const std::string field : {"\"version\": ", "\"bytes\": "})
    for (const char* value : no_whole_numbers) {
      CAPTURE(field + value);
      CHECK(message_for(train::parse_manifest, text, field, value) == refusal);
    }
}

TEST_CASE("a state's step, epoch and batches are whole numbers") {
  const CheckpointState state{.step = 5, .epoch = 1, .batches = 2};
  const std::string text = train::state_text(state);
  CHECK(train::state_text(train::parse_state(text, "x")) == text);
  for (const std::string field : {"\"step\": ", "\"epoch\": ", "\"batches\": "}) {
    for (const char* value : no_whole_numbers) {
      CAPTURE(field + value);
      CHECK(message_for(train::parse_state, text, field, value) == refusal);
    }
    CHECK(message_for(train::parse_state, text, field, "-1") ==
          "[checkpoint] a negative step, epoch or number of batches, in the/file. The file is "
          "damaged or no checkpoint's: use another checkpoint.");
  }
}

}  // namespace halftone::test::manifest_test
