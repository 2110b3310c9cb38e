// Checks of experiments: a check that misses is counted and shown, NaN misses every limit.
#include <doctest/doctest.h>

#include <cmath>
#include <sstream>

#include <halftone/lab/experiments/experiments.h>
#include <halftone/lab/table.h>

namespace halftone::test::findings_test {
namespace {

TEST_CASE("a check says value and bar, and counts if it misses") {
  std::ostringstream text;
  lab::Findings found(text);
  found.within("share", 0.5, 0.25, 0.75);
  found.at_least("share", 0.125, 0.25);
  found.equal("hash", "00ff", "00ff");
  found.different("hash", "00ff", "00ff");
  CHECK(text.str() ==
        "  ok      share: 0.5, bar 0.25 to 0.75\n"
        "  MISSED  share: 0.125, bar at least 0.25\n"
        "  ok      hash: 00ff, bar 00ff\n"
        "  MISSED  hash: 00ff, bar other than 00ff\n");
  CHECK(found.checked() == 4);
  CHECK(found.missed() == 2);
}

TEST_CASE("NaN misses every bar") {
  std::ostringstream text;
  lab::Findings found(text);
  found.within("x", NAN, -HUGE_VAL, HUGE_VAL);
  found.at_least("x", NAN, -HUGE_VAL);
  found.at_most("x", NAN, HUGE_VAL);
  found.exactly("x", NAN, NAN);
  CHECK(found.missed() == 4);
}

TEST_CASE("columns of a table are as wide as what is in them") {
  lab::Table table({"name", "a"});
  table.row({"x", "1.25"});
  std::ostringstream text;
  text << table;
  CHECK(text.str() == "  name     a\n  x     1.25\n");
}

}  // namespace
}  // namespace halftone::test::findings_test
