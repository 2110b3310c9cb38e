// The inputs of vectors: awkward numbers first, random ones after them.
#include <algorithm>
#include <cmath>

#include <halftone/core/random.h>
#include <halftone/lab/commands/vectors.h>

namespace halftone::lab {

namespace {

constexpr float beyond_floats = std::numeric_limits<float>::infinity();

/// A number and the floats next to it, with both signs.
void add_around(std::vector<float>& to, double number) {
  if (!(number <= double(std::numeric_limits<float>::max()))) return;
  const auto x = float(number);
  for (const float y : {std::nextafter(x, 0.0f), x, std::nextafter(x, beyond_floats)}) {
    to.push_back(y);
    to.push_back(-y);
  }
}

std::vector<float> special_inputs(const NumberFormat& format) {
  std::vector<float> inputs{0.0f, -0.0f, beyond_floats, -beyond_floats};
  for (const uint32_t nan : {0x7fc00000u, 0xffc12345u, 0x7fa00001u})
    inputs.push_back(std::bit_cast<float>(nan));
  for (const uint32_t bits : {0x1u, 0x7fffffu, 0x800000u, 0x7f7fffffu})
    for (const uint32_t sign : {0u, 0x80000000u})
      inputs.push_back(std::bit_cast<float>(bits | sign));
  const int64_t last = count_of_numbers(format) - 1;
  const double max = number_at(format, last), unit = number_at(format, last + 1) - max;
  for (const double number : {max, max + unit / 2, max + unit, max + 1.5 * unit})
    add_around(inputs, number);
  const double least = number_at(format, 1);
  for (const double number : {least / 2, least, 1.5 * least}) add_around(inputs, number);
  return inputs;
}

/// `wanted` inputs: numbers of the grid and midpoints, some of them one float off.
void add_grid_inputs(std::vector<float>& inputs, const NumberFormat& format, int64_t wanted) {
  const int64_t numbers = count_of_numbers(format);
  for (int64_t k = 0; k < wanted; ++k) {
    const auto i = int64_t(double(numbers - 1) * double(k) / double(wanted));
    const double number = number_at(format, i), middle = (number + number_at(format, i + 1)) / 2;
    auto x = float(k % 4 == 3 ? number : middle);
    if (k % 4 == 1) x = std::nextafter(x, 0.0f);
    if (k % 4 == 2) x = std::nextafter(x, beyond_floats);
    inputs.push_back(k / 4 % 2 == 0 ? x : -x);
  }
}

}  // namespace

std::vector<float> inputs_of(const NumberFormat& format, int64_t count) {
  std::vector<float> inputs = special_inputs(format);
  const int64_t left = std::max<int64_t>(0, count - int64_t(inputs.size()));
  add_grid_inputs(inputs, format, left * 3 / 5);
  const int least = std::max(format.min_exponent - format.significand_bits - 3, -149);
  const int most = std::min(std::ilogb(format.max) + 1, 127);
  Generator generator(11);
  while (int64_t(inputs.size()) < count) {
    const int exponent = least + int(generator.below(uint64_t(most - least + 1)));
    const uint64_t bits = generator.next();
    const double significand = 1 + double(bits >> 41) * 0x1p-23;
    inputs.push_back(float(std::ldexp((bits & 1) != 0 ? -significand : significand, exponent)));
  }
  inputs.resize(std::size_t(count));
  return inputs;
}

}  // namespace halftone::lab
