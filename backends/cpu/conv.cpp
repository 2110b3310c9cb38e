// Convolutions: oneDNN in f32, and in bf16 if it has instructions for it. If oneDNN declines or is
// slower, they run as matrix products. f16, and bf16 on other CPUs, are widened to f32 and rounded
// once: no short-float convolution ever runs on scalar code.
#include <halftone/backends/cpu/conv_products.h>
#include <halftone/backends/cpu/cpu_backend.h>
#include <halftone/backends/cpu/depthwise.h>
#include <halftone/backends/cpu/onednn/onednn.h>
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
  if (!own_first && !portable_bits() && by_onednn()) return true;
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
