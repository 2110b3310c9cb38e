// With P pixels of output, taps T = kh kw, C channels in and O out, per group:
//   y [P, O] = windows of x [P, T C] w^T      dw [O, T C] = dy^T windows of x
// dx [P, C] = windows of dy [P, T O] w, once for each position of a pixel between strides: with
// stride s only every s-th tap reaches it. Weights are packed once. Windows are read in place, a
// block of them at a time, so that they stay in a thread's second-level cache while all weights are
// read.
#include <halftone/backends/cpu/conv_products.h>

#include <string_view>

#include <halftone/backends/cpu/packed_blocks.h>
#include <halftone/backends/cpu/gemm_blocking.h>
#include <halftone/backends/cpu/conv_windows.h>
#include <halftone/backends/cpu/few_weights.h>
#include <halftone/backends/team.h>
#include <halftone/core/factory.h>

namespace halftone::cpu {

namespace {
constexpr int64_t block_depth =
    384;  // a panel of weights, depth x tile_columns floats, stays near the first-level cache
/// Weights of some taps as the right-hand side of a product, [taps depth, columns]: element (i, j)
/// of tap t is data[tap[t] + i row + j column].
struct Weights {
  const float* data;
  std::vector<int64_t> tap;
  int64_t depth, columns, row, column;

