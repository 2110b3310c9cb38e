// Rotary positions: the angles of all rows, then the rows, in parallel. The loops are written once:
// `Io` gives the type they compute in, and loads and stores rows.
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

/// Turns a row of pairs in place; elements of a pair are `apart`, pairs `step` from each other.
template <class T>
void turn_row(const T* turn, int64_t pairs, int64_t apart, int64_t step, T* row) {
  for (int64_t i = 0; i < pairs; ++i) {
    T &a = row[i * step], &b = row[i * step + apart];
    const T cosine = turn[i], sine = turn[pairs + i], turned = a * cosine - b * sine;
    b = b * cosine + a * sine;
    a = turned;
  }
}

template <class Io>
void rope(const Io& io, const Tensor& x, const RopeOptions& options, bool inverse,
          const Tensor& y) {
  using T = typename Io::Number;
  const int64_t heads = x.size(1), l = x.size(2), e = x.size(3), pairs = e / 2;
  if (x.numel() == 0) return;
  Workspace<T> turns(l * e);
  fill_turns(options, inverse, l, pairs, turns.data());
  const auto place = [&](const Tensor& t, int64_t i) {
    const Strides& s = t.strides();
    return i / l / heads * s[0] + i / l % heads * s[1] + i % l * s[2];
  };
  parallel_pieces(x.numel() / e, std::max<int64_t>(1, grain_length / e),
                  [&](int64_t begin, int64_t end) {
                    Workspace<T> row(e);
                    for (int64_t i = begin; i < end; ++i) {
                      io.load(x, place(x, i), e, row.data());
                      const T* const turn = turns.data() + i % l * e;
                      if (options.interleaved) turn_row(turn, pairs, 1, 2, row.data());
                      else turn_row(turn, pairs, pairs, 1, row.data());
                      io.store(row.data(), e, y, place(y, i));
                    }
                  });
}

}  // namespace halftone::reference
