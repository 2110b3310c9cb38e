// Convolutions: oneDNN in f32, and in bf16 if it has instructions for it. If oneDNN declines or is
// slower, they run as matrix products. f16, and bf16 on other CPUs, are widened to f32 and rounded
// once: no short-float convolution ever runs on scalar code.
#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <string_view>

#include <halftone/backends/cpu/attention_blocks.h>
#include <halftone/backends/cpu/conv_windows.h>
#include <halftone/backends/cpu/cpu_backend.h>
#include <halftone/backends/cpu/gemm_blocking.h>
#include <halftone/backends/cpu/gemm_blocking_bf16.h>
#include <halftone/backends/cpu/onednn/onednn.h>
#include <halftone/backends/cpu/simd/panels.h>
#include <halftone/backends/cpu/staging.h>
#include <halftone/backends/reference/loops.h>
#include <halftone/backends/team.h>
#include <halftone/core/device.h>
#include <halftone/core/factory.h>

namespace halftone {

namespace {
bool is_short(const Tensor& x) { return x.defined() && (x.dtype() == f16 || x.dtype() == bf16); }

/// Returns x in f32, in the same memory order; x itself if it is f32 (or undefined).
Tensor widened(const Tensor& x) {
  if (!is_short(x)) return x;
  const MemoryScope scope(MemoryUse::workspace);
  Tensor wide = empty_like(x, f32);
  backend_for(x).copy(x, wide);
  return wide;
}
Tensor wide_like(const Tensor& y) {
  if (!is_short(y)) return y;
  const MemoryScope scope(MemoryUse::workspace);
  return empty_like(y, f32);
}
void round_into(const Tensor& wide, Tensor& y) {
  if (y.defined() && wide.body() != y.body()) backend_for(y).copy(wide, y);
}

/// Tries oneDNN and own products for the image's dtype, in the order that suits the shape. Returns
/// false if neither supports the work. image: x or its gradient.
template <class OneDnn, class Products, class Bf16Products, class Depthwise>
bool in_turn(cpu::ConvPass pass, const Tensor& image, const Tensor& w, const ConvGeometry& g,
             const OneDnn& by_onednn, const Products& by_products,
             const Bf16Products& by_bf16_products, const Depthwise& by_depthwise) {
  const bool in_f32 = cpu::products_serve(image, w, g),
             in_bf16 = cpu::bf16_products_serve(image, w, g), own = in_f32 || in_bf16;
  const bool own_first = own && cpu::products_win(pass, image, w, g);
  const bool native = image.dtype() != bf16 || has_bf16_products();
  if (!own_first && native && !portable_bits() && by_onednn()) return true;
  const bool depthwise = !own && cpu::depthwise_serves(image, w, g);
  if (in_f32) by_products();
  else if (in_bf16) by_bf16_products();
  else if (depthwise) by_depthwise();
  return own || depthwise;
}

// Each of these functions returns whether a fast path did the work.
bool fast_conv(const Tensor& x, const Tensor& w, const Tensor& bias, const ConvGeometry& g,
               Tensor& y) {
  return in_turn(
      cpu::ConvPass::forward, x, w, g, [&] { return onednn::conv(x, w, bias, g, y); },
      [&] { cpu::conv_by_products(x, w, bias, g, y); },
      [&] { cpu::conv_by_bf16_products(x, w, bias, g, y); },
      [&] { cpu::depthwise_conv(x, w, bias, g, y); });
}

bool fast_backward_data(const Tensor& dy, const Tensor& w, const ConvGeometry& g, Tensor& dx) {
  return in_turn(
      cpu::ConvPass::backward_data, dx, w, g,
      [&] { return onednn::conv_backward_data(dy, w, g, dx); },
      [&] { cpu::conv_backward_data_by_products(dy, w, g, dx); },
      [&] { cpu::conv_backward_data_by_bf16_products(dy, w, g, dx); },
      [&] { cpu::depthwise_backward_data(dy, w, g, dx); });
}

bool fast_backward_weights(const Tensor& x, const Tensor& dy, const ConvGeometry& g, Tensor& dw) {
  return in_turn(
      cpu::ConvPass::backward_weights, x, dw, g,
      [&] { return onednn::conv_backward_weights(x, dy, g, dw); },
      [&] { cpu::conv_backward_weights_by_products(x, dy, g, dw); },
      [&] { cpu::conv_backward_weights_by_bf16_products(x, dy, g, dw); },
      [&] { cpu::depthwise_backward_weights(x, dy, g, dw); });
}
}  // namespace

void CpuBackend::conv(const Tensor& x, const Tensor& w, const Tensor& bias, const ConvGeometry& g,
                      Tensor& y) {
  if (fast_conv(x, w, bias, g, y)) return;
  Tensor wide = wide_like(y);
  if (!is_short(x) || !fast_conv(widened(x), widened(w), widened(bias), g, wide))
    return ReferenceBackend::conv(x, w, bias, g, y);
  round_into(wide, y);
}

void CpuBackend::conv_backward_data(const Tensor& dy, const Tensor& w, const ConvGeometry& g,
                                    Tensor& dx) {
  if (fast_backward_data(dy, w, g, dx)) return;
  Tensor wide = wide_like(dx);
  if (!is_short(dy) || !fast_backward_data(widened(dy), widened(w), g, wide))
    return ReferenceBackend::conv_backward_data(dy, w, g, dx);
  round_into(wide, dx);
}

void CpuBackend::conv_backward_weights(const Tensor& x, const Tensor& dy, const ConvGeometry& g,
                                       Tensor& dw, Tensor& dbias) {
  if (!fast_backward_weights(x, dy, g, dw)) {
    Tensor wide = wide_like(dw);
    if (!is_short(x) || !fast_backward_weights(widened(x), widened(dy), g, wide))
      return ReferenceBackend::conv_backward_weights(x, dy, g, dw, dbias);
    round_into(wide, dw);
  }
  if (!dbias.defined()) return;
  // oneDNN would add pixels up one after the other.
  Tensor sums = dbias.view_as({1, dy.size(1), 1, 1}, {dy.size(1), 1, 1, 1}, dbias.offset());
  reduce(Reduction::sum, dy, sums);
}

}  // namespace halftone

