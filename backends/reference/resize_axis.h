// Interpolation along one axis: the two inputs that each output lies between and the weight of the
// second, and which outputs lie beside each input. Images are resized along both axes in turn.
#pragma once

#include <cmath>

#include <halftone/backends/reference/pool_axis.h>

namespace halftone::reference {

/// (1 - weight) x[first] + weight x[second]
struct Tap {
  int64_t first, second;
  double weight;
  /// What input i counts.
  double of(int64_t i) const {
    return (i == first ? 1 - weight : 0.0) + (i == second ? weight : 0.0);
  }
};

struct ResizeAxis {
  int64_t in, out;
  std::vector<Tap> taps;       // of each output
  std::vector<Range> readers;  // outputs that may read an input; they are neighbours

  ResizeAxis(int64_t in_size, int64_t out_size, const InterpolationGeometry& g, std::size_t axis)
      : in(in_size), out(out_size), readers(std::size_t(in_size), Range{0, 0}) {
    for (int64_t o = 0; o < out; ++o) {
      const Tap tap = g.mode == Interpolation::nearest ? nearest(o, g.step[axis])
                                                       : between(place_of(o, g, axis));
      taps.push_back(tap);
      for (int64_t i = tap.first; i <= tap.second; ++i) {
        Range& reader = readers[std::size_t(i)];
        if (reader.length() == 0) reader.begin = o;
        reader.end = o + 1;
      }
    }
  }
  const Tap& tap(int64_t o) const { return taps[std::size_t(o)]; }
  const Range& reader(int64_t i) const { return readers[std::size_t(i)]; }

 private:
  /// PyTorch multiplies in float, which decides where the product is close to a whole number.
  Tap nearest(int64_t o, double step) const {
    const int64_t i = std::min(int64_t(std::floor(float(o) * float(step))), in - 1);
    return {i, i, 0};
  }
  /// Where an output lies among the inputs, whose centres are 0, 1, 2, ...
  double place_of(int64_t o, const InterpolationGeometry& g, std::size_t axis) const {
    if (g.align_corners) return out > 1 ? double(o) * double(in - 1) / double(out - 1) : 0.0;
    return std::max((double(o) + 0.5) * g.step[axis] - 0.5, 0.0);
  }
  Tap between(double place) const {
    const int64_t first = std::min(int64_t(place), in - 1);
    return {first, std::min(first + 1, in - 1), std::min(place - double(first), 1.0)};
  }
};

}  // namespace halftone::reference
