// Interpolation along one axis: for each output, the two inputs around it and the weight of the
// second; for each input, the outputs that read it. Images are resized along both axes in turn.
#pragma once

#include <halftone/backends/reference/pool_axis.h>

namespace halftone::reference {

struct ResizeAxis {
  int64_t in, out;
  std::vector<Tap> taps;       // of each output
  std::vector<Range> readers;  // neighboring outputs that may read an input

  ResizeAxis(int64_t in_size, int64_t out_size, const InterpolationGeometry& g, std::size_t axis)
      : in(in_size), out(out_size), readers(std::size_t(in_size), Range{0, 0}) {
    const ResizeTaps formulas(in, out, g, axis);
    for (int64_t o = 0; o < out; ++o) {
      const Tap tap = formulas.tap(o);
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
};

}  // namespace halftone::reference
