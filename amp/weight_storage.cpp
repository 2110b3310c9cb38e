// On the host, element by element.
#include <halftone/amp/weight_storage.h>

#include <halftone/core/backend.h>
#include <halftone/core/factory.h>

namespace halftone::amp {

MemoryUse companion_use(WeightForm form) {
  return form == WeightForm::kahan ? MemoryUse::compensation : MemoryUse::master_weight;
}

std::string_view companion_name(WeightForm form) {
  switch (form) {
    case WeightForm::master: return "master";
    case WeightForm::split: return "remainder";
    case WeightForm::split_rounded: return "remainder_rounded";
    case WeightForm::kahan: return "compensation";
    default: return "";
  }
}

DType companion_dtype(WeightForm form, DType parameter) {
  if (form == WeightForm::master) return f32;
  return form == WeightForm::kahan ? parameter : i16;
}

void require_form(std::string_view where, WeightForm form, DType dtype) {
  const bool bf16_only = form == WeightForm::split || form == WeightForm::split_rounded ||
                         form == WeightForm::stochastic;
  if (bf16_only && dtype != bf16)
    fail<DTypeError>(where, name(form), " keeps bf16 parameters only, one is ", dtype,
                     ". Use master for f16.");
}

namespace {
/// x as contiguous data on the host.
Tensor on_host(const Tensor& x, DType dtype) {
  Tensor plain = empty(x.shape(), dtype, x.device());
  backend_for(x).copy(x, plain);
  return plain.to(Device::cpu());
}
Tensor on_host(const Tensor& x) { return on_host(x, x.dtype()); }
void write(const Tensor& values, Tensor& y) {
  backend_for(y).copy(values.to(y.device()), y);
  y.storage()->bump_version();
}
}  // namespace

Tensor joined_weight(WeightForm form, const Tensor& parameter, const Tensor& companion) {
  const MemoryScope scope(MemoryUse::workspace);
  const Tensor p = on_host(parameter);
  if (form == WeightForm::master) return on_host(companion);
  Tensor weight = empty(parameter.shape(), parameter.dtype() == f64 ? f64 : f32);
  backend_for(weight).copy(p, weight);
  if (companion_name(form).empty()) return weight;
  const Tensor c = on_host(companion);
  float* w = weight.data<float>();
  for (int64_t i = 0; i < weight.numel(); ++i) {
    if (form == WeightForm::kahan)
      w[i] += c.dtype() == bf16 ? float(c.data<BFloat16>()[i]) : float(c.data<Float16>()[i]);
    else if (form == WeightForm::split) w[i] = join({p.data<BFloat16>()[i], c.data<int16_t>()[i]});
    else w[i] = join_rounded({p.data<BFloat16>()[i], c.data<int16_t>()[i]});
  }
  return weight;
}

void store_weight(WeightForm form, const Tensor& weight, Tensor& parameter, Tensor& companion) {
  const MemoryScope scope(MemoryUse::workspace);
  const Tensor w = form == WeightForm::plain ? on_host(weight) : on_host(weight, f32);
  if (form == WeightForm::split || form == WeightForm::split_rounded) {
    Tensor upper = empty(w.shape(), bf16), lower = empty(w.shape(), i16);
    for (int64_t i = 0; i < w.numel(); ++i) {
      const float value = w.data<float>()[i];
      const SplitFloat s = form == WeightForm::split ? split(value) : split_rounded(value);
      upper.data<BFloat16>()[i] = s.upper, lower.data<int16_t>()[i] = s.lower;
    }
    write(upper, parameter), write(lower, companion);
    return;
  }
  write(w, parameter);
  if (form == WeightForm::master) write(w, companion);
  if (form == WeightForm::kahan) {
    Tensor rest = empty(w.shape(), f32), rounded = empty(w.shape(), f32);
    backend_for(rounded).copy(on_host(parameter), rounded);
    for (int64_t i = 0; i < w.numel(); ++i)
      rest.data<float>()[i] = w.data<float>()[i] - rounded.data<float>()[i];
    write(rest, companion);
  }
}

}  // namespace halftone::amp
