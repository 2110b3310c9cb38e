// Convolution in bf16 as implicit products (formulas: conv_products.cpp), in the blocks of
// gemm_blocking_bf16.h: windows are packed when the product needs them.
#include <halftone/backends/cpu/conv_products.h>
#include <halftone/backends/cpu/conv_windows.h>
#include <halftone/backends/cpu/few_weights.h>
#include <halftone/backends/cpu/matrix_rows.h>
#include <halftone/core/factory.h>

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

}  // namespace halftone::cpu
