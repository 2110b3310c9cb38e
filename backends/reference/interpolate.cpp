// Resizing of NHWC images: each output pixel is a mean of four input pixels (one for `nearest`),
// with a weight along each axis. Backward gathers: each input pixel adds up the gradients of the
// outputs that read it, so two threads never write to one place.
#include <halftone/backends/reference/reference.h>

#include <halftone/backends/reference/resize_axis.h>
#include <halftone/backends/reference/runs.h>

namespace halftone {

using namespace reference;

namespace {

/// Calls body(image, row, column, channel, count) for blocks of channels of every pixel.
template <class Body> void each_pixel(const Tensor& images, const Body& body) {
  const int64_t channels = images.size(1), height = images.size(2), width = images.size(3);
  parallel_tasks(images.size(0) * height, [&](int64_t row) {
    for (int64_t x = 0; x < width; ++x)
      for (int64_t channel = 0; channel < channels; channel += block_length)
        body(row / height, row % height, x, channel, std::min(block_length, channels - channel));
  });
}

int64_t offset_of(const Tensor& images, int64_t image, int64_t row, int64_t column) {
  return ((image * images.size(2) + row) * images.size(3) + column) * images.size(1);
}

/// Computes sums += weight x.
void add_pixel(const Tensor& x, int64_t offset, double weight, int64_t count, double* sums) {
  if (weight == 0) return;
  double values[block_length];
  load(x, offset, count, values);
  for (int64_t c = 0; c < count; ++c) sums[c] += weight * values[c];
}

}  // namespace

void ReferenceBackend::interpolate(const Tensor& x, const InterpolationGeometry& g, Tensor& y) {
  const ResizeAxis rows(x.size(2), y.size(2), g, 0), columns(x.size(3), y.size(3), g, 1);
  each_pixel(y, [&](int64_t image, int64_t oy, int64_t ox, int64_t channel, int64_t count) {
    double sums[block_length] = {};
    const Tap &row = rows.tap(oy), &column = columns.tap(ox);
    const auto add = [&](int64_t iy, int64_t ix, double weight) {
      add_pixel(x, offset_of(x, image, iy, ix) + channel, weight, count, sums);
    };
    add(row.first, column.first, (1 - row.weight) * (1 - column.weight));
    add(row.first, column.second, (1 - row.weight) * column.weight);
    add(row.second, column.first, row.weight * (1 - column.weight));
    add(row.second, column.second, row.weight * column.weight);
    store(sums, count, y, offset_of(y, image, oy, ox) + channel);
  });
}

void ReferenceBackend::interpolate_backward(const Tensor& dy, const InterpolationGeometry& g,
                                            Tensor& dx) {
  const ResizeAxis rows(dx.size(2), dy.size(2), g, 0), columns(dx.size(3), dy.size(3), g, 1);
  each_pixel(dx, [&](int64_t image, int64_t iy, int64_t ix, int64_t channel, int64_t count) {
    double sums[block_length] = {};
    const Range reading_rows = rows.reader(iy), reading_columns = columns.reader(ix);
    for (int64_t oy = reading_rows.begin; oy < reading_rows.end; ++oy)
      for (int64_t ox = reading_columns.begin; ox < reading_columns.end; ++ox)
        add_pixel(dy, offset_of(dy, image, oy, ox) + channel,
                  rows.tap(oy).of(iy) * columns.tap(ox).of(ix), count, sums);
    store(sums, count, dx, offset_of(dx, image, iy, ix) + channel);
  });
}

}  // namespace halftone
