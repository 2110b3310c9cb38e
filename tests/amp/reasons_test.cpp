// Reasons: one for every operation of a policy, under the class that the operation itself asks for.
#include <doctest/doctest.h>

#include <set>
#include <string>

#include <halftone/amp/policy.h>
#include <halftone/amp/reasons.h>

namespace halftone::test::reasons_test {
namespace {

TEST_CASE("every operation has one reason, under the class that it asks for") {
  const amp::Policy asked;
  std::set<std::string_view> seen;
  for (const amp::Reason& reason : amp::reasons()) {
    CAPTURE(reason.why);
    CHECK(reason.why.size() > 5);
    CHECK(reason.why.size() < 100);
    for (const std::string_view op : reason.operations) {
      CAPTURE(op);
      CHECK(asked[op].cast_class == reason.cast_class);
      CHECK(seen.insert(op).second);
    }
  }
  for (const std::string_view op : amp::Policy::operations()) {
    CAPTURE(op);
    CHECK(seen.contains(op));
  }
  CHECK(amp::reason_of("sum") != amp::reason_of("mean"));
  CHECK(amp::reason_of("swish_gate").empty());
}

}  // namespace
}  // namespace halftone::test::reasons_test
