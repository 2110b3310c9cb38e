// Oscillation of rounded weights: numbers that moved to another point of their grid and back while
// the optimizer meant to go somewhere (arXiv 2502.20853).
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <halftone/core/formats/quantizer.h>
#include <halftone/core/named_tensors.h>

namespace halftone::policy {

/// Counts over the numbers of a weight at three sampled steps in a row: a, b and now c, each as
/// forward used it, after rounding. Two numbers are different points of the grid if they differ by
/// more than half the smallest relative distance of neighbors: small changes of a scale do not
/// count. Counts add up over steps and weights.
struct WeightFlips {
  double count = 0;     // numbers with three samples
  double flipped = 0;   // c is another point than b
  double returned = 0;  // a to b to c = a: flipped, and flipped back
  void merge(const WeightFlips& other);
  /// Return shares of `count`; NaN if it is 0.
  double flipped_share() const;
  double oscillation() const;
};

/// Returns half the smallest distance of neighbors on the grid, relative to the larger of them:
/// 2^-(p + 1) for p significand bits, and for tables what their numbers say.
double half_spacing(const Quantizer& quantizer);

/// Counts flips from three samples of equal length.
WeightFlips flips_of(const std::vector<float>& a, const std::vector<float>& b,
                     const std::vector<float>& c, double half_spacing);

/// The last two samples of each weight, on the host.
class WeightHistory {
 public:
  /// Adds a sample of the weight that is input `input` of a site, and returns its flips; none
  /// before the third sample or after a change of length.
  WeightFlips add(const std::string& site, std::size_t input, const Quantizer& quantizer,
                  std::vector<float> values);
  /// Returns the samples as f32 vectors, "older.INPUT.SITE" and "last.INPUT.SITE".
  NamedTensors state() const;
  /// Takes them back; ignores other entries.
  void load(const NamedTensors& state);

 private:
  struct Samples {
    std::vector<float> older{}, last{};
  };
  std::map<std::pair<std::string, std::size_t>, Samples> samples_{};
};

}  // namespace halftone::policy