  /// Packs panels of the whole depth, with all threads.
  void pack(float* to) const {
    const simd::Kernels& kernels = simd_kernels();
    const int64_t tile = kernels.tile_columns;
    parallel_tasks(reference::pieces_of(columns, tile), [&](int64_t panel) {
      float* part = to + panel * tile * depth * int64_t(tap.size());
      for (const int64_t offset : tap) {
        const float* from = data + offset + panel * tile * column;
        kernels.pack_columns({from, simd::Element::f32, row, column}, depth,
                             std::min(tile, columns - panel * tile), part);
        part += depth * tile;
      }
    });
  }
};

/// Multiplies windows by weights and passes on blocks: take(first pixel, pixels, first column,
/// columns, block, stride of its rows). Sums are split into slices of the depth that do not depend
/// on the threads.
template <class Take>
void multiply_windows(const Windows<float>& windows, const Weights& weights, const float* bias,
                      const Take& take) {
  const int64_t depth = windows.depth(), n = weights.columns;
  const int64_t rows = FloatBlocks::block_rows(), unit = FloatBlocks::column_unit();
  // Slices of the depth: whole taps, or parts of one.
  const int64_t taps = int64_t(windows.taps.size()), channels = windows.channels;
  const int64_t channels_at_once = even_piece(channels, block_depth, 1);
  const int64_t taps_at_once = even_piece(taps, std::max<int64_t>(1, block_depth / channels), 1);
  const std::vector<float> zeros(std::size_t(channels), 0.0F);
  Workspace<float> packed(FloatBlocks::packed_columns(depth, n));
  weights.pack(packed.data());
  // For few pixels, threads also share the columns, so that none waits long for another.
  const int64_t row_blocks = reference::pieces_of(windows.pixels(), rows);
  const int64_t wanted = reference::pieces_of(8 * cpu_threads(), row_blocks);
  const int64_t width = even_piece(n, std::max(unit, n / wanted), unit);
  const int64_t column_blocks = reference::pieces_of(n, width);
  reference::RegionError error;
#pragma omp parallel if (windows.pixels() * depth * n > reference::worth_waking(1 << 18))
  {
    const simd::Kernels& kernels = simd_kernels();
    const int64_t tile = kernels.tile_rows;
    reference::OfThread<Workspace<const float*>> pieces(error, rows / tile * taps * tile);
    reference::OfThread<Workspace<float>> block(error, rows * width);
#pragma omp for schedule(dynamic)
    for (int64_t task = 0; task < row_blocks * column_blocks; ++task) {
      if (!pieces || !block) continue;
      const int64_t first = task / column_blocks * rows, j0 = task % column_blocks * width;
      const int64_t count = std::min(rows, windows.pixels() - first),
                    columns = std::min(width, n - j0);
      find_windows(windows, first, count, zeros.data(), pieces->data());
      for (int64_t tap = 0; tap < taps; tap += taps_at_once)
        for (int64_t c = 0; c < channels; c += channels_at_once) {
          const int64_t these = std::min(taps_at_once, taps - tap),
                        length = std::min(channels_at_once, channels - c);
          const bool begins = tap == 0 && c == 0;
          for (int64_t j = 0; j < columns; j += unit)
            for (int64_t i = 0; i < count; i += tile)
              kernels.tile_product_of_pieces(
                  these, length, pieces->data() + i * taps + tap * tile, c,
                  packed.data() + (j0 + j) * depth + (tap * channels + c) * unit,
                  std::min(tile, count - i), std::min(unit, columns - j),
                  bias && begins ? bias + j0 + j : nullptr, !begins, block->data() + i * width + j,
                  width);
        }
      take(first, count, j0, columns, block->data(), width);
    }
  }
  error.rethrow();
}
}  // namespace

bool products_serve(const Tensor& x, const Tensor& w, const ConvGeometry& g) {
  const bool wide = w.size(0) / g.groups >= 4 && w.size(1) * w.size(2) * w.size(3) >= 4;
  return x.dtype() == f32 && w.dtype() == f32 && x.numel() > 0 && wide;
}

namespace {
bool win_on_avx2(ConvPass pass, const Tensor& w, bool strided) {
  const int64_t out = w.size(0), in = w.size(1), taps = w.size(2) * w.size(3);
  if (std::min(in, out) < 32) return false;
  switch (pass) {
    case ConvPass::forward: return taps > 1 && in * taps >= 384 && in * taps < 4096;
    case ConvPass::backward_data: return taps > 1 && in >= 48 && (strided || out * taps <= 1152);
    case ConvPass::backward_weights: return in * taps >= 256;
  }
  return false;
}

/// For bf16. oneDNN 2.6 has few AMX kernels for strides, and is slow for small images.
bool win_on_amx(ConvPass pass, const Tensor& w, bool strided) {
  const int64_t in = w.size(1);
  switch (pass) {
    case ConvPass::forward: return in >= (strided ? 128 : 512);
    case ConvPass::backward_data: return in >= (strided ? 64 : 256);
    case ConvPass::backward_weights: return in >= (strided ? 64 : 128);
  }
  return false;
}
/// For bf16 without AMX. In oneDNN 2.6, the threads that compute a gradient of weights wait for
/// each other without sleeping. With it, a step of resnet18_cifar beside one busy program takes
/// 1,231 ms instead of 555. On an idle machine the own products are as fast.
bool win_on_avx512(ConvPass pass, const Tensor& w) {
  return pass == ConvPass::backward_weights && w.size(1) >= 64 && w.size(2) * w.size(3) > 1;
}
/// For f32 on CPUs with AMX: own products win for small results, as at the end of networks.
/// `pixels`: of a result.
bool win_beside_amx(ConvPass pass, int64_t pixels, const Tensor& w, bool strided) {
  const bool wide = w.size(1) >= 256 && w.size(2) * w.size(3) > 1, small = pixels <= 16;
  switch (pass) {
    case ConvPass::forward: return wide && small;
    case ConvPass::backward_data: return false;
    case ConvPass::backward_weights: return wide && (small || strided);
  }
  return false;
}
}  // namespace

bool products_win(ConvPass pass, const Tensor& image, const Tensor& w, const ConvGeometry& g) {
  const bool avx2 = std::string_view(simd_kernels().name) == "avx2";
  const bool strided = g.stride[0] * g.stride[1] > 1;
  if (g.groups > 1) return false;
  if (image.dtype() == bf16)
    return use_amx() ? win_on_amx(pass, w, strided) : win_on_avx512(pass, w);
  if (image.dtype() != f32) return false;
  if (avx2) return win_on_avx2(pass, w, strided);
  const int64_t pixels = image.size(2) / g.stride[0] * (image.size(3) / g.stride[1]);
  return use_amx() && win_beside_amx(pass, pixels, w, strided);
}

void conv_by_products(const Tensor& x, const Tensor& w, const Tensor& bias, const ConvGeometry& g,
                      Tensor& y) {
  const ConvSizes<float> s(x, w, y, g);
  const Tensor innermost = channels_innermost(w);
  std::optional<Workspace<float>> buffer;
  const float* const source = s.padded(x.data<float>(), buffer);
  const int64_t pixel = s.groups * s.out;
  for (int64_t group = 0; group < s.groups; ++group) {
    Weights weights{.data = innermost.data<float>() + group * s.out * s.window(),
                    .tap = {},
                    .depth = s.in,
                    .columns = s.out,
                    .row = 1,
                    .column = s.window()};
    for (int64_t t = 0; t < s.taps(); ++t) weights.tap.push_back(t * s.in);
    float* to = y.data<float>() + group * s.out;
    multiply_windows(s.forward(source, group), weights,
                     bias.defined() ? bias.data<float>() + group * s.out : nullptr,
                     [&](int64_t first, int64_t count, int64_t j, int64_t columns,
                         const float* block, int64_t stride) {
                       for (int64_t p = 0; p < count; ++p)
                         std::copy_n(block + p * stride, columns, to + (first + p) * pixel + j);
                     });
  }
}

void conv_backward_data_by_products(const Tensor& dy, const Tensor& w, const ConvGeometry& g,
                                    Tensor& dx) {
  const ConvSizes<float> s(dx, w, dy, g);
  const Tensor innermost = channels_innermost(w);
  const int64_t pixel = s.groups * s.in;
  if (!s.reaches_all()) std::fill_n(dx.data<float>(), dx.numel(), 0.0F);
  for_phases(s, dy.data<float>(), [&](int64_t group, const auto& phase, const auto& pixel_of) {
    const Weights weights{.data = innermost.data<float>() + group * s.out * s.window(),
                          .tap = phase.taps,
                          .depth = s.out,
                          .columns = s.in,
                          .row = s.window(),
                          .column = 1};
    float* to = dx.data<float>() + group * s.in;
    multiply_windows(phase.windows, weights, nullptr,
                     [&](int64_t first, int64_t count, int64_t j, int64_t columns,
                         const float* block, int64_t stride) {
                       for (int64_t p = 0; p < count; ++p)
                         std::copy_n(block + p * stride, columns,
                                     to + pixel_of(first + p) * pixel + j);
                     });
  });
}

void conv_backward_weights_by_products(const Tensor& x, const Tensor& dy, const ConvGeometry& g,
                                       Tensor& dw) {
  const ConvSizes<float> s(x, dw, dy, g);
  const simd::Kernels& kernels = simd_kernels();
  const MemoryScope scope(MemoryUse::workspace);
  std::optional<Workspace<float>> buffer;
  const float* const source = s.padded(x.data<float>(), buffer);
  if (s.groups == 1 && s.window() * s.out <= few_weights)
    return few_weights_gradient(s, s.forward(source, 0), dy.data<float>(), dw);
  Tensor gradient = empty({dw.size(0), s.kernel_rows, s.kernel_columns, s.in});
  for (int64_t group = 0; group < s.groups; ++group) {
    const Windows<float> windows = s.forward(source, group);
    const simd::Matrix outputs{dy.data<float>() + group * s.out, simd::Element::f32, 1,
                               s.groups * s.out};
    blocked_product(
        s.out, s.window(), windows.pixels(),
        {.c = gradient.data<float>() + group * s.out * s.window(), .stride = s.window()},
        [&](int64_t row, int64_t rows, int64_t first, int64_t count, float* panels) {
          kernels.pack_rows(part(outputs, row, first), rows, count, panels);
        },
        [&](int64_t entry, int64_t entries, int64_t first, int64_t count, float* buffer) -> Panels {
          const int64_t width = kernels.tile_columns;
          for (int64_t j = 0; j < entries; j += width)
            pack_window_entries(windows, first, count, entry + j,
                                entry + std::min(entries, j + width), width, buffer + j * count);
          return {buffer, width};
        });
  }
  backend_for(dw).copy(views::permute(gradient, {0, 3, 1, 2}), dw);
}

}  // namespace halftone::cpu
