// A module is a struct whose members are parameters, buffers and other modules, named once in
// describe(). The object has no registry inside, so no pointer can become stale: modules can be
// moved. They cannot be copied, because a copy would share its parameters with the original.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <halftone/autograd/slots.h>
#include <halftone/nn/fields.h>

namespace halftone::nn {

template <class T> using Named = std::vector<std::pair<std::string, T>>;

struct Module {
  /// Read by Dropout and BatchNorm; written through train() and eval().
  bool training = true;

  Module() = default;
  Module(Module&&) = default;
  Module& operator=(Module&&) = default;
  virtual ~Module() = default;

  /// The only required function: calls `field(name, member)` for every parameter, buffer and child.
  virtual void describe(Fields& field) = 0;  // override it: { field("first", first); }

  /// Returns the parameters for an optimizer. A parameter that two modules share appears once,
  /// under its first name.
  std::vector<Tensor> parameters() const;
  Named<Tensor> named_parameters() const;
  Named<Tensor> named_buffers() const;
  /// Returns this module (under the name "") and all below it.
  Named<Module*> named_modules();
  /// Returns the number of elements of all parameters.
  int64_t parameter_count() const;

  void train(bool on = true);
  void eval() { train(false); }
  /// Drops the gradients.
  void zero_grad();
  /// Freezes (false) or unfreezes (true) all parameters.
  void set_requires_grad(bool value);

  /// Converts floating parameters and buffers, which lose their gradients; running statistics of
  /// norms are f32 also if the rest is short. The storage is replaced inside the tensor that all
  /// handles share, so an existing optimizer sees the change.
  void to(DType dtype) { to(dtype, {}); }
  /// The same, but modules for which `except` is true, and all below them, are not converted.
  void to(DType dtype, const std::function<bool(const Module&)>& except);
  /// Moves everything but buffers that stay on the host, in the same way.
  void to(Device device);

  /// Returns a scope that assigns operations of this thread to this module: `const CallScope scope
  /// = call_scope();` is the first line of the call function of a module that is not a Layer.
  /// `label` names a part that is not a module; it must outlive the scope.
  [[nodiscard]] CallScope call_scope(std::string_view label = {}) const {
    return CallScope(this, label, &Module::held_buffers);
  }

 private:
  /// Returns copies of the buffers of a module, for passes that are repeated (buffer_copies.cpp).
  static std::shared_ptr<HeldBuffers> held_buffers(const void* module);
};

/// A module that maps one tensor to one tensor: the elements of a Sequential.
struct Layer : Module {
  /// Calls forward() within a scope that assigns its operations to this module. Callers use this.
  Tensor operator()(const Tensor& x) const {
    const CallScope scope = call_scope();
    return forward(x);
  }
  /// Computes the layer. As torch.nn.Module.forward.
  virtual Tensor forward(const Tensor& x) const = 0;  // override it, as const
};

/// A layer without parameters, buffers and children.
struct StatelessLayer : Layer {
  void describe(Fields&) override {}
};

}  // namespace halftone::nn
