// The steps of a quantizer as calls of a backend.
#include <halftone/core/quantized.h>

#include <halftone/core/backend.h>
#include <halftone/core/captured_step.h>
#include <halftone/core/clip.h>
#include <halftone/core/factory.h>
#include <halftone/core/formulas.h>
#include <halftone/core/hadamard.h>
#include <halftone/core/in_place.h>
#include <halftone/core/memory.h>
#include <halftone/core/own_quantizer.h>
#include <halftone/core/views.h>

namespace halftone {

namespace {

/// Returns whether one kernel, after those for the largest magnitude, computes the quantizer on
/// every device.
bool one_kernel(const Quantizer& quantizer) {
  return quantizer.hadamard == 0 && !quantizer.clip.any() && !quantizer.own &&
         quantizer.average == 0 && quantizer.table.empty();
}

/// Returns true if neither blocks, random numbers nor sums count elements: then any dense order
/// will do.
bool any_order(const Quantizer& quantizer) {
  return one_kernel(quantizer) && quantizer.scaling.per != Scaling::Per::block &&
         !quantizer.draws();
}

/// Returns the largest magnitude of each row. x: row-major.
Tensor largest_of_rows(const Tensor& x) {
  Tensor magnitudes = empty({x.numel() / x.size(-1), x.size(-1)}, f32, x.device());
  Tensor largest = empty({magnitudes.size(0), 1}, f32, x.device());
  Backend& backend = backend_for(x);
  backend.copy(views::reshaped(x, magnitudes.shape()), magnitudes);
  backend.unary(call_of<UnaryFormulas>(formula::Abs{}), magnitudes, magnitudes);
  backend.reduce(Reduction::max, magnitudes, largest);
  return largest;
}

/// Returns QuantizeCall::amax for x.
Tensor amax_of(const Quantizer& quantizer, const Tensor& x) {
  const MemoryScope scope(MemoryUse::workspace);
  if (quantizer.scaling.row_level) return largest_of_rows(x);
  Tensor amax = zeros({}, f32, x.device());
  backend_for(x).largest_magnitude(x, amax);
  return amax;
}

Rotation rotation_of(const QuantizeCall& call) {
  return {.size = call.quantizer.hadamard,
          .signs = call.quantizer.hadamard_signs,
          .draws = call.quantizer.draws_signs,
          .key = call.key,
          .key_stride = call.key_stride};
}

/// Limits x by the bound of the clip. x, y: f32, row-major; they may be the same.
void apply(const Clip& clip, const Tensor& x, Tensor& y) {
  Backend& backend = backend_for(x);
  Tensor bound = empty({}, f32, x.device());
  backend.clip_bound(x, clip, bound);
  backend.clip(x, bound, y);
}

/// The same as run() for a quantizer with a clip, or, on the host, with a function of the program:
/// in f32, as a bound need not be a number of a short dtype. Results are exact in the dtype of
/// `to`.
void run_in_f32(const Tensor& from, const QuantizeCall& call, Tensor& to) {
  const MemoryScope scope(MemoryUse::workspace);
  Backend& backend = backend_for(from);
  const Quantizer& quantizer = call.quantizer;
  Rotation rotation = rotation_of(call);
  const auto made = [&] { return empty(from.shape(), f32, from.device()); };
  Tensor whole = from;  // before the clip
  if (from.dtype() != f32 || rotation.size > 0) whole = made(), backend.copy(from, whole);
  if (rotation.size > 0) backend.rotate(whole, rotation, whole);
  // A survey reads the numbers before and after the clip, and the results.
  const bool surveyed = call.survey.defined(), direct = to.dtype() == f32 && !surveyed;
  Tensor x = whole, y = direct ? to : made();
  if (quantizer.clip.any()) x = surveyed ? made() : y, apply(quantizer.clip, whole, x);
  QuantizeCall own{.quantizer = quantizer,
                   .key = call.key,
                   .key_stride = call.key_stride,
                   .unclipped = quantizer.clip.any() ? whole : Tensor()};
  if (quantizer.needs_amax()) own.amax = amax_of(quantizer, x);
  const auto count = std::size_t(x.numel());
  if (quantizer.own)
    round_blocks(*quantizer.own, {x.data<float>(), count}, x.size(-1), call.key,
                 {y.data<float>(), count});
  else backend.quantize(x, own, y);
  if (surveyed) {
    Tensor row = call.survey;
    backend.survey(x, y, &own, row);
  }
  rotation.back = true;
  if (rotation.size > 0) backend.rotate(y, rotation, y);
  if (!direct) backend.copy(y, to);
}

void run(const Tensor& from, const QuantizeCall& call, Tensor& to);

/// Rounds down, and up, and takes the result that is nearer to the average. The operations are
/// exact or rounded once, so the bits are the same everywhere.
void run_by_average(const Tensor& from, const QuantizeCall& call, Tensor& to) {
  const MemoryScope scope(MemoryUse::workspace);
  Backend& backend = backend_for(from);
  const auto made = [&](DType dtype) { return empty(from.shape(), dtype, from.device()); };
  Tensor x = made(f32), down = made(f32), up = made(f32), sum = made(f32), twice = made(f32);
  backend.copy(from, x);
  Quantizer quantizer = call.quantizer;
  quantizer.average = 0;
  QuantizeCall whole{.quantizer = quantizer, .amax = call.amax, .scale = call.scale};
  if (quantizer.needs_amax() && !whole.amax.defined()) whole.amax = amax_of(quantizer, x);
  quantizer.rounding = Rounding::down, run(x, whole, down);
  quantizer.rounding = Rounding::up, run(x, whole, up);
  // The average is beyond the middle if twice the average is beyond the sum of the neighbors.
  const Tensor& average = call.average.defined() ? call.average : x;
  const auto add = call_of<BinaryFormulas>(formula::Add{});
  backend.binary(add, down, up, sum), backend.binary(add, average, average, twice);
  const auto greater = call_of<CompareFormulas>(formula::Greater{});
  const auto at_least = call_of<CompareFormulas>(formula::GreaterEqual{});
  Tensor above = made(boolean), not_below = made(boolean), positive = made(boolean);
  backend.compare(greater, twice, sum, above), backend.compare(at_least, twice, sum, not_below);
  backend.compare(greater, x, views::expand(zeros({}, f32, x.device()), x.shape()), positive);
  Tensor of_positive = made(f32), of_negative = made(f32);
  backend.select(not_below, up, down, of_positive), backend.select(above, up, down, of_negative);
  Tensor& y = sum;
  backend.select(positive, of_positive, of_negative, y);
  if (call.survey.defined()) {
    Tensor row = call.survey;
    backend.survey(x, y, &whole, row);
  }
  backend.copy(y, to);
}

/// The same as run() on the host, for tensors of other devices.
void run_on_host(const Tensor& from, const QuantizeCall& call, Tensor& to) {
  if (recording_step())
    fail<UsageError>("quantize", "the host computes this quantizer (", described(call.quantizer),
                     "), which a captured step cannot do. Run the step uncaptured, or leave tables "
                     "and quantizers of the program out.");
  const auto here = [](const Tensor& x) { return x.defined() ? x.to(Device::cpu()) : x; };
  const Tensor x = here(from);
  Tensor y = empty(x.shape(), x.dtype());
  const QuantizeCall own{.quantizer = call.quantizer,
                         .amax = here(call.amax),
                         .scale = here(call.scale),
                         .average = here(call.average),
                         .survey = here(call.survey),
                         .key = call.key};
  run(x, own, y);
  if (call.survey.defined()) copy_into(call.survey, own.survey);
  backend_for(to).copy(y.to(to.device()), to);
}

/// from, to: rows; they may be the same tensor.
void run(const Tensor& from, const QuantizeCall& call, Tensor& to) {
  if (from.numel() == 0) return;
  const bool host_only = call.quantizer.own || !call.quantizer.table.empty();
  if (host_only && from.device() != Device::cpu()) return run_on_host(from, call, to);
  if (call.quantizer.clip.any() || call.quantizer.own) return run_in_f32(from, call, to);
  if (call.quantizer.average > 0) return run_by_average(from, call, to);
  Backend& backend = backend_for(from);
  const Quantizer& quantizer = call.quantizer;
  const bool rotates = quantizer.hadamard > 0;
  Rotation rotation = rotation_of(call);
  if (rotates) backend.rotate(from, rotation, to);
  const Tensor& x = rotates ? to : from;
  QuantizeCall whole = call;
  if (quantizer.needs_amax() && !call.amax.defined()) whole.amax = amax_of(quantizer, x);
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
  if (x.rank() == 0) {
    QuantizeCall whole = call;
    if (call.average.defined()) whole.average = views::reshaped(call.average, {1});
    return views::reshaped(quantized(views::reshaped(x, {1}), whole), {});
  }
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
  if (call.quantizer.average > 0)
    fail<UsageError>("quantize", "a tensor that is rounded in place has no average over steps (",
                     described(call.quantizer), "). Leave the average out.");
  write_in_place(x.rank() == 0 ? views::reshaped(x, {1}) : x, [&](Backend& backend, Tensor& y) {
    if (!call.skip.defined() || one_kernel(call.quantizer)) return run(y, call, y);
    const MemoryScope scope(MemoryUse::workspace);
    QuantizeCall always = call;
    always.skip = {};
    Tensor rounded = empty_like(y), skips = empty({}, boolean, y.device());
    run(y, always, rounded);
    backend.compare(call_of<CompareFormulas>(formula::NotEqual{}), call.skip,
                    zeros({}, f32, y.device()), skips);
    backend.select(views::expand(skips, y.shape()), y, rounded, y);
  });
}

}  // namespace halftone
