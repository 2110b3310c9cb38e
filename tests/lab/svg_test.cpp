// Plots as text: two whole ones, ticks, and what is hostile in numbers and names.
#include <doctest/doctest.h>

#include <cmath>

#include <halftone/lab/html.h>
#include <halftone/lab/svg.h>

#include "lab/well_formed.h"
#include "temporary_directory.h"

namespace halftone::test {
namespace {

using lab::svg::Plot;

TEST_CASE("a curve, a band and a rule, as text") {
  Plot plot{.title = "a < b"};
  plot.x.label = "step";
  plot.curves.push_back({.name = "fp32", .points = {{0, 1}, {1, 3}, {2, NAN}, {3, 2}, {4, 2}}});
  plot.bands.push_back({.name = "spread", .x = {0, 4}, .low = {1, 1}, .high = {2, 3}, .style = 1});
  plot.rules.push_back({"bar", 2});
  CHECK(lab::svg::draw(plot) == R"()");
}

TEST_CASE("a histogram under a format's range, as text") {
  Plot plot{.title = ""};
  plot.x = {.label = "log2 |x|", .low = -4, .high = 4};
  plot.histograms.push_back({.name = "", .first = -4, .heights = {0, 25, 75}});
  plot.ranges.push_back({"e2m1", 0, 2.5, -1});
  plot.width = 300, plot.height = 150;
  CHECK(lab::svg::draw(plot) == R"()");
}

TEST_CASE("ticks are 1, 2 or 5 times powers of ten, or powers of ten") {
  using lab::svg::ticks;
  CHECK(ticks(0, 60, false, 6) == std::vector<double>{0, 10, 20, 30, 40, 50, 60});
  CHECK(ticks(-0.11, 0.24, false, 5) == std::vector<double>{-0.1, 0, 0.1, 0.2});
  CHECK(ticks(1, 1e6, true, 6) == std::vector<double>{1, 10, 100, 1e3, 1e4, 1e5, 1e6});
  CHECK(ticks(3, 60, true, 5) == std::vector<double>{5, 10, 20, 50});
  CHECK(ticks(2.1, 2.9, true, 4).size() > 1);
  CHECK(ticks(1, 1, false, 5).empty());
  CHECK(ticks(NAN, 1, false, 5).empty());
  CHECK(ticks(-1e308, 1e308, false, 5).size() > 1);
  CHECK(ticks(1e16, 1e16 + 4, false, 5).size() >= 2);
}

TEST_CASE("no number and no name breaks a drawing") {
  const double numbers[] = {0, -1, 1e308, -1e308, 5e-324, NAN, HUGE_VAL, -HUGE_VAL};
  for (const bool logarithmic : {false, true})
    for (const double a : numbers)
      for (const double b : numbers) {
        Plot plot{.title = "<script>&\"'\x01\xFF"};
        plot.x.logarithmic = plot.y.logarithmic = logarithmic;
        plot.curves.push_back({.name = "]]>\xC0\xAF", .points = {{a, b}, {b, a}, {1, 2}}});
        plot.bands.push_back({.name = "<", .x = {a, b}, .low = {a, a}, .high = {b, b}});
        plot.histograms.push_back({.name = "&", .first = a, .width = b, .heights = {a, b}});
        plot.ranges.push_back({"r", a, b, a});
        plot.rules.push_back({"v", a, true});
        const std::string text = lab::svg::draw(plot, lab::svg::Place::file);
        CAPTURE(a);
        CAPTURE(b);
        CHECK(PageReader(text).read().mistake == "");
        CHECK_FALSE(contains(text, "nan"));
        CHECK_FALSE(contains(text, "inf"));
      }
  lab::svg::Bars bars{
      .title = "<", .unit = "&", .parts = {"a", "b"}, .labels = {"A", "B"}, .bars = {}};
  bars.bars.push_back({"<x>", {1e308, 1e308}});
  bars.bars.push_back({"none", {NAN, -1}});
  CHECK(PageReader(lab::svg::draw(bars, lab::svg::Place::file)).read().mistake == "");
}

TEST_CASE("text is escaped, and what is no text replaced") {
  using lab::html::escaped;
  CHECK(escaped("a<b>&\"'") == "a&lt;b&gt;&amp;&quot;&#39;");
  CHECK(escaped("ä≠\U0001F600") == "ä≠\U0001F600");
  const std::string odd = "\uFFFD";
  CHECK(escaped(std::string_view("\0\x07\x7F", 3)) == odd + odd + odd);
  CHECK(escaped("\xC3") == odd);                      // cut off
  CHECK(escaped("\xC0\xAF") == odd + odd);            // / in two bytes
  CHECK(escaped("\xED\xA0\x80") == odd + odd + odd);  // half of a pair
  CHECK(escaped("\xEF\xBF\xBF") == odd);              // U+FFFF
  CHECK(escaped("\xE2\x80\xAE") == odd);              // turns what follows around
}

TEST_CASE("long names keep their begin and end") {
  using lab::html::shortened;
  CHECK(shortened("short", 8) == "short");
  CHECK(shortened("transformer.h.0.mlp", 9) == "tran….mlp");
  CHECK(shortened("äöüäöüäöü", 5) == "äö…öü");
}

}  // namespace
}  // namespace halftone::test
