// Walks over pixels and taps.
#include <halftone/backends/cpu/windows.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

#include <halftone/backends/cpu/isa.h>
#include <halftone/backends/cpu/simd/panels.h>
#include <halftone/backends/reference/runs.h>

namespace halftone::cpu {

namespace {
/// A pixel of the grid: the start of its image, and the source pixel of the tap (0, 0).
template <class Element> struct Place {
  const Element* image;
  int64_t row, column;
};

/// Counts through the grid's pixels.
template <class Element> class Pixels {
 public:
  Pixels(const Windows<Element>& w, int64_t first) : w_(w) {
    column_ = first % w.columns, row_ = first / w.columns % w.rows;
    image_ = w.source + first / (w.rows * w.columns) * image_size();
  }
  Place<Element> next() {
    const Place<Element> place{image_, row_ * w_.step[0], column_ * w_.step[1]};
    if (++column_ == w_.columns) {
      column_ = 0;
      if (++row_ == w_.rows) row_ = 0, image_ += image_size();
    }
    return place;
  }

 private:
  int64_t image_size() const { return w_.source_rows * w_.source_columns * w_.pixel; }
  const Windows<Element>& w_;
  const Element* image_;
  int64_t row_, column_;
};

/// Returns the source pixel of a tap; null outside of the image.
template <class Element>
const Element* at(const Windows<Element>& w, const Place<Element>& place, const Tap& tap) {
  const int64_t row = place.row + tap.row, column = place.column + tap.column;
  const bool inside =
      uint64_t(row) < uint64_t(w.source_rows) && uint64_t(column) < uint64_t(w.source_columns);
  return inside ? place.image + (row * w.source_columns + column) * w.pixel : nullptr;
}

/// Calls body(tap, first channel, channels, entries before) for the taps of entries [begin, end).
template <class Element, class Body>
void for_taps(const Windows<Element>& w, int64_t begin, int64_t end, const Body& body) {
  for (int64_t entry = begin; entry < end;) {
    const int64_t channel = entry % w.channels, run = std::min(w.channels - channel, end - entry);
    body(w.taps[std::size_t(entry / w.channels)], channel, run, entry - begin);
    entry += run;
  }
}
}  // namespace

void find_windows(const Windows<float>& w, int64_t first, int64_t count, const float* zeros,
                  const float** pieces) {
  const int64_t tile = simd_kernels().tile_rows, taps = int64_t(w.taps.size());
  Pixels<float> pixels(w, first);
  for (int64_t start = 0; start < count; start += tile, pieces += taps * tile)
    for (int64_t r = 0; r < tile; ++r) {
      const bool valid = start + r < count;
      const Place<float> place = valid ? pixels.next() : Place<float>{};
      for (int64_t t = 0; t < taps; ++t) {
        const float* x = valid ? at(w, place, w.taps[std::size_t(t)]) : nullptr;
        pieces[t * tile + r] = x ? x : zeros;
      }
    }
}

namespace {
/// Copies one tap of pixels that are neighbors in a row of the grid: `run` numbers of each, from
/// `channel` on, to every tile-th position; zeros outside of the source's line (null: all are
/// outside). Run: their number if known at compile time, or 0.
template <int Run, class Element>
void copy_line(const Windows<Element>& w, const Element* line, int64_t column, int64_t count,
               int64_t channel, int64_t run, float* to, int64_t tile) {
  const int64_t length = Run > 0 ? Run : run;
  for (int64_t p = 0; p < count; ++p, column += w.step[1], to += tile) {
    if (!line || uint64_t(column) >= uint64_t(w.source_columns)) {
      std::memset(to, 0, std::size_t(length) * sizeof(float));
      continue;
    }
    const Element* from = line + column * w.pixel + channel;
    if constexpr (std::is_same_v<Element, float>)
      std::memcpy(to, from, std::size_t(length) * sizeof(float));
    else
      for (int64_t i = 0; i < length; ++i) to[i] = std::bit_cast<float>(uint32_t(from[i]) << 16);
  }
}

/// Returns the copy function for a run: short ones are a few moves if their length is known.
template <class Element> auto copier_of(int64_t run) {
  switch (run) {
    case 1: return copy_line<1, Element>;
    case 2: return copy_line<2, Element>;
    case 3: return copy_line<3, Element>;
    case 4: return copy_line<4, Element>;
    case 5: return copy_line<5, Element>;
    case 9: return copy_line<9, Element>;
    case 16: return copy_line<16, Element>;
    default: return copy_line<0, Element>;
  }
}

template <class Element>
void pack_entries(const Windows<Element>& w, int64_t first, int64_t count, int64_t begin,
                  int64_t end, int64_t width, float* panel) {
  if (end - begin < width) std::memset(panel, 0, std::size_t(count * width) * sizeof(float));
  const int64_t image = w.source_rows * w.source_columns * w.pixel;
  for_taps(w, begin, end, [&](const Tap& tap, int64_t channel, int64_t run, int64_t entry) {
    const auto copy = copier_of<Element>(run);
    for (int64_t p = first; p < first + count;) {
      const int64_t column = p % w.columns, row = p / w.columns % w.rows,
                    source_row = row * w.step[0] + tap.row;
      const int64_t here = std::min(w.columns - column, first + count - p);
      const Element* line = nullptr;
      if (uint64_t(source_row) < uint64_t(w.source_rows))
        line =
            w.source + p / (w.rows * w.columns) * image + source_row * w.source_columns * w.pixel;
      copy(w, line, column * w.step[1] + tap.column, here, channel, run,
           panel + (p - first) * width + entry, width);
      p += here;
    }
  });
}
}  // namespace

void pack_window_entries(const Windows<float>& w, int64_t first, int64_t count, int64_t begin,
                         int64_t end, int64_t width, float* panel) {
  pack_entries(w, first, count, begin, end, width, panel);
}
void pack_window_entries(const Windows<uint16_t>& w, int64_t first, int64_t count, int64_t begin,
                         int64_t end, int64_t width, float* panel) {
  pack_entries(w, first, count, begin, end, width, panel);
}

namespace {
using simd::panels::depth_unit, simd::panels::panel_width;

/// Up to 32 pixels of the grid, and the position of one tap of each.
class PanelOfPixels {
 public:
  PanelOfPixels(const Windows<uint16_t>& w, int64_t first) : w_(w), pixels_(w, first) {}
  /// Takes the next `count` pixels. The panel's other pixels are outside of every image.
  void next(int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      const Place<uint16_t> at = pixels_.next();
      places_.offset[i] =
          at.image - w_.source + (at.row * w_.source_columns + at.column) * w_.pixel;
      places_.row[i] = int32_t(at.row), places_.column[i] = int32_t(at.column);
    }
    for (int64_t i = count; i < panel_width; ++i)
      places_.offset[i] = 0, places_.row[i] = std::numeric_limits<int32_t>::min() / 2;
  }
  /// For entries [begin, end) of their windows: copy(rows, first channel, channels, entries
  /// before).
  template <class Copy> void copy_taps(int64_t begin, int64_t end, const Copy& copy) {
    for_taps(w_, begin, end, [&](const Tap& tap, int64_t channel, int64_t run, int64_t entry) {
      simd::panels::find_rows(places_, w_.source, tap.row, tap.column, w_.source_rows,
                              w_.source_columns, w_.pixel, rows_.data());
      copy(rows_.data(), channel, run, entry);
    });
  }

