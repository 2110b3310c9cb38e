// On the host, element by element.
#include <halftone/amp/weight_storage.h>

#include <halftone/core/backend.h>
#include <halftone/core/factory.h>

namespace halftone::amp {

MemoryUse companion_use(WeightForm form) {
  return form == WeightForm::kahan ? MemoryUse::compensation : MemoryUse::master_weight;
}

void require_form(std::string_view where, WeightForm form, DType dtype) {
  if (facts(form).only_bf16 && dtype != bf16)
    fail<DTypeError>(where, name(form), " keeps bf16 parameters only, one is ", dtype,
                     ". Use master for f16.");
}

namespace {
/// Returns x as contiguous data on the host.
Tensor on_host(const Tensor& x, DType dtype) {
  Tensor plain = empty(x.shape(), dtype, x.device());
  backend_for(x).copy(x, plain);
  return plain.to(Device::cpu());
}
Tensor on_host(const Tensor& x) { return on_host(x, x.dtype()); }
}  // namespace

Tensor joined_weight(WeightForm form, const Tensor& parameter, const Tensor& companion) {
  const MemoryScope scope(MemoryUse::workspace);
  if (parameter.dtype() == f64) return on_host(parameter);
  Tensor weight = on_host(parameter, f32);
  if (!facts(form).has_companion()) return weight;
  const Tensor rest = on_host(companion, f32);
  const std::span<float> w(weight.data<float>(), std::size_t(weight.numel()));
  visit_index(WeightForms{}, int(form), [&]<class Form>() {
    for (std::size_t i = 0; i < w.size(); ++i) w[i] = Form::decode(w[i], rest.data<float>()[i]);
  });
  return weight;
}

void store_weight(WeightForm form, const Tensor& weight, Tensor& parameter, Tensor& companion) {
  const MemoryScope scope(MemoryUse::workspace);
  if (parameter.dtype() == f64) return copy_into(parameter, on_host(weight));
  const Tensor w = on_host(weight, f32);
  copy_into(parameter, w);
  if (!facts(form).has_companion()) return;
  Tensor upper = on_host(parameter, f32), rest = empty_like(w);
  visit_index(WeightForms{}, int(form), [&]<class Form>() {
    for (int64_t i = 0; i < w.numel(); ++i) {
      float& p = upper.data<float>()[i];
      const KeptWeight<float> kept = Form::encode(w.data<float>()[i], p, uint16_t(0));
      p = kept.parameter, rest.data<float>()[i] = kept.companion;
    }
  });
  copy_into(parameter, upper), copy_into(companion, rest);
}

}  // namespace halftone::amp
