// halftone-lab vectors: what the files hold, and the comparison with a search over the grid.
#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <sstream>

#include <nlohmann/json.hpp>

#include <halftone/core/error.h>
#include <halftone/lab/commands/vectors.h>

namespace halftone::test::vectors_test {
namespace {

using lab::Vectors;

std::vector<Rounding> all_roundings() {
  std::vector<Rounding> all;
  for (int i = 0; i < rounding_count; ++i) all.push_back(Rounding(i));
  return all;
}

TEST_CASE("vectors of a format have specials, ties and a result for each rounding") {
  const std::vector<float> x = lab::inputs_of(formats::e4m3, 200);
  REQUIRE(x.size() == 200);
  for (const float wanted : {448.0f, -448.0f, 464.0f, 0x1p-10f, 0x1p-149f})
    CHECK_MESSAGE(std::ranges::find(x, wanted) != x.end(), wanted);
  const Vectors vectors = lab::vectors_of("e4m3", {.grid = formats::e4m3}, all_roundings(), 200);
  CHECK(vectors.tensors.size() == 9);  // x, random, seven roundings
  CHECK(vectors.metadata.at("grid.max") == "448");
  const auto to_even = vectors.tensors.at("nearest_even").to_vector<float>();
  for (std::size_t i = 0; i < x.size(); ++i) {
    const bool same = std::bit_cast<uint32_t>(round_to(formats::e4m3, x[i])) ==
                      std::bit_cast<uint32_t>(to_even[i]);
    CHECK_MESSAGE(same, x[i]);
  }
}

TEST_CASE("vectors of a quantizer: a number on the grid times its scales is the result") {
  for (const std::string_view name : ready_made_quantizers()) {
    CAPTURE(name);
    const Quantizer quantizer = *quantizer_named(name);
    const Vectors vectors =
        lab::vectors_of(std::string(name), quantizer, {Rounding::toward_zero}, 100);
    const Tensor& y = vectors.tensors.at("random.toward_zero");
    CHECK(y.numel() >= 100);
    CHECK(y.size(1) % quantizer.scaling.columns != 0);       // the last block is shorter
    CHECK_FALSE(vectors.tensors.contains("random.random"));  // words are for stochastic rounding
    const bool blocks = quantizer.scaling.per == Scaling::Per::block;
    const auto values = y.to_vector<float>();
    for (int64_t i = 0; i < y.numel(); ++i) {
      float scale = 1;
      if (blocks) {
        const Tensor& scales = vectors.tensors.at("random.scale");
        const int64_t row = i / y.size(1), column = i % y.size(1);
        scale = scales.data<float>()[row * scales.size(1) + column / quantizer.scaling.columns];
      }
      if (vectors.tensors.contains("random.tensor_scale"))
        scale *= vectors.tensors.at("random.tensor_scale").data<float>()[0];
      if (scale == 0) {  // a block far below the largest of the tensor
        CHECK(values[std::size_t(i)] == 0);
        continue;
      }
      const float element = values[std::size_t(i)] / scale;  // f32 scales: up to two roundings off
      const float near = round_to(quantizer.grid, element);
      CHECK_MESSAGE(std::abs(near - element) <= 4e-7f * std::abs(element), i);
    }
  }
}

TEST_CASE("vectors as JSON lines have the bits of the tensors") {
  const Vectors vectors = lab::vectors_of("mxfp4", *quantizer_named("mxfp4"), all_roundings(), 64);
  std::istringstream lines(lab::json_lines_of(vectors));
  std::string line;
  REQUIRE(std::getline(lines, line));
  CHECK(nlohmann::json::parse(line).at("scale.block") == "1x32");
  const auto word = [](const nlohmann::json& text) {
    return std::bit_cast<float>(uint32_t(std::stoul(text.get<std::string>(), nullptr, 16)));
  };
  const auto bits = [](float x) { return std::bit_cast<uint32_t>(x); };
  int count = 0;
  while (std::getline(lines, line)) {
    const nlohmann::json all = nlohmann::json::parse(line);
    const std::string prefix = all.at("case").get<std::string>() + '.';
    const int64_t row = all.at("row"), column = all.at("column");
    for (const char* name : {"x", "up", "stochastic"}) {
      const Tensor& x = vectors.tensors.at(prefix + name);
      CHECK(bits(word(all.at(name))) == bits(x.data<float>()[row * x.size(1) + column]));
    }
    const Tensor& scale = vectors.tensors.at(prefix + "scale");
    CHECK(word(all.at("scale")) == scale.data<float>()[row * scale.size(1) + column / 32]);
    ++count;
  }
  CHECK(count == 3 * vectors.tensors.at("random.x").numel());
}

TEST_CASE("vectors: counts that are refused") {
  CHECK_THROWS_WITH_AS(lab::vectors_of("e4m3", {.grid = formats::e4m3}, all_roundings(), 10),
                       "[halftone-lab vectors] --count is 10. Choose 64 to 16777216.", UsageError);
  CHECK_THROWS_AS(lab::compare_all(formats::bf16, all_roundings()), UsageError);
}

TEST_CASE("rounding is what a search over the grid finds, around every exponent") {
  for (const NamedFormat& named : named_formats()) {
    if (named.format.bits > 8) continue;
    CAPTURE(named.name);
    for (const uint64_t sign : {uint64_t(0), uint64_t(0x80000000u)})
      for (uint64_t exponent = 0; exponent < 256; exponent += 5) {
        const uint64_t first = sign | (exponent << 23);
        const lab::Exhaustive result =
            lab::compare_all(named.format, all_roundings(), first, first + 512);
        CHECK_MESSAGE(result.different == 0, result.first);
        CHECK(result.compared == 7 * 512);
      }
  }
}

TEST_CASE("the search finds results that were derived by hand") {
  const auto found = [](const NumberFormat& format, Rounding rounding, float x, uint32_t word = 0) {
    return lab::found_by_search(format, rounding, x, word);
  };
  CHECK(found(formats::e4m3, Rounding::nearest_even, 17) == 16);  // between 16 and 18
  CHECK(found(formats::e4m3, Rounding::nearest_even, 19) == 20);
  CHECK(found(formats::e4m3, Rounding::nearest_away, 17) == 18);
  CHECK(found(formats::e4m3, Rounding::up, 16.001f) == 18);
  CHECK(found(formats::e4m3, Rounding::up, -17.9f) == -16);
  CHECK(found(formats::e4m3, Rounding::down, -16.001f) == -18);
  CHECK(found(formats::e4m3, Rounding::toward_zero, 17.9f) == 16);
  CHECK(found(formats::e4m3, Rounding::to_odd, 17) == 18);
  CHECK(found(formats::e4m3, Rounding::nearest_even, 1000) == 448);
  CHECK(std::isinf(found(formats::e5m2, Rounding::nearest_even, 61440)));
  CHECK(found(formats::e5m2, Rounding::to_odd, 1e30f) == 57344);
  CHECK(found(formats::e2m1, Rounding::nearest_even, 0.25f) == 0);
  CHECK(found(formats::e2m1, Rounding::stochastic, 3.25f, 0xbfffffffu) == 3);  // 1/4 of the way
  CHECK(found(formats::e2m1, Rounding::stochastic, 3.25f, 0xc0000000u) == 4);
  CHECK(std::signbit(found(formats::e2m1, Rounding::toward_zero, -0.1f)));
}

}  // namespace
}  // namespace halftone::test::vectors_test
