// One pass over the taps for each pixel, over all channels at a time: images are NHWC, and the
// filters are turned to [kernel row, kernel column, channel]. A result is one chain of products in
// the order of the taps; a gradient of the weights is one chain for each row of dy, and the rows
// are joined in double. So no result depends on the threads, or on the other images of the batch.
#include <halftone/backends/cpu/depthwise.h>

#include <halftone/backends/cpu/conv_windows.h>

namespace halftone::cpu {

namespace {

/// A place where taps of the filter meet the image.
struct Meeting {
  int64_t tap, place;  // the tap, and the pixel's number in its row
};

/// Returns the taps along one dimension that lead from `at` of the result to a place of the image.
std::vector<Meeting> forward_taps(int64_t at, int64_t taps, int64_t size, int64_t stride,
                                  int64_t padding, int64_t dilation) {
  std::vector<Meeting> found;
  for (int64_t tap = 0; tap < taps; ++tap)
    if (const int64_t place = at * stride + tap * dilation - padding; place >= 0 && place < size)
      found.push_back({tap, place});
  return found;
}

/// Returns the taps that lead from a place of the result to `at` of the image.
std::vector<Meeting> backward_taps(int64_t at, int64_t taps, int64_t size, int64_t stride,
                                   int64_t padding, int64_t dilation) {
  std::vector<Meeting> found;
  for (int64_t tap = 0; tap < taps; ++tap) {
    const int64_t scaled = at + padding - tap * dilation;
    if (scaled >= 0 && scaled % stride == 0 && scaled / stride < size)
      found.push_back({tap, scaled / stride});
  }
  return found;
}

/// Returns the taps for each place of one dimension (0: rows, 1: columns).
template <class Taps>
std::vector<std::vector<Meeting>> along(int dim, int64_t places, int64_t taps, int64_t size,
                                        const ConvGeometry& g, const Taps& taps_at) {
  const auto d = std::size_t(dim);
  std::vector<std::vector<Meeting>> all;
  for (int64_t at = 0; at < places; ++at)
    all.push_back(taps_at(at, taps, size, g.stride[d], g.padding[d], g.dilation[d]));
  return all;
}

/// For each pixel of `to`: the sum over its taps of weight times the pixel of `from`.
template <class Taps>
void sum_of_taps(const Tensor& from, const Tensor& w, const float* bias, const ConvGeometry& g,
                 const Taps& taps_at, Tensor& to) {
  const MemoryScope scope(MemoryUse::workspace);
  const int64_t channels = to.size(1), rows = to.size(2), columns = to.size(3);
  const int64_t from_rows = from.size(2), from_columns = from.size(3);
  const Tensor filters = views::contiguous(views::permute(w, {2, 3, 1, 0}));
  const auto in_rows = along(0, rows, w.size(2), from_rows, g, taps_at);
  const auto in_columns = along(1, columns, w.size(3), from_columns, g, taps_at);
  const float* const source = from.data<float>();
  const float* const weight = filters.data<float>();
  float* const result = to.data<float>();
  const simd::Kernels& kernels = simd_kernels();
  parallel_pieces(to.size(0) * rows, 1, [&](int64_t begin, int64_t end) {
    for (int64_t line = begin; line < end; ++line) {
      const float* const image = source + line / rows * from_rows * from_columns * channels;
      for (int64_t column = 0; column < columns; ++column) {
        float* const pixel = result + (line * columns + column) * channels;
        if (bias) std::copy_n(bias, channels, pixel);
        else std::fill_n(pixel, channels, 0.0F);
        for (const Meeting& r : in_rows[std::size_t(line % rows)])
          for (const Meeting& c : in_columns[std::size_t(column)])
            kernels.add_products(image + (r.place * from_columns + c.place) * channels,
                                 weight + (r.tap * w.size(3) + c.tap) * channels, pixel, channels);
      }
    }
  });
}

}  // namespace

bool depthwise_serves(const Tensor& image, const Tensor& w, const ConvGeometry& g) {
  return image.dtype() == f32 && w.dtype() == f32 && image.numel() > 0 && w.size(1) == 1 &&
         g.groups == w.size(0);
}

void depthwise_conv(const Tensor& x, const Tensor& w, const Tensor& bias, const ConvGeometry& g,
                    Tensor& y) {
  sum_of_taps(x, w, bias.defined() ? bias.data<float>() : nullptr, g, forward_taps, y);
}

void depthwise_backward_data(const Tensor& dy, const Tensor& w, const ConvGeometry& g, Tensor& dx) {
  sum_of_taps(dy, w, nullptr, g, backward_taps, dx);
}

void depthwise_backward_weights(const Tensor& x, const Tensor& dy, const ConvGeometry& g,
                                Tensor& dw) {
  const MemoryScope scope(MemoryUse::workspace);
  const int64_t channels = dw.size(0), kernel_columns = dw.size(3);
  const int64_t rows = dy.size(2), columns = dy.size(3);
  Tensor filters = empty({dw.size(2), kernel_columns, 1, channels});
  const simd::Kernels& kernels = simd_kernels();
  parallel_tasks(dw.size(2) * kernel_columns, [&](int64_t tap) {
    Workspace<float> of_row(channels);
    Workspace<double> total(channels);
    std::fill_n(total.data(), channels, 0.0);
    for (int64_t line = 0; line < dy.size(0) * rows; ++line) {
      const int64_t row =
          line % rows * g.stride[0] + tap / kernel_columns * g.dilation[0] - g.padding[0];
      if (row < 0 || row >= x.size(2)) continue;
      const float* const in =
          x.data<float>() + (line / rows * x.size(2) + row) * x.size(3) * channels;
      const float* const out = dy.data<float>() + line * columns * channels;
      std::fill_n(of_row.data(), channels, 0.0F);
      for (int64_t j = 0; j < columns; ++j)
        if (const int64_t column =
                j * g.stride[1] + tap % kernel_columns * g.dilation[1] - g.padding[1];
            column >= 0 && column < x.size(3))
          kernels.add_products(in + column * channels, out + j * channels, of_row.data(), channels);
      kernels.join(of_row.data(), total.data(), channels);
    }
    std::copy_n(total.data(), channels, filters.data<float>() + tap * channels);
  });
  backend_for(dw).copy(views::permute(filters, {3, 2, 0, 1}), dw);
}

}  // namespace halftone::cpu
