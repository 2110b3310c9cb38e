// halftone-lab formats: the numbers of a short format against their encoding, and tables.
#include <doctest/doctest.h>

#include <cmath>
#include <sstream>

#include <halftone/lab/commands/commands.h>

#include "lab/captured.h"
#include "support.h"

namespace halftone::test::formats_test {
namespace {

using lab::FormatsOptions;

std::string said_by(const FormatsOptions& options, int code = 0) {
  const Captured output(std::cout);
  CHECK(lab::run_formats(options) == code);
  return output.text();
}

/// The words of the first line that begins with a name.
std::vector<std::string> line_of(const std::string& text, const std::string& name) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::vector<std::string> found;
    for (std::string word; words >> word;) found.push_back(word);
    if (!found.empty() && found[0] == name) return found;
  }
  return {};
}

/// The numbers that follow "from 0 up:".
std::vector<double> numbers_in(const std::string& text) {
  const std::size_t at = text.find("from 0 up:");
  REQUIRE(at != text.npos);
  std::istringstream in(text.substr(at + 10));
  std::vector<double> numbers;
  for (double x; in >> x;) numbers.push_back(x);
  return numbers;
}

/// Returns the values of codes 0, 1, 2, ... of an encoding without a sign: `exponent_bits`, then
/// `fraction_bits`, up to the largest number.
std::vector<double> decoded(int exponent_bits, int fraction_bits, double largest) {
  const int bias = (1 << (exponent_bits - 1)) - 1, fractions = 1 << fraction_bits;
  std::vector<double> numbers;
  for (int code = 0;; ++code) {
    const int exponent = code / fractions, fraction = code % fractions;
    const double significand = (exponent > 0 ? 1.0 : 0.0) + double(fraction) / fractions;
    const double number = std::ldexp(significand, std::max(exponent, 1) - bias);
    if (number > largest) return numbers;
    numbers.push_back(number);
  }
}

TEST_CASE("every number of a short format is printed, and no other") {
  struct Encoding {
    const char* name;
    int exponent_bits, fraction_bits;
    double largest;
  };
  const Encoding all[] = {{"e4m3", 4, 3, 448}, {"e5m2", 5, 2, 57344}, {"e3m2", 3, 2, 28},
                          {"e2m3", 2, 3, 7.5}, {"e2m1", 2, 1, 6},     {"e3m4", 3, 4, 15.5},
                          {"e4m0", 4, 0, 128}};
  for (const Encoding& e : all) {
    CAPTURE(e.name);
    const auto found = numbers_in(said_by({.names = {e.name}, .samples = 1024}));
    const auto wanted = decoded(e.exponent_bits, e.fraction_bits, e.largest);
    REQUIRE(found.size() == wanted.size());
    for (std::size_t i = 0; i < found.size(); ++i)  // nine digits are printed
      CHECK(std::abs(found[i] - wanted[i]) <= 1e-8 * wanted[i]);
  }
  std::vector<double> fixed;
  for (int i = 0; i < 128; ++i) fixed.push_back(i / 64.0);
  CHECK(numbers_in(said_by({.names = {"int8"}, .samples = 1024})) == fixed);
}

TEST_CASE("numbers are printed of one short format alone") {
  for (const std::vector<std::string>& names :
       std::vector<std::vector<std::string>>{{"bf16"}, {"e4m3", "e5m2"}, {"mxfp8"}, {}}) {
    CAPTURE(names.size());
    CHECK_FALSE(contains(said_by({.names = names, .samples = 1024}), "from 0 up:"));
  }
}

TEST_CASE("a line of a format: bits, significand, exponents, largest, smallest, what is beyond") {
  const std::string text = said_by({.samples = 1024});
  using Words = std::vector<std::string>;
  const auto front = [&](const char* name) {
    Words words = line_of(text, name);
    REQUIRE(words.size() == 10);  // and three ratios
    words.resize(7);
    return words;
  };
  CHECK(front("e4m3") == Words{"e4m3", "8", "4", "-6..8", "448", "0.00195312", "saturates"});
  CHECK(front("e5m2") == Words{"e5m2", "8", "3", "-14..15", "57344", "1.52588e-05", "infinity"});
  CHECK(front("f16") == Words{"f16", "16", "11", "-14..15", "65504", "5.96046e-08", "infinity"});
  CHECK(front("e2m1") == Words{"e2m1", "4", "2", "0..2", "6", "0.5", "saturates"});
}

TEST_CASE("f32 samples are exact in f32, and more bits have less noise") {
  const std::string text = said_by({.samples = 4096});
  const auto ratio = [&](const char* name) { return line_of(text, name).at(7); };
  CHECK(ratio("f32") == "exact");
  // Each significand bit is 6.02 dB: bf16 has 8, tf32 11.
  CHECK(std::stod(ratio("tf32")) - std::stod(ratio("bf16")) ==
        doctest::Approx(3 * 20 * std::log10(2.0)).epsilon(0.02));
  CHECK(std::stod(ratio("bf16")) > std::stod(ratio("e4m3")));
}

TEST_CASE("the same samples give the same table") {
  CHECK(said_by({.names = {"e4m3", "mxfp4"}, .samples = 2048}) ==
        said_by({.names = {"e4m3", "mxfp4"}, .samples = 2048}));
}

TEST_CASE("quantizers and formats go into tables of their own, unknown names are refused") {
  const std::string text = said_by({.names = {"mxfp4", "e4m3"}, .samples = 1024});
  CHECK_FALSE(line_of(text, "formats:").empty());
  CHECK_FALSE(line_of(text, "quantizers:").empty());
  CHECK(line_of(text, "mxfp8").empty());
  CHECK(line_of(said_by({.names = {"e4m3"}, .samples = 1024}), "quantizers:").empty());
  const Captured output(std::cout);
  CHECK(contains(
      message_of<UsageError>([] { lab::run_formats({.names = {"e4m33"}, .samples = 1024}); }),
      "e4m33"));
  CHECK(contains(message_of<UsageError>([] { lab::run_formats({.samples = 1023}); }),
                 "1023 samples are too few"));
}

}  // namespace
}  // namespace halftone::test::formats_test
