// The walks that every module inherits: each is a small Fields, or a loop over collected fields.
#include <halftone/nn/module.h>

#include <algorithm>

#include <halftone/core/backend.h>
#include <halftone/core/error.h>
#include <halftone/core/factory.h>

namespace halftone::nn {
namespace {

struct Collect final : Fields {
  std::vector<std::pair<std::string, Parameter*>> parameters;
  std::vector<std::pair<std::string, Buffer*>> buffers;
  std::vector<std::pair<std::string, Module*>> modules;

  // describe() is not const, since some walks write. This walk only reads, so it may enter a const
  // module.
  explicit Collect(const Module& root, std::function<bool(const Module&)> passed_over = {})
      : passes_over(std::move(passed_over)) {
    walk(const_cast<Module&>(root));
  }

  void parameter(const std::string& path, Parameter& x) override { add(parameters, path, x); }
  void buffer(const std::string& path, Buffer& x) override { add(buffers, path, x); }
  bool module(const std::string& path, Module& x) override {
    modules.emplace_back(path, &x);
    return !passes_over || !passes_over(x);
  }

 private:
  std::function<bool(const Module&)> passes_over;

  /// Adds each shared tensor once. The search is linear, but over hundreds of tensors at most.
  template <class T> static void add(Named<T*>& list, const std::string& path, T& x) {
    const bool known = std::any_of(list.begin(), list.end(), [&](const auto& entry) {
      return entry.second->body() == x.body();
    });
    if (!known) list.emplace_back(path, &x);
  }
};

template <class T> Named<Tensor> handles(const Named<T*>& list) {
  Named<Tensor> result;
  result.reserve(list.size());
  for (const auto& [path, x] : list) result.emplace_back(path, *x);
  return result;
}

/// Replaces the data in the body that all handles of x share. A gradient of the former dtype or
/// device would not fit, so it is dropped.
void replace(Tensor& x, const Tensor& data) {
  if (x.grad().defined()) x.set_grad(Tensor{});
  *x.body() = *data.body();
}

void convert(Tensor& x, DType dtype) {
  if (!is_floating(x.dtype()) || x.dtype() == dtype) return;
  const MemoryScope scope(x.storage()->use());
  Tensor converted = empty_like(x, dtype);
  backend_for(x).copy(x, converted);
  replace(x, converted);
}

void move(Tensor& x, Device device) {
  if (x.device() == device) return;
  const MemoryScope scope(x.storage()->use());
  replace(x, x.to(device));
}

}  // namespace

std::vector<Tensor> Module::parameters() const {
  std::vector<Tensor> result;
  for (const auto& [path, x] : Collect(*this).parameters) result.push_back(*x);
  return result;
}

Named<Tensor> Module::named_parameters() const { return handles(Collect(*this).parameters); }
Named<Tensor> Module::named_buffers() const { return handles(Collect(*this).buffers); }
Named<Module*> Module::named_modules() { return Collect(*this).modules; }

int64_t Module::parameter_count() const {
  int64_t count = 0;
  for (const auto& [path, x] : Collect(*this).parameters) count += x->numel();
  return count;
}

void Module::train(bool on) {
  for (const auto& [path, module] : named_modules()) module->training = on;
}

void Module::zero_grad() {
  for (const auto& [path, x] : Collect(*this).parameters) x->set_grad(Tensor{});
}

void Module::set_requires_grad(bool value) {
  for (const auto& [path, x] : Collect(*this).parameters) x->set_requires_grad(value);
}

void Module::to(DType dtype, const std::function<bool(const Module&)>& except) {
  if (!is_floating(dtype))
    fail<DTypeError>("Module.to", "parameters must be floating, got ", dtype,
                     ". Use f64, f32, f16 or bf16.");
  Collect fields(*this, except);
  for (auto& [path, x] : fields.parameters) convert(*x, dtype);
  const DType wide = size_of(dtype) < size_of(f32) ? f32 : dtype;
  for (auto& [path, x] : fields.buffers) convert(*x, x->stays_wide ? wide : dtype);
}

void Module::to(Device device) {
  backend_for(device);  // throws before anything is moved
  Collect fields(*this);
  for (auto& [path, x] : fields.parameters) move(*x, device);
  for (auto& [path, x] : fields.buffers) {
    if (!x->stays_on_host) move(*x, device);
  }
}

}  // namespace halftone::nn
