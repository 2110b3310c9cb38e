// Quantizers that a program adds in C++: any function of a block of numbers. The host calls it on
// every backend, so results have the same bits everywhere, and a GPU waits.
//   policy::add_quantizer({.name = "halves", .hash = "1", .bits = 4, .round = [](auto in, auto,
//     auto out) { for (std::size_t i = 0; i < in.size(); ++i) out[i] = std::round(2 * in[i]) / 2;
//     }});                                                 // policy/file/own_quantizers.h
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include <halftone/core/random.h>

namespace halftone {

struct OwnQuantizer {
  std::string name;     // for policy files, tables and errors
  std::string hash;     // names the version of `round` in the hashes of policies
  double bits = 32;     // per number in a native encoding, scales included; for tables
  int32_t columns = 0;  // numbers of a block, along the last dimension; 0: a whole row
  bool draws = false;   // `round` gets a random word for each number
  /// Writes the quantized numbers of a block to `out`. in, out: f32, of the same size, at most
  /// `columns`; the last block of a row may be shorter. random: a word for each number, or empty
  /// without `draws`. Depends on nothing else, and may be called from several threads.
  using Round = std::function<void(std::span<const float> in, std::span<const uint32_t> random,
                                   std::span<float> out)>;
  Round round{};
};

/// Calls quantizer.round() for each block of a matrix. x, y: row-major, with `row_length` numbers
/// in a row. Element i of the matrix has word i % 4 of counter key.offset + i / 4.
void round_blocks(const OwnQuantizer& quantizer, std::span<const float> x, int64_t row_length,
                  RandomKey key, std::span<float> y);

/// Throws UsageError in the name of `op` for an empty name, hash or function, and for bits or
/// columns that are out of range.
void check_own_quantizer(std::string_view op, const OwnQuantizer& quantizer);

}  // namespace halftone
