// The forward pass of quantize(), and its checks.
#include <halftone/autograd/ops/cast.h>

#include <vector>

#include <halftone/core/error.h>

namespace halftone {

namespace {

/// Returns the dtype of the computation: f64 is computed in f32.
DType held_dtype(const Tensor& x) { return x.dtype() == f64 ? f32 : x.dtype(); }

void check_input(const Tensor& x, const Quantizer& quantizer) {
  if (!quantizer.exact_in(held_dtype(x)))
    fail<UsageError>("quantize", x.dtype(), " does not hold every number of ", described(quantizer),
                     ". Cast the input to f32.");
  if (quantizer.scaling.per == Scaling::Per::tensor && quantizer.scaling.from_history)
    fail<UsageError>(
        "quantize",
        "scaling is from history, and a single call has no history. Scale from the tensor itself.");
  if (quantizer.average > 0)
    fail<UsageError>(
        "quantize",
        "the quantizer rounds by an average over steps, and a single call has no steps. "
        "Leave the average out.");
  const int64_t columns = x.rank() == 0 ? 1 : x.size(-1);
  if (quantizer.hadamard > 0 && columns % quantizer.hadamard != 0)
    fail<ShapeError>("quantize", "rotations of ", quantizer.hadamard,
                     " do not divide the last dimension"
                     " of ",
                     described(x), ". Choose a size that does, or pad.");
}

}  // namespace

Tensor Quantize::forward(const Tensor& x) {
  const QuantizeCall call{.quantizer = quantizer, .key = key};
  if (x.dtype() != f64) return quantized(x, call);
  return converted(quantized(converted(x, f32), call), f64);
}

Tensor quantize(const Tensor& x, const Quantizer& quantizer) {
  check::floating("quantize", x);
  check_quantizer("quantize", quantizer);
  check_input(x, quantizer);
  RandomKey key;
  if (quantizer.draws()) key = default_generator().reserve(uint64_t(x.numel()));
  return apply(Quantize{.quantizer = quantizer, .key = key}, x);
}

Tensor quantize(const Tensor& x, std::string_view quantizer) {
  if (const auto known = quantizer_named(quantizer)) return quantize(x, *known);
  std::vector<std::string_view> names;
  for (const NamedFormat& format : named_formats()) names.push_back(format.name);
  for (const std::string_view ready : ready_made_quantizers()) names.push_back(ready);
  fail_unknown_name("quantize", "number format or quantizer", quantizer, names);
}

}  // namespace halftone
