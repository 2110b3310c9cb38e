// Plots as text: two complete plots, ticks, and hostile numbers and names.
#include <doctest/doctest.h>

#include <cmath>

#include <halftone/lab/draw/html.h>
#include <halftone/lab/draw/svg.h>

#include "lab/pages.h"
#include "support.h"

namespace halftone::test::svg_test {
namespace {

using lab::svg::Plot;

TEST_CASE("a curve, a band and a rule, as text") {
  Plot plot{.title = "a < b"};
  plot.x.label = "step";
  plot.curves.push_back({.name = "fp32", .points = {{0, 1}, {1, 3}, {2, NAN}, {3, 2}, {4, 2}}});
  plot.bands.push_back({.name = "spread", .x = {0, 4}, .low = {1, 1}, .high = {2, 3}, .style = 1});
  plot.rules.push_back({"bar", 2});
  CHECK(lab::svg::draw(plot) == R"(<svg class="plot" viewBox="0 0 480 284" role="img">
<title>a &lt; b</title>
<text x="16" y="16" class="head">a &lt; b</text>
<text x="30.2" y="211.9" text-anchor="end" class="small">1</text>
<text x="30.2" y="170" text-anchor="end" class="small">1.5</text>
<text x="30.2" y="128" text-anchor="end" class="small">2</text>
<text x="30.2" y="86" text-anchor="end" class="small">2.5</text>
<text x="30.2" y="44.1" text-anchor="end" class="small">3</text>
<text x="36.2" y="236" text-anchor="middle" class="small">0</text>
<text x="142" y="236" text-anchor="middle" class="small">1</text>
<text x="247.9" y="236" text-anchor="middle" class="small">2</text>
<text x="353.7" y="236" text-anchor="middle" class="small">3</text>
<text x="459.5" y="236" text-anchor="middle" class="small">4</text>
<path class="grid" d="M36.2 207.9H468M36.2 166H468M36.2 124H468M36.2 82H468M36.2 40.1H468M36.2 30V222M142 30V222M247.9 30V222M353.7 30V222M459.5 30V222"/>
<path class="axis" d="M36.2 30V218H468"/>
<text x="252.1" y="253" text-anchor="middle">step</text>
<path class="band f1" d="M36.2 124L459.5 40.1L459.5 207.9L36.2 207.9z"><title>spread</title></path>
<path class="rule" d="M36.2 124H468"><title>bar: 2</title></path>
<path class="l l0" d="M36.2 207.9L142 40.1M353.7 124L459.5 124"><title>fp32</title></path>
<path class="m f0" d="M32.7 207.9a3.5 3.5 0 1 0 7 0a3.5 3.5 0 1 0 -7 0z"><title>fp32, 0: 1</title></path>
<path class="m f0" d="M138.5 40.1a3.5 3.5 0 1 0 7 0a3.5 3.5 0 1 0 -7 0z"><title>fp32, 1: 3</title></path>
<path class="m f0" d="M350.2 124a3.5 3.5 0 1 0 7 0a3.5 3.5 0 1 0 -7 0z"><title>fp32, 3: 2</title></path>
<path class="m f0" d="M456 124a3.5 3.5 0 1 0 7 0a3.5 3.5 0 1 0 -7 0z"><title>fp32, 4: 2</title></path>
<path class="l l0" d="M16 272h20"/>
<path class="m f0" d="M22.5 272a3.5 3.5 0 1 0 7 0a3.5 3.5 0 1 0 -7 0z"/>
<text x="42" y="276">fp32</text>
</svg>
)");
}

TEST_CASE("a histogram under a format's range, as text") {
  Plot plot{.title = ""};
  plot.x = {.label = "log2 |x|", .low = -4, .high = 4};
  plot.histograms.push_back({.name = "", .first = -4, .heights = {0, 25, 75}});
  plot.ranges.push_back({"e2m1", 0, 2.5, -1});
  plot.width = 300, plot.height = 150;
  CHECK(lab::svg::draw(plot) == R"(<svg class="plot" viewBox="0 0 300 172" role="img">
<text x="22.8" y="134" text-anchor="end" class="small">0</text>
<text x="22.8" y="114.4" text-anchor="end" class="small">20</text>
<text x="22.8" y="94.8" text-anchor="end" class="small">40</text>
<text x="22.8" y="75.1" text-anchor="end" class="small">60</text>
<text x="28.8" y="148" text-anchor="middle" class="small">-4</text>
<text x="93.6" y="148" text-anchor="middle" class="small">-2</text>
<text x="158.4" y="148" text-anchor="middle" class="small">0</text>
<text x="223.2" y="148" text-anchor="middle" class="small">2</text>
<text x="288" y="148" text-anchor="middle" class="small">4</text>
<path class="grid" d="M28.8 130H288M28.8 110.4H288M28.8 90.8H288M28.8 71.1H288M28.8 52V134M93.6 52V134M158.4 52V134M223.2 52V134M288 52V134"/>
<path class="axis" d="M28.8 52V130H288"/>
<text x="158.4" y="165" text-anchor="middle">log2 |x|</text>
<rect class="r" x="158.4" y="26" width="81" height="9" rx="2"><title>e2m1: 0 to 2.5</title></rect>
<rect class="rf" x="126" y="26" width="32.4" height="9" rx="2"><title>e2m1, subnormal: from -1</title></rect>
<text x="22.8" y="35" text-anchor="end" class="small">e2m1</text>
<rect class="f0" x="61.2" y="105.5" width="31.9" height="24.5"><title>-3 to -2: 25</title></rect>
<rect class="f0" x="93.6" y="56.4" width="31.9" height="73.6"><title>-2 to -1: 75</title></rect>
</svg>
)");
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
  CHECK(escaped("\xE2\x80\xAE") == odd);              // reverses the direction of writing
}

TEST_CASE("long names keep their begin and end") {
  using lab::html::shortened;
  CHECK(shortened("short", 8) == "short");
  CHECK(shortened("transformer.h.0.mlp", 9) == "tran….mlp");
  CHECK(shortened("äöüäöüäöü", 5) == "äö…öü");
}

TEST_CASE("a forest plot has a bar for each interval, and text that says its numbers") {
  const std::string text = lab::svg::draw(lab::svg::Forest{
      .title = "loss against a<b",
      .unit = "%",
      .axis = "percent",
      .rows = {{"mxfp8", -0.2, 0.26, 1}, {"mxfp4", 2.5, 0.5, 2}, {"one seed", 1, INFINITY, 3}}});
  CHECK(contains(text, "loss against a&lt;b"));
  CHECK(contains(text, "-0.2 ± 0.26 %"));
  CHECK(contains(text, "+2.5 ± 0.5 %"));
  CHECK(contains(text, ">+1 %<"));
  CHECK(contains(text, "class=\"l l1\""));
  CHECK(contains(text, "class=\"l l2\""));
  CHECK_FALSE(contains(text, "class=\"l l3\""));  // one seed has no interval
  CHECK_FALSE(contains(text, "inf"));
  CHECK_FALSE(contains(text, "nan"));
  CHECK(contains(
      lab::svg::draw(lab::svg::Forest{.title = "none", .unit = "%", .axis = "", .rows = {}}),
      "none"));
}

TEST_CASE("up to four bands are filled; more are paler and have an edge") {
  lab::svg::Plot plot;
  for (int i = 0; i < 5; ++i) {
    plot.bands.push_back({.name = "band", .x = {0, 1}, .low = {0, 0}, .high = {1, 1}, .style = i});
    const std::string text = lab::svg::draw(plot);
    CHECK(contains(text, "class=\"band f0\"") == (i < 4));
    CHECK(contains(text, "class=\"many e0 f0\"") == (i == 4));
  }
}

}  // namespace
}  // namespace halftone::test::svg_test