 private:
  const Windows<uint16_t>& w_;
  Pixels<uint16_t> pixels_;
  simd::panels::Places places_{};
  std::array<const uint16_t*, panel_width> rows_{};
};
}  // namespace

void pack_window_rows(const Windows<uint16_t>& w, int64_t first, int64_t count, int64_t begin,
                      int64_t end, uint16_t* panel) {
  constexpr int64_t unit = panel_width * depth_unit;
  const int64_t depth = end - begin, whole = reference::pieces_of(depth, depth_unit) * depth_unit;
  // Whole tiles are read, up to whole units.
  if (count % 16 != 0) std::fill_n(panel, whole * panel_width, uint16_t{0});
  const auto copy = [&](const uint16_t* const* rows, int64_t channel, int64_t run, int64_t entry) {
    while (run > 0) {
      const int64_t within = entry % depth_unit, here = std::min(depth_unit - within, run);
      simd::panels::copy_rows(rows, count, channel, here,
                              panel + entry / depth_unit * unit + within);
      entry += here, channel += here, run -= here;
    }
  };
  PanelOfPixels pixels(w, first);
  pixels.next(count);
  pixels.copy_taps(begin, end, copy);
  constexpr std::array<const uint16_t*, panel_width> nothing{};
  copy(nothing.data(), 0, whole - depth, depth);
}

void pack_window_columns(const Windows<uint16_t>& w, int64_t first, int64_t count, int64_t begin,
                         int64_t end, uint16_t* panels) {
  constexpr int64_t block = panel_width * depth_unit;
  const int64_t units = reference::pieces_of(count, depth_unit);
  // Panels within one tap are packed directly from the pixels.
  const bool whole = w.channels % panel_width == 0 && (end - begin) % panel_width == 0;
  alignas(64) std::array<uint16_t, block> square;
  PanelOfPixels pixels(w, first);
  for (int64_t u = 0; u < units; ++u) {
    const int64_t rows = std::min(depth_unit, count - u * depth_unit);
    const auto unit_of = [&](int64_t entry) {
      return panels + (entry / panel_width * units + u) * block;
    };
    pixels.next(rows);
    if (whole) {
      pixels.copy_taps(
          begin, end,
          [&](const uint16_t* const* from, int64_t channel, int64_t run, int64_t entry) {
            for (int64_t c = 0; c < run; c += panel_width)
              simd::panels::pack_pairs(from, channel + c, unit_of(entry + c));
          });
      continue;
    }
    for (int64_t j = begin; j < end; j += panel_width) {
      const int64_t columns = std::min(panel_width, end - j);
      pixels.copy_taps(
          j, j + columns,
          [&](const uint16_t* const* from, int64_t channel, int64_t run, int64_t entry) {
            simd::panels::copy_rows(from, rows, channel, run, square.data() + entry);
          });
      simd::panels::pack_columns({square.data(), simd::Element::bf16, panel_width, 1}, rows,
                                 columns, unit_of(j - begin));
    }
  }
}

}  // namespace halftone::cpu
