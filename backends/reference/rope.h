// Rotary positions: the angles of all rows, then the rows, in parallel. T: the type that a backend
// computes in.
#pragma once

#include <algorithm>

#include <halftone/backends/reference/loops.h>
#include <halftone/core/rope.h>

namespace halftone::reference {

/// turns [l, e]: of each row the cosines of its pairs, then the sines.
template <class T>
void fill_turns(const RopeOptions& options, bool inverse, int64_t l, int64_t pairs, T* turns) {
  Workspace<double> frequencies(pairs);
  for (int64_t i = 0; i < pairs; ++i) frequencies[i] = rope_frequency(options, i, pairs);
  parallel_pieces(l, std::max<int64_t>(1, 512 / pairs), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row)
      for (int64_t i = 0; i < pairs; ++i) {
        const double angle = rope_angle(options, row, frequencies[i]), sine = math::sin(angle);
        turns[2 * pairs * row + i] = T(math::cos(angle));
        turns[2 * pairs * row + pairs + i] = T(inverse ? -sine : sine);
      }
  });
}

/// Turns a row of e / 2 pairs; `to` may be `from`.
template <class T>
void turn_row(const RopeOptions& options, const T* turn, int64_t e, const T* from, T* to) {
  const int64_t pairs = e / 2, apart = options.interleaved ? 1 : pairs,
                step = options.interleaved ? 2 : 1;
  for (int64_t i = 0; i < pairs; ++i) {
    const T a = from[i * step], b = from[i * step + apart], cosine = turn[i],
            sine = turn[pairs + i];
    to[i * step] = a * cosine - b * sine;
    to[i * step + apart] = b * cosine + a * sine;
  }
}

/// Calls body(offset in x, offset in y, turn, buffer) for all rows, in parallel; the buffer has
/// room for two rows.
template <class T, class Body>
void each_turned_row(const Tensor& x, const RopeOptions& options, bool inverse, const Tensor& y,
                     const Body& body) {
  const int64_t heads = x.size(1), l = x.size(2), e = x.size(3);
  if (x.numel() == 0) return;
  Workspace<T> turns(l * e);
  fill_turns(options, inverse, l, e / 2, turns.data());
  const auto place = [&](const Tensor& t, int64_t i) {
    const Strides& s = t.strides();
    return i / l / heads * s[0] + i / l % heads * s[1] + i % l * s[2];
  };
  parallel_pieces(x.numel() / e, std::max<int64_t>(1, grain_length / e),
                  [&](int64_t begin, int64_t end) {
                    Workspace<T> buffer(2 * e);
                    for (int64_t i = begin; i < end; ++i)
                      body(place(x, i), place(y, i), turns.data() + i % l * e, buffer.data());
                  });
}

}  // namespace halftone::reference
