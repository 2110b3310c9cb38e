// Every float against a search over the grid. The search knows the numbers of the grid and the
// meaning of each rounding; it shares no code with round_finite() or the kernels. Its comparisons
// are exact: midpoints of a short grid are doubles, and so are the fractions that random words
// meet.
#include <cmath>
#include <cstring>
#include <mutex>
#include <sstream>

#include <halftone/core/error.h>
#include <halftone/core/factory.h>
#include <halftone/core/formats/quantizer.h>
#include <halftone/core/random.h>
#include <halftone/lab/commands/vectors.h>

namespace halftone::lab {

namespace {

constexpr uint64_t search_seed = 5, search_chunk = uint64_t(1) << 20;

/// The grid from 0 to max, and one number beyond it, which is where infinity or saturation begins.
std::vector<double> grid_and_one_more(const NumberFormat& format) {
  std::vector<double> numbers;
  for (int64_t i = 0; i <= count_of_numbers(format); ++i) numbers.push_back(number_at(format, i));
  return numbers;
}

/// Returns whether a magnitude between low and high becomes high.
bool goes_up(Rounding rounding, double low, double x, double high, bool negative, uint32_t word) {
  const double middle = (low + high) / 2;
  const auto odd = [&] { return std::fmod(low / (high - low), 2) != 0; };
  switch (rounding) {
    case Rounding::nearest_even: return x > middle || (x == middle && odd());
    case Rounding::nearest_away: return x >= middle;
    case Rounding::toward_zero: return false;
    case Rounding::up: return !negative && x > low;
    case Rounding::down: return negative && x > low;
    case Rounding::to_odd: return x > low && !odd();
    case Rounding::stochastic: break;
  }
  // Both have 31 bits if x has more: docs/number_formats.md.
  const double share = (x - low) / (high - low), cut = std::floor(share * 0x1p31) * 0x1p-31;
  const bool deep = share * 0x1p31 != std::floor(share * 0x1p31);
  return deep ? cut + double(word >> 1) * 0x1p-31 >= 1 : share + double(word) * 0x1p-32 >= 1;
}

/// The result for a magnitude beyond max, before its sign.
double beyond(const NumberFormat& format, Rounding rounding, bool negative) {
  const bool inward = rounding == Rounding::toward_zero || rounding == Rounding::to_odd ||
                      rounding == (negative ? Rounding::up : Rounding::down);
  return format.infinity && !inward ? double(std::numeric_limits<float>::infinity())
                                    : double(format.max);
}

class GridSearch {
 public:
  GridSearch(const NumberFormat& format, Rounding rounding)
      : format_(format), rounding_(rounding), numbers_(grid_and_one_more(format)) {}

  /// Returns the bits of the result. Magnitudes rise from call to call, mostly: the search begins
  /// where the last one ended.
  uint32_t operator()(uint32_t bits, uint32_t word) {
    const bool negative = bits >> 31 != 0;
    const auto x = double(std::bit_cast<float>(bits & 0x7fffffffu));
    if (std::isnan(x)) return bits;
    const double result =
        std::isinf(x) ? (format_.infinity ? x : double(format_.max)) : magnitude(x, negative, word);
    return std::bit_cast<uint32_t>(float(result)) | (bits & 0x80000000u);
  }

 private:
  double magnitude(double x, bool negative, uint32_t word) {
    if (x >= numbers_.back()) return beyond(format_, rounding_, negative);
    while (numbers_[at_] > x) --at_;
    while (numbers_[at_ + 1] <= x) ++at_;
    const bool up = goes_up(rounding_, numbers_[at_], x, numbers_[at_ + 1], negative, word);
    const double found = numbers_[at_ + std::size_t(up)];
    return found > double(format_.max) ? beyond(format_, rounding_, negative) : found;
  }

  NumberFormat format_;
  Rounding rounding_;
  std::vector<double> numbers_;
  std::size_t at_ = 0;
};

std::string difference(uint32_t bits, Rounding rounding, uint32_t found, uint32_t expected) {
  PlainText text;
  text.precision(9);
  text << std::bit_cast<float>(bits) << " (bits " << std::hex << bits << std::dec << "), "
       << name(rounding) << ": got " << std::bit_cast<float>(found) << ", the search finds "
       << std::bit_cast<float>(expected);
  return text.str();
}

}  // namespace

float found_by_search(const NumberFormat& format, Rounding rounding, float x, uint32_t word) {
  return std::bit_cast<float>(GridSearch(format, rounding)(std::bit_cast<uint32_t>(x), word));
}

Exhaustive compare_all(const NumberFormat& format, const std::vector<Rounding>& roundings,
                       uint64_t first, uint64_t last) {
  if (format.bits > 8)
    fail<UsageError>(vectors_op, "--exhaustive is for formats of at most 8 bits, and ",
                     described(format), " has ", int(format.bits), ". Leave it out.");
  Exhaustive result;
  std::mutex guard;
  for (uint64_t from = first; from < last; from += search_chunk) {
    const auto count = int64_t(std::min(search_chunk, last - from));
    const Tensor x = empty({count});
    for (int64_t i = 0; i < count; ++i)
      x.data<float>()[i] = std::bit_cast<float>(uint32_t(from + uint64_t(i)));
    for (const Rounding rounding : roundings) {
      const Quantizer quantizer{.grid = format, .rounding = rounding};
      const RandomKey key{search_seed, from / 4};
      const Tensor y = quantized(x, {.quantizer = quantizer, .key = key});
      const float* const values = y.data<float>();
      int64_t different = 0;
#pragma omp parallel for schedule(static) reduction(+ : different)
      for (int64_t part = 0; part < (count + 4095) / 4096; ++part) {
        GridSearch search(format, rounding);
        for (int64_t i = part * 4096; i < std::min(count, (part + 1) * 4096); ++i) {
          const uint32_t bits = uint32_t(from + uint64_t(i));
          const uint32_t word =
              rounding == Rounding::stochastic
                  ? Philox::words(key.seed, key.offset + uint64_t(i) / 4)[std::size_t(i % 4)]
                  : 0;
          const uint32_t expected = search(bits, word);
          const uint32_t found = std::bit_cast<uint32_t>(values[i]);
          if (found == expected) continue;
          ++different;
          const std::lock_guard lock(guard);
          if (result.first.empty()) result.first = difference(bits, rounding, found, expected);
        }
      }
      result.compared += count, result.different += different;
    }
  }
  return result;
}

}  // namespace halftone::lab
