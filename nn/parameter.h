// The tensors that a module owns: parameters, which are trained, and buffers, which are not
// (running statistics). The ledger charges the bytes of both to `parameter`. Copies are handles to
// the same data, so an assignment of one module's parameter to another ties the two (`head.weight =
// embedding.weight`).
#pragma once

#include <halftone/autograd/node.h>
#include <halftone/core/factory.h>
#include <halftone/core/memory.h>
#include <halftone/core/tensor.h>

namespace halftone::nn {

/// A leaf that requires grad. Default-constructed it is undefined: a layer without bias.
struct Parameter : Tensor {
  Parameter() = default;
  /// Takes the data of `value`, without its history, and charges its storage to
  /// MemoryUse::parameter.
  explicit Parameter(const Tensor& value) : Tensor(value.body()) {
    storage()->recharge(MemoryUse::parameter);
    set_requires_grad();
    meta()->unclaimed = true;
  }
  /// Uninitialized; nn/init.h fills it.
  explicit Parameter(const Shape& shape, DType dtype = f32, Device device = {})
      : Parameter(allocated(shape, dtype, device)) {}

 private:
  static Tensor allocated(const Shape& shape, DType dtype, Device device) {
    const MemoryScope scope(MemoryUse::parameter);
    return empty(shape, dtype, device);
  }
};

/// A part of a module's state that optimizers do not see.
struct Buffer : Tensor {
  Buffer() = default;
  explicit Buffer(const Tensor& value) : Tensor(value.body()) {
    storage()->recharge(MemoryUse::parameter);
  }
  /// If true, Module::to(Device) leaves it on the CPU: a counter, which the host reads and writes
  /// at every step, would cost a synchronization each time on a GPU.
  bool stays_on_host = false;
  /// If true, Module::to(DType) makes it f32 instead of a short dtype: a running average moves by
  /// less than half of a short float's spacing long before it has arrived.
  bool stays_wide = false;
};

}  // namespace halftone::nn
