// The steps of a quantizer as calls of a backend.
#include <halftone/core/quantized.h>

#include <halftone/core/backend.h>
#include <halftone/core/factory.h>
#include <halftone/core/hadamard.h>
#include <halftone/core/in_place.h>
#include <halftone/core/memory_ledger.h>
#include <halftone/core/views.h>

namespace halftone {

namespace {

/// Returns true if neither blocks nor random numbers count elements: then any dense order will do.
bool any_order(const Quantizer& quantizer) {
  return quantizer.scaling.per != Scaling::Per::block && quantizer.hadamard == 0 &&
         !quantizer.draws();
}

Tensor largest_magnitude_of(const Tensor& x) {
  const MemoryScope scope(MemoryUse::workspace);
  Tensor amax = zeros({}, f32, x.device());
  backend_for(x).largest_magnitude(x, amax);
  return amax;
}

/// from, to: rows; they may be the same tensor.
void run(const Tensor& from, const QuantizeCall& call, Tensor& to) {
  if (from.numel() == 0) return;
  Backend& backend = backend_for(from);
  const Quantizer& quantizer = call.quantizer;
  const bool rotates = quantizer.hadamard > 0;
  Rotation rotation{.size = quantizer.hadamard,
                    .signs = quantizer.hadamard_signs,
                    .draws = quantizer.draws_signs,
                    .key = call.key,
                    .key_stride = call.key_stride};
  if (rotates) backend.rotate(from, rotation, to);
  const Tensor& x = rotates ? to : from;
  QuantizeCall whole = call;
  if (quantizer.needs_amax() && !call.amax.defined()) whole.amax = largest_magnitude_of(x);
  if (call.survey.defined()) {
    Tensor y = empty_like(to), row = call.survey;  // x may be the tensor that receives the result
    backend.quantize(x, whole, y);
    backend.survey(x, y, &whole, row);
    backend.copy(y, to);
  } else {
    backend.quantize(x, whole, to);
  }
  rotation.back = true;
  if (rotates) backend.rotate(to, rotation, to);
}

}  // namespace

Tensor quantized(const Tensor& x, const QuantizeCall& call) {
  if (x.rank() == 0) return views::reshaped(quantized(views::reshaped(x, {1}), call), {});
  if (any_order(call.quantizer) && x.is_dense()) {
    Tensor y = empty_like(x);
    const Tensor from = x.view_as({x.numel()}, {1}, x.offset());
    Tensor to = y.view_as({y.numel()}, {1}, y.offset());
    run(from, call, to);
    return y;
  }
  const Tensor from = views::contiguous(x);
  Tensor y = empty(x.shape(), x.dtype(), x.device());
  run(from, call, y);
  return y;
}

void quantize_in_place(const Tensor& x, const QuantizeCall& call) {
  write_in_place(x.rank() == 0 ? views::reshaped(x, {1}) : x,
                 [&](Backend&, Tensor& y) { run(y, call, y); });
}

}  // namespace halftone
