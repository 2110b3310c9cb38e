// The windows of a convolution over an image, as the rows of a matrix that is never stored:
// products read them from their pixels in place (an implicit matrix product, as in Chetlur et al.
// 2014). Images are NHWC, f32 or bf16.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

namespace halftone::cpu {

struct Tap {
  int64_t row, column;
};

/// A grid of pixels, row by row, image by image, each with a window of source pixels. Tap (r, c) of
/// the grid's pixel (i, j) is at row i step[0] + r and column j step[1] + c. Pixels outside of the
/// source are zero. A window is one row of the matrix; its entries are ordered by tap, and within a
/// tap by channel.
template <class Element> struct Windows {
  const Element* source;  // the first channel in use, of the first image
  int64_t images, rows, columns;
  int64_t source_rows, source_columns;
  int64_t channels;  // channels in use, of `pixel` in all
  int64_t pixel;
  std::array<int64_t, 2> step;
  std::vector<Tap> taps;

  int64_t pixels() const { return images * rows * columns; }
  int64_t depth() const { return int64_t(taps.size()) * channels; }
};

/// Finds `count` windows in memory, for a product of pieces (simd/kernels.h): pieces[tile][tap][row
/// of the tile]. `zeros`, with as many elements as channels, replaces pixels outside and rows after
/// the last.
void find_windows(const Windows<float>& w, int64_t first, int64_t count, const float* zeros,
                  const float** pieces);
/// Packs entries [begin, end) of `count` windows, which are the product's depth, into a panel
/// `width` wide: of columns (pack_columns), or of rows (pack_rows). Widens bf16.
void pack_window_entries(const Windows<float>& w, int64_t first, int64_t count, int64_t begin,
                         int64_t end, int64_t width, float* panel);
void pack_window_entries(const Windows<uint16_t>& w, int64_t first, int64_t count, int64_t begin,
                         int64_t end, int64_t width, float* panel);

/// Packs entries [begin, end) of `count` windows, at most 32, into a panel of rows (simd/panels.h).
void pack_window_rows(const Windows<uint16_t>& w, int64_t first, int64_t count, int64_t begin,
                      int64_t end, uint16_t* panel);
/// Packs entries [begin, end) of `count` windows, which are their depth, into panels of columns.
void pack_window_columns(const Windows<uint16_t>& w, int64_t first, int64_t count, int64_t begin,
                         int64_t end, uint16_t* panels);

}  // namespace halftone::cpu
