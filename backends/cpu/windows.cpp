// Walks over pixels and taps; the transposition is the SIMD kernels'.
#include <halftone/backends/cpu/windows.h>

#include <algorithm>
#include <cstring>

#include <halftone/backends/cpu/isa.h>

namespace halftone::cpu {

namespace {
constexpr int64_t most_tile_rows = 32;

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

void pack_window_rows(const Windows& w, int64_t first, int64_t count, int64_t begin, int64_t end,
                      float* panels) {
  const simd::Kernels& kernels = simd_kernels();
  const int64_t tile = kernels.tile_rows;
  Pixels pixels(w, first);
  for (int64_t start = 0; start < count; start += tile, panels += (end - begin) * tile) {
    const int64_t valid = std::min(tile, count - start);
    std::array<Place, most_tile_rows> places;
    for (int64_t r = 0; r < valid; ++r) places[std::size_t(r)] = pixels.next();
    for_taps(w, begin, end,
             [&](const Windows::Tap& tap, int64_t channel, int64_t run, int64_t at_entry) {
               std::array<const float*, most_tile_rows> rows{};
               for (int64_t r = 0; r < valid; ++r)
                 if (const float* x = at(w, places[std::size_t(r)], tap))
                   rows[std::size_t(r)] = x + channel;
               kernels.pack_row_pointers(rows.data(), run, panels + at_entry * tile);
             });
  }
}

void pack_window_columns(const Windows& w, int64_t first, int64_t count, int64_t begin, int64_t end,
                         float* panel) {
  const int64_t tile = simd_kernels().tile_columns;
  if (end - begin < tile) std::memset(panel, 0, std::size_t(count * tile) * sizeof(float));
  for_taps(w, begin, end,
           [&](const Windows::Tap& tap, int64_t channel, int64_t run, int64_t at_entry) {
             Pixels pixels(w, first);
             float* to = panel + at_entry;
             for (int64_t p = 0; p < count; ++p, to += tile) {
               const float* x = at(w, pixels.next(), tap);
               if (x && run == 16) std::memcpy(to, x + channel, 16 * sizeof(float));
               else if (x) std::copy_n(x + channel, run, to);
               else std::fill_n(to, run, 0.0F);
             }
           });
}

}  // namespace halftone::cpu
