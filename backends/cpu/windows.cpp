// Walks over pixels and taps.
#include <halftone/backends/cpu/windows.h>

#include <algorithm>
#include <cstring>

#include <halftone/backends/cpu/isa.h>

namespace halftone::cpu {

namespace {
/// A pixel of the grid: where its image begins, and the source pixel of the tap (0, 0).
struct Place {
  const float* image;
  int64_t row, column;
};

/// Counts through the grid.
class Pixels {
 public:
  Pixels(const Windows& w, int64_t first) : w_(w) {
    column_ = first % w.columns, row_ = first / w.columns % w.rows;
    image_ = w.source + first / (w.rows * w.columns) * image_size();
  }
  Place next() {
    const Place place{image_, row_ * w_.step[0], column_ * w_.step[1]};
    if (++column_ == w_.columns) {
      column_ = 0;
      if (++row_ == w_.rows) row_ = 0, image_ += image_size();
    }
    return place;
  }

 private:
  int64_t image_size() const { return w_.source_rows * w_.source_columns * w_.pixel; }
  const Windows& w_;
  const float* image_;
  int64_t row_, column_;
};

/// The source pixel of a tap, null outside.
const float* at(const Windows& w, const Place& place, const Windows::Tap& tap) {
  const int64_t row = place.row + tap.row, column = place.column + tap.column;
  const bool inside =
      uint64_t(row) < uint64_t(w.source_rows) && uint64_t(column) < uint64_t(w.source_columns);
  return inside ? place.image + (row * w.source_columns + column) * w.pixel : nullptr;
}

/// Calls body(tap, first channel, channels, entries before) for the taps of entries [begin, end).
template <class Body>
void for_taps(const Windows& w, int64_t begin, int64_t end, const Body& body) {
  for (int64_t entry = begin; entry < end;) {
    const int64_t channel = entry % w.channels, run = std::min(w.channels - channel, end - entry);
    body(w.taps[std::size_t(entry / w.channels)], channel, run, entry - begin);
    entry += run;
  }
}
}  // namespace

void find_windows(const Windows& w, int64_t first, int64_t count, const float* zeros,
                  const float** pieces) {
  const int64_t tile = simd_kernels().tile_rows, taps = int64_t(w.taps.size());
  Pixels pixels(w, first);
  for (int64_t start = 0; start < count; start += tile, pieces += taps * tile)
    for (int64_t r = 0; r < tile; ++r) {
      const bool valid = start + r < count;
      const Place place = valid ? pixels.next() : Place{};
      for (int64_t t = 0; t < taps; ++t) {
        const float* x = valid ? at(w, place, w.taps[std::size_t(t)]) : nullptr;
        pieces[t * tile + r] = x ? x : zeros;
      }
    }
}

namespace {
/// One tap of pixels that are neighbours in a row of the grid: of each `run` numbers from `channel`
/// on, zeros outside of the source's line (null: all are outside), to every tile-th place.
void copy_line(const Windows& w, const float* line, int64_t column, int64_t count, int64_t channel,
               int64_t run, float* to, int64_t tile) {
  for (int64_t p = 0; p < count; ++p, column += w.step[1], to += tile) {
    const bool inside = line && uint64_t(column) < uint64_t(w.source_columns);
    if (!inside) {
      std::fill_n(to, run, 0.0F);
      continue;
    }
    const float* from = line + column * w.pixel + channel;
    if (run == 16) std::memcpy(to, from, 16 * sizeof(float));
    else
      for (int64_t i = 0; i < run; ++i) to[i] = from[i];
  }
}
}  // namespace

void pack_window_columns(const Windows& w, int64_t first, int64_t count, int64_t begin, int64_t end,
                         float* panel) {
  const int64_t tile = simd_kernels().tile_columns;
  if (end - begin < tile) std::memset(panel, 0, std::size_t(count * tile) * sizeof(float));
  const int64_t image = w.source_rows * w.source_columns * w.pixel;
  for_taps(w, begin, end,
           [&](const Windows::Tap& tap, int64_t channel, int64_t run, int64_t entry) {
             for (int64_t p = first; p < first + count;) {
               const int64_t column = p % w.columns, row = p / w.columns % w.rows,
                             source_row = row * w.step[0] + tap.row;
               const int64_t here = std::min(w.columns - column, first + count - p);
               const float* line = nullptr;
               if (uint64_t(source_row) < uint64_t(w.source_rows))
                 line = w.source + p / (w.rows * w.columns) * image +
                        source_row * w.source_columns * w.pixel;
               copy_line(w, line, column * w.step[1] + tap.column, here, channel, run,
                         panel + (p - first) * tile + entry, tile);
               p += here;
             }
           });
}

}  // namespace halftone::cpu