// Convolution in bf16 as implicit products (formulas: above), in the blocks of
// gemm_blocking_bf16.h: windows are packed when the product needs them.

namespace halftone::cpu {

namespace {
using Part = panel_product::Part;
constexpr int64_t least_width = 8;  // of weights and results: narrower ones would be mostly padding

uint16_t* shorts(const Tensor& x) { return reinterpret_cast<uint16_t*>(x.raw_data()); }

/// Windows as the left operand; the windows of neighboring pixels are next to each other.
struct WindowRows {
  const Windows<uint16_t>& windows;

  static int64_t group() { return simd::panels::panel_width; }
  simd::panels::Rows rows(const Part& x, uint16_t* buffer) const {
    pack(x, buffer);
    return {.data = buffer};
  }
  /// All windows together are larger than a cache.
  static bool shares(int64_t /*columns*/) { return false; }
  void pack(const Part& x, uint16_t* buffer) const {
    pack_window_rows(windows, x.i, x.rows, x.start, x.start + x.depth, buffer);
  }
  static simd::panels::Ahead ahead(const Part& /*x*/) { return {}; }
};

/// Computes to[pixel, n] = windows times the columns that pack_columns packs.
template <class PackColumns>
void multiply_windows(const Windows<uint16_t>& windows, int64_t n, const float* bias,
                      const PackColumns& pack_columns, uint16_t* to, int64_t stride) {
  const int64_t pixels = windows.pixels(), depth = windows.depth();
  // A bf16 result cannot store partial sums.
  const bool direct = depth <= bf16_depth;
  Workspace<float> wide(direct ? 0 : pixels * n);
  bf16_product(pixels, n, depth,
               {.c = direct ? static_cast<void*>(to) : wide.data(),
                .bf16 = direct,
                .stride = direct ? stride : n,
                .bias = bias},
               WindowRows{windows}, pack_columns);
  if (direct) return;
  parallel_pieces(pixels, 64, [&](int64_t begin, int64_t end) {
    for (int64_t p = begin; p < end; ++p)
      simd_kernels().narrow_bf16(wide.data() + p * n, to + p * stride, n);
  });
}
}  // namespace

bool bf16_products_serve(const Tensor& x, const Tensor& w, const ConvGeometry& g) {
  const bool wide =
      w.size(0) / g.groups >= least_width && w.size(1) * w.size(2) * w.size(3) >= least_width;
  return has_bf16_products() && x.dtype() == bf16 && x.numel() > 0 && wide;
}

void conv_by_bf16_products(const Tensor& x, const Tensor& w, const Tensor& bias,
                           const ConvGeometry& g, Tensor& y) {
  const ConvSizes<uint16_t> s(x, w, y, g);
  const Tensor innermost = channels_innermost(w);
  const WholeInput bias_row(bias);
  std::optional<Workspace<uint16_t>> buffer;
  const uint16_t* const source = s.padded(shorts(x), buffer);
  for (int64_t group = 0; group < s.groups; ++group) {
    const simd::Matrix weights{shorts(innermost) + group * s.out * s.window(), simd::Element::bf16,
                               1, s.window()};
    multiply_windows(
        s.forward(source, group), s.out, bias.defined() ? bias_row.data() + group * s.out : nullptr,
        [&](const Part& p, uint16_t* panels) {
          simd::panels::pack_columns(part(weights, p.start, p.j), p.depth, p.columns, panels);
        },
        shorts(y) + group * s.out, s.groups * s.out);
  }
}

void conv_backward_data_by_bf16_products(const Tensor& dy, const Tensor& w, const ConvGeometry& g,
                                         Tensor& dx) {
  const ConvSizes<uint16_t> s(dx, w, dy, g);
  const Tensor innermost = channels_innermost(w);
  const int64_t pixel = s.groups * s.in;
  const bool one_phase = g.stride[0] == 1 && g.stride[1] == 1;
  if (!s.reaches_all()) std::fill_n(shorts(dx), dx.numel(), uint16_t{0});
  for_phases(s, shorts(dy), [&](int64_t group, const auto& phase, const auto& pixel_of) {
    // The taps' weights [out, in], one after the other.
    const auto taps = int64_t(phase.taps.size());
    Workspace<uint16_t> weights(taps * s.out * s.in);
    const uint16_t* from = shorts(innermost) + group * s.out * s.window();
    parallel_pieces(taps * s.out, 64, [&](int64_t begin, int64_t end) {
      for (int64_t d = begin; d < end; ++d)
        std::copy_n(from + d % s.out * s.window() + phase.taps[std::size_t(d / s.out)], s.in,
                    weights.data() + d * s.in);
    });
    const simd::Matrix matrix{weights.data(), simd::Element::bf16, s.in, 1};
    const auto pack_columns = [&](const Part& p, uint16_t* panels) {
      simd::panels::pack_columns(part(matrix, p.start, p.j), p.depth, p.columns, panels);
    };
    uint16_t* to = shorts(dx) + group * s.in;
    if (one_phase) return multiply_windows(phase.windows, s.in, nullptr, pack_columns, to, pixel);
    const int64_t pixels = phase.windows.pixels();
    Workspace<uint16_t> dense(pixels * s.in);
    multiply_windows(phase.windows, s.in, nullptr, pack_columns, dense.data(), s.in);
    parallel_pieces(pixels, 64, [&](int64_t begin, int64_t end) {
      for (int64_t p = begin; p < end; ++p)
        std::copy_n(dense.data() + p * s.in, s.in, to + pixel_of(p) * pixel);
    });
  });
}

void conv_backward_weights_by_bf16_products(const Tensor& x, const Tensor& dy,
                                            const ConvGeometry& g, Tensor& dw) {
  const ConvSizes<uint16_t> s(x, dw, dy, g);
  const MemoryScope scope(MemoryUse::workspace);
  std::optional<Workspace<uint16_t>> buffer;
  const uint16_t* const source = s.padded(shorts(x), buffer);
  // More than half of a panel would be padding.
  if (s.groups == 1 && s.window() <= simd::panels::panel_width / 2)
    return few_weights_gradient(s, s.forward(source, 0), shorts(dy), dw);
  Tensor gradient = empty({dw.size(0), s.kernel_rows, s.kernel_columns, s.in});
  for (int64_t group = 0; group < s.groups; ++group) {
    const Windows<uint16_t> windows = s.forward(source, group);
    const simd::Matrix outputs{shorts(dy) + group * s.out, simd::Element::bf16, 1,
                               s.groups * s.out};
    bf16_product(s.out, s.window(), windows.pixels(),
                 {.c = gradient.data<float>() + group * s.out * s.window(),
                  .bf16 = false,
                  .stride = s.window()},
                 MatrixRows(outputs), [&](const Part& p, uint16_t* panels) {
                   pack_window_columns(windows, p.start, p.depth, p.j, p.j + p.columns, panels);
                 });
  }
  backend_for(dw).copy(views::permute(gradient, {0, 3, 1, 2}), dw);
}

// With P pixels of output, taps T = kh kw, C channels in and O out, per group:
//   y [P, O] = windows of x [P, T C] w^T      dw [O, T C] = dy^T windows of x
// dx [P, C] = windows of dy [P, T O] w, once for each position of a pixel between strides: with
// stride s only every s-th tap reaches it. Weights are packed once. Windows are read in place, a
// block of them at a time, so that they stay in a thread's second-level cache while all weights are
// read.

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

// Walks over pixels and taps.

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

// One pass over the taps for each pixel, over all channels at a time: images are NHWC, and the
// filters are turned to [kernel row, kernel column, channel]. A result is one chain of products in
// the order of the taps; a gradient of the weights is one chain for each row of dy, and the rows
// are joined in double. So no result depends on the threads, or on the other images of the batch.

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
