// Blocks one after the other, on the host.
#include <halftone/core/own_quantizer.h>

#include <algorithm>
#include <vector>

#include <halftone/core/error.h>

namespace halftone {

void round_blocks(const OwnQuantizer& quantizer, std::span<const float> x, int64_t row_length,
                  RandomKey key, std::span<float> y) {
  const auto length = std::size_t(row_length);
  const std::size_t block = quantizer.columns > 0 ? std::size_t(quantizer.columns) : length;
  std::vector<uint32_t> words;
  for (std::size_t row = 0; row < x.size(); row += length)
    for (std::size_t begin = row; begin < row + length; begin += block) {
      const std::size_t count = std::min(block, row + length - begin);
      if (quantizer.draws) {
        words.clear();
        for (uint64_t i = begin; i < begin + count; ++i)
          words.push_back(Philox::words(key.seed, key.offset + i / 4)[i % 4]);
      }
      quantizer.round(x.subspan(begin, count), words, y.subspan(begin, count));
    }
}

void check_own_quantizer(std::string_view op, const OwnQuantizer& quantizer) {
  if (quantizer.name.empty() || quantizer.hash.empty() || !quantizer.round)
    fail<UsageError>(op, "a quantizer has the name \"", quantizer.name, "\", the hash \"",
                     quantizer.hash, "\" and ", quantizer.round ? "a" : "no",
                     " function. All three are required.");
  if (!(quantizer.bits > 0 && quantizer.bits <= 64) || quantizer.columns < 0)
    fail<UsageError>(op, "the quantizer \"", quantizer.name, "\" has ", quantizer.bits,
                     " bits per number and blocks of ", quantizer.columns,
                     " numbers. Use more than 0 and at most 64 bits, and at least 0 numbers.");
}

}  // namespace halftone
