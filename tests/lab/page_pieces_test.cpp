// Pieces of the report's page and of drawings: structure, escaping, names that are folded.
#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <map>
#include <sstream>

#include <halftone/core/formats/number_format.h>
#include <halftone/lab/draw/html.h>
#include <halftone/lab/draw/svg.h>
#include <halftone/lab/identity.h>
#include <halftone/lab/report/report.h>
#include <halftone/lab/statistics.h>
#include <halftone/lab/table.h>
#include <halftone/policy/policy.h>

#include "lab/pages.h"
#include "support.h"

namespace halftone::test::page_pieces_test {
namespace {

using lab::html::escaped;
using lab::html::shortened;
using Names = std::vector<std::string>;

Page page_of(const std::string& text) { return PageReader(text).read(); }

// --- HTML

TEST_CASE("escaping leaves what a page can hold, and is undone by a reader") {
  for (const char* text : {"", "plain", "tab\tline\n", "ä≠漢\U0001F600", "100 % ± 1"})
    CHECK(escaped(text) == text);
  CHECK(escaped("&amp;") == "&amp;amp;");  // text, although it looks like markup
  CHECK(page_of("<p title=\"" + escaped("\"><b>") + "\">" + escaped("</p><i>") + "</p>").tags ==
        std::multiset<std::string>{"p"});
}

TEST_CASE("every byte, alone and after others, leaves a well-formed page") {
  for (int a = 0; a < 256; ++a)
    for (const int b : {0, 9, 34, 38, 60, 65, 0x80, 0xbf, 0xc3, 0xe2, 0xf0, 0xff}) {
      const std::string text{char(a), char(b), char(a), 'x'};
      CAPTURE(a);
      CAPTURE(b);
      CHECK(page_of("<p id=\"" + escaped(text) + "\">" + escaped(text) + "</p>").mistake == "");
    }
}

TEST_CASE("shortened texts have as many characters as are asked for, from both ends") {
  for (const std::size_t most : {3, 4, 5, 10, 99}) {
    const std::string text(100, 'x');
    CHECK(shortened("a" + text + "z", most).size() == most - 1 + std::string("…").size());
    CHECK(shortened("a" + text + "z", most).front() == 'a');
    CHECK(shortened("a" + text + "z", most).back() == 'z');
  }
  CHECK(shortened("", 3) == "");
  CHECK(shortened("abc", 3) == "abc");
  CHECK(shortened("漢字漢字漢字", 6) == "漢字漢字漢字");
  CHECK(shortened("\xff\xff\xff\xff", 3) == "\xff…\xff");
}

TEST_CASE("tables: a row for each row, a cell for each cell") {
  lab::html::Table table({"a", "b", "c"}, 2);
  CHECK(table.rows() == 0);
  table.row({"1", "2", "3"}), table.row({"<b>4</b>", "5", "6"});
  CHECK(table.rows() == 2);
  const Page page = page_of(table.text());
  CHECK(page.mistake == "");
  CHECK(page.tags.count("tr") == 3);
  CHECK(page.tags.count("th") == 3 + 2);  // the heads, and the first cell of each row
  CHECK(page.tags.count("td") == 4);
  CHECK(page.tags.count("b") == 1);
}

TEST_CASE(
    "heat maps: names are escaped, strengths become nine levels, and none has no background") {
  const auto map_of = [](double strength) {
    return lab::html::heat_map("c", {"h"}, {{"n", {{"t", "", strength}}}});
  };
  const std::pair<double, int> levels[] = {{0, 0},    {0.05, 0}, {0.07, 1}, {0.5, 4},
                                           {0.93, 7}, {0.94, 8}, {1, 8},    {7, 8}};
  for (const auto& [strength, level] : levels) {
    CAPTURE(strength);
    CHECK(contains(map_of(strength), "<td class=\"h" + std::to_string(level) + "\">"));
  }
  CHECK(contains(map_of(-1), "<td>t</td>"));
  const Page page = page_of(
      lab::html::heat_map("c", {"<h>", "i"}, {{"<n>", {{"t", "\"<&", 0.5}, {}}}, {"m", {{}, {}}}}));
  CHECK(page.mistake == "");
  CHECK(page.tags.count("td") == 4);
  CHECK(page.tags.count("n") + page.tags.count("h") == 0);
}

TEST_CASE("documents, paragraphs and figures") {
  const Page page = page_of(lab::html::document("<t>", lab::html::paragraph("<p> & \"q\"")));
  CHECK(page.mistake == "");
  CHECK(page.tags.count("p") == 1);
  CHECK(page.tags.count("t") == 0);
  CHECK(page.tags.count("body") == 1);
  CHECK(page.links.empty());
  CHECK(lab::html::figures({}).empty());
  CHECK(lab::html::figures({"", ""}).empty());
  CHECK(page_of(lab::html::figures({"<svg></svg>", "", "<svg></svg>"})).tags.count("figure") == 2);
  CHECK(page_of(lab::absent("<x>", "a && b")).mistake == "");
  CHECK(page_of(lab::defined("<x>", "rounding")).links == Names{"#def-rounding"});
}

TEST_CASE("every definition that a panel links to is defined once") {
  const Page page = page_of("<div>" + lab::definition_panel({}) + "</div>");
  CHECK(page.mistake == "");
  CHECK(page.tags.count("dt") == page.tags.count("dd"));
  for (const std::string& id : page.ids) CHECK(page.ids.count(id) == 1);
}

// --- names of sites, intervals

TEST_CASE("numbers that stand alone in a site's name become #") {
  using lab::without_numbers;
  CHECK(without_numbers("h.0.mlp/linear.12") == "h.#.mlp/linear.#");
  CHECK(without_numbers("0") == "#");
  CHECK(without_numbers("12/linear.0") == "#/linear.#");
  CHECK(without_numbers("conv1.2x.x2") == "conv1.2x.x2");
  CHECK(without_numbers("") == "");
  CHECK(without_numbers("a..1.") == "a..#.");
}

TEST_CASE("names that differ in one number fold into a range") {
  using lab::folded;
  CHECK(folded({"h.3.mlp"}) == "h.3.mlp");
  CHECK(folded({"h.0.mlp", "h.1.mlp", "h.2.mlp"}) == "h.{0-2}.mlp (3)");
  CHECK(folded({"h.9/linear.0", "h.10/linear.0"}) == "h.{9-10}/linear.0 (2)");
  CHECK(folded({"h.10.a", "h.11.a", "h.12.a"}) == "h.{10-12}.a (3)");
  CHECK(folded({"0", "1"}) == "{0-1} (2)");
  CHECK(folded({"h.0.a.0", "h.1.a.1"}) == "h.0.a.0 ... (2)");  // two numbers: no range
  CHECK(folded({"a", "b"}) == "a ... (2)");
  CHECK(folded({"a", "a.1"}) == "a ... (2)");
}

TEST_CASE("intervals as text: a sign, percent, and no interval of one number") {
  CHECK(lab::interval_text({}) == "-");
  CHECK(lab::interval_text({0.25}) == "+25 %");
  CHECK(lab::interval_text({-0.125}) == "-12.5 %");
  CHECK(lab::interval_text({0, 0}) == "0 ± 0 %");
  const std::vector<double> shares{0.01, 0.02, 0.06};
  // Mean 0.03, s^2 = (0.0004 + 0.0001 + 0.0009) / 2, t(2) = 4.303.
  const double half = 4.303 * std::sqrt(0.0007 / 3);
  CHECK(lab::interval_text(shares) == "+3 ± " + lab::number(100 * half, 2) + " %");
}

// --- drawings

TEST_CASE("marks and words are elements whose texts are escaped") {
  const std::string mark = lab::svg::mark("rect", "x=\"1\"", "<a>");
  CHECK(page_of(mark).tags == std::multiset<std::string>{"rect", "title"});
  CHECK(page_of(lab::svg::mark("rect", "x=\"1\"", "")).tags == std::multiset<std::string>{"rect"});
  CHECK(page_of(lab::svg::words(1, 2, "end", "<a>&")).tags == std::multiset<std::string>{"text"});
  for (int style = 0; style < 7; ++style)
    CHECK(page_of("<path d=\"" + lab::svg::shape_path(style, 1, 2, 3) + "\"/>").mistake == "");
  for (int style = 0; style < 5; ++style)
    CHECK(lab::svg::shape_path(style, 1, 2, 3) == lab::svg::shape_path(style + 5, 1, 2, 3));
}

TEST_CASE("coordinates have one digit, labels as many as are asked for") {
  CHECK(lab::svg::coordinate(1.25) == "1.3");
  CHECK(lab::svg::coordinate(-0.01) == "0");
  CHECK(lab::svg::coordinate(12) == "12");
  CHECK(lab::svg::coordinate(1e300) == lab::svg::coordinate(1e6));
  CHECK(lab::svg::label_of(1234567) == "1.235e+06");
  CHECK(lab::svg::label_of(0.5) == "0.5");
  CHECK(lab::svg::label_of(-0.0) == "0");
  CHECK(lab::svg::label_of(NAN) == "?");
  CHECK(lab::svg::label_of(-HUGE_VAL) == "-∞");
}

TEST_CASE("a drawing has a curve for each series, a mark for each point, and a legend once") {
  lab::svg::Plot plot{.title = "t"};
  plot.curves.push_back({.name = "a", .points = {{0, 1}, {1, 2}, {2, NAN}, {3, 1}}});
  plot.curves.push_back({.name = "a", .points = {{0, 2}, {1, 1}}});  // of the same style and name
  plot.curves.push_back({.name = "b", .points = {{0, 3}}, .style = 1});
  const std::string text = lab::svg::draw(plot);
  const Page page = page_of(text);
  CHECK(page.mistake == "");
  // The drawing's title, one for each of three curves and of six points.
  CHECK(page.tags.count("title") == 1 + 3 + 6);
  const auto count = [&](std::string_view part) {
    int found = 0;
    for (std::size_t at = 0; (at = text.find(part, at)) != text.npos; ++at) ++found;
    return found;
  };
  CHECK(count(">a</text>") == 1);
  CHECK(count(">b</text>") == 1);
}

TEST_CASE("stacked bars have a piece for each part above 0") {
  lab::svg::Bars bars{
      .title = "t", .unit = "MiB", .parts = {"p", "q"}, .labels = {"A", "B"}, .bars = {}};
  bars.bars = {{"one", {1, 2}}, {"two", {0, 3}}, {"none", {0, NAN}}};
  const Page page = page_of(lab::svg::draw(bars));
  CHECK(page.mistake == "");
  CHECK(page.tags.count("title") == 1 + 3);  // the drawing's own, and one for each piece
  bars.bars = {{"none", {0, 0}}};
  CHECK(page_of(lab::svg::draw(bars)).tags.count("title") == 1);
}

TEST_CASE("ranges of formats: from the smallest to the largest number, in log2") {
  const auto ranges = lab::ranges_of_formats();
  REQUIRE(ranges.size() == std::size(lab::shown_formats));
  const std::map<std::string, std::array<double, 3>> wanted{
      {"f16", {-14, std::log2(65504), -24}},
      {"bf16", {-126, std::log2(255) + 120, -133}},
      {"e4m3", {-6, std::log2(448), -9}},
      {"e5m2", {-14, std::log2(57344), -16}}};
  for (const lab::svg::Range& range : ranges) {
    CAPTURE(range.name);
    const auto& [low, high, faint] = wanted.at(range.name);
    CHECK(range.low == low);
    CHECK(range.high == doctest::Approx(high));
    CHECK(range.faint_low == faint);
  }
}

// --- notes

TEST_CASE("a policy is noted if it is for other models, all of them by name") {
  const auto note = [](Names models, const std::string& workload) {
    policy::PolicyFile file = policy::named_or_read("fp32");
    file.base.name = "p", file.meant_for = std::move(models);
    std::ostringstream out;
    lab::note_other_model(out, file, workload, {{"mine", "", {}, {}}, {"other", "", {}, "gpt"}});
    return out.str();
  };
  const std::string end = ". Its rules may mean other layers.\n";
  CHECK(note({}, "mine").empty());
  CHECK(note({"gpt"}, "gpt_tiny").empty());
  CHECK(note({"mlp", "gpt"}, "other").empty());
  CHECK(note({"mlp"}, "other") == "note: p is for mlp, and other trains gpt" + end);
  CHECK(note({"mlp", "lenet", "resnet"}, "gpt_tiny") ==
        "note: p is for mlp, lenet and resnet, and gpt_tiny trains gpt" + end);
  CHECK(note({"gpt"}, "mine") == "note: p is for gpt, and mine trains a model of its own" + end);
}

}  // namespace
}  // namespace halftone::test::page_pieces_test
