// Rounding is done by core/formats/quantizer.h; this file adds scales and error feedback.
#include <halftone/distributed/wire.h>

#include <algorithm>
#include <array>
#include <bit>
#include <vector>

#include <halftone/core/backend.h>
#include <halftone/core/error.h>
#include <halftone/core/factory.h>
#include <halftone/core/formats/quantizer.h>
#include <halftone/core/memory.h>
#include <halftone/core/tensor.h>

namespace halftone::distributed {

namespace {

constexpr std::array wire_dtypes{f32, bf16, f16, f8_e4m3, f8_e5m2};
constexpr std::string_view fed_back = "+feedback", at_random = "-sr";

bool scales(DType wire) { return wire == f16 || wire == f8_e4m3 || wire == f8_e5m2; }

NumberFormat grid_of_dtype(DType dtype) {
  if (dtype == bf16) return formats::bf16;
  if (dtype == f16) return formats::f16;
  if (dtype == f8_e5m2) return formats::e5m2;
  NumberFormat e4m3 = formats::e4m3;
  e4m3.infinity = true;  // which the dtype then stores as NaN
  return e4m3;
}

Quantizer quantizer_of(DType wire, bool stochastic) {
  Quantizer quantizer{.grid = grid_of_dtype(wire),
                      .rounding = stochastic ? Rounding::stochastic : Rounding::nearest_even};
  if (scales(wire)) quantizer.scaling = Scaling::per_block(1, Payload::piece_length);
  quantizer.scaling.rule = ScaleRule::rceil;
  return quantizer;
}

Tensor flat(const Tensor& x) { return *views::reshape(views::contiguous(x), {x.numel()}); }

Tensor converted_to(const Tensor& x, DType dtype) {
  if (x.dtype() == dtype) return x;
  const MemoryScope scope(MemoryUse::workspace);
  Tensor y = empty(x.shape(), dtype, x.device());
  backend_for(x).copy(x, y);
  return y;
}

int64_t pieces_of(int64_t count) {
  return (count + Payload::piece_length - 1) / Payload::piece_length;
}

/// Calls function(first element, count, number) for the pieces of a range, from any thread.
template <class Function>
void for_each_piece(int64_t begin, int64_t count, const Function& function) {
  const int64_t end = begin + count, first = begin / Payload::piece_length;
  const int64_t pieces = count == 0 ? 0 : pieces_of(end) - first;
#pragma omp parallel for schedule(static) if (pieces > 16)
  for (int64_t k = 0; k < pieces; ++k) {
    const int64_t from = std::max(begin, (first + k) * Payload::piece_length);
    const int64_t to = std::min(end, (first + k + 1) * Payload::piece_length);
    function(from - begin, to - from, k);
  }
}

float largest_magnitude(const float* x, int64_t count) {
  uint32_t largest = 0;
  for (int64_t i = 0; i < count; ++i) largest = std::max(largest, magnitude_bits(x[i]));
  return std::bit_cast<float>(largest);
}

/// Returns the gradient in f32, with the error feedback added.
Tensor with_feedback(const Tensor& gradient, const Feedback& feedback) {
  const Tensor x = flat(converted_to(gradient, f32)).to(Device::cpu());
  if (!feedback.rest.defined()) return x;
  const Tensor sum = x.clone();
  auto* const to = sum.data<float>();
  auto* const rest = feedback.rest.data<float>();
  const auto factor = float(feedback.factor);
#pragma omp parallel for if (x.numel() > 16 * Payload::piece_length)
  for (int64_t i = 0; i < x.numel(); ++i) to[i] += rest[i] *= factor;
  return sum;
}

/// Stores x - y in `rest`: x is the value before rounding, y after it.
void keep_rest(const Tensor& x, const Tensor& y, const Tensor& rest) {
  const auto *const in = x.data<float>(), *const out = y.data<float>();
  auto* const to = rest.data<float>();
  for_each_piece(0, x.numel(), [&](int64_t from, int64_t count, int64_t) {
    if (!is_finite_magnitude(largest_magnitude(in + from, count))) return;
    for (int64_t i = from; i < from + count; ++i) to[i] = in[i] - out[i];
  });
  mark_written(rest);
}

/// Moves the scales of y, the rounded x, into `scales`. Products with powers of two are exact.
void take_scales(const Quantizer& quantizer, const Tensor& x, const Tensor& y,
                 const Tensor& scales) {
  const QuantizeNumbers n = numbers_of(quantizer);
  const auto* const in = x.data<float>();
  auto *const out = y.data<float>(), *const of_pieces = scales.data<float>();
  for_each_piece(0, x.numel(), [&](int64_t from, int64_t count, int64_t k) {
    const Scale scale = scale_of_block(n, largest_magnitude(in + from, count), 0);
    for (int64_t i = from; i < from + count; ++i) out[i] *= scale.in;
    of_pieces[k] = scale.out;
  });
  mark_written(y), mark_written(scales);
}

std::vector<std::string> all_names() {
  std::vector<std::string> names;
  for (const std::string_view feedback : {std::string_view(), fed_back}) {
    names.push_back("own" + std::string(feedback));
    for (const DType dtype : wire_dtypes)
      for (const std::string_view random : {std::string_view(), at_random})
        if (dtype != f32 || random.empty())
          names.push_back(std::string(name(dtype)) + std::string(random) + std::string(feedback));
  }
  return names;
}

}  // namespace

std::span<const std::string_view> WireFormat::names() {
  static const std::vector<std::string> texts = all_names();
  static const std::vector<std::string_view> views(texts.begin(), texts.end());
  return views;
}

WireFormat WireFormat::named(std::string_view name) {
  if (std::ranges::find(names(), name) == names().end())
    fail_unknown_name("distributed", "wire format", name, names());
  WireFormat format;
  const auto take = [&](std::string_view ending) {
    if (!name.ends_with(ending)) return false;
    name.remove_suffix(ending.size());
    return true;
  };
  format.error_feedback = take(fed_back);
  format.stochastic = take(at_random);
  format.dtype = dtype_named(name);  // "own" gives none
  return format;
}

std::string name(const WireFormat& format) {
  std::string text(format.dtype ? halftone::name(*format.dtype) : "own");
  if (format.stochastic) text += at_random;
  if (format.error_feedback) text += fed_back;
  return text;
}

void check_wire(const WireFormat& format) {
  const std::string given = name(format);
  const auto names = WireFormat::names();
  if (std::ranges::find(names, given) == names.end())
    fail_unknown_name("distributed", "wire format", given, names);
}

DType dtype_on_wire(const WireFormat& format, DType own) {
  return format.dtype && own != f64 ? *format.dtype : own;
}

bool is_lossless(const WireFormat& format, DType own) {
  const DType wire = dtype_on_wire(format, own);
  return wire == own || wire == f32;
}

bool stays_on_device(const WireFormat& format) {
  const bool converts = !format.dtype || *format.dtype == f32 || *format.dtype == bf16;
  return converts && !format.stochastic && !format.error_feedback;
}

Payload Payload::part(int64_t from, int64_t count) const {
  Payload result{.values = views::slice(values, 0, from, count), .scales = {}, .begin = from};
  if (scales.defined() && count > 0)
    result.scales =
        views::slice(scales, 0, from / piece_length, pieces_of(from + count) - from / piece_length);
  return result;
}

std::vector<Tensor> Payload::tensors() const {
  if (values.numel() == 0) return {};
  return scales.defined() ? std::vector{values, scales} : std::vector{values};
}

Payload Payload::empty(const WireFormat& format, DType own, int64_t from, int64_t count,
                       Device device) {
  const DType wire = dtype_on_wire(format, own);
  Payload result{.values = halftone::empty({count}, wire, device), .scales = {}, .begin = from};
  if (count > 0 && wire != own && distributed::scales(wire))
    result.scales = halftone::empty({pieces_of(from + count) - from / piece_length}, f32);
  return result;
}

Payload to_wire(const Tensor& gradient, const WireFormat& format, RandomKey key,
                const Feedback& feedback) {
  const DType own = gradient.dtype(), wire = dtype_on_wire(format, own);
  const bool converts = wire == bf16 && !format.stochastic && !feedback.rest.defined();
  if (is_lossless(format, own) || converts) return {.values = flat(converted_to(gradient, wire))};
  const MemoryScope scope(MemoryUse::workspace);
  const Tensor x = with_feedback(gradient, feedback);
  const Quantizer quantizer = quantizer_of(wire, format.stochastic);
  Tensor y = empty(x.shape());
  backend_for(x).quantize(x, {.quantizer = quantizer, .key = key}, y);
  if (feedback.rest.defined()) keep_rest(x, y, feedback.rest);
  Payload payload = Payload::empty(format, own, 0, x.numel());
  if (payload.scales.defined()) take_scales(quantizer, x, y, payload.scales);
  backend_for(y).copy(y, payload.values);
  return payload;
}

Tensor from_wire(const Payload& payload) {
  const Tensor& x = payload.values;
  if (!payload.scales.defined()) return converted_to(x, x.dtype() == f64 ? f64 : f32);
  const Tensor y = converted_to(x, f32);
  auto* const to = y.data<float>();
  const auto* const of_pieces = payload.scales.data<float>();
  for_each_piece(payload.begin, x.numel(), [&](int64_t from, int64_t count, int64_t k) {
    for (int64_t i = from; i < from + count; ++i) to[i] *= of_pieces[k];
  });
  mark_written(y);
  return y;
}

}  // namespace halftone::distributed
