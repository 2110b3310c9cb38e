// Number formats compared with other implementations: gfloat (rounding), ml_dtypes and PyTorch
// (codes and casts), torchao (MX), TransformerEngine's order of operations (NVFP4), DeepSeek-V3's
// tiles. No difference is allowed: tests/fixtures/pytorch/number_format_fixtures.py.
#include "fixture.h"

#include <bit>
#include <cstring>

#include <halftone/core/formats/quantizer.h>

namespace halftone::test::number_formats_test {
namespace {

using Cases = std::map<std::string, NamedTensors>;

const Cases& fixtures() {
  static const Cases cases = load_cases("number_formats");
  return cases;
}
const Tensor& stored(const std::string& name, const std::string& tensor) {
  REQUIRE_MESSAGE(fixtures().contains(name), "there is no case ", name);
  return fixtures().at(name).at(tensor);
}

uint32_t comparable(float x) { return x != x ? 0x7fc00000u : std::bit_cast<uint32_t>(x); }

/// FNV-1a over the words, as in the script.
int64_t checksum(const std::vector<float>& values) {
  uint64_t total = 0xcbf29ce484222325u;
  for (const float value : values) total = (total ^ comparable(value)) * 0x100000001b3u;
  return int64_t(total);
}

/// Returns how many of the stored numbers, which are the first ones, differ.
int64_t differences(const std::vector<float>& got, const Tensor& wanted) {
  const std::vector<float> want = wanted.to_vector<float>();
  REQUIRE(got.size() >= want.size());
  int64_t count = 0;
  for (std::size_t i = 0; i < want.size(); ++i) count += comparable(got[i]) != comparable(want[i]);
  return count;
}
void check_all(const std::string& name, const std::vector<float>& got) {
  INFO(name);
  CHECK(differences(got, stored(name, "y")) == 0);
  CHECK(checksum(got) == stored(name, "sum").data<int64_t>()[0]);
}

std::vector<uint32_t> words(std::size_t count, uint64_t seed) {
  std::vector<uint32_t> all;
  for (std::size_t i = 1; i <= count; ++i) {
    uint64_t z = seed + i * 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    all.push_back(uint32_t((z ^ (z >> 31)) >> 32));
  }
  return all;
}

/// 65536 floats: one half near 1, one half random patterns.
std::vector<float> floats_to_round() {
  const auto near = words(32768, 2), exponents = words(32768, 3), anywhere = words(32768, 1);
  std::vector<float> all;
  for (std::size_t i = 0; i < near.size(); ++i)
    all.push_back(std::bit_cast<float>((near[i] & 0x807fffffu) | (107 + exponents[i] % 40) << 23));
  for (const uint32_t word : anywhere) {
    const float x = std::bit_cast<float>(word);
    all.push_back(x != x ? 0.0f : x);
  }
  return all;
}

TEST_CASE("pytorch: number formats round as gfloat rounds") {
  const std::vector<float> x = floats_to_round();
  REQUIRE(checksum(x) == stored("rounding", "sum").data<int64_t>()[0]);
  const std::vector<uint32_t> random = words(65536, 4);
  for (const char* name : {"bf16", "f16", "tf32", "e5m6", "e5m2", "e4m3", "e3m2", "e2m3", "e2m1"})
    for (const char* way :
         {"nearest_even", "nearest_away", "toward_zero", "up", "down", "stochastic"}) {
      const NumberFormat format = *number_format_named(name);
      const Rounding rounding = *halftone::named<Rounding>(way);
      std::vector<float> y;
      for (std::size_t i = 0; i < x.size(); ++i)
        y.push_back(round_to(format, x[i], rounding, random[i]));
      check_all(std::string(name) + ' ' + way, y);
    }
}

TEST_CASE("pytorch: codes and casts are those of ml_dtypes and PyTorch") {
  for (const char* name : {"e5m2", "e4m3", "e3m2", "e2m3", "e2m1", "e8m0"}) {
    INFO(std::string(name));
    const NumberFormat format = *number_format_named(name);
    const bool scale = format == formats::e8m0;  // no sign, no 0
    const std::vector<float> values =
        stored(std::string("codes ") + name, "values").to_vector<float>();
    const int64_t half = int64_t(values.size()) / (scale ? 1 : 2);
    int64_t numbers = scale ? 1 : 0, wrong = 0;
    for (int64_t code = 0; code < half; ++code) {
      if (!std::isfinite(values[std::size_t(code)])) continue;
      wrong += number_at(format, numbers++) != double(values[std::size_t(code)]);
      wrong += !scale && values[std::size_t(code + half)] != -values[std::size_t(code)];
    }
    CHECK(wrong == 0);
    CHECK(numbers == count_of_numbers(format));
    std::vector<float> y;
    for (const float x : stored(std::string("codes ") + name, "x").to_vector<float>())
      y.push_back(round_to(format, x));
    CHECK(differences(y, stored(std::string("codes ") + name, "y")) == 0);
    if (fixtures().contains(std::string("torch ") + name))
      CHECK(differences(y, stored(std::string("torch ") + name, "y")) == 0);
  }
}

template <class Body> void each_backend(const Body& body) {
  for (const std::string_view backend : {"reference", "cpu"}) {
    INFO("backend ", std::string(backend));
    const CpuBackendScope scope(backend);
    body();
  }
}
std::vector<float> result_of(const Tensor& x, const Quantizer& quantizer) {
  return quantized(x, {.quantizer = quantizer}).to_vector<float>();
}

TEST_CASE("pytorch: MX equals torchao's, under its four rules") {
  each_backend([] {
    for (const char* name : {"mxfp8", "mxfp8-e5m2", "mxfp6", "mxfp6-e3m2", "mxfp4"})
      for (const char* rule : {"floor", "ceil", "rceil", "even"}) {
        Quantizer quantizer = *quantizer_named(name);
        quantizer.scaling.rule = *halftone::named<ScaleRule>(rule);
        check_all(std::string(name) + ' ' + rule, result_of(stored("mx", "x"), quantizer));
      }
  });
}

TEST_CASE("pytorch: the exponents of MX's scales are torchao's") {
  const std::vector<float> x = stored("mx", "x").to_vector<float>();
  for (const char* name : {"mxfp8", "mxfp8-e5m2", "mxfp6", "mxfp6-e3m2", "mxfp4"})
    for (const char* rule : {"floor", "ceil", "rceil", "even"}) {
      INFO(std::string(name), " ", std::string(rule));
      Quantizer quantizer = *quantizer_named(name);
      quantizer.scaling.rule = *halftone::named<ScaleRule>(rule);
      const QuantizeNumbers n = numbers_of(quantizer);
      const Tensor& wanted = stored(std::string(name) + ' ' + rule, "exponents");
      int64_t wrong = 0;
      for (int64_t block = 0; block < wanted.numel(); ++block) {
        float amax = 0;
        for (int64_t i = 0; i < 32; ++i)
          amax = std::max(amax, std::abs(x[std::size_t(block * 32 + i)]));
        wrong += scale_exponent(n, amax) + 127 != int(wanted.data<uint8_t>()[block]);
      }
      CHECK(wrong == 0);
    }
}

TEST_CASE("pytorch: NVFP4 rounds in TransformerEngine's order") {
  each_backend([] {
    for (const char* name : {"plain", "large", "small", "zero"})
      for (const int rows : {1, 16}) {
        Quantizer quantizer = *quantizer_named("nvfp4");
        quantizer.scaling.rows = rows;
        const std::string stem = std::string("nvfp4 ") + name;
        check_all(stem + ' ' + std::to_string(rows), result_of(stored(stem, "x"), quantizer));
      }
  });
}

TEST_CASE("pytorch: tiles with f32 scales") {
  each_backend([] {
    for (const int rows : {1, 128}) {
      Quantizer quantizer = *quantizer_named("fp8_block");
      quantizer.scaling.rows = rows;
      const Tensor x = stored("mx", "x").view_as({128, 128}, {128, 1}, stored("mx", "x").offset());
      check_all("fp8_block " + std::to_string(rows), result_of(x, quantizer));
    }
  });
}

}  // namespace

}  // namespace halftone::test::number_formats_test
