// Numbers and tables as experiments print them, and settings that experiments share.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <sstream>

#include <halftone/core/factory.h>
#include <halftone/core/random.h>
#include <halftone/core/tensor.h>
#include <halftone/lab/experiments/experiments.h>
#include <halftone/lab/table.h>
#include <halftone/lab/trial.h>

#include "lab/columns.h"
#include "support.h"

namespace halftone::test::text_table_test {
namespace {

std::string text_of(const lab::Table& table) {
  std::ostringstream text;
  text << table;
  return text.str();
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

TEST_CASE("numbers have significant digits, in the shorter of both notations") {
  CHECK(lab::number(0.0031) == "0.0031");
  CHECK(lab::number(0.000045) == "4.5e-05");
  CHECK(lab::number(123456) == "1.235e+05");
  CHECK(lab::number(123456, 6) == "123456");
  CHECK(lab::number(2.0 / 3, 3) == "0.667");
  CHECK(lab::number(-0.5) == "-0.5");
  CHECK(lab::number(0) == "0");
  CHECK(lab::number(std::numeric_limits<double>::infinity()) == "inf");
  CHECK(lab::number(std::nan("")) == "nan");
}

TEST_CASE("digits after the point, and shares in percent") {
  CHECK(lab::fixed(2.0 / 3, 3) == "0.667");
  CHECK(lab::fixed(-2, 0) == "-2");
  CHECK(lab::fixed(1e20, 1) == "100000000000000000000.0");
  CHECK(lab::fixed(std::numeric_limits<double>::max(), 2).size() < 64);
  CHECK(lab::percent(0.1234) == "12.3 %");
  CHECK(lab::percent(1) == "100.0 %");
  CHECK(lab::percent(-0.005) == "-0.5 %");
}

TEST_CASE("the first column is to the left, all others are to the right, with equal widths") {
  lab::Table table({"head", "x", "wide head"});
  table.row({"a", "12345", "1"});
  table.row({"longest", "1", "2"});
  const auto lines = lines_of(text_of(table));
  REQUIRE(lines.size() == 3);
  for (const std::string& line : lines) {
    CHECK(line.starts_with("  "));
    CHECK(line.size() == lines[0].size());
    CHECK(line.back() != ' ');
  }
  // 2 + 7 (longest) + 2 + 5 (12345) + 2 + 9 (wide head)
  CHECK(lines[0].size() == 27);
  CHECK(lines[1].find("12345") + 5 == lines[2].rfind("1") + 1);
}

TEST_CASE("what is written into a table is read back cell by cell") {
  lab::Table table({"site", "", "loss", "two words"});
  const std::vector<std::vector<std::string>> rows{
      {"a b", "x", "1", ""}, {"", "y", "", "2 %"}, {"c", "", "-3.5", "a, b and c"}};
  for (const auto& row : rows) table.row(row);
  const Columns read(text_of(table));
  REQUIRE(read.columns() == 4);
  REQUIRE(read.rows() == 3);
  for (int i = 0; i < 3; ++i)
    for (int j = 0; j < 4; ++j) CHECK(read.cell(i, j) == rows[std::size_t(i)][std::size_t(j)]);
  CHECK(read.at(2, "loss") == "-3.5");
}

TEST_CASE("rows may be shorter or longer than the heads") {
  lab::Table table({"a", "b"});
  table.row({"only"});
  table.row({"1", "2", "3"});
  const auto lines = lines_of(text_of(table));
  REQUIRE(lines.size() == 3);
  CHECK(lines[1].starts_with("  only"));
  CHECK(lines[2].ends_with("3"));
}

TEST_CASE("cells from files cannot move the cursor or begin lines") {
  lab::Table table({"name", "x"});
  table.row({"\x1b[2J\n\r", "\xff"});
  const std::string text = text_of(table);
  CHECK(lines_of(text).size() == 2);
  CHECK(std::ranges::none_of(text, [](char c) { return c == '\x1b' || c == '\r' || c == '\xff'; }));
}

// --- findings

TEST_CASE("a bar holds at its border and misses beyond it") {
  std::ostringstream text;
  lab::Findings found(text);
  found.within("x", 1, 1, 2), found.within("x", 2, 1, 2);
  found.at_least("x", 1, 1), found.at_most("x", 1, 1), found.exactly("x", 0.1, 0.1);
  CHECK(found.missed() == 0);
  const double above = std::nextafter(2.0, 3.0), below = std::nextafter(1.0, 0.0);
  found.within("x", above, 1, 2), found.within("x", below, 1, 2);
  found.at_least("x", below, 1), found.at_most("x", std::nextafter(1.0, 2.0), 1);
  found.exactly("x", 0.1 + 0.2, 0.3);
  CHECK(found.missed() == 5);
  CHECK(found.checked() == 10);
  found.equal("x", "", "a"), found.different("x", "a", "b");
  CHECK(found.missed() == 6);
  CHECK(lines_of(text.str()).size() == 12);
}

TEST_CASE("findings carry a table and whether minutes may be spent") {
  std::ostringstream text;
  lab::Findings quick(text), thorough(text, true);
  CHECK_FALSE(quick.thorough());
  CHECK(thorough.thorough());
  quick.out() << "a table\n";
  CHECK(text.str() == "a table\n");
  CHECK(quick.checked() == 0);
}

// --- settings of experiments

TEST_CASE("a policy in a line is the policy file of these words") {
  const amp::Strategy strategy = lab::policy_of("mine", "amp-bf16", R"("seed": 7)");
  CHECK(strategy.name == "mine");
  CHECK(strategy.autocast == bf16);
  CHECK(strategy.seed == 7);
  CHECK(lab::policy_of("bare", "fp32", "").name == "bare");
  CHECK_FALSE(message_of<Error>([] { lab::policy_of("x", "fp32", "\"sede\": 1"); }).empty());
}

TEST_CASE("hashes of tensors see bits, shapes, dtypes and the order, and nothing else") {
  const Tensor x = from_vector<float>({1, 2, 3, 4}, {2, 2}), y = from_vector<float>({5}, {1});
  const auto hash = [](std::vector<Tensor> tensors) { return lab::hash_of(tensors); };
  const std::string whole = hash({x, y});
  CHECK(whole.size() == 16);
  CHECK(whole.find_first_not_of("0123456789abcdef") == std::string::npos);
  CHECK(hash({x.clone(), y.clone()}) == whole);
  CHECK(hash({y, x}) != whole);
  CHECK(hash({x}) != whole);
  CHECK(hash({views::reshaped(x, {4}), y}) != whole);
  CHECK(hash({x.to(bf16), y}) != whole);
  CHECK(hash({from_vector<float>({1, 2, 3, std::nextafter(4.0f, 5.0f)}, {2, 2}), y}) != whole);
  CHECK(hash({from_vector<float>({0.0f}, {1})}) != hash({from_vector<float>({-0.0f}, {1})}));
  // The same numbers through other strides.
  const Tensor turned = views::transpose(from_vector<float>({1, 3, 2, 4}, {2, 2}), 0, 1);
  CHECK(hash({turned, y}) == whole);
}

TEST_CASE("root mean square and signal to noise by hand") {
  CHECK(lab::root_mean_square(std::array{3.0, -4.0}) == doctest::Approx(std::sqrt(12.5)));
  CHECK(lab::root_mean_square(std::array{-2.0, 2.0, 2.0}) == 2);
  CHECK(std::isnan(lab::root_mean_square({})));
  const Tensor x = from_vector<float>({3, 4}, {2});
  // sum x^2 = 25, sum of squared errors 0.25: 20 dB.
  CHECK(lab::signal_to_noise(x, from_vector<float>({3, 4.5}, {2})) == doctest::Approx(20));
  CHECK(lab::signal_to_noise(x, from_vector<float>({8, 4}, {2})) == doctest::Approx(0));
  CHECK(std::isinf(lab::signal_to_noise(x, x)));
}

TEST_CASE("a model of weights alone has that one parameter, and gradients that are written") {
  lab::Weights model(from_vector<float>({1, 2}, {2}));
  const auto named = model.named_parameters();
  REQUIRE(named.size() == 1);
  CHECK(named.front().first == "w");
  CHECK(named.front().second.to_vector<float>() == std::vector<float>{1, 2});
}

}  // namespace
}  // namespace halftone::test::text_table_test
