// The windows that a convolution lays over an image, as the rows of a matrix that nobody stores:
// products find them where their pixels lie (an implicit matrix product, as in Chetlur et al.
// 2014). Images are NHWC, f32 or bf16.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

namespace halftone::cpu {

struct Tap {
  int64_t row, column;
};

/// A grid of pixels, row by row, image by image, each with a window of source pixels: of the tap
/// (r, c) and the grid's pixel (i, j), row i step[0] + r and column j step[1] + c. What lies
/// outside of the source is zero. A window is one row of the matrix, its entries tap by tap, and of
/// each tap the channels.
template <class Element> struct Windows {
  const Element* source;  // the first channel that is meant, of the first image
  int64_t images, rows, columns;
  int64_t source_rows, source_columns;
  int64_t channels;  // that are meant, of `pixel` in all
  int64_t pixel;
  std::array<int64_t, 2> step;
  std::vector<Tap> taps;

  int64_t pixels() const { return images * rows * columns; }
  int64_t depth() const { return int64_t(taps.size()) * channels; }
};

/// Where `count` windows lie, for a product of pieces (simd/kernels.h): pieces[tile][tap][row of
/// the tile]. `zeros`, as many as channels, stands for what is outside and for rows behind the
/// last.
void find_windows(const Windows<float>& w, int64_t first, int64_t count, const float* zeros,
                  const float** pieces);
/// Entries [begin, end) of `count` windows, which are its depth, as a panel `width` wide: of
/// columns (pack_columns), or of rows (pack_rows). bf16 is widened.
void pack_window_entries(const Windows<float>& w, int64_t first, int64_t count, int64_t begin,
                         int64_t end, int64_t width, float* panel);
void pack_window_entries(const Windows<uint16_t>& w, int64_t first, int64_t count, int64_t begin,
                         int64_t end, int64_t width, float* panel);

/// Of `count` windows, at most 32, the entries [begin, end) as a panel of rows (simd/panels.h).
void pack_window_rows(const Windows<uint16_t>& w, int64_t first, int64_t count, int64_t begin,
                      int64_t end, uint16_t* panel);
/// Entries [begin, end) of `count` windows, which are their depth, as panels of columns.
void pack_window_columns(const Windows<uint16_t>& w, int64_t first, int64_t count, int64_t begin,
                         int64_t end, uint16_t* panels);

}  // namespace halftone::cpu
